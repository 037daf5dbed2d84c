"""Entropies and log-probabilities in one pass: against softmax and autograd, in chunks, with forbidden tokens."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms import entropy
from turngym.trainer_backends.algorithms.entropy import entropy_and_logprobs, entropy_bonus, moments, token_entropy


def logits(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def plain(z: torch.Tensor, labels: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logp = (z / temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1), logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def test_entropies_done_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0], [1e4, 0.0]], dtype=torch.float64)
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    expected = torch.tensor([math.log(2.0), quarter, 0.0], dtype=torch.float64)
    torch.testing.assert_close(token_entropy(z), expected)
    found = moments(z)
    torch.testing.assert_close(found.entropy, expected)
    torch.testing.assert_close(found.peak.exp(), torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found.log_norm, z.logsumexp(-1))
    # Temperature 2 takes the square root of the odds.
    odds = math.sqrt(3.0)
    p = odds / (1 + odds)
    hot = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    assert float(token_entropy(z[1:2], temperature=2.0)) == pytest.approx(hot)


@given(seed=st.integers(0, 1000), temperature=st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=15, deadline=None)
def test_value_and_gradient_are_those_of_softmax(seed: int, temperature: float) -> None:
    z = logits(2, 3, 11, seed=seed).requires_grad_()
    labels = torch.randint(11, (2, 3), generator=torch.Generator().manual_seed(seed))
    weights = logits(2, 2, 3, seed=seed + 1)
    results = []
    for function in (entropy_and_logprobs, plain):
        both = function(z, labels, temperature)
        (found,) = torch.autograd.grad(sum((w * each).sum() for w, each in zip(weights, both, strict=True)), z)
        results.append((*both, found))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("entries", [1, 20, 40])
def test_chunks_do_not_change_anything(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = logits(7, 9).requires_grad_(), torch.arange(7)
    whole = entropy_and_logprobs(z, labels)
    (expected,) = torch.autograd.grad(whole[0].sum() + whole[1].sum(), z)
    monkeypatch.setattr(entropy, "_CPU_CHUNK", entries)
    parted = entropy_and_logprobs(z, labels)
    (found,) = torch.autograd.grad(parted[0].sum() + parted[1].sum(), z)
    for got, other in zip((*parted, found), (*whole, expected), strict=True):
        torch.testing.assert_close(got, other, rtol=1e-13, atol=1e-13)


def test_a_row_has_the_same_numbers_in_any_batch() -> None:
    for width in (11, 300_000):
        z = logits(3, width, dtype=torch.float32)
        together = moments(z)
        for row in range(3):
            for got, expected in zip(moments(z[row : row + 1]), together, strict=True):
                assert got[0] == expected[row]


@pytest.mark.parametrize("entries", [1, 100])
def test_forbidden_tokens_have_no_probability_and_no_gradient(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entropy, "_CPU_CHUNK", entries)
    z = torch.tensor([[1.0, -math.inf, 2.0]], dtype=torch.float64, requires_grad=True)
    both = entropy_and_logprobs(z, torch.tensor([0]))
    expected = plain(torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([0]), 1.0)
    torch.testing.assert_close(both, expected)
    (found,) = torch.autograd.grad(both[0].sum() + both[1].sum(), z)
    assert torch.isfinite(found).all() and found[0, 1] == 0
    # Other rows of the batch are as they were.
    rows = torch.cat([z.detach(), logits(2, 3)])
    torch.testing.assert_close(moments(rows).entropy[1:], moments(rows[1:]).entropy, rtol=0, atol=0)
    torch.testing.assert_close(moments(rows).entropy[:1], both[0].detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    z = logits(4, 50, dtype=dtype).requires_grad_()
    found = token_entropy(z)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert found.dtype == wide
    torch.testing.assert_close(found, token_entropy(z.detach().to(wide)))
    found.sum().backward()
    assert z.grad is not None and z.grad.dtype == dtype


def test_no_rows_give_no_numbers() -> None:
    z = torch.zeros(0, 3, 5, requires_grad=True)
    assert token_entropy(z).shape == (0, 3)
    token_entropy(z).sum().backward()
    assert moments(torch.zeros(2, 0, 5)).peak.shape == (2, 0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        token_entropy(torch.zeros(1, 3), temperature)


def test_the_bonus_lowers_the_loss_of_uncertain_tokens() -> None:
    found = entropy_bonus(torch.tensor([[2.0, 0.0]]), 0.25)
    torch.testing.assert_close(found, torch.tensor([[-0.5, 0.0]]))
