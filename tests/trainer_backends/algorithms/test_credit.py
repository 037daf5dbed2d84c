"""Credit parts: their formulas on cases done by hand, their edge cases, and what must not change a result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.credit import bilevel_gae, gae, reinforce_pp
from turngym.trainer_backends.algorithms.credit.grpo import grpo
from turngym.trainer_backends.algorithms.credit.rloo import rloo
from turngym.trainer_backends.algorithms.rows import Credit, Rows

Json = dict[str, Any]
EVERY: list[tuple[str, Json]] = [
    ("grpo", {}),
    ("grpo", {"normalise": "mean", "over": "trajectories", "singleton": "zero"}),
    ("rloo", {}),
    ("reinforce-pp", {"gamma": 0.9}),
    ("reinforce-pp", {"gamma": 0.9, "variant": "released"}),
    ("reinforce-pp-baseline", {}),
    ("gae", {"gamma": 0.9, "lam": 0.8}),
    ("bilevel-gae", {"gamma": 0.9, "lam": 0.8}),
    ("gigpo", {}),
    ("gigpo", {"normalise": "std", "over": "rows", "singleton": "zero", "step_singleton": "raw"}),
    ("grpo-mr", {}),
    ("grpo-mr", {"combine": "sum", "group": "tag", "std": "unbiased", "over": "rows", "tag_singleton": "raw"}),
    ("arpo", {}),
    ("arpo", {"share": "hard"}),
]
OF_TOKENS = [case for case in EVERY if case[0] in ("gae", "bilevel-gae") or case == ("reinforce-pp", {"gamma": 0.9})]
every_part = pytest.mark.parametrize(("part", "config"), EVERY)
seeds = st.integers(0, 10_000)
tensor = torch.tensor


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def credit(part: str, config: Json, rows: Rows) -> Credit:
    result: Credit = parts.load("credit", part, config)(rows)
    return result


def batch(seed: int, count: int = 9, width: int = 7, dtype: torch.dtype = torch.float64) -> Rows:
    """Rows of every kind: singletons, constant groups, empty masks, turns of reward 0, gaps between turns."""
    draw = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    def real(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    mask = whole(3, count, width) > 0
    mask[whole(count, 1)] = False
    trajectories = torch.arange(count) // 2
    return Rows(
        loss_mask_BT=mask,
        token_rewards_BT=real(count, width) * whole(2, count, width) * whole(2, count, 1),
        # A trajectory lies in one group.
        group_B=whole(3, count)[trajectories],
        trajectory_B=trajectories,
        turn_B=torch.arange(count) % 2,
        turn_ids_BT=whole(2, count, width).cumsum(-1),
        segment_ids_BT=whole(4, count, width) - 1,
        step_reward_B=real(count) * whole(2, count),
        step_penalty_B=0.1 * whole(2, count).to(dtype),
        anchors=[f"state {number}" for number in whole(3, count).tolist()],
        tags=["planning" if number else "none" for number in whole(2, count).tolist()],
        meta_reward_B=whole(2, count).to(dtype),
        values_BT=real(count, width),
    )


def changed(
    rows: Rows, of_rows: Callable[[Any], Any], of_tokens: Callable[[torch.Tensor, float], torch.Tensor]
) -> Rows:
    """Apply a change to all fields: first to the tokens of each row, then to the rows."""
    filling = {"values_BT": math.nan, "turn_ids_BT": -1, "segment_ids_BT": -1}
    new: Json = {}
    for field in fields(rows):
        value = getattr(rows, field.name)
        if value is not None:
            wide = field.name.endswith("_BT")
            new[field.name] = of_rows(of_tokens(value, filling.get(field.name, 0)) if wide else value)
    return Rows(**new)


def picked(places: list[int]) -> Callable[[Any], Any]:
    def pick(value: Any) -> Any:
        return value[places] if isinstance(value, torch.Tensor) else [value[place] for place in places]

    return pick


def as_is(value: Any, filling: float = 0) -> Any:
    return value


# What must not change a result.


@every_part
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_does_not_matter(part: str, config: Json, seed: int) -> None:
    rows = batch(seed)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = credit(part, config, changed(rows, picked(order), as_is)).advantages_BT
    torch.testing.assert_close(shuffled, credit(part, config, rows).advantages_BT[order])


@every_part
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_padding_does_not_matter(part: str, config: Json, seed: int) -> None:
    rows = batch(seed)

    def padded(value: torch.Tensor, filling: float) -> torch.Tensor:
        return torch.nn.functional.pad(value, (0, 3), value=filling)

    wide = credit(part, config, changed(rows, as_is, padded)).advantages_BT
    torch.testing.assert_close(wide[:, :-3], credit(part, config, rows).advantages_BT)
    assert not wide[:, -3:].any()


@every_part
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_copies_with_an_empty_mask_do_not_matter(part: str, config: Json, seed: int) -> None:
    """GiGPO grouping invariant under row duplication: the released trainers' copies shift every statistic."""
    rows = batch(seed)
    more = changed(rows, picked([*range(9), 3, 3, 0, 8]), as_is)
    more.loss_mask_BT[9:] = False
    got = credit(part, config, more).advantages_BT
    torch.testing.assert_close(got[:9], credit(part, config, rows).advantages_BT)
    assert not got[9:].any()


