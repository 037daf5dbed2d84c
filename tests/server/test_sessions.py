"""Who holds sessions, how many, and how long."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from turngym.errors import InvalidRequest
from turngym.server.sessions import check_id

ALICE, BOB = "alice-secret", "bob-secret"
KEYS = {"alice": ALICE, "bob": BOB}


def test_keys_never_meet_each_others_sessions(start_hub: Any) -> None:
    with start_hub(ALICE, envs=("bandit",), api_keys=KEYS) as hub:
        hub.one("create", env="bandit", session="mine", reset=True, seed=1)
        bob = httpx.Client(base_url=hub.url, headers={"X-API-Key": BOB})
        with bob:
            for op in ("step", "state", "close", "fork", "expert", "render", "reset"):
                item = {"session": "mine", **({"action": "x"} if op == "step" else {})}
                reply = bob.post(f"/v1/{op}", json={"items": [item]}).json()["items"][0]
                assert reply["error"]["code"] == "SESSION_NOT_FOUND", op
            assert bob.get("/v1/sessions").json() == []
            assert bob.get("/v1/sessions/mine").status_code == 404
            # The same id is free for another key, which cannot tell that it is taken.
            own = {"env": "bandit", "session": "mine", "reset": True, "seed": 2}
            assert bob.post("/v1/create", json={"items": [own]}).json()["items"][0]["info"]["seed"] == 2
        assert hub.one("state", session="mine").info["seed"] == 1


def test_a_quota_per_key_and_a_cap_on_all(start_hub: Any) -> None:
    with start_hub(ALICE, envs=("bandit",), api_keys=KEYS, max_sessions=3, max_sessions_per_key=2) as hub:
        one = {"env": "bandit"}
        codes = [reply.error and reply.error["code"] for reply in hub.post("create", one, one, one)]
        assert codes == [None, None, "QUOTA_EXCEEDED"]
        with httpx.Client(base_url=hub.url, headers={"X-API-Key": BOB}) as bob:
            replies = bob.post("/v1/create", json={"items": [one, one]}).json()["items"]
        assert [reply.get("error", {}).get("code") for reply in replies] == [None, "CAPACITY_REACHED"]
        session = hub.http.get("/v1/sessions").json()[0]["session"]
        hub.one("close", session=session)
        assert hub.one("create", env="bandit").session
        replies = hub.post("group", {"env": "bandit", "n": 2, "seed": 1})
        assert [reply.error["code"] for reply in replies] == ["QUOTA_EXCEEDED"] * 2


def test_a_failed_creation_does_not_use_up_the_cap(start_hub: Any) -> None:
    with start_hub(envs=("bandit",), max_sessions=1) as hub:
        for _ in range(3):
            assert hub.fail("create", env="bandit", config={"nope": 1}) == "INVALID_REQUEST"
        assert hub.one("create", env="bandit").session


def test_idle_sessions_are_evicted_unless_a_live_socket_holds_them(start_hub: Any, tools: Any) -> None:
    with start_hub(envs=("bandit", "odd-process"), idle_timeout_s=0.1) as hub:
        with hub.socket() as holder:
            tools.ask(holder, "create", {"env": "odd-process", "session": "held", "reset": True})
            hub.one("create", env="odd-process", session="idle", reset=True, config={"name": "idle"})
            hub.one("create", env="odd-process", session="taken", reset=True)
            # A socket that uses a session holds it from then on, whoever made it.
            tools.ask(holder, "state", {"session": "taken"})
            tools.wait_for(lambda: hub.fail("reset", session="gone") == "SESSION_NOT_FOUND" and hub.hub.total == 2)
            assert {card["session"] for card in hub.http.get("/v1/sessions").json()} == {"held", "taken"}
            assert hub.hub.stats["odd-process"].evicted == 1
            tools.wait_for(lambda: "idle" in tools.closed())
        tools.wait_for(lambda: hub.hub.total == 0)
        assert hub.hub.stats["odd-process"].evicted == 3


def test_a_running_operation_forbids_eviction(start_hub: Any, tools: Any) -> None:
    import threading

    gate = tools.gate("long")
    with start_hub(envs=("odd-process",), idle_timeout_s=0.05) as hub:
        session = hub.one("create", env="odd-process", reset=True).session
        timer = threading.Timer(0.4, gate.open)
        timer.start()
        assert hub.one("step", session=session, action="wait long").observation == "wait long"
        timer.join()


def test_eviction_counts_from_the_last_use(start_hub: Any) -> None:
    with start_hub(envs=("bandit",), idle_timeout_s=30.0) as hub:
        hub.one("create", env="bandit", session="old")
        hub.one("create", env="bandit", session="new")
        hub.on_loop(lambda: setattr(hub.hub.accounts[0].sessions["old"], "touched", 0.0))
        assert hub.on_loop(hub.hub.evict) == 1
        assert hub.fail("state", session="old") == "SESSION_NOT_FOUND"
        assert hub.one("state", session="new").session == "new"


def test_closing_the_hub_closes_every_environment(start_hub: Any, tools: Any) -> None:
    with start_hub(envs=("odd-process", "odd-inline")) as hub:
        for env in ("odd-process", "odd-inline"):
            hub.one("create", env=env, config={"name": env})
    assert sorted(tools.closed()) == ["odd-inline", "odd-process"]


@pytest.mark.parametrize("name", ["a", "A-1_b.c:d", "0", "x" * 128])
def test_ids_that_fit(name: str) -> None:
    assert check_id(name) == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a/b", "\n", "a\n", "é", ".a"])
def test_ids_that_do_not_fit(name: str) -> None:
    with pytest.raises(InvalidRequest, match="does not fit"):
        check_id(name)


def test_many_sessions_in_one_request(start_hub: Any) -> None:
    with start_hub(envs=("bandit",)) as hub:
        names = [f"m{i}" for i in range(1000)]
        created = hub.post("create", *[{"env": "bandit", "session": n, "reset": True, "seed": 1} for n in names])
        assert [reply.session for reply in created] == names
        stepped = hub.post("step", *[{"session": n, "action": "Teacher", "step_index": 0} for n in names])
        assert all(reply.error is None and reply.terminated for reply in stepped)
        assert len(hub.post("close", *[{"session": n} for n in names])) == 1000
        assert hub.hub.total == 0


def test_the_dispatcher_answers_at_once_where_nothing_leaves_the_loop(start_hub: Any) -> None:
    from turngym.protocol import Step

    with start_hub(envs=("bandit", "odd-process")) as hub:
        inline = hub.one("create", env="bandit", reset=True).session
        threaded = hub.one("create", env="odd-process", reset=True).session

        async def dispatch(session: str) -> bool:
            replies = hub.hub.dispatch("step", [Step(session, "x")], hub.hub.accounts[0])
            if isinstance(replies, list):
                return True
            await asyncio.wait_for(replies, 10)
            return False

        assert hub.on_loop(dispatch, inline)
        assert not hub.on_loop(dispatch, threaded)
