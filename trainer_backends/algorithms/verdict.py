"""What a diagnosis says: a level, and the numbers that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["unknown", "fine", "warning", "collapse"]


@dataclass(frozen=True)
class Evidence:
    """One indicator.

    Attributes:
        name: which.
        fired: whether it speaks for a problem; None where it could not be judged.
        observed: the number looked at.
        threshold: the number it was compared with.
        text: one sentence with both.
    """

    name: str
    fired: bool | None
    observed: float | None
    threshold: float | None
    text: str


@dataclass(frozen=True)
class Verdict:
    """The outcome of a diagnosis.

    Attributes:
        level: "unknown" where nothing could be judged.
        evidence: every indicator, also those that did not fire.
    """

    level: Level
    evidence: tuple[Evidence, ...]

    def __str__(self) -> str:
        """Return the level and the sentences of what fired, or of everything where nothing did."""
        told = [each.text for each in self.evidence if each.fired] or [each.text for each in self.evidence]
        return " ".join([f"{self.level}:", *told])


def limit(name: str, observed: float, threshold: float, unit: str = "") -> Evidence:
    """Return the evidence that a number must not exceed a threshold; NaN exceeds every threshold."""
    fired = not observed <= threshold
    relation = "above" if fired else "within"
    return Evidence(name, fired, observed, threshold, f"{name} {observed:.4g}{unit} is {relation} {threshold:g}{unit}.")
