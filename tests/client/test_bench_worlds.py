"""``turngym bench`` on the text worlds: what its rows say is about what was played."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngym.cli import main
from turngym.client.bench import worlds


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_shops_of_each_size_are_built_and_started() -> None:
    small, large, *_ = worlds.webshop([200, 400], 0.01)
    assert (small["products"], large["products"]) == ("200", "400") and 0 < small["disk_mib"] < large["disk_mib"]
    assert small["search_p50_ms"] <= small["search_p95_ms"] and small["steps_per_s"] > 0
    assert 1 < small["session_kib"] < 10


def test_shortcuts_reach_less_than_the_expert() -> None:
    rows = {row["policy"]: row for row in worlds.webshop_policies([200], episodes=40) if row["products"] == "200"}
    random, first, options, expert = (row["success_percent"] for row in rows.values())
    assert random <= 5 and first <= 5 and 20 < options < 80 and expert >= 95
    scores = [row["task_score"] for row in rows.values()]
    assert scores == sorted(scores)


def test_wrong_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "webshop", "--products", "many"])
    assert "--products" in capsys.readouterr().err
