"""The decoder computes what the model itself computes, whatever is cached, moved and shared."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import numpy as np
import torch

from turngym.errors import InvalidRequest
from turngym.trainer_backends.torch_backend.decoder import Decoder, Prompts, supported
from turngym.trainer_backends.torch_backend.engine import Engine, Request
from turngym.trainer_backends.torch_backend.sampling import Sampling, draw

from .conftest import VOCABULARY, make_model

FAMILIES = ["qwen3", "qwen2", "llama"]


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(3, VOCABULARY, size=draw.integers(4, 30)).tolist() for _ in range(count)]


def generate(engine: Engine, wanted: list[list[int]], **sampling: Any) -> list[Request]:
    requests = [
        engine.submit(ids, Sampling(max_tokens=6 + place % 5, **sampling), np.random.default_rng(place))
        for place, ids in enumerate(wanted)
    ]
    assert len(list(engine.run())) == len(requests)
    return requests


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_models(family: str) -> None:
    model = make_model(family)
    assert supported(model)
    decoder = Decoder(model, places=5, length=8)  # so that the cache has to grow
    rows = prompts(5)
    none = torch.empty(0, dtype=torch.long)
    got = decoder.step(none, padded(rows[:3], [0, 1, 2]))
    for _ in range(4):
        got = decoder.step(next_tokens(rows[:3], got))
    # Two more join in the pass in which the others go on.
    got = decoder.step(next_tokens(rows[:3], got), padded(rows[3:], [4, 3]))
    assert len(got) == 5
    for number, row in enumerate(rows):
        torch.testing.assert_close(got[number], logits_of(model, row)[-1], rtol=1e-4, atol=1e-5)
    assert decoder.lengths[[0, 1, 2, 4, 3]].tolist() == [len(row) for row in rows]


def test_a_prompt_that_ends_where_the_cache_does_is_not_written_over() -> None:
    """Its padding, beside a longer prompt, has no place after it."""
    model = make_model()
    decoder = Decoder(model, places=2, length=16)
    draw = np.random.default_rng(0)
    long, short = (draw.integers(3, VOCABULARY, size).tolist() for size in (16, 12))
    none = torch.empty(0, dtype=torch.long)
    decoder.step(none, padded([long[:13]], [0]))
    got = decoder.step(none, padded([long[13:], short], [0, 1]))
    got = decoder.step(next_tokens([long, short], got))
    for number, row in enumerate((long, short)):
        torch.testing.assert_close(got[number], logits_of(model, row)[-1], rtol=1e-4, atol=1e-5)


def padded(rows: list[list[int]], places: list[int]) -> Prompts:
    counts = [len(row) for row in rows]
    ids = torch.tensor([row + [0] * (max(counts) - len(row)) for row in rows])
    return Prompts(ids, torch.tensor(places), torch.tensor(counts))


def next_tokens(rows: list[list[int]], logits: torch.Tensor) -> torch.Tensor:
    """Append the most likely tokens to the rows and return them."""
    tokens = logits.argmax(-1)
    for row, token in zip(rows, tokens.tolist(), strict=True):
        row.append(token)
    return tokens


def test_an_update_of_the_weights_is_seen_at_once() -> None:
    model = make_model()
    engine = Engine(model, [], slots=2)
    before = generate(engine, prompts(2), temperature=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine.reset()
    after = generate(engine, prompts(2), temperature=0.0)
    assert [each.ids for each in before] != [each.ids for each in after]
    fresh = generate(Engine(model, [], slots=2), prompts(2), temperature=0.0)
    assert [each.ids for each in after] == [each.ids for each in fresh]


@pytest.mark.parametrize(("slots", "places"), [(1, 1), (3, 3), (4, 9), (64, 128)])
def test_a_reply_does_not_depend_on_who_else_is_in_the_batch(slots: int, places: int) -> None:
    model, wanted = make_model(), [*prompts(12), *[prompts(1)[0]] * 4]
    alone = generate(Engine(model, [5, 6, 7], slots=1, places=1), wanted)
    got = generate(Engine(model, [5, 6, 7], slots=slots, places=places), wanted)
    assert [each.ids for each in got] == [each.ids for each in alone]
    for request in got:
        logprobs = logits_of(model, [*request.prompt, *request.ids]).log_softmax(-1)
        start = len(request.prompt) - 1
        expected = [float(logprobs[start + place, token]) for place, token in enumerate(request.ids)]
        assert request.logprobs == pytest.approx(expected, abs=1e-4)
        rows = logprobs[start : start + len(request.ids)]
        assert request.entropies == pytest.approx((-(rows.exp() * rows).sum(-1)).tolist(), abs=1e-4)


def test_prompts_are_computed_from_where_they_differ() -> None:
    model = make_model()
    engine = Engine(model, [], slots=4, places=16)
    first = generate(engine, prompts(4))
    longer = [[*each.prompt, *each.ids, 9, 10, 11] for each in first]
    before = engine.prefilled
    second = generate(engine, longer)
    # The last token drawn was never computed; the three new ones neither.
    assert engine.prefilled - before == 4 * 4
    fresh = generate(Engine(model, [], slots=4), longer)
    assert [each.ids for each in second] == [each.ids for each in fresh]


def test_equal_prompts_are_computed_once() -> None:
    engine = Engine(make_model(), [], slots=8)
    prompt = prompts(1)[0]
    requests = generate(engine, [prompt] * 8)
    assert engine.prefilled == len(prompt)
    assert len({tuple(each.ids) for each in requests}) > 1  # but each draws with its own numbers


def test_end_tokens_and_limits_end_replies() -> None:
    engine = Engine(make_model(), range(0, VOCABULARY, 8), slots=4)
    requests = generate(engine, prompts(20))
    for request in requests:
        assert request.stopped == ("stop" if request.ids[-1] % 8 == 0 else "length")
        assert all(token % 8 for token in request.ids[:-1])
        assert len(request.ids) <= request.sampling.max_tokens
    assert {each.stopped for each in requests} == {"stop", "length"}
    assert any(len(each.ids) == 1 for each in requests)


def test_too_long_is_refused() -> None:
    engine = Engine(make_model(), [], slots=2)
    with pytest.raises(InvalidRequest, match="longer than the model takes"):
        engine.submit([3] * 250, Sampling(max_tokens=20), np.random.default_rng(0))
    with pytest.raises(InvalidRequest, match="no token"):
        engine.submit([], Sampling(), np.random.default_rng(0))


async def test_a_failure_reaches_everyone_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    engine = Engine(make_model(), [], slots=2)
    monkeypatch.setattr(engine.decoder, "step", lambda ids, prompts=None: 1 / 0)
    asked = [
        engine.generate(ids, Sampling(max_tokens=4), np.random.default_rng(place))
        for place, ids in enumerate(prompts(5))
    ]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, ZeroDivisionError) for each in results)
    monkeypatch.undo()
    after = await engine.generate(prompts(1)[0], Sampling(max_tokens=4), np.random.default_rng(0))
    assert len(after.ids) == 4


async def test_what_nobody_waits_for_is_not_generated_to_its_end() -> None:
    import asyncio

    engine = Engine(make_model(), [], slots=2)
    tasks = [
        asyncio.create_task(engine.generate(ids, Sampling(max_tokens=200), np.random.default_rng(place)))
        for place, ids in enumerate(prompts(5))
    ]
    while engine.steps < 3:
        await asyncio.sleep(0)
    for task in tasks[:4]:  # two are being generated, two wait
        task.cancel()
    last = await tasks[4]
    assert last.stopped == "length" and len(last.ids) == 200
    assert engine.generated < 220
    fresh = Engine(make_model(), [], slots=1)
    fresh.submit(prompts(5)[4], Sampling(max_tokens=200), np.random.default_rng(4))
    assert [each.ids for each in fresh.run()] == [last.ids]


def test_draws_follow_the_distribution_and_its_truncations() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(20_000, 1)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    one = torch.ones(20_000)
    share = draw(logits, one, uniform).ids_B.bincount(minlength=4) / 20_000
    assert share.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.015)
    cut = draw(logits, one, uniform, top_p_B=0.7 * one, top_k_B=torch.zeros(20_000))
    assert set(cut.ids_B.tolist()) == {0, 1}
    assert cut.logprobs_B.max().item() == pytest.approx(float(np.log(0.5)))  # of the policy, not of what was left
    kept = draw(logits, one, uniform, top_p_B=one, top_k_B=3 * one)
    assert set(kept.ids_B.tolist()) == {0, 1, 2}
    assert set(draw(logits, 0 * one, uniform).ids_B.tolist()) == {0}
    edge = draw(logits[:2], one[:2], torch.tensor([0.0, 1.0 - 1e-7]))
    assert edge.ids_B.tolist() == [0, 3]


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    got = draw(logits, torch.ones(3), torch.tensor([0.0, 0.5, 0.999999]))
    assert got.ids_B.tolist() == [1, 1, 1]
    assert torch.isfinite(got.entropies_B).all()