@pytest.mark.parametrize(("part", "config"), OF_TOKENS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_observations_between_tokens_do_not_matter(part: str, config: Json, seed: int) -> None:
    rows = batch(seed)

    def parted(value: torch.Tensor, filling: float) -> torch.Tensor:
        gap = torch.full_like(value[:, :2], filling)
        return torch.cat([value[:, :3], gap, value[:, 3:]], -1)

    got = credit(part, config, changed(rows, as_is, parted)).advantages_BT
    torch.testing.assert_close(got[:, [0, 1, 2, 5, 6, 7, 8]], credit(part, config, rows).advantages_BT)


@every_part
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [torch.bool, torch.long, torch.float32])
def test_dtype_is_kept_and_everything_is_finite(part: str, config: Json, dtype: torch.dtype, mask: torch.dtype) -> None:
    rows = batch(1, dtype=dtype)
    exact = credit(part, config, batch(1)).advantages_BT
    got = credit(part, config, replace(rows, loss_mask_BT=rows.loss_mask_BT.to(mask)))
    assert got.advantages_BT.dtype == dtype
    assert got.returns_BT is None or got.returns_BT.dtype == dtype
    assert got.advantages_BT.isfinite().all()
    torch.testing.assert_close(got.advantages_BT, exact.to(dtype))
    assert not got.advantages_BT[~rows.loss_mask_BT].any()


@every_part
@pytest.mark.parametrize(("count", "width"), [(0, 3), (2, 0), (1, 1)])
def test_hardly_any_rows_or_tokens(part: str, config: Json, count: int, width: int) -> None:
    rows = changed(batch(0), picked(list(range(count))), lambda value, filling: value[:, :width])
    assert credit(part, config, rows).advantages_BT.shape == (count, width)


@every_part
def test_no_trained_token_at_all_gives_zeros(part: str, config: Json) -> None:
    rows = batch(2)
    got = credit(part, config, replace(rows, loss_mask_BT=torch.zeros_like(rows.loss_mask_BT)))
    assert not got.advantages_BT.any()


@every_part
def test_inputs_stay_as_they_are(part: str, config: Json) -> None:
    rows, same = batch(3), batch(3)
    credit(part, config, rows)
    for field in fields(rows):
        before, after = getattr(same, field.name), getattr(rows, field.name)
        assert before.equal(after) if isinstance(before, torch.Tensor) else before == after


