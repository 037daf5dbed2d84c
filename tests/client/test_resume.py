"""An interrupted run goes on where it was, whatever interrupted it. Everything here is done to real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turngym.records import Episode, read_episodes

POLICY = """
import asyncio
from turngym.client.policies import RandomPolicy

class Slow(RandomPolicy):
    async def act(self, context):
        await asyncio.sleep(0.002)
        return await super().act(context)
"""
# The kernel refuses every write beyond this size of a file, in the middle of a line too.
LIMITED = """
import resource, sys
from turngym.cli import main
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
sys.exit(main(sys.argv[2:]))
"""
WORDS = ["--env", "frozen-lake", "--policy", "slow_policy:Slow", "--episodes", "40", "--pass-k", "2"]


class Runner:
    """Starts ``turngym eval`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "slow_policy.py").write_text(POLICY)

    def start(self, out: str = "run", *more: str, largest_file: int | None = None) -> subprocess.Popen[str]:
        program = ["-m", "turngym.cli"] if largest_file is None else ["-c", LIMITED, str(largest_file)]
        command = [sys.executable, *program, "eval", *WORDS, "--out", out, "--concurrency", "4", *more]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def finish(self, out: str = "run", *more: str) -> str:
        """Run to the end; return what was printed."""
        process = self.start(out, *more)
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return printed

    def wait_for(self, process: subprocess.Popen[str], lines: int, out: str = "run") -> None:
        """Wait until the records file has that many episodes."""
        path = self.folder / out / "episodes.jsonl"
        deadline = time.monotonic() + 60
        while not path.exists() or path.read_bytes().count(b"\n") <= lines:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def episodes(self, out: str = "run") -> list[Episode]:
        return list(read_episodes(self.folder / out / "episodes.jsonl"))


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def course(episode: Episode) -> Any:
    """Return what an episode is, without what the clock says."""
    return episode.id, episode.seed, episode.status, episode.reward, [turn.completion.text for turn in episode.turns]


def check_whole(runner: Runner, out: str = "run") -> None:
    """Check that no episode is missing or repeated, and that all are what an undisturbed run gives."""
    found = runner.episodes(out)
    assert Counter(episode.id for episode in found) == Counter({episode.id: 1 for episode in found})
    runner.finish("undisturbed")
    assert sorted(map(course, found)) == sorted(map(course, runner.episodes("undisturbed")))
    assert len(found) == 80


def test_kill_nine_loses_and_repeats_nothing(runner: Runner) -> None:
    kept = b""
    for lines in (5, 20, 45):
        process = runner.start()
        runner.wait_for(process, lines)
        process.kill()
        process.communicate()
        written = (runner.folder / "run" / "episodes.jsonl").read_bytes()
        # What was on disk stays as it was; only a line in writing may have been torn.
        assert written.startswith(kept)
        kept = written[: written.rindex(b"\n") + 1]
    assert "Resuming: " in runner.finish()
    check_whole(runner)


def test_a_torn_last_line_is_played_again(runner: Runner) -> None:
    runner.finish()
    path = runner.folder / "run" / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    printed = runner.finish()
    assert "Resuming: 79 of 80" in printed and "1 damaged line(s)" in printed
    good: list[Episode] = list(read_episodes(path, damaged=[]))
    assert len({episode.id for episode in good}) == len(good) == 80


def test_an_interrupt_from_the_keyboard_can_be_resumed(runner: Runner) -> None:
    process = runner.start()
    runner.wait_for(process, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "turngym: interrupted\n")
    runner.finish()
    check_whole(runner)


def test_two_processes_do_not_write_to_one_run(runner: Runner) -> None:
    first = runner.start()
    runner.wait_for(first, 1)
    first.send_signal(signal.SIGSTOP)  # so that it is still there, however slow this machine is
    second = runner.start()
    _, errors = second.communicate(timeout=30)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 1 and "Another process is writing to run" in errors
    first.communicate(timeout=60)
    assert first.returncode == 0
    check_whole(runner)


@pytest.mark.parametrize("limit", [40_000, 400])
def test_a_disk_that_takes_no_more_stops_the_run_and_harms_nothing(runner: Runner, limit: int) -> None:
    process = runner.start(largest_file=limit)  # 400 bytes are less than the plan needs
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "turngym: Cannot write run/" in errors and "Free disk space and run the same command again" in errors
    assert "Traceback" not in errors
    assert not list((runner.folder / "run").glob(".*"))
    if (runner.folder / "run" / "episodes.jsonl").exists():
        left = runner.episodes()  # raises if any line is damaged
        assert 0 < len(left) < 80
    runner.finish()
    check_whole(runner)


def test_a_report_that_cannot_be_written_leaves_the_old_one(runner: Runner) -> None:
    runner.finish()
    report = runner.folder / "run" / "report.html"
    before = report.read_bytes()
    process = runner.start("run", "--report-only", largest_file=len(before) // 2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Cannot write run/report.html" in errors
    assert report.read_bytes() == before
    assert json.loads((runner.folder / "run" / "metrics.json").read_text())["rows"]
