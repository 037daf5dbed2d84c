"""Models and their tokenizers from folders: whole models, and adapters (LoRA) beside the model that they change."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import InvalidRequest
from ..recipes import ModelTable
from . import check_packages, checkpoint
from .new_policy import empty_folder, write

SMALL = 20_000_000
"""Parameters below which a model generates on one thread of the CPU."""
ADAPTER = "adapter_config.json"
"""The file by which peft knows a folder of adapters."""


def device_of(name: str) -> str:
    """Return the device of that name; "" is the GPU where torch sees one, else the CPU.

    Raises:
        InvalidRequest: torch sees no such device.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not name:
        return "cuda" if seen else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise InvalidRequest(f"No device {name!r:.60}.", hint="Name cpu or cuda.")
    if kind == "cuda" and int(number or 0) >= seen:
        raise InvalidRequest(
            f"torch sees {seen or 'no'} CUDA device{'s' * (seen > 1)}, and {name} was named.",
            hint="Name cpu, or install the GPU's driver and a torch that is built for CUDA.",
        )
    return name if kind == "cuda" else kind


def load_model(
    path: str, device: str, table: ModelTable | None = None, *, seed: int = 0, dtype: Any = None
) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a folder or hub name.

    Dropout inside the model is switched off: the probabilities that are trained are
    those that the replies were drawn with; ``lora_dropout`` stays, for whoever asks for it.

    Args:
        path: Hugging Face folder or hub name; a folder of adapters names its model itself.
        device: "cpu" or "cuda".
        table: adapters, type and checkpointing for training. None gives a plain model, with adapters merged into it.
        seed: of fresh adapters.
        dtype: of the weights; by default float32 on the CPU, and elsewhere the table's or, without one, the folder's.

    Raises:
        InvalidRequest: there is no such model, or it has no chat template.
        MissingExtra: there are adapters, and peft is not installed.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    base = _base_of(path)
    if dtype is None:
        dtype = torch.float32 if device == "cpu" else "auto" if table is None else getattr(torch, table.dtype)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        model = model.to(device)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InvalidRequest(f"No model at {base!r}: {str(error)[:300]}", hint=_hint(path, base)) from error
    if tokenizer.chat_template is None:
        raise InvalidRequest(f"The tokenizer of {path} has no chat template.", hint="Use an instruction-tuned model.")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model = _adapted(model, path, None if table is None else table.lora, seed)
    if table is not None and table.gradient_checkpointing:
        # The name depends on the version of transformers. The reentrant kind would lose the adapters' gradients.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return model.eval(), tokenizer


def _base_of(path: str) -> str:
    """Return the folder or name of the model itself, absolute where it is a folder."""
    config = Path(path) / ADAPTER
    if config.is_file():
        try:
            path = str(json.loads(config.read_text())["base_model_name_or_path"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{config} is damaged: {error}.", hint="Name another folder.") from error
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def _hint(path: str, base: str) -> str:
    if not (Path(path) / ADAPTER).is_file():
        return "Name a Hugging Face folder."
    return f"{path} holds adapters of {base}: put it back there, or correct the path in {ADAPTER}."


def _adapted(model: Any, path: str, lora: dict[str, Any] | None, seed: int) -> Any:
    there = (Path(path) / ADAPTER).is_file()
    if not there and lora is None:
        return model
    check_packages("peft")
    import peft

    with warnings.catch_warnings(), torch.random.fork_rng():
        # peft asks transformers by a name that is to go.
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing", FutureWarning)
        torch.manual_seed(seed)
        if there:
            wrapped = peft.PeftModel.from_pretrained(model, path, is_trainable=lora is not None)
            return wrapped if lora is not None else wrapped.merge_and_unload()
        try:
            return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **(lora or {})))
        except (TypeError, ValueError) as error:
            hint = "Its keys are those of peft's LoraConfig."
            raise InvalidRequest(f"model.lora: {str(error)[:300]}", hint=hint) from error


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Return the ids of the tokens that end a reply."""
    ids = model.generation_config.eos_token_id
    return {tokenizer.eos_token_id, *([] if ids is None else [ids] if isinstance(ids, int) else ids)}


THREADS = torch.get_num_threads()
"""Of the CPU, for large products; OMP_NUM_THREADS limits them."""


def set_threads(model: Any, device: str) -> None:
    """Generate with a small model on one thread of the CPU: several make small products slower."""
    if device == "cpu" and sum(each.numel() for each in model.parameters()) < SMALL:
        torch.set_num_threads(1)


@contextmanager
def all_threads() -> Iterator[None]:
    """Use all threads: an update has large products also where the model is small."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def policy_folder(path: str) -> str:
    """Return the folder of a policy's weights: of a run its newest checkpoint, any other folder as it is.

    Raises:
        InvalidRequest: there is no such folder, or nothing in it that could be a policy.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InvalidRequest(f"{path} is no folder.", hint="Name a Hugging Face folder, or the folder of a run.")
    if (folder / "checkpoints").is_dir():
        newest = checkpoint.newest(folder / "checkpoints")
        if newest is None:
            raise InvalidRequest(f"The run {path} has no checkpoint yet.", hint="Wait for its first one.")
        return str(newest)
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        raise InvalidRequest(
            f"{path} holds no model.", hint="Name a folder with a config.json, or the folder of a run."
        )
    return path


def export(path: str, out: Path) -> None:
    """Write a policy as a plain Hugging Face folder: adapters merged into the model, no trainer's state.

    Args:
        path: folder of a policy or of a run.
        out: the folder to make; it must not exist or be empty.

    Raises:
        InvalidRequest: there is no policy, or ``out`` holds something or cannot be made.
        RecordError: the disk refused.
    """
    folder = policy_folder(path)
    empty_folder(out)
    model, tokenizer = load_model(folder, "cpu", dtype="auto")
    write(model, tokenizer, out)
