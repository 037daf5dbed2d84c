"""How numbers of a run read, wherever they are shown."""

from __future__ import annotations

import math
from typing import Literal

Unit = Literal["share", "number", "count", "seconds"]


def text_of(value: float | None, unit: Unit = "number") -> str:
    """Return a number as people read it: three digits, "–" where there is none."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else str(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "seconds":
        return clock(value) if value >= 100 else f"{value:.3g} s"
    if unit == "count" or abs(value) >= 1000:
        return f"{value:,.0f}"
    # Below that it is the noise of rounding, as in the KL to the policy that sampled.
    return f"{value:.3g}" if abs(value) >= 1e-6 else "0"


def brief(value: float, unit: Unit = "number") -> str:
    """Return a number as it stands beside an axis or a point."""
    return f"{100 * value:.3g} %" if unit == "share" else text_of(value, unit)


def clock(seconds: float) -> str:
    """Return a duration as "m:ss" or "h:mm:ss"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