@pytest.mark.parametrize("part", ["gae", "bilevel-gae"])
def test_no_gradient_reaches_the_critic(part: str) -> None:
    rows = batch(4)
    assert rows.values_BT is not None
    rows.values_BT.requires_grad_()
    got = credit(part, {}, rows)
    assert not got.advantages_BT.requires_grad
    assert got.returns_BT is not None and not got.returns_BT.requires_grad


@every_part
def test_a_missing_input_is_named(part: str, config: Json) -> None:
    with pytest.raises(MissingInput, match=f"^{part} needs token_rewards_BT"):
        credit(part, config, replace(batch(0), token_rewards_BT=None))


@pytest.mark.parametrize(
    ("part", "config", "field"),
    [
        ("grpo", {}, "group_B"),
        ("grpo", {"over": "trajectories"}, "trajectory_B"),
        ("rloo", {}, "group_B"),
        ("reinforce-pp-baseline", {}, "group_B"),
        ("gae", {}, "values_BT"),
        ("bilevel-gae", {}, "turn_ids_BT"),
        ("gigpo", {}, "anchors"),
        ("gigpo", {}, "step_reward_B"),
        ("gigpo", {}, "turn_B"),
        ("grpo-mr", {}, "tags"),
        ("grpo-mr", {}, "meta_reward_B"),
        ("arpo", {"share": "hard"}, "segment_ids_BT"),
    ],
)
def test_each_part_names_what_it_lacks(part: str, config: Json, field: str) -> None:
    with pytest.raises(MissingInput, match=f"^{part} needs {field}, and the rows have none"):
        credit(part, config, replace(batch(0), **{field: None}))


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("grpo", {"epsilon": -1}),
        ("gae", {"lam": 1.5}),
        ("gae", {"gamma": -0.1}),
        ("bilevel-gae", {"gamma_turn": 2}),
        ("bilevel-gae", {"lam": 2}),
        ("reinforce-pp", {"gamma": 1.01}),
        ("gigpo", {"threshold": 0}),
        ("gigpo", {"gamma": 2}),
        ("grpo-mr", {"alpha": 1.2}),
        ("grpo-mr", {"group": "env_tag"}),
    ],
)
def test_a_setting_out_of_range_is_refused(part: str, config: Json) -> None:
    with pytest.raises(InvalidRequest, match=f"^credit {part}: "):
        parts.load("credit", part, config)


# GRPO and its relatives, by hand.


def test_grpo_by_hand() -> None:
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, deviation sqrt(14 / 2).
    scores, groups = double([1, 2, 6, 5, 5, 7]), tensor([4, 4, 4, 9, 9, 2])
    got = grpo(scores, groups, epsilon=0.5)
    by = math.sqrt(7) + 0.5
    assert got.tolist() == pytest.approx([-2 / by, -1 / by, 3 / by, 0, 0, 7 / 1.5])
    population = grpo(scores, groups, unbiased=False, singleton="zero", epsilon=0)
    by = math.sqrt(14 / 3)
    assert population[:3].tolist() == pytest.approx([-2 / by, -1 / by, 3 / by])
    assert population[5] == 0
    assert grpo(scores, groups, normalise="mean").tolist() == pytest.approx([-2, -1, 3, 0, 0, 7])


