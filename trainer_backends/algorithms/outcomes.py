"""What a batch of episodes came to, as filters need it: raw rewards, groups, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import MissingInput
from ...records import Episode
from .rows import number
from .tensors import dense


@dataclass(kw_only=True)
class Outcomes:
    """N episodes; what a filter does not use may be left None.

    Attributes:
        rewards_N: float; return of every episode as it was played, before any normalisation of training.
        groups_N: int; episodes of one task share a number.
        scores_N: float; task score in [0, 1].
        void_N: bool; the episode has a turn with neither an action nor an answer.
    """

    rewards_N: Tensor
    groups_N: Tensor
    scores_N: Tensor | None = None
    void_N: Tensor | None = None

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Outcomes:
        """Read the outcomes from records; an episode without a group shares one with those of its task."""
        groups = [episode.group or (episode.env, episode.task) for episode in episodes]
        return cls(
            rewards_N=torch.tensor([episode.reward for episode in episodes], dtype=torch.float64),
            groups_N=number(groups),
            scores_N=torch.tensor([episode.score for episode in episodes], dtype=torch.float64),
            void_N=torch.tensor([any(turn.void for turn in episode.turns) for episode in episodes], dtype=torch.bool),
        )

    def need(self, name: str, part: str) -> Any:
        """Return the field ``name``.

        Raises:
            MissingInput: it is None; ``part`` says who asked.
        """
        value = getattr(self, name)
        if value is None:
            raise MissingInput(f"{part} needs {name}, and the outcomes have none.", hint=f"Fill Outcomes.{name}.")
        return value

    def of_groups(self, keep_N: Tensor) -> Tensor:
        """Return for every group, in the order of their numbers, whether all of its episodes are kept; shape (G,)."""
        index, size = dense(self.groups_N)
        return torch.ones(size, dtype=torch.bool, device=keep_N.device).index_put_(
            (index[~keep_N],), keep_N.new_zeros(())
        )
