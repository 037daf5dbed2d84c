"""Environments in worker processes: what a process that dies, hangs or is slow means for sessions."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turngym.envs import registry
from turngym.envs.registry import EnvSpec, make
from turngym.errors import InvalidRequest
from turngym.server import pool
from turngym.server.hub import Hub
from turngym.server.settings import HubSettings

ENVS = ("odd-process", "lake-process", "sokoban-process", "fickle", "bandit")


@pytest.fixture(scope="module")
def one(start_hub: Any) -> Iterator[Any]:
    """A hub with one worker process: whoever dies takes everyone along."""
    with pytest.MonkeyPatch.context() as patch, start_hub(envs=ENVS, workers=1) as hub:
        patch.setattr(pool, "GOOD_S", 0.0)  # they are killed too often for long pauses
        yield hub


def pids(hub: Any) -> list[int]:
    """Return the worker processes."""
    return list(hub.on_loop(lambda: [w.process.pid for w in hub.hub.places.pool._workers if w.process is not None]))


def kill(hub: Any, tools: Any) -> None:
    """Kill every worker process and wait until the hub knows."""
    gone = pids(hub)
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    tools.wait_for(lambda: not set(gone) & set(pids(hub)))


def begin(hub: Any, env: str = "odd-process", **more: Any) -> str:
    """Return a new session in an episode."""
    return str(hub.one("create", env=env, session=hub.new(), reset=True, seed=3, task="test/1", **more).session)


def local(env: str, *actions: str, seed: int = 3) -> Any:
    """Return a local environment after some actions, and the outcome."""
    made = make(env)
    outcome: Any = (*made.reset(seed=seed, options={"task": "test/1"}),)
    for action in actions:
        outcome = made.step(action)
    return made, outcome


def told(reply: Any) -> list[Any]:
    """Return what a step's reply tells."""
    return [reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info]


# A process that dies -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["text", "turn"])
def test_a_session_outlives_its_process(one: Any, tools: Any, level: str) -> None:
    session = begin(one, "lake-process", level=level, config={"max_steps": 50})
    twin = begin(one, "lake-process", level=level, config={"max_steps": 50})
    rebuilt = one.hub.places.pool.rebuilt["lake-process"]
    for number in range(6):
        action = "Left" if level == "text" else "<think>so</think><action>Left</action>"
        if number in (0, 3):
            kill(one, tools)
        replies = one.post("step", *[{"session": name, "action": action} for name in (session, twin)])
        assert replies[0].error is None
        assert told(replies[0]) == told(replies[1])
        if replies[0].terminated:
            break
    assert one.hub.places.pool.rebuilt["lake-process"] > rebuilt


def test_noise_goes_on_where_it_was(one: Any, tools: Any) -> None:
    session = begin(one, "lake-process")
    env, _ = local("lake-process")
    for action in ("Left", "Up"):
        kill(one, tools)
        outcome = env.step(action)
        assert told(one.one("step", session=session, action=action)) == list(outcome)
        if outcome[2]:
            return


def test_forks_and_their_noise_outlive_a_process(one: Any, tools: Any) -> None:
    session = begin(one, "lake-process")
    env, _ = local("lake-process")
    same = one.one("fork", session=session).session
    other = one.one("fork", session=session, seed=11).session
    envs = {session: env, same: env.fork(), other: env.fork(11)}
    for _ in range(3):
        kill(one, tools)
        for name, twin in envs.items():
            if not twin.done:
                assert told(one.one("step", session=name, action="Down")) == list(twin.step("Down"))
    kill(one, tools)
    grandchild = one.one("fork", session=other, seed=5).session
    twin = envs[other].fork(5)
    if not twin.done:
        kill(one, tools)
        assert told(one.one("step", session=grandchild, action="Right")) == list(twin.step("Right"))


def test_a_reset_without_a_seed_goes_on_with_the_noise(one: Any, tools: Any) -> None:
    session = begin(one, "lake-process")
    env, _ = local("lake-process")
    kill(one, tools)
    assert one.one("reset", session=session, split="test").info == env.reset(options={"split": "test"})[1]
    kill(one, tools)
    assert told(one.one("step", session=session, action="Up")) == list(env.step("Up"))