def test_grpo_over_trajectories_counts_each_once() -> None:
    # Trajectories 0 (4, 2; mean 3) and 1 (1): mean 2, deviation sqrt(2). Over rows the mean is 7 / 3.
    scores, groups, trajectories = double([4, 2, 1]), tensor([0, 0, 0]), tensor([0, 0, 1])
    got = grpo(scores, groups, trajectories, epsilon=0)
    assert got.tolist() == pytest.approx([2 / math.sqrt(2), 0, -1 / math.sqrt(2)])
    assert grpo(scores, groups, normalise="mean").tolist() == pytest.approx([5 / 3, -1 / 3, -4 / 3])
    # A third trajectory without a row that counts, and a row of the second that does not.
    scores, groups, trajectories = double([4, 2, 1, 9, 50]), tensor([0, 0, 0, 0, 0]), tensor([0, 0, 1, 2, 1])
    counted = tensor([True, True, True, False, False])
    assert grpo(scores, groups, trajectories, counted_N=counted, epsilon=0)[:3].tolist() == got.tolist()


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, -1e9])
def test_constant_groups_give_exactly_zero(value: float) -> None:
    scores, groups = double([value] * 7 + [1.0]), tensor([0] * 7 + [1])
    for kind in ("std", "mean"):
        assert not grpo(scores, groups, normalise=kind, epsilon=0 if kind == "mean" else 1e-6)[:7].any()  # type: ignore[arg-type]
    assert not rloo(scores, groups)[:7].any()


def test_rloo_by_hand() -> None:
    got = rloo(double([1, 2, 6, 5]), tensor([0, 0, 0, 1]))
    assert got.tolist() == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5, 5])
    assert rloo(double([5.0]), tensor([0]), singleton="zero").tolist() == [0]


def test_reinforce_pp_baseline_by_hand() -> None:
    # Less group means: -1, 1, 0 and -3, 3, on 1, 2, 1, 1 and 1 tokens: mean 1/6, squares 1 + 1 + 1 + 9 + 9 - 6/36.
    rows = Rows(
        loss_mask_BT=tensor([[1, 0], [1, 1], [0, 1], [1, 0], [1, 0]]),
        token_rewards_BT=double([[2, 0], [0, 4], [3, 0], [0, 0], [6, 0]]),
        group_B=tensor([0, 0, 0, 1, 1]),
    )
    got = credit("reinforce-pp-baseline", {}, rows).advantages_BT
    by = math.sqrt((21 - 1 / 6) / 5)
    expected = [[-1, 0], [1, 1], [0, 0], [-3, 0], [3, 0]]
    white = (double(expected) - 1 / 6) / by * rows.loss_mask_BT
    torch.testing.assert_close(got, white, rtol=1e-7, atol=0)


def test_reinforce_pp_carries_the_return_across_observations() -> None:
    """REINFORCE++ across observation masks: the released code cuts the first turn off from the final reward."""
    rewards, mask = double([[0, 0, 0, 0, 8]]), tensor([[1, 1, 0, 1, 1]])
    paper = reinforce_pp.returns(rewards, mask, gamma=0.5)
    assert paper[mask.bool()].tolist() == [1, 2, 4, 8]
    released = reinforce_pp.returns(rewards, mask, gamma=0.5, variant="released")
    assert released[mask.bool()].tolist() == [0, 0, 4, 8]
    # The observation has the return of what follows, and hands nothing on.
    rewards[0, 2] = 3
    assert reinforce_pp.returns(rewards, mask, gamma=0.5, variant="released").tolist() == [[0, 0, 5, 4, 8]]


def test_reinforce_pp_counts_rewards_on_masked_tokens() -> None:
    rewards, mask = double([[0, 0, 3, 0, 8]]), tensor([[1, 1, 0, 1, 0]])
    assert reinforce_pp.returns(rewards, mask, gamma=0.5).tolist() == [[(4 + 3) / 4, 3.5, 7, 4, 8]]


def test_reinforce_pp_whitens_over_the_batch() -> None:
    rows = Rows(loss_mask_BT=tensor([[1, 1], [1, 0]]), token_rewards_BT=double([[1, 2], [6, 0]]))
    # Returns 3, 2 and 6: mean 11/3, squares 26/3, divided by 2.
    by = math.sqrt(26 / 3 / 2)
    expected = [[-2 / 3 / by, -5 / 3 / by], [7 / 3 / by, 0]]
    torch.testing.assert_close(credit("reinforce-pp", {}, rows).advantages_BT, double(expected), rtol=1e-7, atol=0)


# GAE.


