"""Tiny models with random weights; every model here is made, none is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.envs.presets import EnvPreset
from turngym.trainer_backends.torch_backend.new_policy import new_policy

VOCABULARY = 96
LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
PRESET = {
    "env": "frozen-lake",
    "config": {"size": 4, "max_actions_per_step": 1},
    "turn": {
        "style": "think-action",
        "memory": 0,
        "max_turns": 4,
        "prompt": {"first": "{observation}", "later": "{observation}"},
        "hooks": {"format-penalty": {"penalty": 0.1}},
    },
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small models run slower with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(family: str = "qwen3", **changes: Any) -> Any:
    """Return a model of two small layers."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    classes = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
        "llama": (LlamaConfig, LlamaForCausalLM, {}),
    }
    config, model, more = classes[family]
    shape = {**LLAMA_LIKE, "vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": 2}
    torch.manual_seed(0)
    made = model(config(**{**shape, **more, **changes}))
    with torch.no_grad():
        for parameter in made.parameters():  # fresh biases are 0 and would hide their absence
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


@pytest.fixture(scope="session")
def preset() -> EnvPreset:
    """A short FrozenLake with the map as the whole prompt."""
    return EnvPreset(**PRESET)


@pytest.fixture(scope="session")
def preset_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file."""
    path = tmp_path_factory.mktemp("preset") / "lake.toml"
    path.write_text(
        'env = "frozen-lake"\n[config]\nsize = 4\nmax_actions_per_step = 1\n[turn]\nstyle = "think-action"\n'
        'memory = 0\nmax_turns = 4\nprompt = { first = "{observation}", later = "{observation}" }\n'
        "hooks = { format-penalty = { penalty = 0.1 } }\n"
    )
    return path


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory, preset: EnvPreset) -> Path:
    """A policy that speaks FrozenLake, with random weights."""
    out = tmp_path_factory.mktemp("policy") / "new"
    new_policy(preset, out, size="tiny", vocabulary=400, length=256, episodes=8)
    return out
