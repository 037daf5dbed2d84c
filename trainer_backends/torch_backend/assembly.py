"""From a recipe to what a training run is made of: its folder, its first policy, its reference, its engine."""

from __future__ import annotations

import copy
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...envs.presets import EnvPreset
from ...errors import InvalidRequest, RecordError
from ..algorithms import parts
from ..recipes import Method, Recipe
from . import checkpoint
from .engine import Engine
from .lines import naming
from .loading import end_tokens, load_model
from .new_policy import new_policy
from .policy import TorchPolicy
from .sampling import Sampling


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep other processes from training in a run's folder meanwhile.

    Raises:
        InvalidRequest: one does already, or the folder cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / ".lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise InvalidRequest(f"{out} cannot be made: {error}.", hint="Name another folder with --out.") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"Another process is training in {out}.", hint="Wait until it ends, or name a new folder with --out."
            ) from None
        yield
    finally:
        os.close(lock)


def claim(out: Path, recipe: Recipe, model: str | None = None) -> None:
    """Make a run's folder, and note its recipe there.

    Args:
        out: the folder.
        recipe: of the run.
        model: policy to begin with, if it is not the recipe's.

    Raises:
        InvalidRequest: the folder holds a run of another recipe.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "recipe.json"
    data = msgspec.json.format(msgspec.json.encode(recipe), indent=1)
    if checkpoint.newest(out / "checkpoints") is None:
        # Nothing was trained here yet: the recipe may still be corrected, and with it the policy that was made for it.
        if path.is_file() and path.read_bytes() != data and not (model or recipe.model.path) and _made(path):
            shutil.rmtree(out / "policy", ignore_errors=True)
    elif path.is_file() and path.read_bytes() != data:
        try:
            known = msgspec.to_builtins(msgspec.json.decode(path.read_bytes(), type=Recipe))
        except msgspec.DecodeError as error:
            raise RecordError(f"{path} is damaged: {error}.", hint="Name a new folder.") from error
        now = msgspec.to_builtins(msgspec.json.decode(data, type=Recipe))  # JSON has no infinity: it is null in both
        # A run may be made longer.
        for each in (known, now):
            each["run"] = {**each["run"], "steps": 0, "minutes": 0, "tokens": 0}
            if (each.get("start") or {}).get("teacher"):  # and a teacher may have moved
                each["start"] = {**each["start"], "teacher": {**each["start"]["teacher"], "base_url": ""}}
        if known != now:
            raise InvalidRequest(f"{out} holds a run of another recipe.", hint="Name a new folder.")
    with naming(path):
        path.write_bytes(data)


def _made(path: Path) -> bool:
    """Return whether the policy in a run's folder was made for the recipe noted there."""
    try:
        table = msgspec.json.decode(path.read_bytes())["model"]
        return bool(table["new"]) and not table["path"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return False


def new_policy_of(recipe: Recipe, preset: EnvPreset, out: Path) -> str:
    """Make the policy that a recipe describes, unless an earlier start of the run has; return its folder.

    Raises:
        InvalidRequest: it describes none.
    """
    table, folder = recipe.model.new, out / "policy"
    if table is None:
        raise InvalidRequest("No model was named.", hint="Pass --model DIR, or set model.path in the recipe.")
    if not folder.exists():
        draft = out / "policy.draft"
        shutil.rmtree(draft, ignore_errors=True)
        new_policy(preset, draft, seed=recipe.run.seed, **msgspec.structs.asdict(table))
        draft.rename(folder)
    return str(folder)


def reference(recipe: Recipe, model: Any, path: str, out: Path) -> Any:
    """Return the policy as reinforcement found it: after the start, where there is one.

    Args:
        recipe: of the run.
        model: the run's, as it is now.
        path: what the run began with.
        out: its folder.
    """
    saved = next(checkpoint.found(out / "checkpoints"), None)
    if saved is None:
        kept = copy.deepcopy(model)
    else:
        path = str(saved) if saved.name.endswith("-000000") else path
        kept, _ = load_model(path, str(model.device), recipe.model, seed=recipe.run.seed)
    return kept.requires_grad_(False).eval()


def policy_of(recipe: Recipe, method: Method, model: Any, tokenizer: Any) -> TorchPolicy:
    """Return the policy that samples as a recipe says, with its token control."""
    control = None
    if method.token_control is not None or method.signal is not None:
        part = method.token_control or parts.load("token_control", "none")
        signal = None if method.signal is None else method.signal()
        device = model.get_input_embeddings().weight.device
        control = part(part.config.markers(tokenizer), signal, device=device)
    table = recipe.sampling
    engine = Engine(model, end_tokens(model, tokenizer), slots=table.slots, control=control)
    sampling = Sampling(
        max_tokens=table.max_tokens, temperature=table.temperature, top_p=table.top_p, top_k=table.top_k
    )
    return TorchPolicy(engine, tokenizer, sampling, name="policy", max_prompt_tokens=table.max_prompt_tokens)
