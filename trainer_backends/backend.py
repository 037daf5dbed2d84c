"""What every engine of training does, in this process or elsewhere: five operations.

Episodes are played by :mod:`turngym.client.rollout` or by an engine's own loop; either way each turn is one call of
``generate``, and what is learnt from are the finished episodes of whole groups.

=================  =====================================  =============================================
operation          verl                                   TRL
=================  =====================================  =============================================
``generate``       ``server_manager.generate`` inside an  what a ``rollout_func`` calls
                   agent loop, tokens in and out
``update``         the step that follows the agent        the step that follows a ``rollout_func``; one
                   loops; one output a turn, with group   row a trajectory, its other tokens masked
                   and turn rewards in its extra fields
``save, load``     its checkpoints                        its checkpoints
``policy_version`` ``global_steps``                       ``state.global_step``
=================  =====================================  =============================================

Such an engine keeps its own loop and calls for episodes in place of being called; an :class:`Experience` holds what
either has to hand over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from ..records import Completion, Episode


class Grown(msgspec.Struct):
    """The tree of a group and the episodes of its leaves.

    Attributes:
        plan: with the tree.
        episodes: one for every leaf, breadth first.
        leaves: number of each one's leaf.
        failed: branches that a fault ended.
    """

    plan: Any
    episodes: list[Episode]
    leaves: list[int]
    failed: list[Episode] = msgspec.field(default_factory=list)


class Experience(msgspec.Struct):
    """Finished episodes to learn from.

    Every turn has its token ids as they were read and drawn, log-probabilities, which tokens were forced, its named
    rewards and the version of the weights; an episode names its group.

    Attributes:
        episodes: all members of every group, those that failed too.
        trees: of groups whose episodes share their beginnings; empty for chains.
    """

    episodes: list[Episode]
    trees: list[Grown] = msgspec.field(default_factory=list)


class TrainerBackend(Protocol):
    """An engine that holds a policy: replies are drawn from its weights, and its weights learn from episodes."""

    @property
    def policy_version(self) -> int:
        """Updates that the policy has seen; every completion bears it."""
        ...

    async def generate(self, prompt_ids: Sequence[int], rng: np.random.Generator) -> Completion:
        """Return one reply with its tokens, their log-probabilities and entropies, as drawn.

        Many calls wait at a time; the engine batches them as it likes.

        Args:
            prompt_ids: the whole prompt of the turn.
            rng: the reply's randomness. An engine that cannot draw from it takes its seed from it.

        Raises:
            InvalidRequest: prompt and reply are longer than the model takes.
        """
        ...

    def update(self, experience: Experience) -> dict[str, float]:
        """Learn from whole groups; return the step's metrics. ``policy_version`` grows by one.

        Raises:
            TurngymError: the loss is no finite number; the weights are as before.
        """
        ...

    def save(self) -> Path:
        """Write all that training needs to go on from here; return where.

        Raises:
            RecordError: the disk refused.
        """
        ...

    def load(self, path: Path) -> None:
        """Go back to what :meth:`save` wrote.

        Raises:
            RecordError: it is damaged.
        """
        ...
