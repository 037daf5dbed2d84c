"""The benchmark of ScienceWorld measures what it says, on a short task."""

from __future__ import annotations

import pytest

from turngym.client.bench import scienceworld
from turngym.envs.registry import unmet
from turngym.envs.scienceworld.simulation import Start

MISSING = unmet("scienceworld")


@pytest.mark.skipif(MISSING is not None, reason=f"extra: {MISSING}")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the stock package tidies up late
def test_both_play_the_same_and_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scienceworld, "_STARTS", (Start("lifespan-longest-lived", 0, "easy"),))
    monkeypatch.setattr(scienceworld, "WARM", 1)
    monkeypatch.setattr(scienceworld, "ROUNDS", 1)
    stock, listed, none = scienceworld.steps()
    assert stock["to_stock_per_s"] == 1 and min(each["steps_per_s"] for each in (stock, listed, none)) > 0
    rows = scienceworld.sessions(counts=(2,), stock=1)
    assert [row["sessions"] for row in rows] == [1, 2]
    assert all(20 < row["mb_a_session"] * row["sessions"] < 4000 for row in rows)
