"""ScienceWorld beside the stock package, which starts a Java machine for every environment."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...envs.scienceworld.jvm import check_installed
from ...envs.scienceworld.simulation import Pool, Simulation, Start, gold_path
from .load import cpu_seconds

Row = dict[str, Any]
STOCK_FLAGS = "-Xmx256m -XX:+UseSerialGC -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
PLAYED = ("find-living-thing", "use-thermometer", "chemistry-mix", "power-component")
"""Tasks whose solutions are played, of four topics; the first variation of each, simplification "easy"."""
WARM, ROUNDS = 3, 5
_STARTS = tuple(Start(task, 0, "easy") for task in PLAYED)


def steps() -> list[Row]:
    """Return steps per second on the same actions, played in turns.

    By the clock, and by processor time (Java and Python together), which other work on the machine changes less.
    """
    check_installed()
    pool = Pool(machines=1, seats=8, limit=60)
    plans = [(start, gold_path(start, pool)) for start in _STARTS]
    listed = [(start._replace(valid=True, senses=True), path) for start, path in plans]
    with _stock(1) as (wrapper,):
        java, ours = wrapper._gateway.java_process.pid, pool.choose().process.pid
        players: dict[str, tuple[int, Callable[[], list[Any]]]] = {
            "stock env.step": (java, lambda: [_stock_play(wrapper, java, *plan) for plan in plans]),
            "ours, valid actions listed": (ours, lambda: [_play(ours, pool, *plan) for plan in listed]),
            "ours, none listed": (ours, lambda: [_play(ours, pool, *plan) for plan in plans]),
        }
        names = list(players)
        for _ in range(WARM):
            told = {name: [each.texts for each in play()] for name, (_, play) in players.items()}
        if told[names[0]] != told[names[1]]:
            raise RuntimeError("the transcripts differ from the stock package's")
        rounds = [{name: _rates(play()) for name, (_, play) in players.items()} for _ in range(ROUNDS)]
    pool.close()
    rows = []
    for name in names:
        row: Row = {"environment": name}
        for kind in ("s", "cpu_s"):
            row[f"steps_per_{kind}"] = statistics.median(each[name][kind] for each in rounds)
            row[f"to_stock_per_{kind}"] = statistics.median(each[name][kind] / each[names[0]][kind] for each in rounds)
        row["start_ms"] = statistics.median(each[name]["start_ms"] for each in rounds)
        rows.append(row)
    return rows


def sessions(counts: tuple[int, ...] = (8, 32), stock: int = 8) -> list[Row]:
    """Return the Java machines' memory per session that has played."""
    check_installed()
    with _stock(stock) as wrappers:
        for wrapper in wrappers:
            _stock_play(wrapper, wrapper._gateway.java_process.pid, _STARTS[0], ("look around",) * 10)
        used = sum(_pss_mb(wrapper._gateway.java_process.pid) for wrapper in wrappers)
        row: Row = {"environment": "stock", "sessions": stock, "machines": stock, "mb_a_session": used / stock}
        rows = [row | {"share_of_stock": 1.0}]
    base = rows[0]["mb_a_session"]
    for count in counts:
        pool = Pool(machines=os.cpu_count() or 1, seats=32, limit=60)
        alive = []
        for number in range(count):
            simulation = Simulation(_STARTS[number % len(_STARTS)]._replace(variation=number % 14), pool)
            simulation.reset()
            for _ in range(10):
                simulation.act("look around")
            alive.append(simulation)
        used = sum(_pss_mb(jvm.process.pid) for jvm in pool.jvms)
        rows.append(
            {
                "environment": "ours",
                "sessions": count,
                "machines": len(pool.jvms),
                "mb_a_session": used / count,
                "share_of_stock": used / count / base,
            }
        )
        pool.close()
    return rows


@contextmanager
def _stock(count: int) -> Iterator[list[Any]]:
    """Start that many environments of the stock package, deterministic ones, so that transcripts can be compared."""
    from scienceworld import ScienceWorldEnv  # type: ignore[import-untyped]

    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = STOCK_FLAGS
    try:
        wrappers = [ScienceWorldEnv("", envStepLimit=10_000) for _ in range(count)]
    finally:
        del os.environ["JDK_JAVA_OPTIONS"]
        if before is not None:
            os.environ["JDK_JAVA_OPTIONS"] = before
    yield wrappers
    for wrapper in wrappers:
        wrapper.close()
        wrapper._gateway.java_process.wait()
        wrapper.close = _ended


def _ended() -> None:
    """Stand in for what the wrapper's destructor calls, which complains where the machine has ended already."""


class Played(NamedTuple):
    """One run.

    Attributes:
        texts: what was said.
        start_s: seconds until the first observation.
        laps: seconds and processor seconds of every step.
    """

    texts: list[Any]
    start_s: float
    laps: list[tuple[float, float]]


def _stock_play(wrapper: Any, java: int, start: Start, path: tuple[str, ...]) -> Played:
    begun = time.perf_counter()
    wrapper.load(start.task, start.variation, start.simplifications)
    texts: list[Any] = [wrapper.reset()[0]]
    clock, ready = _Clock(java), time.perf_counter() - begun
    for action in path:
        text, _, done, info = wrapper.step(action)
        clock.lap()
        texts.append((text, info["score"], info["look"], info["inv"], info["valid"]))
        if done:
            break
    return Played(texts, ready, clock.laps)


def _play(java: int, pool: Pool, start: Start, path: tuple[str, ...]) -> Played:
    begun = time.perf_counter()
    simulation = Simulation(start, pool)
    texts: list[Any] = [simulation.reset().observation]
    clock, ready = _Clock(java), time.perf_counter() - begun
    for action in path:
        answer = simulation.act(action)
        clock.lap()
        texts.append((answer.observation, answer.points, answer.look, answer.inventory, list(answer.valid)))
        if answer.completed:
            break
    return Played(texts, ready, clock.laps)


class _Clock:
    """Times steps by the clock and by the processor time of this process and of Java."""

    def __init__(self, java: int) -> None:
        self._java = java
        self.laps: list[tuple[float, float]] = []
        self._last = self._now()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time() + cpu_seconds(self._java)

    def lap(self) -> None:
        """Note what has passed since the last lap."""
        now = self._now()
        self.laps.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now


def _rates(played: list[Played]) -> dict[str, float]:
    laps = [lap for each in played for lap in each.laps]
    return {
        "s": len(laps) / sum(each for each, _ in laps),
        "cpu_s": len(laps) / sum(each for _, each in laps),
        "start_ms": 1e3 * statistics.median(each.start_s for each in played),
    }


def _pss_mb(pid: int) -> float:
    """Return a process's memory, its part of what it shares included."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024