def slow_gae(rewards: Any, values: Any, mask: Any, gamma: float, lam: float) -> list[float]:
    """The recursion over the trained tokens of one row."""
    out, after, later = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            later = rewards[t] + gamma * after - values[t] + gamma * lam * later
            out[t], after = later, values[t]
    return out


def test_gae_by_hand() -> None:
    rewards, values, mask = double([[1, 0, 9, 4]]), double([[2, 3, 7, 5]]), tensor([[1, 1, 0, 1]])
    got = gae.gae(rewards, values, mask, gamma=0.5, lam=0.5)
    # From the end: 4 - 5 = -1; 0 + 2.5 - 3 - 0.25 = -0.75; 1 + 1.5 - 2 - 0.1875.
    assert got.tolist() == [[0.3125, -0.75, 0, -1]]
    rows = Rows(loss_mask_BT=mask, token_rewards_BT=rewards, values_BT=values)
    raw = credit("gae", {"gamma": 0.5, "lam": 0.5, "whiten": False}, rows)
    assert raw.advantages_BT.equal(got)
    assert raw.returns_BT is not None and raw.returns_BT.tolist() == [[2.3125, 2.25, 0, 4]]
    white = credit("gae", {"gamma": 0.5, "lam": 0.5}, rows)
    trained = white.advantages_BT[mask.bool()]
    assert trained.mean().item() == pytest.approx(0) and trained.var().item() == pytest.approx(1)
    # Returns are taken before the whitening.
    assert white.returns_BT is not None and white.returns_BT.equal(raw.returns_BT)


