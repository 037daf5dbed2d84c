"""The native protocol over HTTP and WebSocket, on a real hub."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from turngym.envs.core import member_seed
from turngym.envs.registry import make
from turngym.protocol import ITEMS, MAX_GROUP, MAX_ITEMS


def played(seed: int, task: str, actions: list[str]) -> tuple[str, dict[str, Any]]:
    env = make("frozen-lake")
    observation, info = env.reset(seed=seed, options={"task": task})
    for action in actions:
        observation, _, _, _, info = env.step(action)
    return observation, info


def test_a_session_over_http_plays_as_the_environment_itself(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    created = hub.one("create", env="frozen-lake", session=session, reset=True, seed=7, task="test/3")
    observation, info = played(7, "test/3", [])
    assert (created.session, created.step_index, created.observation, created.info) == (session, 0, observation, info)
    env = make("frozen-lake")
    env.reset(seed=7, options={"task": "test/3"})
    for index in range(3):
        action = env.expert_action()
        assert hub.one("expert", session=session).action == action
        expected = env.step(str(action))
        reply = hub.one("step", session=session, action=action, step_index=index)
        got = (reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info)
        assert got == expected
        assert reply.step_index == index + 1
        if reply.terminated:
            break
    assert hub.one("state", session=session) == reply
    assert hub.one("close", session=session).session == session
    assert hub.fail("state", session=session) == "SESSION_NOT_FOUND"


def test_the_websocket_gives_the_same_replies(running_hub: Any, tools: Any) -> None:
    hub = running_hub
    a, b = hub.new(), hub.new()
    with hub.socket() as socket:
        items = [{"env": "sokoban", "session": name, "reset": True, "seed": 1, "task": "test/5"} for name in (a, b)]
        answer = tools.ask(socket, "create", *items, number=41)
        assert answer.id == 41
        assert [reply.session for reply in answer.items] == [a, b]
        assert answer.items[0].observation == answer.items[1].observation
        steps = tools.ask(socket, "step", {"session": a, "action": "Up"}, {"session": b, "action": "Up"}, number=42)
        assert [reply.session for reply in steps.items] == [a, b]
        assert steps.items[0].info == steps.items[1].info
        assert hub.one("state", session=a) == steps.items[0]


def test_one_bad_item_harms_no_other(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    good = {"env": "bandit", "session": session, "reset": True, "seed": 1}
    replies = hub.post("create", {"env": "no-such"}, good, {"env": "bandit", "config": {"nope": 1}})
    codes = [reply.error and reply.error["code"] for reply in replies]
    assert codes == ["UNKNOWN_ENVIRONMENT", None, "INVALID_REQUEST"]
    assert replies[1].session == session
    assert "nope" in replies[2].error["detail"]


def test_sessions_without_an_id_get_one(running_hub: Any) -> None:
    first, second = running_hub.post("create", {"env": "bandit"}, {"env": "bandit"})
    assert first.session
    assert second.session
    assert first.session != second.session


def test_a_session_id_that_does_not_fit_is_refused(running_hub: Any) -> None:
    for name in ("", "a/b", " ", "x" * 129, "ü", "-a"):
        assert running_hub.fail("create", env="bandit", session=name) == "INVALID_REQUEST"


def test_a_repeated_step_is_answered_from_store(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    hub.one("create", env="odd-inline", session=session, reset=True)
    first = hub.one("step", session=session, action="a", step_index=0)
    assert hub.one("step", session=session, action="a", step_index=0) == first
    second = hub.one("step", session=session, action="b", step_index=1)
    assert second.observation == "a b"
    conflict = hub.post("step", {"session": session, "action": "c", "step_index": 1})[0]
    assert conflict.error["code"] == "STEP_CONFLICT"
    assert conflict.error["step_index"] == conflict.step_index == 2
    assert hub.fail("step", session=session, action="a", step_index=0) == "STEP_CONFLICT"
    assert hub.fail("step", session=session, action="b", step_index=3) == "STEP_CONFLICT"
    assert hub.one("step", session=session, action="c").observation == "a b c"


def test_the_last_step_of_an_episode_can_be_repeated(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    hub.one("create", env="odd-process", session=session, reset=True)
    ended = hub.one("step", session=session, action="end", step_index=0)
    assert ended.terminated
    assert hub.one("step", session=session, action="end", step_index=0) == ended
    assert hub.fail("step", session=session, action="go", step_index=1) == "EPISODE_OVER"
    assert hub.one("reset", session=session).step_index == 0
    assert hub.one("step", session=session, action="go", step_index=0).step_index == 1


@pytest.mark.parametrize("level", ["text", "turn"])
def test_repeated_creation_finds_its_own_session(running_hub: Any, level: str) -> None:
    hub = running_hub
    create = {"env": "sokoban", "session": hub.new(), "level": level, "reset": True, "seed": 3}
    first = hub.one("create", **create)
    assert hub.one("create", **create) == first
    stepped = hub.one("step", session=create["session"], action="Up")
    assert hub.one("create", **create) == stepped
    assert hub.fail("create", **{**create, "seed": 4}) == "STEP_CONFLICT"


def test_the_order_of_settings_makes_no_other_content(running_hub: Any) -> None:
    hub = running_hub
    item = {"env": "frozen-lake", "session": hub.new()}
    hub.one("create", **item, config={"size": 5, "frozen": 0.9})
    assert hub.one("create", **item, config={"frozen": 0.9, "size": 5}).session == item["session"]
    assert hub.fail("create", **item, config={"frozen": 0.9, "size": 6}) == "STEP_CONFLICT"


def test_a_very_long_action_is_taken_in_a_thread_and_one_too_long_refused(running_hub: Any) -> None:
    hub = running_hub
    session = hub.one("create", env="frozen-lake", reset=True, level="turn").session
    # Unclosed tags are slow to parse, and the hub answers others meanwhile.
    assert not hub.one("step", session=session, action="<think>" * 100_000).info["format_valid"]
    assert hub.one("step", session=session, action="x" * 32_769, step_index=1).step_index == 2
    assert hub.fail("step", session=session, action="x" * 1_000_001) == "INVALID_REQUEST"
    assert hub.one("state", session=session).step_index == 2


def test_create_without_reset_waits_for_one(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    assert hub.one("create", env="bandit", session=session).observation is None
    for op in ("expert", "render", "fork"):
        assert hub.fail(op, session=session) == "NOT_RESET"
    assert hub.fail("step", session=session, action="x") == "NOT_RESET"
    assert hub.one("state", session=session).observation is None
    assert hub.fail("create", env="bandit", seed=1) == "INVALID_REQUEST"
    assert hub.one("reset", session=session, seed=1, split="test", task=4).info["task"] == "test/4"


@pytest.mark.parametrize("env", ["frozen-lake", "odd-process"])
def test_forks_are_independent_and_continue_the_noise(running_hub: Any, env: str) -> None:
    hub = running_hub
    parent, copy, other = hub.new(), hub.new(), hub.new()
    hub.one("create", env=env, session=parent, reset=True, seed=5, task="test/1")
    before = hub.one("step", session=parent, action="Left", step_index=0)
    forked = hub.one("fork", session=parent, to=copy)
    assert (forked.session, forked.step_index) == (copy, 1)
    assert (forked.observation, forked.info) == (before.observation, before.info)
    assert hub.one("fork", session=parent, to=copy) == forked
    reseeded = {"session": parent, "to": other, "seed": 99}
    hub.one("fork", **reseeded)
    assert hub.fail("fork", session=parent, to=copy, seed=1) == "STEP_CONFLICT"
    if not before.terminated:
        a = hub.one("step", session=parent, action="Right", step_index=1)
        b = hub.one("step", session=copy, action="Right", step_index=1)
        assert (a.observation, a.info) == (b.observation, b.info)
        # The repeated fork finds its copy although the parent has moved on.
        assert hub.one("fork", **reseeded).step_index == 1
    # A retried step is known to the copy as well.
    assert hub.one("step", session=other, action="Left", step_index=0).observation == before.observation


def test_restore_rebuilds_state_noise_and_history(running_hub: Any) -> None:
    hub = running_hub
    first, second = hub.new(), hub.new()
    hub.one("create", env="frozen-lake", session=first, reset=True, seed=11, task="test/9")
    hub.one("step", session=first, action="Left")
    twin = hub.one("fork", session=first, seed=77).session
    last = hub.one("step", session=twin, action="Left")
    restore = {"env": "frozen-lake", "task": "test/9", "seed": 11, "log": ["Left", 77, "Left"], "session": second}
    restored = hub.one("restore", **restore)
    assert (restored.observation, restored.step_index, restored.info) == (last.observation, 2, last.info)
    assert hub.one("restore", **restore) == restored
    assert hub.one("step", session=second, action="Left", step_index=1) == restored
    if not last.terminated:
        a, b = hub.one("step", session=twin, action="Up"), hub.one("step", session=second, action="Up")
        assert (a.observation, a.info) == (b.observation, b.info)
    bandit = {"env": "bandit", "task": "test/0", "seed": 1}
    assert hub.fail("restore", **{**bandit, "log": ["Trader", "Trader"]}) == "EPISODE_OVER"
    assert hub.fail("restore", **{**bandit, "log": [-1]}) == "INVALID_REQUEST"
    assert hub.fail("restore", **{**bandit, "task": "nope", "log": []}) == "UNKNOWN_TASK"


def test_a_group_shares_its_task_and_not_its_noise(running_hub: Any) -> None:
    hub = running_hub
    replies = hub.post("group", {"env": "frozen-lake", "n": 4, "seed": 5, "split": "test"})
    assert len({reply.info["task"] for reply in replies}) == 1
    assert replies[0].info["task"].startswith("test/")
    assert [reply.info["seed"] for reply in replies] == [member_seed(5, i) for i in range(4)]
    again = hub.post("group", {"env": "frozen-lake", "n": 2, "seed": 5, "split": "test"})
    assert again[0].info == replies[0].info
    shared = hub.post("group", {"env": "frozen-lake", "n": 3, "seed": 5, "task": "test/8", "shared_noise": True})
    assert [(reply.info["task"], reply.info["seed"]) for reply in shared] == [("test/8", 5)] * 3


def test_groups_in_one_request_and_repeated(running_hub: Any) -> None:
    hub = running_hub
    names = [hub.new() for _ in range(3)]
    groups = [
        {"env": "bandit", "n": 3, "seed": 1, "sessions": names},
        {"env": "no-such", "n": 2, "seed": 1},
        {"env": "sokoban", "n": 1, "seed": 2, "level": "turn"},
    ]
    replies = hub.post("group", *groups)
    assert [reply.session for reply in replies[:3]] == names
    assert [reply.error["code"] for reply in replies[3:5]] == ["UNKNOWN_ENVIRONMENT"] * 2
    assert isinstance(replies[5].observation, list)
    assert hub.post("group", groups[0]) == replies[:3]
    conflict = hub.post("group", {**groups[0], "seed": 9})
    assert [reply.error["code"] for reply in conflict] == ["STEP_CONFLICT"] * 3


@pytest.mark.parametrize(
    "group",
    [
        {"env": "bandit", "n": 0, "seed": 1},
        {"env": "bandit", "n": MAX_GROUP + 1, "seed": 1},
        {"env": "bandit", "n": 2, "seed": -1},
        {"env": "bandit", "n": 2, "seed": 1, "sessions": ["a", "a"]},
        {"env": "bandit", "n": 2, "seed": 1, "sessions": ["a"]},
    ],
)
def test_a_group_that_cannot_be_counted_off_fails_whole(running_hub: Any, group: dict[str, Any]) -> None:
    response = running_hub.http.post("/v1/group", json={"items": [group]})
    assert (response.status_code, response.json()["code"]) == (422, "INVALID_REQUEST")


def test_the_turn_level_speaks_in_prompts_and_completions(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    turn = {"style": "meta-tags", "hooks": {}}
    created = hub.one("create", env="sokoban", level="turn", turn=turn, session=session, reset=True, task="test/2")
    assert created.observation[-1]["role"] == "user"
    completion = hub.one("expert", session=session).action
    assert "<action>" in completion
    reply = hub.one("step", session=session, action=completion)
    assert reply.info["format_valid"]
    assert reply.info["turn"] == 1
    assert reply.info["rewards"]["env"] == reply.reward
    assert not hub.one("step", session=session, action="no tags at all").info["format_valid"]
    assert hub.fail("create", env="sokoban", turn=turn) == "INVALID_REQUEST"
    assert hub.fail("create", env="sokoban", level="turn", turn={"style": "no-such"}) == "INVALID_REQUEST"
    assert hub.fail("create", env="sokoban", level="turn", turn={"styl": "x"}) == "INVALID_REQUEST"


def test_the_style_of_an_environment_is_the_default(running_hub: Any) -> None:
    reply = running_hub.one("create", env="frozen-lake", level="turn", reset=True)
    assert "<answer>" in reply.observation[0]["content"]


def test_render_gives_text_and_picture(running_hub: Any) -> None:
    hub = running_hub
    session = hub.new()
    created = hub.one("create", env="sokoban", session=session, reset=True, task="test/2", config={"vocab": "letters"})
    shown = hub.one("render", session=session)
    assert shown.text == created.observation
    assert shown.png is None
    image = base64.b64decode(hub.one("render", session=session, picture=True).png)
    assert image.startswith(b"\x89PNG")
    bandit = hub.one("create", env="bandit", reset=True).session
    assert hub.one("render", session=bandit).text
    assert hub.fail("render", session=bandit, picture=True) == "UNSUPPORTED"


def test_whole_requests_that_do_not_fit(running_hub: Any, tools: Any) -> None:
    hub = running_hub
    with hub.socket() as socket:
        for body in ("{", "[]", "nonsense", '{"items": 1}', '{"items": [{"session": 5}]}', '{"item": []}', ""):
            response = hub.http.post("/v1/step", content=body)
            assert response.status_code == 422
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["code"] == "INVALID_REQUEST"
        ids = ["-1", "9007199254740992", "1e400", "1.5", "true", "null", '"x"', "9" * 4000]
        for frame in ("{", "7", '{"id": 1}', *(f'{{"id": {number}, "op": "state"}}' for number in ids)):
            socket.send(frame)
            answer = msgspec.json.decode(socket.recv(10))
            assert "id" not in answer
            assert answer["error"]["code"] == "INVALID_REQUEST"
        assert tools.ask(socket, "stpe", number=3).error["hint"].startswith("Did you mean 'step'?")
        bad = tools.ask(socket, "step", {"session": 5}, number=9)
        assert (bad.id, bad.error["code"]) == (9, "INVALID_REQUEST")
        many = tools.ask(socket, "close", *[{"session": "x"}] * (MAX_ITEMS + 1), number=10)
        assert (many.id, many.error["code"]) == (10, "INVALID_REQUEST")
        assert tools.ask(socket, "close", number=11).items == []


def test_every_operation_of_the_protocol_is_served(running_hub: Any) -> None:
    for op in ITEMS:
        assert running_hub.http.post(f"/v1/{op}", json={"items": []}).status_code == 200


def test_listings(running_hub: Any) -> None:
    hub = running_hub
    session = hub.one("create", env="sokoban", reset=True, seed=4, task="test/1").session
    cards = {card["id"]: card for card in hub.http.get("/v1/envs").json()}
    assert set(cards) == set(hub.hub.specs)
    assert cards["sokoban"] == hub.http.get("/v1/envs/sokoban").json()
    assert cards["sokoban"]["splits"]["test"] == 256
    assert cards["sokoban"]["settings"]["size"] == 6
    assert cards["sokoban"]["pictures"]
    assert not cards["bandit"]["pictures"]
    assert hub.http.get("/v1/envs/sokobn").json()["hint"].startswith("Did you mean 'sokoban'?")
    page = hub.http.get("/v1/envs/sokoban/tasks", params={"split": "test", "start": 250}).json()
    assert page == {"split": "test", "start": 250, "total": 256, "tasks": [f"test/{i}" for i in range(250, 256)]}
    assert hub.http.get("/v1/envs/sokoban/tasks", params={"split": "nope"}).status_code == 404
    for query in ({"start": "-1"}, {"start": "x"}, {"stop": "9999999999"}, {"start": "9" * 40}):
        assert hub.http.get("/v1/envs/sokoban/tasks", params={"split": "train", **query}).status_code == 422
    card = hub.http.get(f"/v1/sessions/{session}").json()
    assert (card["env"], card["task"], card["seed"], card["level"]) == ("sokoban", "test/1", 4, "text")
    assert card["age_s"] >= card["idle_s"] >= 0
    assert session in [each["session"] for each in hub.http.get("/v1/sessions").json()]
    assert hub.http.get("/v1/sessions/nope").status_code == 404


def test_hidden_environments_are_served_only_where_named(start_hub: Any) -> None:
    with start_hub(envs=("bandit",)) as hub:
        assert [card["id"] for card in hub.http.get("/v1/envs").json()] == ["bandit"]
        assert hub.fail("create", env="echo") == "UNKNOWN_ENVIRONMENT"
