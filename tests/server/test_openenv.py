"""OpenEnv's protocol under an environment's prefix, frame by frame."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
from websockets.exceptions import ConnectionClosed

from turngym.envs.registry import make, specs


def say(socket: Any, **message: Any) -> dict[str, Any]:
    """Send one message and await the answer."""
    socket.send(json.dumps(message))
    return json.loads(socket.recv(60))


def code(answer: dict[str, Any]) -> str:
    assert answer["type"] == "error", answer
    assert answer["data"]["message"]
    return str(answer["data"]["code"])


@pytest.fixture
def sokoban(running_hub: Any) -> Iterator[Any]:
    with running_hub.socket("/sokoban/ws") as socket:
        yield socket


def test_an_episode(sokoban: Any) -> None:
    env = make("sokoban")
    text, info = env.reset(seed=7, options={"task": "test/12"})
    answer = say(sokoban, type="reset", data={"seed": 7, "episode_id": "ep", "split": "test", "index": 12})
    assert answer["type"] == "observation"
    data = answer["data"]
    assert set(data) == {"observation", "reward", "done", "metadata"}
    assert (data["reward"], data["done"]) == (None, False)
    seen = data["observation"]
    assert (seen["text"], seen["admissible"], seen["truncated"]) == (text, info["admissible"], False)
    assert seen["instructions"] == env.instructions
    assert seen["metadata"] == data["metadata"] == {k: v for k, v in info.items() if k != "admissible"}
    assert say(sokoban, type="state")["data"]["step_count"] == 0
    for count in range(1, 100):
        action = env.expert_action()
        text, reward, terminated, truncated, info = env.step(str(action))
        data = say(sokoban, type="step", data={"action": action, "metadata": {"ignored": 1}})["data"]
        assert (data["observation"]["text"], data["reward"]) == (text, reward)
        assert data["done"] == (terminated or truncated)
        state = say(sokoban, type="state")
        assert state["type"] == "state"
        assert (state["data"]["episode_id"], state["data"]["step_count"]) == ("ep", count)
        if data["done"]:
            break
    assert data["metadata"]["won"]
    assert data["observation"]["admissible"] == []
    assert code(say(sokoban, type="step", data={"action": "Up"})) == "EXECUTION_ERROR"
    again = say(sokoban, type="reset", data={})
    assert not again["data"]["done"]
    assert say(sokoban, type="state")["data"] | {"task": "", "seed": 0} == {
        "episode_id": None,
        "step_count": 0,
        "env": "sokoban",
        "task": "",
        "seed": 0,
        "done": False,
    }


@pytest.mark.parametrize("env_id", specs())
def test_every_environment_keeps_its_promises(start_hub: Any, env_id: str) -> None:
    with start_hub(envs=(env_id,)) as hub, hub.socket(f"/{env_id}/ws") as socket:
        schema = hub.http.get(f"/{env_id}/schema").json()
        for each in schema.values():
            assert jsonschema_rs.meta.is_valid(each)
        observation = jsonschema_rs.validator_for(schema["observation"])
        action = jsonschema_rs.validator_for(schema["action"])
        low, high = make(env_id).reward_range
        for index in range(2):
            data = say(socket, type="reset", data={"split": "test", "index": index, "seed": index})["data"]
            for step in range(30):
                observation.validate({**data["observation"], "reward": data["reward"], "done": data["done"]})
                if data["done"]:
                    break
                choices = [*data["observation"]["admissible"], "nonsense"]
                act = {"action": choices[(index + step) % len(choices)]}
                action.validate(act)
                data = say(socket, type="step", data=act)["data"]
                assert isinstance(data["reward"], float)
                assert math.isfinite(data["reward"])
                assert low <= data["reward"] <= high
        jsonschema_rs.validator_for(schema["state"]).validate(say(socket, type="state")["data"])


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", "INVALID_JSON"),
        ("nonsense", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ('{"type": "step", "data": {"action": "\\ud800"}}', "INVALID_JSON"),
        ("[" * 100_000, "VALIDATION_ERROR"),
        ("[]", "VALIDATION_ERROR"),
        ("7", "VALIDATION_ERROR"),
        ('{"type": 7}', "VALIDATION_ERROR"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": "nope"}', "UNKNOWN_TYPE"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": 7}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": "Up", "extra": 1}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": "Up"}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"foo": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1.5}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1e999}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": 99999999999999999999}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"split": "nope"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"split": "test", "index": 256}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"task": "test/1", "index": 1, "split": "test"}}', "EXECUTION_ERROR"),
    ],
)
def test_what_does_not_fit_is_answered_and_the_session_goes_on(sokoban: Any, frame: str, expected: str) -> None:
    assert code(say(sokoban, type="step", data={"action": "Up"})) == "EXECUTION_ERROR"  # not reset yet
    say(sokoban, type="reset", data={"seed": 1, "episode_id": "e"})
    say(sokoban, type="step", data={"action": "Up"})
    sokoban.send(frame)
    answer = json.loads(sokoban.recv(10))
    assert code(answer) == expected
    if expected == "VALIDATION_ERROR":
        assert isinstance(answer["data"]["errors"], list)
    state = say(sokoban, type="state")["data"]
    assert (state["episode_id"], state["step_count"]) == ("e", 1)


def test_unknown_reset_arguments_name_the_known_ones(sokoban: Any) -> None:
    message = say(sokoban, type="reset", data={"temperature": 1})["data"]["message"]
    assert "temperature" in message
    assert "episode_id" in message


def test_binary_frames_are_read_too(sokoban: Any) -> None:
    sokoban.send(b'{"type": "reset"}')
    assert json.loads(sokoban.recv(10))["type"] == "observation"
    sokoban.send(b"\xff\xfe\x00")
    assert code(json.loads(sokoban.recv(10))) == "INVALID_JSON"


def test_a_session_lives_as_long_as_its_socket(running_hub: Any, tools: Any) -> None:
    before = running_hub.hub.total
    with running_hub.socket("/odd-process/ws") as socket:
        say(socket, type="reset", data={})
        assert running_hub.hub.total == before + 1
    tools.wait_for(lambda: running_hub.hub.total == before)
    tools.wait_for(lambda: "" in tools.closed())
    with running_hub.socket("/bandit/ws") as socket:
        socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
        assert closed.value.rcvd.code == 1000
    tools.wait_for(lambda: running_hub.hub.total == before)


def test_capacity_is_an_error_frame_and_then_the_end(start_hub: Any, tools: Any) -> None:
    with start_hub(envs=("bandit",), max_sessions=1) as hub:
        with hub.socket("/bandit/ws") as first:
            say(first, type="reset", data={})
            with hub.socket("/bandit/ws") as second:
                with suppress(ConnectionClosed):
                    second.send('{"type": "reset"}')  # already under way, as clients do
                answer = json.loads(second.recv(10))
                assert code(answer) == "CAPACITY_REACHED"
                assert (answer["data"]["active_sessions"], answer["data"]["max_sessions"]) == (1, 1)
                with pytest.raises(ConnectionClosed):
                    second.recv(10)
            assert say(first, type="state")["type"] == "state"
        tools.wait_for(lambda: hub.hub.total == 0)
        with hub.socket("/bandit/ws") as third:
            assert say(third, type="reset", data={})["type"] == "observation"


def test_an_environment_that_cannot_be_made_is_a_factory_error(start_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from turngym.envs import registry

    spec = registry.EnvSpec("odd-missing", "turngym_no_such_module:Env", "odd", hidden=True)
    monkeypatch.setitem(registry._registry, "odd-missing", spec)
    with start_hub(envs=("odd-missing",)) as hub, hub.socket("/odd-missing/ws") as socket:
        assert code(json.loads(socket.recv(10))) == "FACTORY_ERROR"
        with pytest.raises(ConnectionClosed):
            socket.recv(10)


@pytest.mark.parametrize("env", ["odd-inline", "odd-process"])
def test_after_a_failure_reset_starts_a_new_session(running_hub: Any, env: str) -> None:
    with running_hub.socket(f"/{env}/ws") as socket:
        say(socket, type="reset", data={})
        assert code(say(socket, type="step", data={"action": "raise"})) == "EXECUTION_ERROR"
        answer = say(socket, type="step", data={"action": "go"})
        assert code(answer) == "EXECUTION_ERROR"
        assert "Reset" in answer["data"]["message"]
        assert say(socket, type="reset", data={})["type"] == "observation"
        assert say(socket, type="step", data={"action": "go"})["data"]["observation"]["text"] == "go"
        assert code(say(socket, type="step", data={"action": "object"})) == "EXECUTION_ERROR"
        say(socket, type="reset", data={})
        assert say(socket, type="step", data={"action": "surrogate"})["data"]["observation"]["text"] == "?"


def test_messages_are_answered_in_turn(running_hub: Any, tools: Any) -> None:
    gate = tools.gate("turn")
    with running_hub.socket("/odd-process/ws") as socket:
        socket.send('{"type": "reset"}')
        for action in ("wait turn", "one", "two"):
            socket.send(json.dumps({"type": "step", "data": {"action": action}}))
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv(10))["type"] == "observation"
        gate.open()
        texts = [json.loads(socket.recv(10))["data"]["observation"]["text"] for _ in range(3)]
        assert texts == ["wait turn", "wait turn one", "wait turn one two"]
        assert json.loads(socket.recv(10))["data"]["step_count"] == 3


def test_an_idle_socket_keeps_its_session(start_hub: Any, tools: Any) -> None:
    with start_hub(envs=("bandit",), idle_timeout_s=0.05) as hub:
        hub.one("create", env="bandit")
        with hub.socket("/bandit/ws") as socket:
            say(socket, type="reset", data={"seed": 1})
            # The other session goes, this one stays.
            tools.wait_for(lambda: hub.hub.stats["bandit"].evicted == 1)
            assert say(socket, type="state")["data"]["seed"] == 1


def test_http_is_stateful_by_episode_id(running_hub: Any) -> None:
    http = running_hub.http
    episode = {"episode_id": "épisode /1 \U0001f4a9"}
    first = http.post("/sokoban/reset", json={**episode, "seed": 3, "split": "test", "index": 2}).json()
    assert (first["reward"], first["done"], first["metadata"]["task"]) == (None, False, "test/2")
    step = http.post("/sokoban/step", json={**episode, "action": {"action": "Up"}, "timeout_s": 5, "request_id": "r"})
    assert step.status_code == 200
    assert step.json()["metadata"]["step"] == 1
    state = http.get("/sokoban/state", params=episode).json()
    assert (state["episode_id"], state["step_count"], state["task"]) == (episode["episode_id"], 1, "test/2")
    # The id counts within its environment.
    assert http.get("/bandit/state", params=episode).json()["step_count"] == 0
    assert http.post("/bandit/step", json={**episode, "action": {"action": "x"}}).status_code == 404


def test_http_without_an_episode_id(running_hub: Any) -> None:
    http, before = running_hub.http, running_hub.hub.total
    for body in (None, b"{}", b" "):
        response = http.post("/bandit/reset", content=body)
        assert response.status_code == 200
        assert response.json()["observation"]["text"].startswith("Arms:")
    refused = http.post("/bandit/step", json={"action": {"action": "Teacher"}})
    assert (refused.status_code, refused.json()["code"]) == (409, "NOT_RESET")
    assert "episode_id" in refused.json()["hint"]
    assert http.get("/bandit/state").json()["step_count"] == 0
    assert running_hub.hub.total == before


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("reset", {"foo": 1}, 422),
        ("reset", {"seed": "1"}, 422),
        ("reset", {"episode_id": "x" * 256}, 422),
        ("reset", {"split": "nope"}, 404),
        ("reset", [], 422),
        ("step", {"action": "Up", "episode_id": "e"}, 422),
        ("step", {"action": {"action": "Up"}, "episode_id": "e", "timeout_s": 0}, 422),
        ("step", {"action": {"action": "Up"}, "episode_id": "never reset"}, 404),
        ("step", {}, 422),
    ],
)
def test_http_requests_that_do_not_fit(running_hub: Any, path: str, body: Any, status: int) -> None:
    response = running_hub.http.post(f"/sokoban/{path}", json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"


def test_the_descriptions(running_hub: Any) -> None:
    http = running_hub.http
    assert http.get("/sokoban/health").json() == {"status": "healthy"}
    metadata = http.get("/sokoban/metadata").json()
    assert set(metadata) == {"name", "description", "readme_content", "version", "author", "documentation_url"}
    assert metadata["name"] == "sokoban"
    assert "push" in metadata["readme_content"].lower()
    assert http.get("/sokoban/list_environments").json() == ["sokoban"]
    document = http.get("/sokoban/openapi.json").json()
    assert document["info"]["version"].startswith("1.")
    assert {"/reset", "/step", "/state", "/health", "/metadata", "/schema", "/mcp"} <= set(document["paths"])
    assert "parameters" not in str(document["paths"]["/reset"]["post"].get("parameters", []))
    manifest = http.get("/sokoban/openenv.yaml")
    assert manifest.headers["content-type"].startswith("application/yaml")
    assert "range: [-5.5, 14.5]" in manifest.text
    assert "validation:" in manifest.text


def test_the_task_routes(running_hub: Any) -> None:
    http = running_hub.http
    prefix = "/frozen-lake/frozen-lake"
    assert http.get(f"{prefix}/splits").json() == [
        {"name": name, "type": name} for name in ("train", "validation", "test")
    ]
    assert http.get("/odd-inline/Odd-Inline/splits").json()[0] == {"name": "train", "type": "train"}
    assert http.get("/frozen-lake/sokoban/splits").status_code == 404
    tasks = http.post(f"{prefix}/tasks", json={"split": "test"}).json()
    assert tasks["env_name"] == "frozen-lake"
    assert len(tasks["tasks"]) == 256
    assert len(http.post(f"{prefix}/tasks", json={"split": "train"}).json()["tasks"]) == 4096
    assert http.post(f"{prefix}/num_tasks", json={"split": "train"}).json() == {"num_tasks": 100_000}
    task = {"id": "test/12", "split": "test", "index": 12}
    assert http.post(f"{prefix}/task", json={"split": "test", "index": 12}).json() == {"task": task}
    for index in (256, -1):
        response = http.post(f"{prefix}/task", json={"split": "test", "index": index})
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_INDEX")
    for bounds, expected in (({"start": 12, "stop": 13}, [12]), ({"start": 254}, [254, 255]), ({"stop": -255}, [0])):
        found = http.post(f"{prefix}/task_range", json={"split": "test", **bounds}).json()["tasks"]
        assert [each["index"] for each in found] == expected
    assert http.post(f"{prefix}/task_range", json={"split": "train"}).status_code == 422
    assert http.post(f"{prefix}/tasks", json={"split": "nope"}).status_code == 404
    assert http.post(f"{prefix}/tasks", json={}).status_code == 422
