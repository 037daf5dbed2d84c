from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from turngym.trainer_backends.watching.folder import read_run
from turngym.trainer_backends.watching.groups import apart, differences, group, interval

Make = Callable[..., Path]


def test_runs_that_differ_in_the_seed_alone_are_one_method(make_run: Make) -> None:
    folders = [
        make_run("gigpo-0", seed=0),
        make_run("grpo-0", seed=0, credit="grpo"),
        make_run("gigpo-1", seed=1),
        make_run("longer", seed=2, steps=40),
    ]
    found = group([read_run(folder) for folder in folders])
    assert [(each.name, len(each.runs)) for each in found] == [("gigpo", 2), ("grpo-0", 1), ("longer", 1)]
    assert differences(found) == {"credit.id": ["gigpo", "grpo", "gigpo"], "run.steps": ["30", "30", "40"]}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("t2po-seed1", "t2po-seed12"), "t2po"),
        (("t2po_s0", "t2po_s1"), "t2po"),
        (("gigpo2-0", "gigpo2-1"), "gigpo2"),
        (("runs-1", "runs-2"), "runs"),
        (("method/0", "method/1"), "method"),
        (("method/seed0", "method/seed1"), "method"),
    ],
)
def test_a_method_is_called_what_its_folders_begin_with(make_run: Make, names: tuple[str, str], said: str) -> None:
    (found,) = group([read_run(make_run(name, seed=seed)) for seed, name in enumerate(names)])
    assert found.name == said


def test_equal_names_are_told_apart(make_run: Make) -> None:
    runs = [read_run(make_run(f"{part}/run", credit=part)) for part in ("grpo", "gigpo")]
    assert [each.name for each in apart(runs)] == ["run #1", "run #2"]


def test_intervals() -> None:
    assert interval([0.2, 0.6, 0.4]).low == 0.2 and interval([0.2, 0.6, 0.4]).high == 0.6
    # Student's t with two degrees of freedom: 4.303 · 0.2 / √3
    found = interval([0.2, 0.6, 0.4], "95")
    assert (found.low, found.high) == (pytest.approx(0.4 - 0.4969, abs=1e-3), pytest.approx(0.4 + 0.4969, abs=1e-3))
    assert interval([0.5], "95").low == interval([0.5], "95").high == 0.5


def test_a_method_is_drawn_as_mean_and_interval(make_run: Make) -> None:
    runs = [read_run(make_run(f"m-{seed}", seed=seed, success=success)) for seed, success in enumerate((0.2, 0.6, 0.4))]
    (least,) = group(runs)
    line = least.line("eval_success", "p0")
    assert line.points[-1] == (30, pytest.approx(0.4)) and line.band[-1] == (30, 0.2, 0.6)
    assert least.final("eval_success").mean == pytest.approx(0.4)  # type: ignore[union-attr]
    (student,) = group(runs, "95")
    _, low, high = student.line("eval_success", "p0").band[-1]
    assert (low, high) == (0.0, pytest.approx(0.897, abs=1e-3))  # a share ends at 0


def test_a_single_run_has_its_own_interval(make_run: Make) -> None:
    (only,) = group([read_run(make_run())])
    found = only.final("eval_success")
    assert found is not None and (found.mean, found.low, found.high) == (0.6, 0.5, 0.7)
    assert only.line("eval_success", "p0").band[-1] == (30, 0.5, 0.7)
    assert only.final("kl") is None


@pytest.mark.parametrize(
    ("evaluated", "before"), [((0, 10, 30), 0.2), ((0,), None), ((30,), None), ((10, 30), None), ((), None)]
)
def test_before_is_an_evaluation_at_step_0(make_run: Make, evaluated: tuple[int, ...], before: float | None) -> None:
    folder = make_run()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    entries = [(line, json.loads(line)) for line in lines]
    left = [line for line, entry in entries if entry["kind"] != "eval" or entry["step"] in evaluated]
    (folder / "metrics.jsonl").write_text("".join(left))
    (only,) = group([read_run(folder)])
    found = only.first("eval_success")
    assert (found and found.mean) == before


def test_runs_of_different_length_are_averaged_as_far_as_all_go(make_run: Make) -> None:
    runs = [read_run(make_run(f"m-{seed}", seed=seed, done=done)) for seed, done in enumerate((30, 12))]
    (found,) = group(runs)
    assert [x for x, _ in found.line("success", "p0").points] == list(range(1, 13))


def test_lines_over_tokens_and_seconds(make_run: Make) -> None:
    slow = read_run(make_run("m-0", seed=0))
    fast = read_run(make_run("m-1", seed=1, line=lambda step: {"sampled_tokens": 2000.0}))
    (single,) = group([slow])
    assert single.line("eval_success", "p0", "tokens").points == [
        (0, 0.2),
        (10_000, pytest.approx(1 / 3)),
        (20_000, pytest.approx(7 / 15)),
        (30_000, 0.6),
    ]
    assert single.line("success", "p0", "seconds").points[0] == (2.0, 0.02)
    (both,) = group([slow, fast])
    points = both.line("eval_success", "p0", "tokens").points
    # After 30,000 tokens one run is at its end, the other half way.
    assert points[0] == (0, 0.2) and points[-1] == (30_000, pytest.approx((0.6 + 0.4) / 2))
    assert both.total("sampled_tokens") == 45_000 and both.seconds == 60
