"""The learner's forward pass: prompts that rows share are computed once, and nothing else changes by that."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend import learner as module
from turngym.trainer_backends.torch_backend.batch import Sample, micro_batches
from turngym.trainer_backends.torch_backend.learner import Learner
from turngym.trainer_backends.torch_backend.optimizer import Optimizer

from .conftest import VOCABULARY, make_model


def samples(prompts: int, rows: int) -> list[Sample]:
    draw = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(3, VOCABULARY) for _ in range(count)]

    known = [tokens(draw.randrange(8, 20)) for _ in range(prompts)]
    made = []
    for _ in range(rows):
        prompt, reply = draw.choice(known), tokens(draw.randrange(1, 7))
        ids = [*prompt, *reply]
        made.append(Sample(ids=ids, places=list(range(len(prompt), len(ids)))))
    return made


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_shared_prompts_change_no_number_and_no_gradient(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = msgspec.convert({"env": {"preset": "compact-frozen-lake"}, "credit": {"id": "gae"}, "critic": {}}, Recipe)
    model, rows = make_model(family), samples(5, 24)
    learner = Learner(model, recipe, recipe.parts().loss)
    assert learner.head is not None
    torch.nn.init.normal_(learner.head.weight)
    passes = []
    model.model.register_forward_hook(lambda *_: passes.append(1))

    def measured() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        model.zero_grad()
        passed = learner.run(rows)
        assert passed.values_BT is not None
        (passed.logprobs_BT.sum() + 0.3 * passed.values_BT.sum()).backward()
        numbers = [passed.logprobs_BT, passed.entropies_BT, passed.values_BT]
        return numbers, [each.grad.clone() for each in model.parameters() if each.grad is not None]

    shared = measured()
    assert len(passes) == 2  # the prompts, the replies
    monkeypatch.setattr(module, "SHARE_BELOW", 0.0)
    alone = measured()
    assert len(passes) == 3
    for one, other in zip((*shared[0], *shared[1]), (*alone[0], *alone[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_rows_with_one_prompt_stay_together_and_none_is_lost() -> None:
    rows = samples(6, 40)
    batches = list(micro_batches(rows, 150))
    assert sorted(number for batch in batches for number in batch) == list(range(40))
    assert all(len(batch) * max(len(rows[number].ids) for number in batch) <= 150 for batch in batches)
    prompts = [tuple(rows[number].ids[: rows[number].places[0]]) for batch in batches for number in batch]
    assert sum(one != other for one, other in itertools.pairwise(prompts)) == len(set(prompts)) - 1


def moved(dtype: torch.dtype, steps: int) -> torch.Tensor:
    """Return how far the weights of a model have moved by small steps; every fifth time from a checkpoint."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16).to(torch.bfloat16).to(dtype)
    first = model.weight.detach().clone()
    optimizer = Optimizer([{"params": model.parameters(), "lr": 1e-5}])
    for step in range(steps):
        if step % 5 == 0:
            state = optimizer.state_dict()
            optimizer = Optimizer([{"params": model.parameters(), "lr": 1e-5}])
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        model(torch.eye(16, dtype=dtype)).square().sum().backward()
        optimizer.step()
    return (model.weight.detach() - first).float()


def test_steps_too_small_for_sixteen_bits_add_up() -> None:
    full, half = moved(torch.float32, 400), moved(torch.bfloat16, 400)
    assert full.abs().median() > 1e-3
    # What is left is the rounding of the weights themselves, of up to 0.25: half of 2 ** -10.
    assert (half - full).abs().max() < 2**-10
    assert half.abs().median() == pytest.approx(float(full.abs().median()), rel=0.1)
