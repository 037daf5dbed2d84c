"""What in a run's numbers should worry: signs of collapse, and steps that teach nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .folder import Entry

if TYPE_CHECKING:
    from ..algorithms.verdict import Verdict

SERIES: Mapping[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "grad_norm": ("gradient_norm",),
    "reward_std": ("reward_std",),
    "entropy": ("policy_entropy", "entropy", "sampling_entropy"),
    "response_length": ("response_tokens",),
    "repetition": ("repetition",),
}
"""Indicator of the Echo Trap -> numbers of a training step that it reads; the first one noted is taken."""
LOOKS = 200


def judge(train: Sequence[Entry], window: int = 10) -> Verdict:
    """Judge the course of a run; see ``algorithms/diagnosis/echo_trap.py``.

    Args:
        train: numbers of each training step, oldest first.
        window: steps in a median.

    Raises:
        MissingExtra: torch is not installed.
    """
    from ..algorithms.diagnosis.echo_trap import Config, indicate

    return indicate(Config(window=window), dict(_series(train)))


def onsets(train: Sequence[Entry], window: int = 10) -> dict[str, int]:
    """Return the step at which each indicator of a collapse first fired, as it could be seen at that time.

    Of long runs a share of the steps is looked at.
    """
    found: dict[str, int] = {}
    every = max(1, len(train) // LOOKS)
    for count in range(2 * window, len(train) + 1, every):
        for each in judge(train[:count], window).evidence:
            if each.fired and each.name not in found:
                found[each.name] = int(train[count - 1]["step"])
    return found


def _series(train: Sequence[Entry]) -> Iterator[tuple[str, list[float]]]:
    for name, candidates in SERIES.items():
        taken = next((each for each in candidates if any(each in entry for entry in train)), None)
        if taken is not None:
            yield name, [math.nan if entry[taken] is None else entry[taken] for entry in train if taken in entry]


class Alarms:
    """Listens to a run; says every warning once for as long as it lasts.

    Args:
        window: steps in a median.
    """

    def __init__(self, window: int = 10) -> None:
        self.window = window
        self.active: dict[str, str] = {}
        self._train: list[Entry] = []

    def hear(self, metrics: Mapping[str, Any]) -> list[str]:
        """Take the numbers of a training step; return the warnings that are new. ``active`` holds those that last."""
        self._train.append(dict(metrics))
        now = dict(_of_step(metrics))
        if len(self._train) >= 2 * self.window:
            verdict = judge(self._train, self.window)
            now |= {each.name: each.text for each in verdict.evidence if each.fired}
            if verdict.level == "collapse":
                now["collapse"] = "The run collapses: a direct sign and an early sign of the Echo Trap."
        new = [text for name, text in now.items() if name not in self.active]
        self.active = now
        return new


def _of_step(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with one step: (name, sentence)."""
    episodes, failed = metrics.get("episodes", 0.0), metrics.get("failed", 0.0)
    if failed:
        yield "failed", f"{failed:.0f} of {episodes:.0f} episodes failed; episodes.jsonl says why."
    if metrics.get("trained_rows") == 0:
        yield "empty", "Nothing was left to train on: every episode failed or was filtered out."
    elif metrics.get("advantage_zero", 0.0) == 1:
        yield "flat", "Every advantage is 0: within each group all episodes fared the same."
