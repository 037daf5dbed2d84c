"""Counters of the hub, read by Prometheus.

The step path adds to plain integers; the metric families are built when ``/metrics`` is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from .hub import Hub

BUCKETS_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0, 30.0)
"""Upper bounds of the step latency histogram, seconds."""


class EnvStats:
    """Counters of one environment id.

    Attributes:
        env: registry id.
        live: sessions now.
        created: sessions made.
        evicted: sessions closed for idling.
        steps: steps executed.
        seconds: time spent in ``step`` of the environment.
        buckets: steps per latency bucket, the last one unbounded.
        errors: error code -> failed operations.
    """

    __slots__ = ("buckets", "created", "env", "errors", "evicted", "live", "seconds", "steps")

    def __init__(self, env: str) -> None:
        self.env = env
        self.live = 0
        self.created = 0
        self.evicted = 0
        self.steps = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.errors: Counter[str] = Counter()

    def stepped(self, seconds: float) -> None:
        """Count one step that took ``seconds``."""
        self.steps += 1
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1


class HubCollector:
    """Turns the counters of a hub into Prometheus metric families."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        sessions = GaugeMetricFamily("turngym_sessions", "Live sessions", labels=["env"])
        created = CounterMetricFamily("turngym_sessions_created", "Sessions made", labels=["env"])
        evicted = CounterMetricFamily("turngym_sessions_evicted", "Sessions evicted for idling", labels=["env"])
        steps = CounterMetricFamily("turngym_steps", "Steps executed", labels=["env"])
        errors = CounterMetricFamily("turngym_errors", "Failed operations", labels=["env", "code"])
        latency = HistogramMetricFamily("turngym_step_seconds", "Time spent in the environment's step", labels=["env"])
        for stats in self._hub.stats.values():
            sessions.add_metric([stats.env], stats.live)
            created.add_metric([stats.env], stats.created)
            evicted.add_metric([stats.env], stats.evicted)
            steps.add_metric([stats.env], stats.steps)
            latency.add_metric([stats.env], _cumulative(stats.buckets), stats.seconds)
            for code, number in stats.errors.items():
                errors.add_metric([stats.env, code], number)
        for code, number in self._hub.request_errors.items():
            errors.add_metric(["", code], number)
        yield from (sessions, created, evicted, steps, errors, latency)
        yield GaugeMetricFamily("turngym_sessions_max", "Sessions the hub may hold", self._hub.settings.max_sessions)
        yield GaugeMetricFamily("turngym_sockets", "Open WebSockets", len(self._hub.links))
        yield GaugeMetricFamily(
            "turngym_stuck_threads", "Threads given up after a timeout", self._hub.places.threads.stuck
        )
        pool = self._hub.places.pool
        rebuilt = CounterMetricFamily("turngym_sessions_rebuilt", "Sessions rebuilt by replay", labels=["env"])
        for env, number in pool.rebuilt.items():
            rebuilt.add_metric([env], number)
        yield rebuilt
        yield GaugeMetricFamily("turngym_workers", "Worker processes alive", pool.alive)
        yield GaugeMetricFamily("turngym_workers_max", "Worker processes at most", pool.size)
        yield CounterMetricFamily("turngym_worker_restarts", "Worker processes replaced by another", pool.restarts)
        yield GaugeMetricFamily("turngym_draining", "1 while the hub shuts down", int(self._hub.draining))


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total, rows = 0, []
    for bound, number in zip([*map(repr, BUCKETS_S), "+Inf"], buckets, strict=True):
        total += number
        rows.append((bound, float(total)))
    return rows


def registry_of(hub: Hub) -> CollectorRegistry:
    """Return a Prometheus registry with the hub's counters and the process's own (CPU, memory, files)."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(HubCollector(hub))
    ProcessCollector(registry=registry)
    return registry
