"""DAPO's dynamic sampling: train on groups whose rewards are not all equal, and sample until there are enough.

Yu et al. 2025, eq. 11: a group of equal rewards has no advantage and only thins out the batch. ``keep`` is the rule,
:class:`Refill` counts what further rollouts bring.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar

from torch import Tensor

from ....errors import InvalidRequest
from ..outcomes import Outcomes
from ..parts import PartConfig, require
from ..tensors import spread

Group = TypeVar("Group")


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        max_batches: batches of rollouts at most for one update (T2PO's code: 10).
        last: what to do when the last one is in and groups are still missing: "fill" up with groups of equal rewards
            in the order they came, as T2PO's code does, or train on "fewer".
    """

    max_batches: int = 10
    last: Literal["fill", "fewer"] = "fill"

    def __post_init__(self) -> None:
        require(self.max_batches >= 1, "max_batches must be at least 1")


def keep(config: Config, outcomes: Outcomes) -> Tensor:
    """Return which episodes to train on, bool of shape (N,): all or none of a group; a group of one has no spread."""
    return spread(outcomes.rewards_N, outcomes.groups_N).std > 0


class Refill(Generic[Group]):
    """Collects groups over batches of rollouts until there are enough to train on.

    Args:
        config: how long to go on.
        wanted: number of groups.
    """

    def __init__(self, config: Config, wanted: int) -> None:
        self._config = config
        self._wanted = wanted
        self._kept: list[Group] = []
        self._flat: list[Group] = []
        self.batches = 0

    @property
    def missing(self) -> int:
        """Groups that are still to be found."""
        return max(0, self._wanted - len(self._kept))

    @property
    def done(self) -> bool:
        """Whether there are enough groups, or no further batch is allowed."""
        return self.missing == 0 or self.batches >= self._config.max_batches

    def add(self, groups: Iterable[Group], keep_G: Iterable[bool]) -> None:
        """Take in a batch of rollouts.

        Args:
            groups: its groups.
            keep_G: for each, whether it is worth training on.

        Raises:
            InvalidRequest: enough is there already.
        """
        if self.done:
            raise InvalidRequest("The batch is complete.", hint="Take result() and start a new Refill.")
        self.batches += 1
        for group, good in zip(groups, keep_G, strict=True):
            (self._kept if good else self._flat).append(group)

    def result(self) -> list[Group]:
        """Return the groups to train on, at most as many as wanted, in the order they came.

        Raises:
            InvalidRequest: more batches are needed first.
        """
        if not self.done:
            raise InvalidRequest(f"{self.missing} groups are missing.", hint="Roll out another batch and add() it.")
        filling = self._flat[: self.missing] if self._config.last == "fill" else []
        return self._kept[: self._wanted] + filling
