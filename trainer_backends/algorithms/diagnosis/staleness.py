"""How stale samples are when trajectories are cut into turn rows and collected beside the updates (T2PO, eq. 14).

Lag in learner updates: delta = rollout batch · group size · mean turns / update batch; ratio rho = delta / (1 + delta).
The paper finds training stable over the settings of its table 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import InvalidRequest
from ..parts import PartConfig, require
from ..verdict import Verdict, limit


class Config(PartConfig, frozen=True):
    """Settings.

    Attributes:
        most: a ratio above this is a warning. The paper names no limit; 1 never warns.
    """

    most: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.most <= 1, "most must lie in [0, 1]")


@dataclass(frozen=True)
class Staleness:
    """Outcome of eq. 14.

    Attributes:
        lag: delta, in updates.
        ratio: rho, in [0, 1).
    """

    lag: float
    ratio: float


def staleness(*, rollout_batch: float, group_size: float, mean_turns: float, update_batch: float) -> Staleness:
    """Return lag and ratio.

    Args:
        rollout_batch: tasks in a rollout batch.
        group_size: episodes per task (n).
        mean_turns: mean turns of an episode (K).
        update_batch: rows in one update.

    Raises:
        InvalidRequest: a negative number, or an update batch of 0.
    """
    if min(rollout_batch, group_size, mean_turns) < 0 or not update_batch > 0:
        raise InvalidRequest("Staleness needs sizes of at least 0.", hint="Give an update_batch above 0.")
    lag = rollout_batch * group_size * mean_turns / update_batch
    return Staleness(lag, lag / (1 + lag))


def indicate(
    config: Config, *, rollout_batch: float, group_size: float, mean_turns: float, update_batch: float
) -> Verdict:
    """Judge the staleness ratio; arguments as for :func:`staleness`."""
    found = staleness(
        rollout_batch=rollout_batch, group_size=group_size, mean_turns=mean_turns, update_batch=update_batch
    )
    evidence = limit("staleness_ratio", found.ratio, config.most)
    return Verdict("warning" if evidence.fired else "fine", (evidence,))
