"""Training adapters: what is recorded is what is trained, runs resume, and what comes out is a plain model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from turngym.cli import main
from turngym.errors import InvalidRequest
from turngym.trainer_backends.recipes import ModelTable, Recipe
from turngym.trainer_backends.torch_backend import checkpoint
from turngym.trainer_backends.torch_backend.batch import Sample
from turngym.trainer_backends.torch_backend.engine import Engine
from turngym.trainer_backends.torch_backend.loading import load_model
from turngym.trainer_backends.torch_backend.sampling import Sampling
from turngym.trainer_backends.torch_backend.trainer import Trainer

LORA = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"}


def recipe_of(policy: Path, preset: Path, *, steps: int = 2, **changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "env": {"preset": str(preset)},
        "model": {"path": str(policy), "lora": LORA},
        "rollout": {"id": "chains", "samples": 2},
        "sampling": {"tasks": 2, "max_tokens": 8, "slots": 8},
        "credit": {"id": "grpo"},
        # A bonus that teaches something also where all rewards are equal.
        "entropy": {"coefficient": 0.1},
        "kl": {"coefficient": 0.01},
        "update": {"mini_batch": 8, "learning_rate": 1e-2, "micro_tokens": 512},
        "run": {"steps": steps, "eval_every": 0, "eval_tasks": 2, "save_every": 1, "deterministic": True},
    }
    return msgspec.convert({**base, **changes}, Recipe)


def run(recipe: Recipe, out: Path) -> Trainer:
    trainer = Trainer(recipe, out)
    asyncio.run(trainer.train())
    return trainer


def adapters(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if "lora_" in name}


@pytest.mark.parametrize("table", [{"lora": LORA}, {"lora": LORA, "gradient_checkpointing": True}, {}])
def test_the_engine_records_what_the_learner_computes(
    table: dict[str, Any], policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(policy_folder, preset_file, model={"path": str(policy_folder), **table})
    trainer = run(recipe, tmp_path / "run")
    engine = trainer.policy.engine
    draw = np.random.default_rng(0)
    for number in range(6):
        prompt = draw.integers(3, 60, size=5 + 3 * number).tolist()
        engine.submit(prompt, Sampling(max_tokens=4 + number), np.random.default_rng(number))
    requests = list(engine.run())
    samples = [
        Sample(ids=[*each.prompt, *each.ids], places=[len(each.prompt) + place for place in range(len(each.ids))])
        for each in requests
    ]
    trainer.model.train()  # the pass of an update
    passed = trainer.learner.run(samples)
    assert passed.logprobs_BT.requires_grad
    for row, each in zip(passed.logprobs_BT.tolist(), requests, strict=True):
        assert row[: len(each.ids)] == pytest.approx(each.logprobs, abs=1e-4)


def test_only_the_adapters_are_trained_and_a_resumed_run_goes_on_bitwise(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    whole = run(recipe_of(policy_folder, preset_file, steps=3), tmp_path / "whole")
    run(recipe_of(policy_folder, preset_file, steps=1), tmp_path / "parts")
    saved = checkpoint.newest(tmp_path / "parts" / "checkpoints")
    assert saved is not None
    assert not list(saved.glob("model*.safetensors"))  # the base is not copied
    parts = run(recipe_of(policy_folder, preset_file, steps=3), tmp_path / "parts")
    expected, got = adapters(whole.model), adapters(parts.model)
    assert expected
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert any(value.abs().max() > 0 for name, value in got.items() if "lora_B" in name)
    base = dict(AutoModelForCausalLM.from_pretrained(policy_folder).state_dict())
    kept = dict(parts.model.get_base_model().state_dict())
    for name, value in base.items():
        inside = name if name in kept else name.replace(".weight", ".base_layer.weight")
        assert torch.equal(value, kept[inside])


def test_a_run_is_exported_as_a_plain_model(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    trainer = run(recipe_of(policy_folder, preset_file), tmp_path / "run")
    assert main(["policy", "export", str(tmp_path / "run"), "--out", str(tmp_path / "plain")]) == 0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    ids = torch.arange(3, 40).unsqueeze(0)
    trainer.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, trainer.model(ids).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(AutoModelForCausalLM.from_pretrained(policy_folder)(ids).logits, plain(ids).logits)
    assert not list((tmp_path / "plain").glob("trainer.*"))
    assert main(["policy", "export", str(tmp_path / "run"), "--out", str(tmp_path / "plain")]) == 1


def test_adapters_without_their_model_say_where_it_was(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    run(recipe_of(policy_folder, preset_file, steps=1), tmp_path / "run")
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    config = saved / "adapter_config.json"
    config.write_text(config.read_text().replace(str(policy_folder), str(tmp_path / "gone")))
    with pytest.raises(InvalidRequest, match="put it back"):
        load_model(str(saved), "cpu")


def test_half_precision_is_loaded_and_its_adapters_stay_exact(policy_folder: Path) -> None:
    table = ModelTable(dtype="bfloat16", lora=LORA)
    model, _ = load_model(str(policy_folder), "cpu", table, dtype=torch.bfloat16)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters() if parameter.requires_grad} == {torch.float32}
    engine = Engine(model, [], slots=2)
    engine.submit([5, 6, 7], Sampling(max_tokens=4), np.random.default_rng(0))
    (request,) = engine.run()
    assert len(request.ids) == 4


def test_settings_that_peft_does_not_know_are_refused(policy_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"model\.lora"):
        load_model(str(policy_folder), "cpu", ModelTable(lora={"rank": 8}))
    with pytest.raises(InvalidRequest, match=r"model\.lora"):
        load_model(str(policy_folder), "cpu", ModelTable(lora={"target_modules": ["no_such_layer"]}))


@pytest.mark.parametrize("lora", [None, {"r": 4, "fan_in_fan_out": True}], ids=["whole", "adapters"])
def test_another_family_trains_with_a_critic(
    lora: dict[str, Any] | None, policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "eos_token_id": tokenizer.eos_token_id}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    model = {"path": str(tmp_path / "gpt2"), "lora": lora}
    recipe = recipe_of(tmp_path, preset_file, model=model, critic={}, credit={"id": "gae"}, steps=1)
    trainer = run(recipe, tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (line,) = [each for each in lines if each["kind"] == "train"]
    assert line["updates"] > 0
    assert line["value_loss"] >= 0
    assert line["approx_kl"] == pytest.approx(0, abs=0.05)
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert all("lora_" in name for name in trained) == (lora is not None)


def test_dropout_is_drawn_from_the_seed_of_the_run(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    model = {"path": str(policy_folder), "lora": {**LORA, "lora_dropout": 0.3}}
    one, two, three = (recipe_of(policy_folder, preset_file, steps=steps, model=model) for steps in (1, 2, 3))
    whole = adapters(run(three, tmp_path / "whole").model)
    run(one, tmp_path / "parts")
    torch.rand(5)  # whatever drew meanwhile
    run(two, tmp_path / "parts")
    parts = adapters(run(three, tmp_path / "parts").model)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
