"""Evaluating a folder of weights in this process: a Hugging Face folder, a run, or one of its checkpoints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import msgspec

from ...client.policies import Context, Policy, Sampling, folders
from ...errors import InvalidRequest
from ...records import Completion
from . import check_packages

if TYPE_CHECKING:
    from .policy import TorchPolicy


class FolderLoader:
    """Loads folders with the torch backend; torch itself is imported on first use."""

    def locate(self, path: str) -> str:
        """Return the folder of the weights: of a run its newest checkpoint."""
        return str(_module("loading").policy_folder(path))

    def load(self, folder: str, *, name: str, sampling: Sampling, device: str, concurrency: int) -> Policy:
        """Return the policy; what ``sampling`` leaves open is the model's own setting, else 1, 1 and 0."""
        loading, engine = _module("loading"), _module("engine")
        for option in ("stop", "extra"):
            if getattr(sampling, option):
                raise InvalidRequest(f"A folder's policy takes no {option}.", hint="Leave it out.")
        chosen = loading.device_of(device)
        model, tokenizer = loading.load_model(folder, chosen)
        loading.set_threads(model, chosen)
        generator = engine.Engine(model, loading.end_tokens(model, tokenizer), slots=concurrency)
        policy: TorchPolicy = _module("policy").TorchPolicy(
            generator, tokenizer, _settings(model, sampling), seed=sampling.seed or 0, name=name
        )
        return policy if sampling.logprobs else _Terse(policy)


class _Terse:
    """Plays like another policy and leaves its tokens out of the records."""

    def __init__(self, policy: TorchPolicy) -> None:
        self.policy = policy
        self.name = policy.name

    async def act(self, context: Context) -> Completion:
        completion = await self.policy.act(context)
        return msgspec.structs.replace(
            completion, prompt_ids=None, token_ids=None, logprobs=None, entropies=None, certainty=None, forced=None
        )

    async def aclose(self) -> None:
        await self.policy.aclose()


def _settings(model: Any, sampling: Sampling) -> Any:
    own = model.generation_config
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    for source in (own if own.do_sample else None, sampling):
        given = {option: getattr(source, option, None) for option in values}
        values |= {option: value for option, value in given.items() if value is not None}
    return _module("sampling").Sampling(max_tokens=sampling.max_tokens, **values)


def _module(name: str) -> Any:
    """Import a module of the engine.

    Raises:
        MissingExtra: torch or transformers is not installed.
    """
    check_packages("torch", "transformers")
    return importlib.import_module(f".{name}", __package__)


folders.register(FolderLoader())
