from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.trainer_backends.watching.alarms import Alarms, judge, onsets
from turngym.trainer_backends.watching.folder import read_run

Numbers = Callable[[int], dict[str, Any]]


def test_a_collapse_is_judged_with_its_evidence(make_run: Callable[..., Path], collapse: Numbers) -> None:
    run = read_run(make_run(steps=60, line=collapse))
    verdict = judge(run.train)
    assert verdict.level == "collapse"
    assert {each.name for each in verdict.evidence if each.fired} == {"reward", "entropy"}
    assert judge(run.train[:30]).level == "warning"
    assert judge(run.train[:12]).level == "unknown"


def test_the_early_sign_is_seen_before_the_reward_falls(make_run: Callable[..., Path], collapse: Numbers) -> None:
    since = onsets(read_run(make_run(steps=60, line=collapse)).train)
    # The median of ten steps has turned once six of them have.
    assert since == {"entropy": 25, "reward": 45}


def test_a_run_that_learns_is_fine(make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(steps=40))
    assert judge(run.train).level == "fine" and onsets(run.train) == {}


def test_entropy_is_read_from_what_was_noted(make_run: Callable[..., Path]) -> None:
    def sampled(step: int) -> dict[str, Any]:
        return {"sampling_entropy": 1.0 if step < 20 else 0.1}

    run = read_run(make_run(steps=40, line=sampled))
    others = [{name: value for name, value in entry.items() if name != "policy_entropy"} for entry in run.train]
    assert "entropy" in onsets(others)


def test_warnings_are_said_once_for_as_long_as_they_last(collapse: Numbers) -> None:
    alarms = Alarms()
    said = {step: new for step in range(1, 61) if (new := alarms.hear({"step": step, **collapse(step)}))}
    assert list(said) == [25, 45]
    assert said[25][0].startswith("entropy went from 1 to 0.1")
    assert any("collapses" in text for text in said[45])
    assert set(alarms.active) == {"entropy", "reward", "collapse"}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"episodes": 16.0, "failed": 4.0}, "4 of 16 episodes failed"),
        ({"trained_rows": 0.0}, "Nothing was left to train on"),
        ({"trained_rows": 8.0, "advantage_zero": 1.0}, "Every advantage is 0"),
    ],
)
def test_steps_that_teach_nothing_are_told(numbers: dict[str, float], text: str) -> None:
    alarms = Alarms()
    (said,) = alarms.hear(numbers)
    assert text in said
    assert alarms.hear(numbers) == []  # it lasts
    assert alarms.hear({"trained_rows": 8.0}) == [] and alarms.active == {}
    assert alarms.hear(numbers) == [said]
