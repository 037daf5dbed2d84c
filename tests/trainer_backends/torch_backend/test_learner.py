"""The learner's forward pass: what rows share is computed once, and nothing else changes by that."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend import packing
from turngym.trainer_backends.torch_backend.batch import Sample, micro_batches
from turngym.trainer_backends.torch_backend.learner import Learner
from turngym.trainer_backends.torch_backend.optimizer import Optimizer
from turngym.trainer_backends.torch_backend.packing import lay_out, mask_of, padded

from .conftest import VOCABULARY, make_model


def samples(tasks: int, rows: int) -> list[Sample]:
    """Return rows that share a task, some of them a history too, and some everything."""
    draw = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(3, VOCABULARY) for _ in range(count)]

    known = [tokens(draw.randrange(20, 40)) for _ in range(tasks)]
    made: list[Sample] = []
    for _ in range(rows):
        task, reply = draw.choice(known), tokens(draw.randrange(1, 7))
        prompt = [*task, *(draw.choice(made).ids[len(task) :][:3] if made else []), *tokens(draw.randrange(3))]
        ids = [*prompt, *reply]
        places = sorted(draw.sample(range(len(prompt), len(ids)), draw.randrange(1, len(reply) + 1)))
        made.append(Sample(ids=ids, places=places))
    return [*made, *made[:2]]


def recipe_of(**tables: Any) -> Recipe:
    return msgspec.convert({"env": {"preset": "compact-frozen-lake"}, "credit": {"id": "gae"}, **tables}, Recipe)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_what_rows_share_is_computed_once_and_nothing_changes_by_that(family: str, checkpointing: bool) -> None:
    recipe = recipe_of(critic={})
    model, rows = make_model(family), samples(3, 24)
    if checkpointing:
        model.activation_checkpointing_enable()
    model.train()
    learner = Learner(model, recipe, recipe.parts().loss)
    assert learner.head is not None
    torch.nn.init.normal_(learner.head.weight)
    read: list[int] = []
    told: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _, args, __: read.append(args[0].numel()))
    model.lm_head.register_forward_hook(lambda _, args, __: told.append(len(args[0])))

    def measured() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        model.zero_grad()
        numbers = [torch.zeros(len(rows), 6) for _ in range(3)]
        for batch in learner.batches(rows):
            passed = learner.run(rows, batch)
            assert passed.values_BT is not None
            (passed.logprobs_BT.sum() + 0.3 * passed.values_BT.sum()).backward()
            for number, part in zip(numbers, (passed.logprobs_BT, passed.entropies_BT, passed.values_BT), strict=True):
                number[torch.tensor(batch.rows), : part.shape[1]] = part.detach()
        return numbers, [each.grad.clone() for each in model.parameters() if each.grad is not None]

    shared, tokens, logits = measured(), sum(read), sum(told)
    read.clear()
    told.clear()
    learner.ratio = 0.0
    alone = measured()
    assert tokens < 0.7 * sum(read)
    assert logits < sum(told) == sum(len(row.places) for row in rows)
    for one, other in zip((*shared[0], *shared[1]), (*alone[0], *alone[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=3e-5)
    for row, logprobs in zip(rows, shared[0][0], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        own = [float(expected[place - 1, row.ids[place]]) for place in row.places]
        assert logprobs[: len(own)].tolist() == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("ratio", [0.0, 30.0, 1000.0])
def test_every_row_stands_in_one_pack_and_every_token_sees_its_own_row(ratio: float) -> None:
    rows = [each.ids for each in samples(4, 40)]
    packs = lay_out(rows, ratio, 60)
    assert sorted(number for pack in packs for number in pack.rows) == list(range(len(rows)))
    ids, positions, ends = padded(packs)
    assert (positions is None) == (ends is None) == (ratio == 0) == (len(packs) == len(rows))
    mask = None if ends is None else mask_of(ends, torch.float32)
    for place, pack in enumerate(packs):
        assert pack.size <= 60
        for number, nodes in zip(pack.rows, pack.nodes, strict=True):
            assert ids[place, nodes].tolist() == rows[number]
            if mask is not None and positions is not None:
                assert positions[place, nodes].tolist() == list(range(len(nodes)))
                for depth, node in enumerate(nodes):
                    assert (mask[place, 0, node] == 0).nonzero().squeeze(-1).tolist() == nodes[: depth + 1].tolist()
    if mask is not None:
        assert (mask == 0).any(-1).all()  # padding sees something, or softmax gives no number


def test_rows_that_begin_another_need_no_mask() -> None:
    packs = lay_out([[5, 6, 7, 8], [5, 6], [5, 6, 7, 8]], 100.0, 4096)
    assert len(packs) == 1 and packs[0].size == 4
    assert padded(packs)[1:] == (None, None)


def test_rows_with_little_in_common_stay_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    rows = [[*range(3, 23), *(draw.randrange(3, VOCABULARY) for _ in range(60))] for _ in range(3)]
    assert [len(pack.rows) for pack in lay_out(rows, 4000.0, 4096)] == [1, 1, 1]
    monkeypatch.setattr(packing, "SHARE_BELOW", 0.9)
    assert [len(pack.rows) for pack in lay_out(rows, 4000.0, 4096)] == [3]


@pytest.mark.parametrize("ratio", [0.0, 40.0, 300.0])
def test_batches_keep_within_their_tokens_and_lose_no_row(ratio: float) -> None:
    draw = random.Random(2)
    tasks = [[draw.randrange(3, 40) for _ in range(draw.randrange(5, 90))] for _ in range(12)]
    rows = []
    for _ in range(120):
        ids = [*draw.choice(tasks), *(draw.randrange(3, 40) for _ in range(draw.choice([1, 2, 10, 60])))]
        rows.append(Sample(ids=ids, places=list(range(1, len(ids)))))
    batches = list(micro_batches(rows, 400, ratio))
    assert sorted(number for batch in batches for number in batch.rows) == list(range(len(rows)))
    for batch in batches:
        assert len(batch.packs) * max(pack.size for pack in batch.packs) <= 400
        assert sorted(number for pack in batch.packs for number in pack.rows) == sorted(batch.rows)
    assert [len(batch.rows) for batch in micro_batches(rows, 1, 0.0)] == [1] * len(rows)


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
        optimizer.backward(model(torch.eye(16, dtype=dtype)).square().sum())
        optimizer.step()
    return (model.weight.detach() - first).float()


def test_gradients_of_many_passes_add_up_in_full_precision() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = Optimizer([{"params": [weight], "lr": 1e-5}])
    for _ in range(2):
        optimizer.zero_grad()
        for share in (1.0, *[2.0**-10] * 1024):  # each of the small ones is lost beside a 1 of 16 bits
            optimizer.backward((share * weight).sum())
        assert float(optimizer.clip(10.0)) == 2.0


def test_steps_too_small_for_sixteen_bits_add_up() -> None:
    full, half = moved(torch.float32, 400), moved(torch.bfloat16, 400)
    assert full.abs().median() > 1e-3
    # What is left is the rounding of the weights themselves, of up to 0.25: half of 2 ** -10.
    assert (half - full).abs().max() < 2**-10
    assert half.abs().median() == pytest.approx(float(full.abs().median()), rel=0.1)