def test_restored_sessions_and_those_without_an_episode_outlive_it(one: Any, tools: Any) -> None:
    env, _ = local("lake-process")
    env.step("Up")
    env.reseed(8)
    log = ["Up", 8]
    name = one.one("restore", env="lake-process", task="test/1", seed=3, log=log, session=one.new()).session
    fresh = one.one("create", env="lake-process").session
    kill(one, tools)
    if not env.done:
        assert told(one.one("step", session=name, action="Up")) == list(env.step("Up"))
    assert one.fail("step", session=fresh, action="Up") == "NOT_RESET"
    assert one.one("reset", session=fresh, seed=1, task="test/0").observation


def test_a_step_that_was_cut_off_takes_effect_once(one: Any, tools: Any) -> None:
    session = begin(one)
    one.one("step", session=session, action="go")
    reply = one.one("step", session=session, action="kill once 1", step_index=1)
    assert (reply.observation, reply.reward, reply.step_index) == ("go kill once 1", 2.0, 2)
    assert one.one("step", session=session, action="kill once 1", step_index=1) == reply
    assert one.one("step", session=session, action="go", step_index=2).observation == "go kill once 1 go"


@pytest.mark.parametrize(("action", "deaths"), [("leave", 2), ("segfault", 2), ("kill", 4)])
def test_who_kills_its_process_again_and_again_fails_alone(
    one: Any, tools: Any, action: str, deaths: int, caplog: pytest.LogCaptureFixture
) -> None:
    poison, good = begin(one), begin(one)
    one.one("step", session=good, action="one")
    with caplog.at_level(logging.INFO, "turngym"):
        replies = one.post(
            "step",
            {"session": good, "action": "two"},
            {"session": poison, "action": f"{action} {poison}"},
            {"session": good, "action": "three"},
        )
    assert replies[1].error["code"] == "ENVIRONMENT_FAILED"
    assert str(deaths) in replies[1].error["detail"]
    assert [replies[0].observation, replies[2].observation] == ["one two", "one two three"]
    assert one.fail("state", session=poison) == "SESSION_NOT_FOUND"
    assert len((tools.folder / f"died-{poison}").read_bytes()) == deaths
    if action == "segfault":
        assert "SIGSEGV" in caplog.text
        assert "_apply" in caplog.text  # the process says where it was
    if action == "leave":
        assert "exit code 7" in caplog.text


def test_an_environment_that_kills_its_process_when_it_is_made(one: Any, tools: Any) -> None:
    good = begin(one)
    name = one.new()
    assert one.fail("create", env="odd-process", config={"broken": "leave", "name": name}) == "ENVIRONMENT_FAILED"
    assert one.one("step", session=good, action="go").observation == "go"


def test_an_environment_that_cannot_be_repeated_says_so(one: Any, tools: Any) -> None:
    fickle, good = begin(one, "fickle"), begin(one)
    one.one("step", session=fickle, action="go")
    kill(one, tools)
    replies = one.post("step", {"session": fickle, "action": "go"}, {"session": good, "action": "go"})
    assert replies[0].error["code"] == "REPLAY_DIVERGED"
    assert "rebuilt" in replies[0].error["detail"]
    assert replies[1].observation == "go"
    assert one.fail("state", session=fickle) == "SESSION_NOT_FOUND"


def test_other_processes_are_not_touched(start_hub: Any, tools: Any) -> None:
    with start_hub(envs=ENVS, workers=3) as hub:
        sessions = [begin(hub, config={"name": str(number)}) for number in range(6)]
        before = pids(hub)
        assert len(before) == 3
        os.kill(before[0], signal.SIGKILL)
        replies = hub.post("step", *[{"session": name, "action": "go"} for name in sessions])
        assert [reply.observation for reply in replies] == ["go"] * 6
        assert hub.hub.places.pool.rebuilt["odd-process"] == 2
        assert set(before[1:]) <= set(pids(hub))
        tools.wait_for(lambda: len(pids(hub)) == 3)
        assert hub.http.get("/health").json()["workers"] == {"alive": 3, "restarts": 1, "rebuilt": 2}
        text = hub.http.get("/metrics").text
        for line in (
            'turngym_sessions_rebuilt_total{env="odd-process"} 2.0',
            "turngym_worker_restarts_total 1.0",
            "turngym_workers 3.0",
            "turngym_workers_max 3.0",
        ):
            assert line in text