@given(seed=seeds, gamma=st.floats(0, 1), lam=st.floats(0, 1), width=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_gae_is_the_recursion(seed: int, gamma: float, lam: float, width: int) -> None:
    rows = batch(seed, 3, width)
    got = gae.gae(rows.token_rewards_BT, rows.values_BT, rows.loss_mask_BT, gamma=gamma, lam=lam)  # type: ignore[arg-type]
    lists = [each.tolist() for each in (rows.token_rewards_BT, rows.values_BT, rows.loss_mask_BT)]  # type: ignore[union-attr]
    torch.testing.assert_close(got, double([slow_gae(*row, gamma, lam) for row in zip(*lists, strict=True)]))


# Bi-level GAE.


def slow_bilevel(
    rewards: Any, values: Any, mask: Any, turns: Any, gamma: float, lam: float, high: float
) -> list[float]:
    """Turn by turn, then token by token, for one row whose rewards lie on trained tokens."""
    trained = [t for t in range(len(mask)) if mask[t]]
    of_turn = {turn: [t for t in trained if turns[t] == turn] for turn in sorted({turns[t] for t in trained})}
    totals = [sum(rewards[t] for t in tokens) for tokens in of_turn.values()]
    ends = [tokens[-1] for tokens in of_turn.values()]
    outer = slow_gae(totals, [values[t] for t in ends], [1] * len(ends), high, lam)
    out = [0.0] * len(mask)
    for tokens, advantage in zip(of_turn.values(), outer, strict=True):
        inner = [0.0] * (len(tokens) - 1) + [advantage + values[tokens[-1]]]
        ours = slow_gae(inner, [values[t] for t in tokens], [1] * len(tokens), gamma, lam)
        for t, value in zip(tokens, ours, strict=True):
            out[t] = value
    return out


@given(seed=seeds, gamma=st.floats(0, 1), lam=st.floats(0, 1), high=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_bilevel_gae_is_gae_between_turns_and_within(seed: int, gamma: float, lam: float, high: float) -> None:
    rows = batch(seed, 4, 12)
    mask, turns, values = rows.loss_mask_BT, rows.turn_ids_BT, rows.values_BT
    assert rows.token_rewards_BT is not None and turns is not None and values is not None
    rewards = rows.token_rewards_BT * mask
    got = bilevel_gae.bilevel_gae(rewards, values, mask, turns, gamma=gamma, lam=lam, gamma_turn=high)
    rowwise = zip(rewards.tolist(), values.tolist(), mask.tolist(), turns.tolist(), strict=True)
    torch.testing.assert_close(got, double([slow_bilevel(*row, gamma, lam, high) for row in rowwise]))


def test_bilevel_gae_keeps_turns_of_reward_zero_and_a_final_zero() -> None:
    """Zero-reward turns, final token reward 0: the released code merges the turns, then leaves the row's range."""
    turns, mask = tensor([[0, 0, 1, 1, 2, 2]]), tensor([[1, 1, 1, 1, 1, 1]])
    rewards, values = double([[0, 1, 0, 0, 0, 0]]), double([[0.5, 0.25, 1, 2, 3, 4]])
    got = bilevel_gae.bilevel_gae(rewards, values, mask, turns, gamma=1, lam=1, gamma_turn=0.5)
    # Turns: -4; 0 + 0.5 * 4 - 2 + 0.5 * -4 = -2; 1 + 0.5 * 2 - 0.25 + 0.5 * -2 = 0.75.
    assert got[0, [1, 3, 5]].tolist() == [0.75, -2, -4]
    # Tokens: the next value less the own one, plus what follows in the turn.
    assert got[0, [0, 2, 4]].tolist() == [0.25 - 0.5 + 0.75, 2 - 1 - 2, 4 - 3 - 4]


def test_a_row_of_one_turn_is_a_row_of_one_turn() -> None:
    rewards, values, mask = double([[0, 0, 4]]), double([[1, 2, 3]]), tensor([[1, 1, 1]])
    for turn in (0, 3):
        turns = torch.full((1, 3), turn)
        got = bilevel_gae.bilevel_gae(rewards, values, mask, turns, gamma=0.5, lam=0.5, gamma_turn=0.1)
        assert got.equal(gae.gae(rewards, values, mask, gamma=0.5, lam=0.5))


def test_bilevel_gae_pays_each_turn_at_its_end() -> None:
    rewards = double([[1, 2, 4, 8, 16, 32, 64]])
    turns, mask = tensor([[-1, 0, 0, 0, 1, -1, 2]]), tensor([[0, 1, 1, 0, 0, 0, 1]])
    ends = tensor([[0, 0, 1, 0, 0, 0, 1]]).bool()
    paid = bilevel_gae.turn_rewards(rewards, ends, turns + 1)
    # The prompt's reward goes to the first turn; a forced token's to its own; a turn without a trained token and an
    # observation pay at the turn before them.
    assert paid.tolist() == [[0, 0, 1 + 2 + 4 + 8 + 16 + 32, 0, 0, 0, 64]]
    assert bilevel_gae.bilevel_gae(rewards, torch.zeros_like(rewards), mask, turns, gamma_turn=0.5)[0, 2] == 63 + 32


# GRPO-MR.


def meta_rows() -> Rows:
    """Two tasks; tags P P E | P E E, meta rewards 1 0 1 | 1 1 0, outcomes 2 0 1 | 3 3 0."""
    return Rows(
        loss_mask_BT=torch.ones(6, 1),
        token_rewards_BT=double([[2], [0], [1], [3], [3], [0]]),
        group_B=tensor([0, 0, 0, 1, 1, 1]),
        trajectory_B=torch.arange(6),
        tags=["P", "P", "E", "P", "E", "E"],
        meta_reward_B=double([1, 0, 1, 1, 1, 0]),
    )


def test_grpo_mr_as_the_paper_has_it() -> None:
    got = credit("grpo-mr", {"epsilon": 0, "alpha": 0.25}, meta_rows()).details
    assert got is not None
    root = math.sqrt(2)
    outcome = [math.sqrt(1.5), -math.sqrt(1.5), 0, 1 / root, 1 / root, -root]
    assert got["outcome_B"].tolist() == pytest.approx(outcome)
    meta = [1, -1, 0, 0, 1, -1]
    assert got["meta_B"].tolist() == pytest.approx(meta)
    both = [0.25 * one + 0.75 * two for one, two in zip(outcome, meta, strict=True)]
    assert got["row_B"].tolist() == pytest.approx(both)


def test_grpo_mr_as_released() -> None:
    released = {"combine": "sum", "weight": 0.5, "std": "unbiased", "over": "rows", "normalise": "mean"}
    config = {**released, "singleton": "raw", "tag_singleton": "raw"}
    got = credit("grpo-mr", config, meta_rows()).advantages_BT.squeeze(-1)
    # A lone tag keeps its raw reward.
    assert got.tolist() == pytest.approx([1.25, -1.25, 0.5, 1.5, 1.25, -2.25])
    spread = credit("grpo-mr", {**config, "normalise": "std", "epsilon": 0, "weight": 1}, meta_rows()).details
    assert spread is not None
    assert spread["meta_B"].tolist() == pytest.approx(
        [math.sqrt(0.5), -math.sqrt(0.5), 1, 1, math.sqrt(0.5), -math.sqrt(0.5)]
    )


def test_grpo_mr_settings_of_the_two_levels() -> None:
    rows = replace(meta_rows(), trajectory_B=tensor([0, 0, 1, 2, 3, 3]))
    got = credit("grpo-mr", {"normalise": "mean", "tag_singleton": "raw"}, rows).details
    assert got is not None
    # Outcomes of the trajectories: 1 and 1, then 3 and 1.5; a lone tag keeps its reward.
    assert got["outcome_B"].tolist() == pytest.approx([1, -1, 0, 0.75, 0.75, -2.25])
    assert got["meta_B"].tolist() == pytest.approx([0.5, -0.5, 1, 1, 0.5, -0.5])
    alone = replace(rows, group_B=torch.arange(6), trajectory_B=torch.arange(6))
    for singleton, expected in (("zero", [0.0] * 6), ("raw", [2.0, 0, 1, 3, 3, 0])):
        got = credit("grpo-mr", {"normalise": "mean", "singleton": singleton}, alone).details
        assert got is not None
        assert got["outcome_B"].tolist() == expected and not got["meta_B"].any()
    by_row = credit("grpo-mr", {"over": "rows"}, replace(rows, trajectory_B=None)).details
    assert by_row is not None and by_row["outcome_B"].shape == (6,)


def test_grpo_mr_over_the_whole_batch() -> None:
    """Eq. 3: one group for each tag, whatever the task."""
    got = credit("grpo-mr", {"group": "tag", "normalise": "mean"}, meta_rows()).details
    assert got is not None
    assert got["meta_B"].tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3, 1 / 3, 1 / 3, -2 / 3])


# ARPO.


def test_arpo_hard_takes_the_mean_of_the_rows_that_share_a_segment() -> None:
    rows = Rows(
        loss_mask_BT=tensor([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 0, 0]]),
        token_rewards_BT=double([[3, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [5, 0, 0, 0]]),
        group_B=tensor([0, 0, 0, 1]),
        # Segment 7 is in the first two rows (three trained tokens of one, one of the other), 8 in the third alone; the
        # 7 of the other group is another one.
        segment_ids_BT=tensor([[7, 7, 7, -1], [7, 7, 7, 3], [8, 8, -1, -1], [7, 7, 7, 7]]),
    )
    got = credit("arpo", {"share": "hard", "normalise": "mean"}, rows)
    assert got.advantages_BT.tolist() == [[0, 0, 0, 1], [0, 0, 0, -1], [0, 0, 0, 0], [5, 5, 0, 0]]
    soft = credit("arpo", {"normalise": "mean"}, rows).advantages_BT
    assert soft.tolist() == [[1, 1, 1, 1], [-1, 0, 0, -1], [0, 0, 0, 0], [5, 5, 0, 0]]
