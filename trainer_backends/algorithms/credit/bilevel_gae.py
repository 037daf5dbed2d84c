"""Bi-level GAE: first between turns, then between the tokens of each turn (RAGEN, appendix D; Wang et al. 2025).

A turn ends at its last trained token. Between turns, A_k = r_k + gamma_turn V_(k+1) - V_k + gamma_turn lam A_(k+1) with
the values V at the turns' ends. Inside a turn, token-level GAE with A_k + V_k as the reward of its last token; nothing
passes from the next turn's tokens.

The released code takes every token with a non-zero reward for a turn's end: a turn with reward 0 merges with the next
one, and a row whose last reward is 0 raises an IndexError. Here ``turn_ids_BT`` says what a turn is, and both are as
good as any other; where every turn has a reward on its last token the results are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..parts import require
from ..rows import Credit, Rows
from ..tensors import discounted_sum, following, masked
from . import gae as token_level


class Config(token_level.Config, frozen=True):
    """Settings; gamma, lam and whiten are those of ``gae``, lam serves both levels.

    Attributes:
        gamma_turn: discount per turn (RAGEN: 0.95).
    """

    gamma_turn: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.gamma_turn <= 1, "gamma_turn must lie in [0, 1]")


def bilevel_gae(
    token_rewards_BT: Tensor,
    values_BT: Tensor,
    loss_mask_BT: Tensor,
    turn_ids_BT: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    gamma_turn: float = 0.95,
) -> Tensor:
    """Return the advantages, 0 where the mask is 0, shape (B, T); not whitened.

    Args:
        token_rewards_BT: float; the reward of a turn is the sum over its tokens, masked ones included. A turn without
            a trained token is skipped, and its reward added to that of the turn before it; rewards on tokens of no
            turn likewise.
        values_BT: float; the critic's values.
        loss_mask_BT: bool or 0/1.
        turn_ids_BT: int; turn of every token, in the order of time, -1 for none; a trained token has a turn.
        gamma: see :class:`Config`.
        lam: see :class:`Config`.
        gamma_turn: see :class:`Config`.
    """
    inside = loss_mask_BT.bool()
    # Shifted by one, so that 0 stands for "no further turn".
    turns = turn_ids_BT + 1
    ends = inside & (following(turns, inside) != turns)
    high = token_level.gae(turn_rewards(token_rewards_BT, ends, turns), values_BT, ends, gamma=gamma_turn, lam=lam)
    # A_k + V_k as reward and no next value: the error of a turn's last token is A_k itself.
    delta = torch.where(ends, high, gamma * following(values_BT, inside) - values_BT)
    factor = torch.ones_like(delta).masked_fill(inside, gamma * lam)
    return masked(discounted_sum(masked(delta, inside), masked(factor, ~ends)), inside)


def turn_rewards(token_rewards_BT: Tensor, ends_BT: Tensor, turns_BT: Tensor) -> Tensor:
    """Return the reward of every turn at its end and 0 elsewhere, shape (B, T).

    A token of the turn that ends next pays there; any other token pays at the end before it, or at the first one.
    """
    place = ends_BT.long().cumsum(-1) - ends_BT.long()  # ends before the token
    upcoming = torch.where(ends_BT, turns_BT, following(turns_BT, ends_BT))
    home = torch.where(turns_BT == upcoming, place, place - 1).clamp_min(0)
    sums = torch.zeros_like(token_rewards_BT).scatter_add_(-1, home, token_rewards_BT)
    return masked(sums.gather(-1, place), ends_BT)


def advantages(config: Config, rows: Rows) -> Credit:
    """Assign credit to a batch of trajectory rows; needs token_rewards_BT, values_BT and turn_ids_BT."""
    part = "bilevel-gae"
    values = rows.need("values_BT", part).detach()
    raw = bilevel_gae(
        rows.need("token_rewards_BT", part),
        values,
        rows.loss_mask_BT,
        rows.need("turn_ids_BT", part),
        gamma=config.gamma,
        lam=config.lam,
        gamma_turn=config.gamma_turn,
    )
    return token_level.credit(raw, values, rows.loss_mask_BT, config.whiten)
