"""Real hub processes for the client's tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MAIN = Path(__file__).with_name("hub_main.py")


class HubProcess:
    """A hub in a process of its own, which can be killed and started again on the same port."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.port = int(settings.pop("port", 0))
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, **changes: Any) -> HubProcess:
        """Start, and wait until connections are accepted."""
        settings = {**self.settings, **changes, "port": self.port}
        command = [sys.executable, str(MAIN), json.dumps(settings)]
        env = {name: value for name, value in os.environ.items() if name != "TURNGYM_API_KEY"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found is not None, "the hub did not start"
        self.port = int(found[1])
        return self

    def end(self, how: Callable[[subprocess.Popen[str]], None] = subprocess.Popen.kill) -> None:
        """Kill the process, or end it in another way, and wait until it is gone."""
        if self.process is not None:
            how(self.process)
            self.process.communicate(timeout=30)
            self.process = None


@pytest.fixture(scope="session")
def hub() -> Iterator[HubProcess]:
    """A hub that all tests share; it is not to be ended."""
    process = HubProcess().start()
    yield process
    process.end(subprocess.Popen.terminate)


@pytest.fixture
def url(hub: HubProcess) -> str:
    """URL of the shared hub."""
    return hub.url


@pytest.fixture
def new_hub() -> Iterator[Callable[..., HubProcess]]:
    """Start hubs of one's own, by settings; they are ended after the test."""
    started: list[HubProcess] = []

    def start(**settings: Any) -> HubProcess:
        started.append(HubProcess(**settings).start())
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture(autouse=True)
def no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no API key but their own."""
    monkeypatch.delenv("TURNGYM_API_KEY", raising=False)
