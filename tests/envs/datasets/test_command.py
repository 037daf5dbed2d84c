"""``turngym data`` as a user types it."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

from turngym.cli import main
from turngym.envs import registry
from turngym.envs.datasets import sets, store

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def shop(tmp_path: Path, shop_files: dict[str, bytes]) -> str:
    folder = tmp_path / "shop [1]"
    folder.mkdir()
    for name, content in shop_files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def rows(capsys: Capture) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert main(["data", "list", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_from_nothing_to_a_data_set_and_back(data_home: Path, shop: str, capsys: Capture) -> None:
    before = rows(capsys)
    assert set(before) == set(sets.SETS) and before["webshop"]["state"] == "missing"
    assert main(["data", "add", "webshop", shop]) == 0
    assert str(data_home / "webshop") in capsys.readouterr().out
    row = rows(capsys)["webshop"]
    assert (row["state"], row["path"]) == ("linked", shop) and row["licence"] and row["source"] and row["needed_by"]
    assert main(["data", "list"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    for text in ("webshop", "linked", "shop[1]", "MIT", "turngymdatafetchalfworld", 'games="official"'):
        assert text in shown
    assert main(["data", "remove", "webshop", "--yes"]) == 0
    assert rows(capsys)["webshop"] == before["webshop"]


def test_removal_asks_first(data_home: Path, shop: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["data", "add", "webshop", shop, "--copy"])
    assert main(["data", "remove", "webshop"]) == 1  # nobody can be asked
    assert "--yes" in capsys.readouterr().err and store.locate("webshop")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda question: "")
    assert main(["data", "remove", "webshop"]) == 1
    assert store.locate("webshop")
    monkeypatch.setattr(builtins, "input", lambda question: "y")
    assert main(["data", "remove", "webshop"]) == 0
    assert store.locate("webshop") is None
    assert main(["data", "remove", "webshop"]) == 1
    assert "Nothing was removed" in capsys.readouterr().err


def test_mistakes_are_told(data_home: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, message in (
        (["add", "webshop", str(tmp_path)], "items_shuffle*.json"),
        (["add", "alfworld", str(tmp_path)], "json_2.1.1"),
        (["add", "alfworld-texts", str(tmp_path)], "*.twl2"),
        (["fetch", "webshop", "--variant", "huge"], "small"),
        (["fetch", "webshops"], "Did you mean 'webshop'"),
    ):
        assert main(["data", *words]) == 1
        assert message in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(blocked))
    assert main(["data", "remove", "webshop", "--yes"]) == 1
    assert "XDG_DATA_HOME" in capsys.readouterr().err


def test_a_listing_of_environments_names_what_is_missing(data_home: Path, capsys: Capture) -> None:
    assert main(["envs"]) == 0
    assert "turngym data fetch alfworld-texts" in " ".join(capsys.readouterr().out.split())
    assert main(["envs", "alfworld"]) == 1
    assert "turngym data fetch alfworld-texts" in capsys.readouterr().err


def test_an_evaluation_of_all_leaves_out_by_name(
    data_home: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", {name: registry.get_spec(name) for name in ("alfworld", "bandit")})
    out = str(tmp_path / "run")
    assert main(["eval", "--env", "all", "--policy", "random", "--episodes", "1", "--quiet", "--out", out]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "alfworld was left out: The data set alfworld-texts is not on this machine." in shown
    assert "turngym data fetch alfworld-texts" in shown