def test_processes_that_die_young_are_restarted_later_and_later(
    start_hub: Any, tools: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "GOOD_S", 60.0)
    with start_hub(envs=ENVS, workers=1) as hub, caplog.at_level(logging.WARNING, "turngym"):
        session = begin(hub)
        for number in range(4):
            kill(hub, tools)
            if number == 2:
                monkeypatch.setattr(pool, "GOOD_S", 0.0)
            assert hub.one("step", session=session, action="go").step_index == number + 1
    pauses = [text.partition("next start in ")[2][:4] for text in caplog.messages]
    assert pauses == ["0.05", "0.10", "0.20", "0.05"]


def test_a_process_that_cannot_start_is_an_error(
    start_hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with start_hub(envs=ENVS, workers=1) as hub:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "missing"))
            assert hub.fail("create", env="odd-process") == "ENVIRONMENT_FAILED"
            assert hub.http.get("/ready").json()["code"] == "CAPACITY_REACHED"
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/bin/false")
            assert hub.fail("create", env="odd-process") == "ENVIRONMENT_FAILED"
        assert hub.one("create", env="bandit").session


# Time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["wait never", "spin"])
def test_a_step_that_takes_too_long_ends_its_session_only(
    start_hub: Any, tools: Any, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    with start_hub(envs=ENVS, workers=1, step_timeout_s=0.4) as hub, caplog.at_level(logging.INFO, "turngym"):
        hanging, good = begin(hub), begin(hub)
        hub.one("step", session=good, action="one")
        replies = hub.post(
            "step",
            {"session": good, "action": "two"},
            {"session": hanging, "action": action},
            {"session": good, "action": "three"},
        )
        assert replies[1].error["code"] == "STEP_TIMEOUT"
        assert [replies[0].observation, replies[2].observation] == ["one two", "one two three"]
        assert hub.fail("state", session=hanging) == "SESSION_NOT_FOUND"
    assert "odd_envs.py" in caplog.text  # where it hung


def test_making_may_take_longer_than_a_step(start_hub: Any, tools: Any) -> None:
    config = {"broken": "wait", "name": "late"}
    with start_hub(envs=ENVS, workers=1, step_timeout_s=0.2) as hub:
        threading.Timer(0.8, tools.gate("create").open).start()
        assert hub.one("create", env="odd-process", config=config).session
    with start_hub(envs=ENVS, workers=1, step_timeout_s=0.2, make_timeout_s=0.4) as hub:
        (tools.folder / "open-create").unlink()
        assert hub.fail("create", env="odd-process", config=config) == "STEP_TIMEOUT"
        assert hub.hub.total == 0


def test_a_process_that_was_stopped_is_replaced(start_hub: Any, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_hub(envs=ENVS, workers=1, step_timeout_s=0.2) as hub:
        session = begin(hub)
        monkeypatch.setattr(pool, "IDLE_S", 5.0)
        os.kill(pids(hub)[0], signal.SIGSTOP)
        assert hub.one("step", session=session, action="go").observation == "go"


def test_nobody_waits_for_an_environment_that_takes_long_to_make(
    start_hub: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LONG_S", 0.2)
    config = {"broken": "wait"}
    with start_hub(envs=ENVS, workers=2) as hub, hub.socket() as socket:
        sessions = [begin(hub) for _ in range(4)]
        create = {"env": "odd-process", "session": "long", "config": config, "reset": True}
        socket.send(msgspec.json.encode({"id": 1, "op": "create", "items": [create]}).decode())
        tools.wait_for(lambda: "long" in hub.hub.accounts[0].sessions)
        for action in ("one", "two"):
            replies = hub.post("step", *[{"session": name, "action": action} for name in sessions])
            assert [reply.error for reply in replies] == [None] * 4
        assert begin(hub)
        tools.gate("create").open()
        assert msgspec.json.decode(socket.recv(20))["items"][0]["session"] == "long"
        assert hub.one("step", session="long", action="go").observation == "go"
        replies = hub.post("step", *[{"session": name, "action": "three"} for name in sessions])
        assert [reply.observation for reply in replies] == ["one two three"] * 4


# What crosses the pipe -----------------------------------------------------------------------------


def test_large_replies_pictures_and_large_integers(one: Any) -> None:
    session = begin(one)
    assert one.one("step", session=session, action="big").observation == "x" * 1_000_000
    assert one.one("step", session=session, action="int").info["thing"] == 2**70
    assert one.one("step", session=session, action="surrogate").observation == "?"
    game = begin(one, "sokoban-process")
    shown = one.one("render", session=game, picture=True)
    inline = make("sokoban")
    inline.reset(seed=3, options={"task": "test/1"})
    assert shown.instructions == inline.instructions
    assert shown.png.startswith("iVBOR")
    assert one.one("expert", session=game).action == inline.expert_action()


def test_errors_keep_their_codes(one: Any) -> None:
    session = begin(one)
    (reply,) = one.post("step", {"session": session, "action": "odd"})
    assert (reply.error["code"], reply.error["status"], reply.error["how"]) == ("ODD", 418, 3)
    assert one.fail("reset", session=session, task="test/99") == "UNKNOWN_TASK"
    assert one.fail("reset", session=session, split="no") == "UNKNOWN_TASK"
    assert one.fail("create", env="odd-process", config={"max_steps": 2**80}) == "INVALID_REQUEST"
    assert one.one("step", session=session, action="go").observation == "go"


def test_cards_tasks_and_groups_come_from_the_processes_too(one: Any) -> None:
    card = one.http.get("/v1/envs/lake-process").json()
    inline = make("frozen-lake")
    assert card["splits"] == dict(inline.splits)
    page = one.http.get("/v1/envs/lake-process/tasks?split=train&start=7&stop=9").json()
    assert (page["total"], page["tasks"]) == (len(inline.tasks("train")), ["train/7", "train/8"])
    replies = one.post("group", {"env": "lake-process", "n": 3, "seed": 4, "split": "test"})
    assert len({reply.info["task"] for reply in replies}) == 1


def test_openenv_and_mcp_outlive_a_process(one: Any, tools: Any) -> None:
    env, _ = local("lake-process")
    outcome = env.step("Down")
    with one.socket("/lake-process/ws") as socket:

        def say(kind: str, **data: Any) -> dict[str, Any]:
            socket.send(msgspec.json.encode({"type": kind, "data": data}).decode())
            answer: dict[str, Any] = msgspec.json.decode(socket.recv(20))
            return answer["data"]

        first = say("reset", seed=3, task="test/1")
        assert first["observation"]["instructions"] == env.instructions
        kill(one, tools)
        assert say("step", action="Down")["observation"]["text"] == outcome[0]
        assert (say("state")["task"], say("state")["seed"], say("state")["done"]) == ("test/1", 3, env.done)
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1}

    def rpc(method: str, headers: dict[str, str], **params: Any) -> Any:
        return one.http.post("/lake-process/mcp", json={**call, "method": method, "params": params}, headers=headers)

    hello = rpc("initialize", {}, protocolVersion="2025-06-18", capabilities={}, clientInfo={})
    named = {"Mcp-Session-Id": hello.headers["mcp-session-id"]}
    rpc("tools/call", named, name="start", arguments={"seed": 3, "task": "test/1"})
    kill(one, tools)
    acted = rpc("tools/call", named, name="act", arguments={"action": "Down"}).json()["result"]
    assert outcome[0] in acted["content"][0]["text"]


# Rows ----------------------------------------------------------------------------------------------


def test_a_module_that_is_found_by_its_file_only(
    start_hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lonely.py"
    file.write_text("from turngym.envs.echo import Echo\n\nclass Lonely(Echo):\n    pass\n")
    spec = importlib.util.spec_from_file_location("nowhere.lonely", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "nowhere.lonely", module)
    monkeypatch.setitem(registry._registry, "lonely", EnvSpec("lonely", "nowhere.lonely:Lonely", hidden=True))
    with start_hub(envs=("lonely",), workers=1) as hub:
        assert hub.one("create", env="lonely", reset=True).observation


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (EnvSpec("bad", "__main__:Bad"), "module of its own"),
        (EnvSpec("bad", "turngym.envs.echo:Echo", kwargs={"max_steps": lambda: 3}), "plain values"),
    ],
    ids=["main", "lambda"],
)
def test_rows_that_cannot_be_passed_on(spec: EnvSpec, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registry, "bad", spec)
    with pytest.raises(InvalidRequest, match=match):
        Hub(HubSettings(envs=("bad",)), [])
