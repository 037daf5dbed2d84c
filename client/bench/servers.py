"""Server processes under test: started, pinned to a core, found by the address they print, and ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import ServerUnavailable

YARDSTICKS = Path(__file__).with_name("yardsticks.py")


@dataclass(frozen=True)
class Running:
    """A server process that answers.

    Attributes:
        pid: its process id.
        port: its port on 127.0.0.1.
    """

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def memory_kib(self) -> int:
        """Return the private memory that the process and those it started hold, in KiB."""
        return sum(_memory_kib(pid) for pid in family(self.pid))


def _memory_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        found = re.search(r"RssAnon:\s+(\d+)", file.read())
    assert found is not None
    return int(found.group(1))


def family(pid: int) -> list[int]:
    """Return a process and those it started, and those they started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="utf-8").split():
            found += family(int(child))
    return found


def pin(core: int) -> None:
    """Keep this process on one core, where there are several."""
    if len(cores := sorted(os.sched_getaffinity(0))) > core:
        os.sched_setaffinity(0, {cores[core]})


@contextmanager
def running(command: Sequence[str]) -> Iterator[Running]:
    """Start a server, wait for the line with its address, and stop it at the end.

    Raises:
        ServerUnavailable: it ended without printing an address.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TURNGYM_API_KEY"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=lambda: pin(0))
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                yield Running(process.pid, int(found.group(1)))
                return
        raise ServerUnavailable(f"{' '.join(command)} did not start.", hint="Run it by hand to see why.")
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def hub_command(envs: str) -> list[str]:
    """Return the command that serves some environments on a free port."""
    return [sys.executable, "-m", "turngym.cli", "serve", "--port", "0", "--env", envs]


def yardstick_command(kind: str, python: str = sys.executable) -> list[str]:
    """Return the command of a yardstick server ("bare" or "stock")."""
    return [python, str(YARDSTICKS), kind]
