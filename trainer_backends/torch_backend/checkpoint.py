"""Checkpoints: whole or not there.

A checkpoint is a folder ``step-000120`` that is written under another name, flushed to the disk and then renamed; one
that stood there before is renamed aside first. Whatever a killed run leaves beside them goes with the next one that is
written. A checkpoint is a plain Hugging Face folder (weights, tokenizer) with the trainer's state beside them, so that
it can be evaluated, served and trained on as it stands. With LoRA the weights are the adapters', as peft saves them.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ...errors import RecordError

STATE, TENSORS = "trainer.json", "trainer.pt"


def save(
    folder: Path, step: int, model: Any, tokenizer: Any, tensors: dict[str, Any], state: dict[str, Any], keep: int = 2
) -> Path:
    """Write a checkpoint and remove all but the newest ``keep`` and the first, where reinforcement began.

    Args:
        folder: the run's folder of checkpoints.
        step: training steps done.
        model: its weights are saved as Hugging Face does.
        tokenizer: beside them.
        tensors: optimizer and other state with tensors.
        state: everything else, as JSON.
        keep: how many stay beside the first.

    Raises:
        RecordError: the disk refused; older checkpoints stay as they are.
    """
    target = path_of(folder, step)
    draft = folder / f".draft-{step:06d}"
    _sweep(folder)
    try:
        draft.mkdir(parents=True)
        # Clones: the decoder lays weights out as views of one another's storage, which the format refuses.
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        # Adapters are saved without the model that they change, which stays where it is.
        options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
        model.save_pretrained(draft, state_dict=weights, **options)
        tokenizer.save_pretrained(draft)
        torch.save(tensors, draft / TENSORS)
        (draft / STATE).write_text(json.dumps({"step": step, **state}, indent=1))
        for path in draft.iterdir():
            _flush(path)
        if target.exists():
            _set_aside(target)
        draft.rename(target)
        _flush(folder)
        for superfluous in list(found(folder))[1:-keep]:
            _set_aside(superfluous)
    # A full disk is an OSError, a SafetensorError or torch's RuntimeError, by who wrote to it.
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RecordError(
            f"Checkpoint {target} could not be written: {error}.", hint="Free disk space, then resume the run."
        ) from error
    finally:
        _sweep(folder)
    return target


def path_of(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return folder / f"step-{step:06d}"


def forget_later(folder: Path, step: int) -> None:
    """Remove the checkpoints after a step."""
    for path in list(found(folder)):
        if path > path_of(folder, step):
            _set_aside(path)
    _sweep(folder)


def _set_aside(path: Path) -> None:
    """Take the name from a checkpoint that is to go: taken apart in place, a kill would leave half of it."""
    path.rename(path.with_name(f".old-{path.name}"))


def _sweep(folder: Path) -> None:
    """Remove what is no checkpoint, or no more."""
    for path in (*folder.glob(".draft-*"), *folder.glob(".old-*")):
        shutil.rmtree(path, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def found(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints of a run, the oldest first; drafts of a killed run are none."""
    yield from sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint, None where there is none."""
    return next(reversed(list(found(folder))), None)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (tensors, state) of a checkpoint.

    Raises:
        RecordError: it is damaged.
    """
    try:
        tensors = torch.load(path / TENSORS, map_location="cpu", weights_only=False)
        state = json.loads((path / STATE).read_text())
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise damaged(path, error) from error
    if not isinstance(state, dict) or "step" not in state:
        raise damaged(path, f"{STATE} names no step")
    return tensors, state


def damaged(path: Path, why: object) -> RecordError:
    """Return the error of a checkpoint that cannot be read."""
    return RecordError(f"Checkpoint {path} is damaged: {why}.", hint="Remove it: an older one is used.")
