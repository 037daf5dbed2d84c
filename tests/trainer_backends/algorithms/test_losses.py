"""Policy losses: values and gradient factors done by hand, and what must not change a loss."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.aggregate import Totals, aggregate
from turngym.trainer_backends.algorithms.losses import default_aggregation, needs_whole_rows
from turngym.trainer_backends.algorithms.losses.atpo import turn_log_ratio
from turngym.trainer_backends.algorithms.rows import Rows, TokenLoss

Json = dict[str, Any]
EVERY: list[tuple[str, Json]] = [
    ("ppo", {}),
    ("ppo", {"clip_high": 0.28, "dual_clip": math.inf}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.1}),
    ("atpo", {"clip_low": 0.1, "clip_high": 0.1}),
    ("gmpo", {}),
    ("cispo", {}),
    ("cispo", {"bound": "ceiling", "ceiling": 1.5}),
    ("gppo", {"beta_low": 0.5, "beta_high": 2.0}),
    ("aepo", {}),
    ("sapo", {}),
]
every_loss = pytest.mark.parametrize(("part", "config"), EVERY)
seeds = st.integers(0, 10_000)


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(part: str, config: Json, rows: Rows, advantages: torch.Tensor) -> TokenLoss:
    result: TokenLoss = parts.load("losses", part, config)(rows, advantages)
    return result


def batch(seed: int, count: int = 6, width: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Rows, torch.Tensor]:
    """Rows with gaps, turns that touch, an empty mask, and log-probabilities far apart."""
    draw = torch.Generator().manual_seed(seed)

    def real(scale: float) -> torch.Tensor:
        return scale * torch.randn(count, width, generator=draw, dtype=torch.float64).to(dtype)

    mask = torch.randint(3, (count, width), generator=draw) > 0
    mask[int(torch.randint(count, (1,), generator=draw))] = False
    old = real(1.0) - 3
    rows = Rows(
        loss_mask_BT=mask,
        logprobs_BT=(old + real(0.3)).requires_grad_(),
        old_logprobs_BT=old,
        turn_ids_BT=torch.randint(2, (count, width), generator=draw).cumsum(-1),
    )
    return rows, real(1.0) * (torch.randint(4, (count, 1), generator=draw) > 0)


def total(part: str, config: Json, rows: Rows, advantages: torch.Tensor, totals: Totals | None = None) -> torch.Tensor:
    loaded = parts.load("losses", part, config)
    loss = loaded(rows, advantages).loss_BT
    return aggregate(loss, rows.loss_mask_BT, default_aggregation(loaded), totals=totals)


def gradient(part: str, config: Json, rows: Rows, advantages: torch.Tensor) -> torch.Tensor:
    assert rows.logprobs_BT is not None
    (found,) = torch.autograd.grad(total(part, config, rows, advantages), rows.logprobs_BT)
    return found


# --- formulas ---

NEVER = {"dual_clip": math.inf}
# part, settings, ratio, advantage -> loss, factor F of dL = -A F dlogprob.
TOKENS = [
    ("ppo", {}, 1.1, 2.0, -2.2, 1.1),
    ("ppo", {}, 1.5, 2.0, -2.4, 0.0),
    ("ppo", {}, 0.5, 2.0, -1.0, 0.5),
    ("ppo", {}, 0.5, -2.0, 1.6, 0.0),
    ("ppo", {}, 1.5, -2.0, 3.0, 1.5),
    ("ppo", {}, 4.0, -2.0, 6.0, 0.0),
    ("ppo", NEVER, 4.0, -2.0, 8.0, 4.0),
    ("ppo", {"clip_high": 0.28}, 1.25, 2.0, -2.5, 1.25),
    ("ppo", {"clip_high": 0.28}, 1.5, 2.0, -2.56, 0.0),
    ("aepo", {}, 1.5, 2.0, -2.4, 1.2),
    ("aepo", {}, 0.5, -2.0, 1.6, 0.0),
    ("aepo", {}, 0.5, 2.0, -1.0, 0.5),
    ("aepo", {}, 4.0, -2.0, 6.0, 0.0),
    ("aepo", NEVER, 4.0, -2.0, 8.0, 4.0),
    ("gppo", {}, 1.5, 2.0, -2.4, 1.2),
    ("gppo", {}, 0.5, -2.0, 1.6, 0.8),
    ("gppo", {}, 4.0, -2.0, 8.0, 4.0),
    ("gppo", {"beta_low": 0.25}, 0.5, -2.0, 0.4, 0.2),
    ("gppo", {"beta_high": 0.5}, 1.5, 2.0, -1.2, 0.6),
    ("gppo", {"beta_low": 0.25, "beta_high": 0.5}, 1.1, -2.0, 2.2, 1.1),
    ("cispo", {}, 1.5, 2.0, None, 1.2),
    ("cispo", {}, 0.5, 2.0, None, 0.8),
    ("cispo", {}, 0.5, -2.0, None, 0.8),
    ("cispo", {}, 1.5, -2.0, None, 1.2),
    ("cispo", {"clip_high": 0.28}, 1.5, 2.0, None, 1.28),
    ("cispo", {"bound": "ceiling", "ceiling": 1.4}, 1.5, 2.0, None, 1.4),
    ("cispo", {"bound": "ceiling", "ceiling": 1.4}, 0.1, 2.0, None, 0.1),
    ("cispo", {"bound": "none"}, 9.0, -2.0, None, 9.0),
]


@pytest.mark.parametrize(("part", "config", "ratio", "advantage", "value", "factor"), TOKENS)
def test_one_token_has_the_value_and_gradient_of_its_equation(
    part: str, config: Json, ratio: float, advantage: float, value: float | None, factor: float
) -> None:
    logprob = double([[-1.0]]).requires_grad_()
    rows = Rows(loss_mask_BT=double([[1.0]]), logprobs_BT=logprob, old_logprobs_BT=logprob.detach() - math.log(ratio))
    advantages = double([[advantage]])
    # CISPO's value is that of its surrogate: -sg(bounded ratio) A logprob, with logprob -1 here.
    expected = factor * advantage if value is None else value
    assert float(loss_of(part, config, rows, advantages).loss_BT.detach()) == pytest.approx(expected)
    assert float(gradient(part, config, rows, advantages)) == pytest.approx(-advantage * factor)


def test_sapo_has_its_gate_by_the_sign_of_the_advantage() -> None:
    logprob = double([[0.0, 0.0]]).requires_grad_()
    rows = Rows(loss_mask_BT=double([[1.0, 1.0]]), logprobs_BT=logprob, old_logprobs_BT=-double([[math.log(2.0)] * 2]))
    tokens = loss_of("sapo", {"tau_positive": 1.0, "tau_negative": 3.0}, rows, double([[1.0, -1.0]])).loss_BT
    gates = [1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-3.0))]
    torch.testing.assert_close(tokens.detach(), double([[-4 * gates[0], 4 / 3 * gates[1]]]))
    (found,) = torch.autograd.grad(tokens.sum(), logprob)
    torch.testing.assert_close(found, double([[-4 * g * (1 - g) * 2 * a for g, a in zip(gates, (1, -1), strict=True)]]))


def one_row(changes: list[float], mask: list[int], turns: list[int] | None = None) -> Rows:
    old = torch.full((1, len(changes)), -2.0, dtype=torch.float64)
    return Rows(
        loss_mask_BT=torch.tensor([mask]),
        logprobs_BT=(old + double([changes])).requires_grad_(),
        old_logprobs_BT=old,
        turn_ids_BT=torch.tensor([turns]) if turns else None,
    )


def test_gspo_gives_every_token_the_mean_log_ratio_of_its_row() -> None:
    rows = one_row([0.3, 9.0, -0.1], [1, 0, 1])
    advantages = double([[1.0, 5.0, -2.0]])
    ratio = math.exp(0.1)
    tokens = loss_of("gspo", {"clip_low": 0.5, "clip_high": 0.5}, rows, advantages)
    torch.testing.assert_close(tokens.loss_BT.detach()[0, [0, 2]], double([-ratio, 2 * ratio]))
    assert float(tokens.metrics["approx_kl"]) == pytest.approx(-0.1)
    # dL/dlogprob = -A s / n for a row of n tokens.
    found = gradient("gspo", {"clip_low": 0.5, "clip_high": 0.5}, rows, advantages)
    torch.testing.assert_close(found, double([[-ratio / 2, 0.0, ratio]]))
    # The defaults clip at 1 + 4e-4, and only where A > 0.
    clipped = loss_of("gspo", {}, rows, advantages).loss_BT.detach()
    torch.testing.assert_close(clipped[0, [0, 2]], double([-1.0004, 2 * ratio]))
    below = loss_of("gspo", {}, one_row([-0.1, -0.1], [1, 1]), double([[1.0, -1.0]])).loss_BT.detach()
    torch.testing.assert_close(below, double([[-math.exp(-0.1), 1 - 3e-4]]))


def test_atpo_gives_every_token_the_mean_log_ratio_of_its_turn() -> None:
    # Two turns touch; turn 0 goes on after an observation. Runs of the mask would see two other turns.
    rows = one_row([0.2, 0.4, 7.0, 0.0, -0.6], [1, 1, 0, 1, 1], [0, 1, -1, 0, 1])
    advantages = double([[1.0, 1.0, 1.0, 1.0, -1.0]])
    wide = {"clip_low": 0.5, "clip_high": 0.5}
    first, second = math.exp(0.1), math.exp(-0.1)
    tokens = loss_of("atpo", wide, rows, advantages).loss_BT.detach()
    torch.testing.assert_close(tokens[0, [0, 1, 3, 4]], double([-first, -second, -first, second]))
    found = gradient("atpo", wide, rows, advantages)
    torch.testing.assert_close(found, double([[-first / 4, -second / 4, 0.0, -first / 4, second / 4]]))
    # Defaults: 1 - 3e-3 and 1 + 4e-3.
    clipped = loss_of("atpo", {}, rows, advantages).loss_BT.detach()
    torch.testing.assert_close(clipped[0, [0, 1, 3, 4]], double([-1.004, -second, -1.004, 0.997]))


def test_shared_ratios_stop_at_a_log_of_10_and_then_have_no_gradient() -> None:
    for part, turns in (("gspo", None), ("atpo", [0])):
        rows = one_row([12.0], [1], turns)
        assert float(total(part, {}, rows, double([[-1.0]])).detach()) == pytest.approx(math.exp(10.0))
        assert float(gradient(part, {}, rows, double([[-1.0]]))) == 0.0


def test_gmpo_is_the_geometric_mean_of_ratios_clipped_by_the_sign_of_the_advantage() -> None:
    rows = one_row([0.3, 0.9, -0.9, 5.0], [1, 1, 1, 0])
    # A > 0: clipped above alone, at 0.4; the masked token's advantage does not count.
    up = double([[3.0, 3.0, 3.0, 100.0]])
    ratio = math.exp((0.3 + 0.4 - 0.9) / 3)
    assert float(total("gmpo", {}, rows, up).detach()) == pytest.approx(-3 * ratio)
    torch.testing.assert_close(gradient("gmpo", {}, rows, up), double([[-ratio, 0.0, -ratio, 0.0]]))
    # A < 0: clipped below alone.
    ratio = math.exp((0.3 + 0.9 - 0.2) / 3)
    lower = total("gmpo", {"clip_low": 0.2}, rows, -up)
    assert float(lower.detach()) == pytest.approx(3 * ratio)


def test_gmpo_averages_advantages_over_the_row() -> None:
    rows = one_row([0.1, 0.1], [1, 1])
    value = total("gmpo", {}, rows, double([[1.0, 2.0]]))
    assert float(value.detach()) == pytest.approx(-1.5 * math.exp(0.1))


def test_what_parts_say_about_their_aggregation() -> None:
    loaded = {part: parts.load("losses", part) for part in parts.ids("losses")}
    rowwise = {part for part, each in loaded.items() if needs_whole_rows(each)}
    assert rowwise == {"gspo", "atpo", "gmpo"}
    modes = {part: default_aggregation(each) for part, each in loaded.items()}
    assert {part for part, mode in modes.items() if mode == "seq-mean-token-mean"} == rowwise | {"sapo"}
    assert {mode for part, mode in modes.items() if part not in rowwise | {"sapo"}} == {"token-mean"}


def test_clip_metrics_count_the_trained_tokens_that_were_clipped() -> None:
    rows = one_row([0.5, 0.0, 0.5, 3.0], [1, 1, 0, 1])
    metrics = loss_of("ppo", {}, rows, double([[1.0, 1.0, 1.0, -1.0]])).metrics
    assert float(metrics["clip_fraction"]) == pytest.approx(1 / 3)
    assert float(metrics["dual_clip_fraction"]) == pytest.approx(1 / 3)
    assert float(metrics["approx_kl"]) == pytest.approx(-3.5 / 3)
    assert float(loss_of("cispo", {}, rows, double([[1.0] * 4])).metrics["clip_fraction"]) == pytest.approx(2 / 3)
    assert float(loss_of("gmpo", {}, rows, double([[1.0] * 4])).metrics["clip_fraction"]) == pytest.approx(2 / 3)


# --- errors ---


@every_loss
def test_a_loss_without_its_inputs_refuses(part: str, config: Json) -> None:
    rows, advantages = batch(0)
    for name in ("logprobs_BT", "old_logprobs_BT") + (("turn_ids_BT",) if part == "atpo" else ()):
        with pytest.raises(MissingInput, match=name):
            loss_of(part, config, replace(rows, **{name: None}), advantages)


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("ppo", {"clip_low": 1.0}),
        ("gspo", {"clip_high": -0.1}),
        ("atpo", {"dual_clip": 1.0}),
        ("gmpo", {"clip_low": -0.4}),
        ("cispo", {"ceiling": 0.5}),
        ("cispo", {"bound": "band ceiling"}),
        ("gppo", {"beta_low": -1.0}),
        ("gppo", {"clip_low": 2.0}),
        ("sapo", {"tau_negative": 0.0}),
        ("aepo", {"clip": 0.2}),
    ],
)
def test_settings_out_of_range_are_refused(part: str, config: Json) -> None:
    with pytest.raises(InvalidRequest, match=part):
        parts.load("losses", part, config)


def test_atpo_refuses_a_trained_token_of_no_turn() -> None:
    rows = one_row([0.1, 0.2], [1, 1], [0, -1])
    with pytest.raises(InvalidRequest, match="belongs to no turn"):
        loss_of("atpo", {}, rows, double([[1.0, 1.0]]))


# --- what must not change a loss ---


def select(rows: Rows, places: Any) -> Rows:
    return replace(
        rows, **{each.name: value[places] for each in fields(rows) if (value := getattr(rows, each.name)) is not None}
    )


@every_loss
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_does_not_matter(part: str, config: Json, seed: int) -> None:
    rows, advantages = batch(seed)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        total(part, config, select(rows, order), advantages[order]), total(part, config, rows, advantages)
    )
    torch.testing.assert_close(
        loss_of(part, config, select(rows, order), advantages[order]).loss_BT * rows.loss_mask_BT[order],
        (loss_of(part, config, rows, advantages).loss_BT * rows.loss_mask_BT)[order],
    )


@every_loss
@given(seed=seeds, filling=st.sampled_from([math.nan, -1.0]))
@settings(max_examples=15, deadline=None)
def test_padding_does_not_matter_whatever_stands_there(part: str, config: Json, seed: int, filling: float) -> None:
    rows, advantages = batch(seed)

    def pad(value: torch.Tensor, filling: float) -> torch.Tensor:
        return torch.nn.functional.pad(value, (0, 2), value=filling)

    assert rows.logprobs_BT is not None and rows.old_logprobs_BT is not None and rows.turn_ids_BT is not None
    wide = replace(
        rows,
        loss_mask_BT=pad(rows.loss_mask_BT, 0),
        logprobs_BT=pad(rows.logprobs_BT.detach(), filling).requires_grad_(),
        old_logprobs_BT=pad(rows.old_logprobs_BT, filling),
        turn_ids_BT=pad(rows.turn_ids_BT, -1),
    )
    wide_advantages = pad(advantages, math.nan)
    torch.testing.assert_close(total(part, config, wide, wide_advantages), total(part, config, rows, advantages))
    found = gradient(part, config, wide, wide_advantages)
    torch.testing.assert_close(found[:, :-2], gradient(part, config, rows, advantages))
    assert not found[:, -2:].any()


@every_loss
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_rows_repeated_with_an_empty_mask_do_not_matter(part: str, config: Json, seed: int) -> None:
    rows, advantages = batch(seed)
    twice = select(rows, [*range(6), 1, 3])
    twice = replace(twice, loss_mask_BT=twice.loss_mask_BT & (torch.arange(8) < 6).unsqueeze(-1))
    torch.testing.assert_close(
        total(part, config, twice, advantages[[*range(6), 1, 3]]), total(part, config, rows, advantages)
    )


@every_loss
@given(seed=seeds, cut=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_loss_independent_of_micro_batch_packing(part: str, config: Json, seed: int, cut: int) -> None:
    rows, advantages = batch(seed)
    totals = Totals.of(rows.loss_mask_BT)
    pieces = [slice(0, cut), slice(cut, 6)]
    parted = sum(total(part, config, select(rows, each), advantages[each], totals) for each in pieces)
    torch.testing.assert_close(parted, total(part, config, rows, advantages))


@every_loss
def test_empty_mask_rows_finite(part: str, config: Json) -> None:
    rows, advantages = batch(3)
    empty = replace(rows, loss_mask_BT=torch.zeros_like(rows.loss_mask_BT))
    assert float(total(part, config, empty, advantages).detach()) == 0.0
    assert not gradient(part, config, empty, advantages).any()
    assert torch.isfinite(gradient(part, config, rows, advantages)).all()
    assert all(torch.isfinite(each) for each in loss_of(part, config, empty, advantages).metrics.values())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(part: str, config: Json, dtype: torch.dtype) -> None:
    rows, advantages = batch(1, dtype=dtype)
    tokens = loss_of(part, config, rows, advantages)
    assert tokens.loss_BT.dtype == dtype
    assert not any(each.requires_grad for each in tokens.metrics.values())


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_turn_means_are_those_of_a_plain_loop(seed: int) -> None:
    rows, _ = batch(seed)
    assert rows.turn_ids_BT is not None
    change = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    got = turn_log_ratio(change, rows.turn_ids_BT, rows.loss_mask_BT)
    for row in range(6):
        for place in range(8):
            if rows.loss_mask_BT[row, place]:
                same = (rows.turn_ids_BT[row] == rows.turn_ids_BT[row, place]) & rows.loss_mask_BT[row]
                torch.testing.assert_close(got[row, place], change[row][same].mean())
