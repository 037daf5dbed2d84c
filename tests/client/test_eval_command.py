from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from turngym.cli import main
from turngym.client.evaluation.metrics import rows, summarise
from turngym.client.evaluation.progress import Shown
from turngym.client.evaluation.table import print_table
from turngym.records import Completion, Episode, Turn


def episode(won: bool, status: str = "terminated") -> Episode:
    """Return an episode of one turn."""
    turn = Turn(index=0, observation="o", completion=Completion(text="r", completion_tokens=3), format_valid=True)
    return Episode("0", "e", "test/0", 0, policy="p", status=status, won=won, turns=[turn])


def test_the_command_prints_a_table_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["eval", "--env", "sokoban,bandit", "--policy", "expert,random", "--episodes", "4", "--pass-k", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert "32/32 episodes" in out and "pass@2" in out and "100.0 % (100–100)" in out
    assert f"Report:  runs/{folder.name}/report.html" in out
    assert main(words) == 0
    assert "Resuming: 32 of 32 episodes are there already." in capsys.readouterr().out
    (folder / "report.html").unlink()
    assert main(["eval", "--out", str(folder), "--report-only"]) == 0
    assert (folder / "report.html").exists()


def test_arguments_are_put_over_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    words = ["eval", "--preset", "ragen", "--policy", "expert", "--episodes", "3", "--max-turns", "2", "--seed", "9"]
    words += ["--config", "max_steps=6", "--turn", "memory=1", "--temperature", "0.9", "--split", "validation"]
    assert main([*words, "--model", "m", "--base-url", "http://127.0.0.1:1/v1", "--retries", "0", "--out", out]) == 1
    written = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (written["seed"], written["splits"], written["episodes"]) == (9, ["validation"], 3)
    assert {env["name"] for env in written["envs"]} == {"ragen-bandit", "ragen-sokoban", "ragen-frozen-lake"}
    for env in written["envs"]:
        assert env["turn"]["max_turns"] == 2 and env["turn"]["memory"] == 1 and env["config"]["max_steps"] == 6
    assert written["policies"][1]["sampling"] == {"temperature": 0.9, "max_tokens": 400}
    shown = capsys.readouterr().out
    assert "No connection to http://127.0.0.1:1/v1" in shown and "Run the same command again" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No environment is named"),
        (["--env", "bandit"], "No policy is named"),
        (["--env", "bandit", "--policy", "random", "--episodes", "0"], "Expected `int` >= 1 - at `$.episodes`"),
        (["--env", "bandit", "--policy", "random", "--concurrency", "0"], "--concurrency is 0"),
        (["--env", "bandit", "--policy", "random", "--config", "size"], "is no KEY=VALUE"),
        (["--env", "bandit", "--policy", "random", "--first", "--drawn"], "--first and --drawn"),
        (["--env", "bandit", "--policy", "random", "--seeds", "0"], "`$.seeds`"),
        (["--env", "bandit", "--model", "a", "--base-url", "u", "--base-url", "v"], "2 --base-url for 1 --model"),
        (["--report-only"], "needs the folder of a run"),
        (["--report-only", "--out", "nowhere"], "holds no run"),
        (["--preset", "quik"], "Did you mean 'quick'"),
        (["--env", "bandit", "--policy", "random", "--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_wrong_arguments_say_what_to_do(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *words]) == 1
    assert says in capsys.readouterr().err


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=120)
    shown = Shown(console, line_every=0.0)
    shown.start(4, 1)
    for won, status in ((True, "terminated"), (False, "terminated"), (False, "failed")):
        shown.advance(episode(won, status))
    shown.stop()
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "Resuming: 1 of 4 episodes are there already."
    assert lines[2].startswith("3/4 episodes, ") and "left" in lines[2] and "won 50%" in lines[2]
    assert lines[-1].startswith("4/4 episodes, ") and lines[-1].endswith("failed 1")


def test_progress_is_a_bar_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    shown = Shown(console)
    shown.start(2, 0)
    shown.advance(episode(True))
    shown.stop()
    assert "1/2" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    found = rows([summarise(episode(True))])
    wide, narrow = (Console(file=io.StringIO(), width=width) for width in (200, 60))
    for console in (wide, narrow):
        print_table(found, console)
    assert "tokens/turn" in wide.file.getvalue()  # type: ignore[attr-defined]
    assert "tokens/turn" not in narrow.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= 60 for line in narrow.file.getvalue().splitlines())  # type: ignore[attr-defined]
