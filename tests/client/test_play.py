from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.cli import main


def start(*words: str) -> tuple[subprocess.Popen[bytes], int]:
    """Play in a terminal of its own; return the process and the terminal's other end."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "turngym.cli", "play", *words], stdin=inner, stdout=inner, stderr=inner
    )
    os.close(inner)
    return process, outer


def read_until(terminal: int, pattern: str) -> str:
    """Read what the terminal shows until it shows the pattern."""
    text = ""
    deadline = time.monotonic() + 30
    while not re.search(pattern, text):
        assert time.monotonic() < deadline, text
        try:
            text += os.read(terminal, 4096).decode("utf-8", "replace")
        except OSError:  # the other end has closed
            break
    assert re.search(pattern, text), text
    return text


def play(*words: str, typed: str) -> str:
    """Type all lines at once; return what was shown."""
    done = subprocess.run(
        [sys.executable, "-m", "turngym.cli", "play", *words], input=typed, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_game_is_played_to_its_end_in_a_terminal() -> None:
    process, terminal = start("bandit", "--split", "test", "--task", "3", "--seed", "1")
    shown = read_until(terminal, "> ")
    assert "two arms" in shown and "1) " in shown
    os.write(terminal, b"librarian\n")
    shown = read_until(terminal, "Again: ")
    assert "Not solved." in shown and "reward: 0.15" in shown
    assert process.wait(timeout=30) == 0
    os.close(terminal)


def test_an_interrupt_ends_play_at_once() -> None:
    process, terminal = start("sokoban")
    read_until(terminal, "> ")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    os.close(terminal)


@pytest.mark.parametrize("place", ["here", "hub"])
def test_the_line_printed_at_the_end_plays_the_same_again(place: str, url: str) -> None:
    where = ["--url", url] if place == "hub" else []
    typed = "1\nfly\nq\n"  # no room is solved by one move
    first = play("sokoban", "--config", "size=7", *where, typed=typed)
    assert "You left." in first
    (again,) = re.findall(r"^Again: turngym play (.*)$", first, re.MULTILINE)
    assert "--config size=7" in again
    boards = [
        re.findall(r"^│ [#_OXPS√]{7} ", text, re.MULTILINE) for text in (first, play(*again.split(), typed=typed))
    ]
    assert boards[0] == boards[1] and len(boards[0]) == 3 * 7


def test_what_does_not_exist_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, says in (
        (["sokobn"], "Did you mean 'sokoban'"),
        (["bandit", "--task", "100000000"], "It has tasks 0 to"),
        (["bandit", "--split", "tset"], "Did you mean 'test'"),
        (["bandit", "--config", "x=1"], "has no setting 'x'"),
        (["bandit", "--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
    ):
        assert main(["play", *words]) == 1
        assert says in capsys.readouterr().err
