from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="tensorboard: pip install 'turngym[tensorboard]'")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from turngym.errors import RecordError
from turngym.trainer_backends.watching.tensorboard import EventFiles, event_files


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard reads: tag -> (step, value)."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_numbers_are_filed_by_kind(tmp_path: Path) -> None:
    events = event_files(tmp_path)
    assert events is not None
    events.hear("start", {"step": 0.0, "start_loss": 2.0})
    events.hear("start", {"step": 0.0, "start_loss": 1.0})
    events.hear("eval", {"step": 0.0, "eval_success": 0.5})
    events.hear("train", {"step": 1.0, "success": 0.25, "gradient_norm": math.nan})
    events.hear("waiting", {"episodes": 3.0})
    events.close()
    assert read(events.folder) == {
        "start/loss": [(0, 2.0), (1, 1.0)],
        "eval/success": [(0, 0.5)],
        "train/success": [(1, 0.25)],
    }


def test_a_resumed_run_hides_the_steps_it_takes_again(tmp_path: Path) -> None:
    first = EventFiles(tmp_path)
    for step in (1, 2, 3):
        first.hear("train", {"step": float(step), "success": 0.125 * step})
    first.close()
    again = EventFiles(tmp_path)
    again.hear("resumed", {"step": 1})
    again.hear("train", {"step": 2.0, "success": 0.5})
    again.close()
    assert read(tmp_path)["train/success"] == [(1, 0.125), (2, 0.5)]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file")
    with pytest.raises(RecordError, match="Cannot write event files"):
        event_files(tmp_path)
