from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from turngym.errors import InvalidRequest, RecordError
from turngym.trainer_backends.watching.folder import read_run, shares, smooth, with_rates


def test_a_run_is_read_as_it_was_written(make_run: Callable[..., Path]) -> None:
    run = read_run(make_run("one", seed=3))
    assert (run.name, run.seed, run.step, run.steps, run.finished, run.notes) == ("one", 3, 30, 30, True, ())
    assert run.points("eval_success") == [(0, 0.2), (10, pytest.approx(1 / 3)), (20, pytest.approx(7 / 15)), (30, 0.6)]
    assert run.points("success")[:2] == [(1, 0.02), (2, 0.04)]
    assert run.total("sampled_tokens") == 30_000 and run.last("tokens_won") == 60 and run.last("kl") is None


def test_a_run_that_goes_on_is_read_so_far(make_run: Callable[..., Path]) -> None:
    folder = make_run(done=12)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "step": 13, "succ')  # just being written
    run = read_run(folder)
    assert (run.step, run.finished, run.notes) == (12, False, ())


def test_a_run_without_a_step_is_a_run(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    (folder / "metrics.jsonl").unlink()
    run = read_run(folder)
    assert (run.step, run.train, run.evals, run.finished) == (0, (), (), False)


def test_damaged_lines_are_told_and_left_out(make_run: Callable[..., Path]) -> None:
    folder = make_run(steps=10)
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    (folder / "metrics.jsonl").write_bytes(b"\n".join([lines[0], b"\xff{", b"[1]", b'{"step": 1}', *lines[1:]]))
    run = read_run(folder)
    assert run.step == 10 and len(run.train) == 10
    assert run.notes == ("metrics.jsonl: 3 damaged lines were left out (line 2, 3, 4).",)


def test_a_step_that_was_taken_again_counts_as_it_came_out_last(make_run: Callable[..., Path]) -> None:
    folder = make_run(steps=3)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "step": 2, "success": 0.75}\n')
    assert read_run(folder).points("success") == [(1, 0.02), (2, 0.75), (3, 0.06)]


def test_what_was_not_finite_is_no_number(make_run: Callable[..., Path]) -> None:
    run = read_run(make_run(steps=3, line=lambda step: {"gradient_norm": math.nan if step == 2 else 1.0}))
    first, second, third = (value for _, value in run.points("gradient_norm"))
    assert (first, third) == (1.0, 1.0) and math.isnan(second)
    assert run.total("gradient_norm") == 2.0


def test_other_folders_are_refused(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequest, match="not the folder of a training run"):
        read_run(tmp_path)
    folder = make_run()
    (folder / "recipe.json").write_bytes(b"{")
    with pytest.raises(RecordError, match=r"recipe\.json"):
        read_run(folder)


def test_rates_follow_from_the_numbers() -> None:
    entry = with_rates({"sampled_tokens": 500.0, "rollout_seconds": 2.0, "success": 0.25, "episodes": 8.0})
    assert (entry["tokens_per_second"], entry["won_per_1k_tokens"]) == (250, 4)
    assert "tokens_per_second" not in with_rates({"success": 0.5})
    assert shares({"rollout_seconds": 3.0, "update_seconds": 1.0, "success": 1.0}) == {"rollout": 0.75, "update": 0.25}
    assert shares({"success": 1.0}) == {}


def test_smoothing_keeps_a_constant_and_leaves_short_lines_alone() -> None:
    assert smooth([(x, 1.0) for x in range(39)]) == []
    assert smooth([(x, 2.0) for x in range(100)]) == [(x, 2.0) for x in range(100)]
    wave = [(float(x), float(x % 2)) for x in range(200)]
    assert all(0.3 < value < 0.7 for _, value in smooth(wave))
