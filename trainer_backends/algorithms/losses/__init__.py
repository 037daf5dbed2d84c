"""Policy losses: log-probabilities and advantages in, a loss for every token out.

A part whose paper does not average over all tokens says so in its module: ``AGGREGATION`` is its default of the modes
in ``aggregate.py``. One whose token losses depend on the whole row sets ``WHOLE_ROWS``: its rows must not be cut along
the tokens into several micro-batches. A recipe that names another mode wins.
"""

from __future__ import annotations

from ..aggregate import Mode
from ..parts import Part


def default_aggregation(part: Part) -> Mode:
    """Return how the part's paper averages token losses; "token-mean" where the module names nothing."""
    mode: Mode = getattr(part.module, "AGGREGATION", "token-mean")
    return mode


def needs_whole_rows(part: Part) -> bool:
    """Return whether the part's token losses depend on all tokens of a row."""
    return bool(getattr(part.module, "WHOLE_ROWS", False))
