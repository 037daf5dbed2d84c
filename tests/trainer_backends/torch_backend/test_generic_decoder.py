"""Any family generates with its own forward pass: what comes out is what the model says without a cache."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import numpy as np
import torch

from turngym.errors import InvalidRequest
from turngym.trainer_backends.torch_backend.decoder import Decoder, supported
from turngym.trainer_backends.torch_backend.engine import Engine, Request
from turngym.trainer_backends.torch_backend.generic_decoder import GenericDecoder
from turngym.trainer_backends.torch_backend.sampling import Sampling

from .conftest import LLAMA_LIKE, VOCABULARY, make_model

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "phi": LLAMA_LIKE,
    # Windows shorter than the prompts.
    "mistral": {**LLAMA_LIKE, "sliding_window": 6},
    "gemma3_text": {
        **LLAMA_LIKE,
        "head_dim": 8,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    # Positions as biases, and no limit to them.
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    # States in place of keys.
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}


def make(family: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def prompts(count: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(7, VOCABULARY, size=draw.integers(4, 30)).tolist() for _ in range(count)]


def generate(engine: Engine, wanted: list[list[int]]) -> list[Request]:
    requests = [
        engine.submit(ids, Sampling(max_tokens=5 + place % 7), np.random.default_rng(place))
        for place, ids in enumerate(wanted)
    ]
    list(engine.run())
    return requests


def as_the_model_says(model: Any, request: Request) -> bool:
    """Return whether a request's log-probabilities are those of one forward pass over it."""
    with torch.no_grad():
        logits = model(torch.tensor([[*request.prompt, *request.ids]]), use_cache=False).logits[0].float()
    rows = logits.log_softmax(-1)[len(request.prompt) - 1 : -1]
    expected = rows.gather(-1, torch.tensor(request.ids).unsqueeze(-1)).squeeze(-1)
    return bool(torch.allclose(torch.tensor(request.logprobs), expected, atol=1e-5))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_generates_what_its_own_forward_pass_says(family: str) -> None:
    model = make(family)
    assert not supported(model)
    wanted = [*prompts(9), *[prompts(1)[0]] * 2]
    alone = generate(Engine(model, [5, 6], slots=1, places=1), wanted)
    engine = Engine(model, [5, 6], slots=4, places=9)
    got = generate(engine, wanted)
    assert isinstance(engine.decoder, GenericDecoder)
    assert [each.ids for each in got] == [each.ids for each in alone]
    assert all(as_the_model_says(model, each) for each in got)
    # Prompts that go on from what was said: only what is new is computed, some rows more than they must.
    before = engine.prefilled
    longer = generate(engine, [[*each.prompt, *each.ids, 7, 8, 9] for each in got])
    assert engine.prefilled - before < sum(len(each.prompt) for each in longer)
    assert all(as_the_model_says(model, each) for each in longer)


def test_limits_are_the_models() -> None:
    assert Engine(make("gpt2"), [], slots=2).decoder.limit == 256
    assert Engine(make("bloom"), [], slots=2).decoder.limit == sys.maxsize
    with pytest.raises(InvalidRequest, match="longer than the model takes"):
        Engine(make("gpt2"), [], slots=2).submit([7] * 250, Sampling(max_tokens=20), np.random.default_rng(0))


def test_rows_far_longer_than_the_cache_was_and_short_ones_after() -> None:
    model = make("phi")
    engine = Engine(model, [], slots=3, places=5)
    lengths = [4, 200, 3, 30, 180, 5, 5, 90]
    wanted = [
        np.random.default_rng(number).integers(7, VOCABULARY, size).tolist() for number, size in enumerate(lengths)
    ]
    requests = [engine.submit(ids, Sampling(max_tokens=50), np.random.default_rng(0)) for ids in wanted]
    list(engine.run())
    assert all(as_the_model_says(model, each) for each in requests)
    decoder = engine.decoder
    assert isinstance(decoder, GenericDecoder)
    # Columns do not add up over the episodes.
    for _ in range(6):
        generate(engine, prompts(6))
    assert decoder.columns < 2 * 256


def test_dropout_of_the_update_is_off_in_generation() -> None:
    model = make("gpt2")
    engine = Engine(model, [], slots=4)
    model.train()
    got = generate(engine, prompts(4))
    model.eval()
    assert all(as_the_model_says(model, each) for each in got)


def lora(model: Any, **changes: Any) -> Any:
    """Wrap a model; the adapters are given weights, for fresh ones add nothing."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the form of GPT-2's layers
        wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_dropout": 0.5, **changes}))
    torch.manual_seed(1)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return wrapped.eval()


@pytest.mark.parametrize(
    ("family", "settings", "fast"),
    [
        ("gpt2", {}, False),
        ("qwen3", {}, True),
        ("qwen3", {"target_modules": ["q_proj", "v_proj", "up_proj", "o_proj"], "use_rslora": True}, True),
        ("qwen2", {"target_modules": "all-linear"}, True),
        ("llama", {"target_modules": "all-linear", "use_dora": True}, False),
        ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}, False),
    ],
)
def test_adapters_generate_what_their_forward_pass_says(family: str, settings: dict[str, Any], fast: bool) -> None:
    bare = make(family) if family in FAMILIES else make_model(family)
    plain = generate(Engine(bare, [], slots=4), prompts(6))
    model = lora(bare, **settings)
    engine = Engine(model, [], slots=4)
    assert isinstance(engine.decoder, Decoder) == fast
    model.train()
    got = generate(engine, prompts(6))
    model.eval()
    assert [each.ids for each in got] != [each.ids for each in plain]
    assert all(as_the_model_says(model, each) for each in got)
    # An optimizer's step is seen at once.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(2.0)
    engine.reset()
    after = generate(engine, prompts(6))
    assert [each.ids for each in after] != [each.ids for each in got]
    assert all(as_the_model_says(model, each) for each in after)


def test_a_cache_that_grew_can_be_rearranged() -> None:
    """The fast decoder's rows beyond the length that it begins with."""
    model = make_model(max_position_embeddings=600)
    engine = Engine(model, [], slots=3, places=4)
    wanted = [np.random.default_rng(number).integers(7, VOCABULARY, 300 + number).tolist() for number in range(5)]
    got = generate(engine, wanted)
    assert all(as_the_model_says(model, each) for each in got)


def test_half_precision_generates_and_is_measured_alike() -> None:
    model = make_model().to(torch.bfloat16)
    for each in generate(Engine(model, [], slots=4), prompts(4)):
        with torch.no_grad():
            logits = model(torch.tensor([[*each.prompt, *each.ids]])).logits[0].float()
        rows = logits.log_softmax(-1)[len(each.prompt) - 1 : -1]
        expected = rows.gather(-1, torch.tensor(each.ids).unsqueeze(-1)).squeeze(-1)
        assert each.logprobs == pytest.approx(expected.tolist(), abs=0.1)
