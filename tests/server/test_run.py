"""The hub as a process: start, drain on SIGTERM, end; the command and its settings."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from turngym.errors import InvalidRequest, ServerUnavailable, UnknownEnvironment
from turngym.server.command import KEY_VARIABLE, add_arguments, settings_of
from turngym.server.run import listen, serve, url_of
from turngym.server.settings import HubSettings, read_keys

SLOW = """
import sys
sys.path.insert(0, {folder!r})
import slow_env
from turngym.server.run import serve
from turngym.server.settings import HubSettings
serve(HubSettings(port=0, envs=("slow", "bandit"), workers=2, drain_timeout_s={drain}))
"""
ODD = str(Path(__file__).with_name("odd"))


@contextmanager
def process(drain: float = 10.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a hub with a slow environment in a process of its own."""
    command = [sys.executable, "-c", SLOW.format(drain=drain, folder=ODD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            match = re.search(r"http://[\d.]+:\d+", line)
            assert match, line + (child.stderr.read() if child.stderr else "")
            yield child, match[0]
        finally:
            child.kill()


def test_sigterm_lets_running_steps_finish_and_says_goodbye() -> None:
    with process() as (child, url), connect(url.replace("http", "ws") + "/v1/ws") as socket:

        def ask(number: int, op: str, **item: Any) -> None:
            socket.send(msgspec.json.encode({"id": number, "op": op, "items": [item]}).decode())

        ask(1, "create", env="slow", session="a", reset=True)
        assert msgspec.json.decode(socket.recv(10))["items"][0]["session"] == "a"
        ask(2, "step", session="a", action="2")
        ask(3, "state", session="nobody")
        assert msgspec.json.decode(socket.recv(10))["id"] == 3
        child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while httpx.get(f"{url}/ready").status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert httpx.get(f"{url}/ready").json()["code"] == "DRAINING"
        assert httpx.get(f"{url}/health").status_code == 200
        refused = httpx.post(f"{url}/v1/create", json={"items": [{"env": "bandit"}]})
        assert (refused.status_code, refused.json()["code"]) == (503, "DRAINING")
        assert refused.headers["retry-after"]
        ask(4, "create", env="bandit")
        assert msgspec.json.decode(socket.recv(10))["error"]["code"] == "DRAINING"
        answer = msgspec.json.decode(socket.recv(10))
        assert (answer["id"], answer["items"][0]["step_index"]) == (2, 1)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert "shuts down" in closed.value.rcvd.reason
        assert child.wait(10) == 0


def test_an_idle_hub_ends_at_once_and_a_busy_one_after_its_drain_timeout() -> None:
    with process() as (child, url):
        assert httpx.get(f"{url}/health").json()["status"] == "healthy"
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
    with process(drain=0.3) as (child, url), connect(url.replace("http", "ws") + "/v1/ws") as socket:
        for number, (op, item) in enumerate(
            [("create", {"env": "slow", "session": "a", "reset": True}), ("step", {"session": "a", "action": "30"})]
        ):
            socket.send(msgspec.json.encode({"id": number, "op": op, "items": [item]}).decode())
        socket.recv(10)
        child.send_signal(signal.SIGTERM)
        # The step would take half a minute: its worker does not keep the hub.
        assert child.wait(15) == 0


def test_a_second_signal_ends_it_now() -> None:
    with process(drain=60.0) as (child, url), connect(url.replace("http", "ws") + "/v1/ws") as socket:
        create = {"env": "slow", "session": "a", "reset": True}
        socket.send(msgspec.json.encode({"id": 1, "op": "create", "items": [create]}).decode())
        socket.recv(10)
        step = {"session": "a", "action": "50"}
        socket.send(msgspec.json.encode({"id": 2, "op": "step", "items": [step]}).decode())
        child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while httpx.get(f"{url}/ready").status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait(15) == 0


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="engine: needs Linux")
@pytest.mark.parametrize("step", ["0", "60", "spin"])
def test_a_hub_that_is_killed_leaves_no_process_behind(step: str) -> None:
    with process() as (child, url):
        for session in "ab":
            items = [{"env": "slow", "session": session, "reset": True}]
            assert "error" not in httpx.post(f"{url}/v1/create", json={"items": items}, timeout=20).json()["items"][0]
        workers = children(child.pid)
        assert len(workers) == 2
        with connect(url.replace("http", "ws") + "/v1/ws") as socket:
            items = [{"session": session, "action": step} for session in "ab"]
            socket.send(msgspec.json.encode({"id": 1, "op": "step", "items": items}).decode())
            httpx.get(f"{url}/ready")  # the message was taken
            child.kill()
            child.wait(10)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() and state(pid) != "Z" for pid in workers):
            assert time.monotonic() < deadline, "a worker process outlives its hub"
            time.sleep(0.01)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_workers_do_not_hear_the_signals_of_the_terminal() -> None:
    with process() as (child, url):
        items = [{"env": "slow", "session": "a", "reset": True}]
        httpx.post(f"{url}/v1/create", json={"items": items}, timeout=20)
        workers = children(child.pid)
        for pid in workers:
            assert os.getsid(pid) != os.getsid(child.pid)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
        step = {"items": [{"session": "a", "action": "0.1"}]}
        assert httpx.post(f"{url}/v1/step", json=step, timeout=20).json()["items"][0]["step_index"] == 1
        assert children(child.pid) == workers


