"""Environments that fail, hang or answer nonsense: what becomes of the item, the session and the hub."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

KINDS = ["odd-inline", "odd-process"]


@pytest.mark.parametrize("env", KINDS)
@pytest.mark.parametrize("action", ["raise", "exit", "reward nan", "reward inf"])
def test_a_failure_closes_its_session_and_no_other(
    running_hub: Any, tools: Any, env: str, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = running_hub
    bad, good = hub.new(), hub.new()
    create = {"env": env, "reset": True}
    hub.post("create", {**create, "session": bad, "config": {"name": bad}}, {**create, "session": good})
    failures = hub.hub.stats[env].errors["ENVIRONMENT_FAILED"]
    with caplog.at_level(logging.ERROR):
        replies = hub.post("step", {"session": bad, "action": action}, {"session": good, "action": "go"})
    assert replies[0].error["code"] == "ENVIRONMENT_FAILED"
    assert replies[1].observation == "go"
    assert hub.fail("step", session=bad, action="go") == "SESSION_NOT_FOUND"
    tools.wait_for(lambda: bad in tools.closed())
    assert hub.hub.stats[env].errors["ENVIRONMENT_FAILED"] == failures + 1
    if action == "raise":
        assert "a bug in the environment" in replies[0].error["detail"]
        assert "Traceback" in caplog.text
        assert "odd_envs.py" in caplog.text


@pytest.mark.parametrize("env", KINDS)
def test_a_reply_that_is_no_json_fails_alone(running_hub: Any, env: str) -> None:
    hub = running_hub
    bad, good = hub.new(), hub.new()
    hub.post("create", *[{"env": env, "session": name, "reset": True} for name in (bad, good)])
    replies = hub.post("step", {"session": bad, "action": "object"}, {"session": good, "action": "go"})
    assert replies[0].error["code"] == "ENVIRONMENT_FAILED"
    assert replies[1].observation == "go"
    assert hub.fail("state", session=bad) == "SESSION_NOT_FOUND"


def test_a_lone_surrogate_is_replaced(running_hub: Any) -> None:
    hub = running_hub
    session = hub.one("create", env="odd-inline", reset=True).session
    assert hub.one("step", session=session, action="surrogate").observation == "?"
    assert hub.one("step", session=session, action="go").step_index == 2


def test_settings_that_the_environment_refuses(running_hub: Any) -> None:
    hub = running_hub
    before = hub.hub.total
    for config in ({"broken": "value"}, {"max_steps": "many"}, {"no": 1}, {"max_steps": [1, [2]]}):
        assert hub.fail("create", env="odd-process", config=config) == "INVALID_REQUEST"
    assert hub.fail("create", env="odd-process", config={"broken": "bug"}) == "ENVIRONMENT_FAILED"
    assert hub.hub.total == before


def test_a_failed_creation_frees_its_id(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    assert hub.fail("create", env="bandit", session=session, reset=True, task="nope") == "UNKNOWN_TASK"
    assert hub.one("create", env="bandit", session=session, reset=True).session == session


def test_a_hanging_thread_is_given_up_and_the_hub_goes_on(start_hub: Any, tools: Any) -> None:
    gate = tools.gate("expert")
    with start_hub(envs=("odd-inline", "bandit"), step_timeout_s=0.2, threads=2) as hub:
        names = [hub.new() for _ in range(5)]
        hub.post("create", *[{"env": "odd-inline", "session": s, "reset": True, "config": {"name": s}} for s in names])
        hub.post("step", *[{"session": s, "action": "slow expert"} for s in names[:2]])
        # The last two wait in the queue behind the two threads, then run in the threads that replace them.
        replies = hub.post("expert", *[{"session": s} for s in names[:4]])
        codes = [reply.error and reply.error["code"] for reply in replies]
        assert codes == ["STEP_TIMEOUT", "STEP_TIMEOUT", None, None]
        assert hub.fail("state", session=names[0]) == "SESSION_NOT_FOUND"
        assert hub.hub.places.threads.stuck == 2
        # As many threads hang as there may be: no more work for threads, but what is inline goes on.
        assert hub.fail("expert", session=names[4]) == "CAPACITY_REACHED"
        assert hub.one("step", session=names[4], action="go").observation == "go"
        assert hub.http.get("/ready").json()["code"] == "CAPACITY_REACHED"
        assert "turngym_stuck_threads 2.0" in hub.http.get("/metrics").text
        gate.open()
        tools.wait_for(lambda: hub.hub.places.threads.stuck == 0)
        tools.wait_for(lambda: set(names[:2]) <= set(tools.closed()))
        assert hub.one("expert", session=names[4]).action == "end"


def test_a_hanging_creation_times_out(start_hub: Any, tools: Any) -> None:
    gate = tools.gate("create")
    with start_hub(envs=("odd-inline",), step_timeout_s=0.1) as hub:
        session = hub.new()
        config = {"broken": "wait", "name": "late"}
        assert hub.fail("create", env="odd-inline", session=session, config=config) == "STEP_TIMEOUT"
        assert hub.hub.total == 0
        gate.open()
        tools.wait_for(lambda: "late" in tools.closed())


def test_one_session_acts_once_at_a_time_in_order(running_hub: Any, tools: Any) -> None:
    hub = running_hub
    gate = tools.gate("order")
    session = hub.new()
    with hub.socket() as socket:
        tools.ask(socket, "create", {"env": "odd-process", "session": session, "reset": True})
        actions = ["wait order", "one", "two"]
        for number, action in enumerate(actions):
            item = {"session": session, "action": action, "step_index": number}
            socket.send(msgspec.json.encode({"id": number, "op": "step", "items": [item]}).decode())
        # A retry of the running step waits for it and gets its reply.
        retry = {"session": session, "action": "wait order", "step_index": 0}
        socket.send(msgspec.json.encode({"id": 9, "op": "step", "items": [retry]}).decode())
        tools.wait_for(lambda: hub.hub.accounts[0].sessions[session].pending == 4)
        gate.open()
        answers = {}
        for _ in range(4):
            answer = msgspec.json.decode(socket.recv(10))
            answers[answer["id"]] = answer["items"][0]
        assert [answers[i]["observation"] for i in range(3)] == ["wait order", "wait order one", "wait order one two"]
        assert answers[9]["error"]["code"] == "STEP_CONFLICT"


def test_an_inline_session_that_is_being_made_keeps_the_order(running_hub: Any, tools: Any) -> None:
    hub = running_hub
    session = hub.new()
    with hub.socket() as socket:
        create = {"env": "odd-inline", "session": session, "reset": True}
        for number, (op, item) in enumerate(
            [
                ("create", create),
                ("create", create),
                ("step", {"session": session, "action": "one", "step_index": 0}),
                ("fork", {"session": session, "to": f"{session}-fork"}),
                ("step", {"session": f"{session}-fork", "action": "two"}),
                ("close", {"session": session}),
                ("step", {"session": session, "action": "three"}),
            ]
        ):
            socket.send(msgspec.json.encode({"id": number, "op": op, "items": [item]}).decode())
        answers = {}
        for _ in range(7):
            answer = msgspec.json.decode(socket.recv(10))
            answers[answer["id"]] = answer["items"][0]
    assert answers[1]["session"] == session
    assert answers[2]["observation"] == "one"
    assert answers[4]["observation"] == "one two"
    assert answers[6]["error"]["code"] == "SESSION_NOT_FOUND"


def test_too_much_waiting_for_one_session_is_refused(running_hub: Any, tools: Any) -> None:
    hub = running_hub
    gate = tools.gate("busy")
    session = hub.one("create", env="odd-process", reset=True).session
    with hub.socket() as socket:
        items = [{"session": session, "action": "wait busy"}] + [{"session": session, "action": "go"}] * 70
        socket.send(msgspec.json.encode({"id": 1, "op": "step", "items": items}).decode())
        tools.wait_for(lambda: hub.hub.accounts[0].sessions[session].pending == 64)
        total = hub.hub.total
        assert hub.fail("fork", session=session, to="never") == "SESSION_BUSY"
        assert hub.hub.total == total
        gate.open()
        replies = msgspec.json.decode(socket.recv(10))["items"]
    assert [reply.get("error", {}).get("code") for reply in replies] == [None] * 64 + ["SESSION_BUSY"] * 7


def test_a_broken_environment_is_listed_as_such(start_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from turngym.envs import registry

    spec = registry.EnvSpec("odd-missing", "turngym_no_such_module:Env", "odd", hidden=True)
    monkeypatch.setitem(registry._registry, "odd-missing", spec)
    with start_hub(envs=("bandit", "odd-missing")) as hub:
        cards = hub.http.get("/v1/envs").json()
        assert [card["id"] for card in cards] == ["bandit", "odd-missing"]
        assert "turngym_no_such_module" in cards[1]["needs"] and "needs" not in cards[0]
        assert hub.http.get("/v1/envs/odd-missing").status_code == 502
        assert hub.fail("create", env="odd-missing") == "ENVIRONMENT_FAILED"
