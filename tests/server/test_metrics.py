"""What Prometheus and load balancers read."""

from __future__ import annotations

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from turngym import __version__


def samples(hub: Any) -> dict[tuple[str, str], float]:
    """Return (sample name, sorted labels as text) -> value of every sample."""
    response = hub.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_sessions_steps_latencies_errors_and_evictions_are_counted(start_hub: Any) -> None:
    with start_hub(envs=("bandit", "odd-process"), max_sessions=77) as hub:
        hub.post("create", *[{"env": "bandit", "session": f"s{i}", "reset": True} for i in range(3)])
        hub.one("create", env="odd-process", reset=True)
        hub.post("step", *[{"session": f"s{i}", "action": "x"} for i in range(2)])
        assert hub.fail("create", env="bandit", config={"nope": 1}) == "INVALID_REQUEST"
        assert hub.fail("state", session="nobody") == "SESSION_NOT_FOUND"
        hub.http.post("/v1/step", content="{")
        hub.one("close", session="s2")
        hub.on_loop(lambda: setattr(hub.hub.accounts[0].sessions["s1"], "touched", -1e9))
        hub.on_loop(hub.hub.evict)
        with hub.socket():
            found = samples(hub)
    expected = {
        ("turngym_sessions", "env=bandit"): 1,
        ("turngym_sessions", "env=odd-process"): 1,
        ("turngym_sessions_created_total", "env=bandit"): 4,
        ("turngym_sessions_evicted_total", "env=bandit"): 1,
        ("turngym_steps_total", "env=bandit"): 2,
        ("turngym_step_seconds_count", "env=bandit"): 2,
        ("turngym_step_seconds_bucket", "env=bandit,le=+Inf"): 2,
        ("turngym_errors_total", "code=INVALID_REQUEST,env=bandit"): 1,
        ("turngym_errors_total", "code=SESSION_NOT_FOUND,env="): 1,
        ("turngym_errors_total", "code=INVALID_REQUEST,env="): 1,
        ("turngym_sessions_max", ""): 77,
        ("turngym_sockets", ""): 1,
        ("turngym_stuck_threads", ""): 0,
        ("turngym_draining", ""): 0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert 0 < found["turngym_step_seconds_sum", "env=bandit"] < 10
    buckets = [value for (name, labels), value in found.items() if name.endswith("_bucket") and "=bandit" in labels]
    assert buckets == sorted(buckets)
    assert found["process_resident_memory_bytes", ""] > 1e6


def test_health_and_readiness(start_hub: Any) -> None:
    with start_hub(envs=("bandit",)) as hub:
        assert hub.http.get("/health").json() == {"status": "healthy", "version": __version__}
        assert hub.http.get("/ready").json() == {"status": "ready"}
        hub.on_loop(lambda: setattr(hub.hub, "draining", True))
        assert hub.http.get("/health").status_code == 200
        assert (hub.http.get("/ready").status_code, hub.http.get("/ready").json()["code"]) == (503, "DRAINING")
        assert samples(hub)["turngym_draining", ""] == 1


def test_the_names_of_metrics_are_documented_by_a_help_line(running_hub: Any) -> None:
    text = running_hub.http.get("/metrics").text
    names = set(re.findall(r"^(turngym_\w+?)(?:_bucket|_count|_sum)?(?:\{| )", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    assert names
    assert names <= helped