def test_a_taken_port_says_so() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ServerUnavailable, match="Choose another --port"):
            serve(HubSettings(port=port, envs=("bandit",)))
    with pytest.raises(ServerUnavailable, match="Choose another --host"):
        listen("no.such.host.invalid", 0)


def test_the_url_is_one_that_this_machine_reaches() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listen("::1", 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")


def parsed(*words: str) -> HubSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return settings_of(parser.parse_args(words))


def test_the_command_line_gives_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert parsed() == HubSettings()
    keys = tmp_path / "keys"
    keys.write_text("# who key\nalice secret-one\n\nbob   secret-two\n")
    words = (
        "--host 0.0.0.0 --port 0 --env sokoban,bandit --max-sessions 10 --max-sessions-per-key 3 --max-body 0.5 "
        "--workers 4 --threads 5 --idle-timeout 60 --step-timeout 5 --make-timeout 6 --drain-timeout 0 "
        f"--api-keys {keys}"
    )
    settings = parsed(*words.split())
    assert settings == HubSettings(
        host="0.0.0.0",
        port=0,
        envs=("sokoban", "bandit"),
        api_keys={"alice": "secret-one", "bob": "secret-two"},
        max_sessions=10,
        max_sessions_per_key=3,
        idle_timeout_s=60,
        step_timeout_s=5,
        make_timeout_s=6,
        drain_timeout_s=0,
        max_body_bytes=1 << 19,
        workers=4,
        threads=5,
    )
    assert settings.env_ids() == ("bandit", "sokoban")
    monkeypatch.setenv(KEY_VARIABLE, "secret-three")
    assert parsed().api_keys == {"default": "secret-three"}
    with pytest.raises(InvalidRequest, match="Use one of them"):
        parsed("--api-keys", str(keys))


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"max_sessions": 0},
        {"idle_timeout_s": -1.0},
        {"step_timeout_s": float("nan")},
        {"drain_timeout_s": -1.0},
        {"max_sessions_per_key": 0},
        {"workers": 0},
        {"threads": 0},
        {"make_timeout_s": 0.0},
        {"envs": ()},
        {"api_keys": {"a": "short"}},
        {"api_keys": {"a": "with a space in it"}},
        {"api_keys": {"a b": "long-enough"}},
        {"api_keys": {"a": "same-key-1", "b": "same-key-1"}},
    ],
    ids=str,
)
def test_settings_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        HubSettings(**wrong)


def test_an_unknown_environment_is_named_at_start() -> None:
    with pytest.raises(UnknownEnvironment, match="Did you mean 'sokoban'"):
        HubSettings(envs=("sokobn",))


@pytest.mark.parametrize("text", ["", "# nothing\n", "alone\n", "a b c\n", "a secret-one\na secret-two\n", "a short\n"])
def test_key_files_that_do_not_fit(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidRequest):
        read_keys(file)


def test_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="Cannot read"):
        read_keys(tmp_path / "missing")
    file = tmp_path / "binary"
    file.write_bytes(os.urandom(64) + b"\xff\xfe")
    with pytest.raises(InvalidRequest):
        read_keys(file)
