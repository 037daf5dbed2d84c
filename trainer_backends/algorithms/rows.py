"""What credit, shaping and losses compute from: training rows with explicit groups, trajectories and turns.

Two layouts share one class. *Turn rows*: every turn is a row (T2PO, RLVMR). *Trajectory rows*: a row holds a whole
trajectory, its observations masked out (RAGEN, ARPO, AEPO, AT2PO). Turns are never guessed from masks or rewards:
``turn_ids_BT`` names the turn of every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import MissingInput
from .forest import Forest


@dataclass(kw_only=True)
class Rows:
    """A batch of B rows of at most T tokens; what a method does not use may be left None.

    Attributes:
        loss_mask_BT: bool or 0/1; 1 where a token was sampled by the policy and is trained. Observations, padding and
            forced tokens are 0.
        token_rewards_BT: float; reward of each token. For an outcome reward, on the last trained token.
        group_B: int; rows of one task and variation share a number.
        trajectory_B: int; rows of one trajectory share a number.
        turn_B: int; place of a turn row in its trajectory, from 0.
        turn_ids_BT: int; turn of each token, from 0, -1 where a token belongs to none.
        step_reward_B: float; the environment's reward of a turn row.
        step_penalty_B: float; what a turn row loses for itself alone (T2PO's format penalty): taken off its own step
            return and not carried back to earlier turns.
        environment_B: int; rows of one kind of environment share a number.
        segment_ids_BT: int; tokens that several rows of a group share (a prefix that was branched) carry the same
            number in all of them, -1 where a token belongs to no segment.
        anchors: state of a turn row as the policy saw it, for step-level groups.
        tags: meta-reasoning tag of a turn row, "none" for no tag.
        meta_reward_B: float; reward of the tag.
        values_BT: float; the critic's values.
        logprobs_BT: float; log-probabilities of the sampled tokens under the policy being trained.
        old_logprobs_BT: float; the same under the policy that the ratio refers to.
        ref_logprobs_BT: float; the same under the reference policy.
        rollout_logprobs_BT: float; the same as the inference engine recorded them.
        entropies_BT: float; entropy of the policy at each token, in nats.
        forest: the turn trees of the batch.
        nodes_BT: int; number in ``forest`` of the node that a token belongs to, -1 for none.
        token_weights_BT: float; weights that count a prefix shared by several rows once.
    """

    loss_mask_BT: Tensor
    token_rewards_BT: Tensor | None = None
    group_B: Tensor | None = None
    trajectory_B: Tensor | None = None
    turn_B: Tensor | None = None
    turn_ids_BT: Tensor | None = None
    step_reward_B: Tensor | None = None
    step_penalty_B: Tensor | None = None
    environment_B: Tensor | None = None
    segment_ids_BT: Tensor | None = None
    anchors: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    meta_reward_B: Tensor | None = None
    values_BT: Tensor | None = None
    logprobs_BT: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    rollout_logprobs_BT: Tensor | None = None
    entropies_BT: Tensor | None = None
    forest: Forest | None = None
    nodes_BT: Tensor | None = None
    token_weights_BT: Tensor | None = None

    def need(self, name: str, part: str) -> Any:
        """Return the field ``name``.

        Raises:
            MissingInput: it is None; ``part`` says who asked.
        """
        value = getattr(self, name)
        if value is None:
            raise MissingInput(f"{part} needs {name}, and the rows have none.", hint=f"Fill Rows.{name}.")
        return value

    @property
    def counted_B(self) -> Tensor:
        """Which rows have a trained token: padding rows and copies with an empty mask are part of no statistics."""
        return self.loss_mask_BT.bool().any(-1)

    def scores_B(self, part: str) -> Tensor:
        """Return the outcome score of every row: its token rewards summed."""
        rewards: Tensor = self.need("token_rewards_BT", part)
        return rewards.sum(-1)


@dataclass
class Credit:
    """What a credit part gives.

    Attributes:
        advantages_BT: float; 0 where the loss mask is 0.
        returns_BT: float; targets of the critic, None without one.
        details: further tensors by name, for tests and metrics (for example ``episode_B`` and ``step_B`` of GiGPO).
    """

    advantages_BT: Tensor
    returns_BT: Tensor | None = None
    details: dict[str, Tensor] | None = None


@dataclass
class TokenLoss:
    """What a loss part gives: the loss of every token, to be aggregated, and what to log.

    Attributes:
        loss_BT: float, to be minimised; what it holds where the mask is 0 is ignored by ``aggregate``.
        metrics: detached scalars.
    """

    loss_BT: Tensor
    metrics: dict[str, Tensor]


def number(ids: Sequence[Any]) -> Tensor:
    """Return numbers from 0 for any hashable ids, in the order they first appear; shape (len(ids),)."""
    known: dict[Any, int] = {}
    return torch.tensor([known.setdefault(each, len(known)) for each in ids], dtype=torch.long)
