from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turngym.cli import main
from turngym.envs.registry import playable


def test_the_demo_evaluates_everything_through_a_hub_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"A hub is running on http://127\.0\.0\.1:\d+", shown)
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").as_uri() in shown
    assert re.findall(r"^  \S*turngym (\w+)", shown, re.MULTILINE) == ["play", "serve", "eval"]
    rows = json.loads((folder / "metrics.json").read_text())["rows"]
    assert {row["env"] for row in rows} == set(playable()) and {row["policy"] for row in rows} == {"expert", "random"}


def test_what_the_hubs_machine_lacks_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, new_hub: Callable[..., Any]
) -> None:
    if importlib.util.find_spec("alfworld"):
        pytest.skip("extra: the package alfworld is installed here, so that nothing is missing")
    with monkeypatch.context() as hidden:
        for name in ("TURNGYM_DATA", "ALFWORLD_DATA"):
            hidden.delenv(name, raising=False)
        for name in ("HOME", "XDG_DATA_HOME"):
            hidden.setenv(name, str(tmp_path))
        url = new_hub(envs=["alfworld", "bandit", "sokoban"]).url
    words = ["eval", "--url", url, "--env", "all", "--policy", "random", "--episodes", "1", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Note: alfworld was left out: The data set alfworld-texts is not on this machine. Run: turngym data" in shown
    rows = json.loads((tmp_path / "run" / "metrics.json").read_text())["rows"]
    assert {row["env"] for row in rows} == {"bandit", "sokoban"}


def test_a_hub_that_does_not_start_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no hub today >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    assert main(["demo", "--out", str(tmp_path / "run")]) == 1
    assert "The hub did not start" in capsys.readouterr().err
    assert (tmp_path / "run" / "hub.log").read_text() == "no hub today\n"
