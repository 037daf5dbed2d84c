"""A small shop in WebShop's own files, and how to play in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.webshop import official
from turngym.envs.webshop.goals import Goal, Goals
from turngym.envs.webshop.shop import Shop

FILES = {"items": "items_shuffle_5.json", "instructions": "items_ins_v2_5.json", "humans": "items_human_ins.json"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep catalogues of a test in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "turngym" / "webshop"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with the files of the shop in ``shop.json``."""
    folder = tmp_path / "data"
    folder.mkdir()
    content = json.loads(Path(__file__).with_name("shop.json").read_text(encoding="utf-8"))
    for part, name in FILES.items():
        (folder / name).write_text(json.dumps(content[part]), encoding="utf-8")
    return folder


@pytest.fixture
def shop_of(data: Path) -> Callable[..., tuple[Shop, Goal]]:
    """Return a function that opens the shop, with one of the goals for its third product."""

    def made(**settings: Any) -> tuple[Shop, Goal]:
        catalogue = official.official(str(data))
        goals = Goals(catalogue, "synthetic", 0)
        wanted = next(goal for goal in goals if goal.asin == "B000000003")
        return Shop(catalogue, goals.prices, lambda title: title.lower().split(), **settings), wanted

    return made
