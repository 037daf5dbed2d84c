from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
from rich.console import Console

from turngym.errors import RecordError
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.watching.progress import Progress, sparkline, watch

STEP: dict[str, float] = {
    "episodes": 16.0,
    "failed": 0.0,
    "success": 0.25,
    "reward": 0.125,
    "policy_entropy": 1.5,
    "approx_kl": 0.0031,
    "sampled_tokens": 3000.0,
    "rollout_seconds": 2.0,
    "credit_seconds": 0.5,
    "update_seconds": 1.5,
}


def recipe(steps: int = 10, **more: Any) -> Recipe:
    data = {"env": {"preset": "compact-frozen-lake"}, "credit": {"id": "grpo"}, "run": {"steps": steps}, **more}
    return msgspec.convert(data, Recipe)


def console(terminal: bool = False, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def printed(where: Console) -> str:
    file = where.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_line_a_step(tmp_path: Path) -> None:
    where, clock = console(), Clock()
    with Progress(recipe(), where, now=clock) as shown:
        shown.hear("eval", {"step": 0.0, "eval_success": 0.5, "eval_success_low": 0.4, "eval_success_high": 0.6})
        for step in (1, 2):
            clock.now = 6.0 * step
            shown.hear("train", {"step": float(step), **STEP})
    lines = printed(where).splitlines()
    assert lines == [
        "step 0: held-out success 50.0 % (95 %: 40.0 to 60.0)",
        "step 1/10  success 25.0 %  reward 0.125  entropy 1.5  KL 0.0031  tokens/s 1,500  held-out 50.0 %  "
        "rollout 50%, credit 12%, update 38%  left 0:36",
        "step 2/10  success 25.0 %  reward 0.125  entropy 1.5  KL 0.0031  tokens/s 1,500  held-out 50.0 %  "
        "rollout 50%, credit 12%, update 38%  left 0:48",
    ]


def test_time_left_ends_with_the_minutes_of_the_recipe() -> None:
    shown = Progress(recipe(1000, run={"steps": 1000, "minutes": 0.2}), console(), now=Clock())
    assert shown.left() is None
    shown.hear("train", {"step": 1.0, **STEP})
    assert shown.left() == 12 - 4


def test_a_panel_in_a_terminal() -> None:
    where = console(terminal=True)
    with Progress(recipe(token_control=None), where, "a run") as shown:
        for step in range(1, 6):
            shown.hear("train", {"step": float(step), **STEP, "success": step / 10, "interventions": 0.5})
    last = printed(where).split("a run")[-1]
    assert "step 5/10" in last and re.search(r"success\s+50\.0 %\s+▁▃[▄▅]▆█", last)
    assert "rollout 50% · credit 12% · update 38%" in last
    assert "TTI" not in last  # this recipe has no such control


def test_warnings_are_shown_while_they_last() -> None:
    where = console(terminal=True)
    with Progress(recipe(), where) as shown:
        shown.hear("train", {"step": 1.0, **STEP, "failed": 4.0})
        during = printed(where)
        shown.hear("train", {"step": 2.0, **STEP})
    assert "Warning, step 1: 4 of 16 episodes failed" in during
    assert "4 of 16" not in printed(where)[len(during) :].split("step 2/10")[-1]


def test_waiting_and_resuming_are_said() -> None:
    where = console()
    with Progress(recipe(), where) as shown:
        shown.hear("resumed", {"step": 7})
        shown.hear("waiting", {"episodes": 3.0, "why": "The hub is full."})
        shown.hear("waiting", {})
        shown.hear("start", {"start_loss": 0.5, "epoch": 1.25})
    assert printed(where).splitlines() == [
        "Resumed after step 7.",
        "The hub is full. Waiting for the environment server. 3 episodes will be played again.",
        "Waiting for the environment server.",
        "start, start_loss 0.5, epoch 1.25",
    ]


def test_watching_notes_the_machine(tmp_path: Path) -> None:
    where = console()
    with watch(recipe(), tmp_path / "run", console=where) as report:
        report("train", {"step": 1.0, **STEP})
    machine = msgspec.json.decode((tmp_path / "run" / "machine.json").read_bytes())
    assert machine["cores"] >= 1 and machine["memory_gib"] >= 1 and machine["device"] == "cpu" and "torch" in machine
    assert "step 1/10" in printed(where)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RecordError, match="Cannot write"), watch(recipe(), tmp_path / "run", console=console()):
        pass


@pytest.mark.parametrize(
    ("values", "blocks"),
    [
        ([], ""),
        ([1.0], ""),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([0.0, float("nan"), 1.0], "▁ █"),
        ([float("inf"), 1.0, 2.0], " ▁█"),
    ],
)
def test_small_curves(values: list[float], blocks: str) -> None:
    assert sparkline(values) == blocks


def test_a_real_run_reports_what_the_figures_need(tmp_path: Path, make_policy: Callable[[], Path]) -> None:
    import asyncio

    from turngym.trainer_backends.torch_backend.trainer import Trainer
    from turngym.trainer_backends.watching.folder import read_run
    from turngym.trainer_backends.watching.report import write_report

    small = recipe(
        model={"path": str(make_policy()), "dtype": "float32"},
        rollout={"id": "chains", "samples": 2},
        sampling={"tasks": 2, "max_tokens": 6, "max_prompt_tokens": 256},
        run={"steps": 2, "eval_every": 1, "eval_tasks": 2},
    )
    out = tmp_path / "run"
    with watch(small, out, console=console()) as report:
        asyncio.run(Trainer(small, out, report=report).train())
    run = read_run(out)
    core = {"success", "reward", "reward_std", "policy_entropy", "gradient_norm", "response_tokens", "invalid",
            "repetitive", "sampled_tokens", "rollout_seconds", "update_seconds", "peak_memory_mb", "eval_success",
            "eval_success_low", "eval_success_high"}  # fmt: skip
    assert run.finished and core <= set(run.names)
    assert b"test/0" in write_report([out]).read_bytes()
