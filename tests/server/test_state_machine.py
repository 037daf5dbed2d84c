"""The native API against a model: whatever is asked in whatever order, the hub does what local environments do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from turngym.envs.core import TextEnv, member_seed
from turngym.envs.registry import get_spec, make
from turngym.envs.turn.env import TurnEnv
from turngym.protocol import Answer, Reply

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
envs = st.sampled_from(["frozen-lake", "odd-process", "odd-inline", "bandit"])
mostly = st.sampled_from([True, True, True, False])
indices = st.integers(0, 4)
levels = st.sampled_from(["text", "turn"])
seeds = st.integers(0, 3)
actions = st.sampled_from(
    ["Left", "Right", "Up", "Left", "Down || Left", "", "end", "<think>so</think><answer>Left</answer>"]
)


class Model:
    """What a session should be: a local environment and the end of its history."""

    def __init__(self, env_id: str, level: str, config: dict[str, Any]) -> None:
        self.make_up = {"env": env_id, "level": level, "config": config}
        inner = make(env_id, **config)
        self.env: TextEnv | TurnEnv = inner if level == "text" else TurnEnv(inner, style=get_spec(env_id).style)
        self.origin: Any = None
        self.step_index = 0
        self.last: tuple[Any, ...] | None = None
        self.last_action: str | None = None
        self.log: list[str | int] = []
        self.start = ("", 0)

    def reset(self, seed: int, task: str) -> None:
        observation, info = self.env.reset(seed=seed, options={"task": task})
        self.last = (observation, 0.0, False, False, info)
        self.step_index, self.last_action, self.log, self.start = 0, None, [], (task, seed)

    def step(self, action: str) -> None:
        self.last = self.env.step(action)
        self.step_index += 1
        self.last_action = action
        self.log.append(action)

    def fork(self, seed: int | None) -> Model:
        twin = Model.__new__(Model)
        twin.__dict__.update(self.__dict__)
        twin.env = self.env.fork(seed)
        twin.log = list(self.log) + ([] if seed is None else [seed])
        return twin


class Sessions(RuleBasedStateMachine):
    """Operations on a few sessions, over HTTP or WebSocket."""

    hub: Any = None
    http: Any = None
    socket: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, Model] = {}
        self.number = 0

    def teardown(self) -> None:
        self.ask("close", [{"session": name} for name in self.models])

    def ask(self, op: str, items: list[dict[str, Any]], over_socket: bool = True) -> list[Reply]:
        if not over_socket:
            return list(self.hub.post(op, *items))
        self.number += 1
        self.socket.send(msgspec.json.encode({"id": self.number, "op": op, "items": items}).decode())
        answer = msgspec.json.decode(self.socket.recv(10), type=Answer)
        assert answer.id == self.number
        assert answer.error is None, answer.error
        return answer.items

    def check(self, name: str, reply: Reply) -> None:
        """The reply tells the model's last event."""
        model = self.models[name]
        assert reply.error is None, reply.error
        assert (reply.session, reply.step_index) == (name, model.step_index)
        if model.last is None:
            assert reply.observation is None
            return
        told = (reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info)
        assert told == msgspec.json.decode(msgspec.json.encode(model.last), type=tuple[Any, float, bool, bool, Any])

    def refused(self, reply: Reply, code: str) -> None:
        assert reply.error is not None, f"expected {code}, got {reply}"
        assert reply.error["code"] == code
        assert reply.error["detail"]

    @rule(name=names, env=envs, level=levels, seed=seeds, index=st.integers(0, 4), reset=mostly, http=st.booleans())
    def create(self, name: str, env: str, level: str, seed: int, index: int, reset: bool, http: bool) -> None:
        config = {"max_steps": 6}
        item: dict[str, Any] = {"env": env, "session": name, "level": level, "config": config, "reset": reset}
        if reset:
            item |= {"seed": seed, "task": f"test/{index}"}
        (reply,) = self.ask("create", [item], not http)
        model = self.models.get(name)
        if model is None:
            model = self.models[name] = Model(env, level, config)
            model.origin = ("create", item)
            if reset:
                model.reset(seed, f"test/{index}")
        elif model.origin != ("create", item):
            self.refused(reply, "STEP_CONFLICT")
            return
        self.check(name, reply)

    @rule(name=names, env=envs, http=st.booleans())
    def create_on_no_task(self, name: str, env: str, http: bool) -> None:
        (reply,) = self.ask("create", [{"env": env, "session": name, "reset": True, "task": "test/999999"}], not http)
        self.refused(reply, "STEP_CONFLICT" if name in self.models else "UNKNOWN_TASK")

    @rule(name=names, seed=seeds, index=st.integers(0, 5), http=st.booleans())
    def reset(self, name: str, seed: int, index: int, http: bool) -> None:
        (reply,) = self.ask("reset", [{"session": name, "seed": seed, "task": f"test/{index}"}], not http)
        model = self.models.get(name)
        if model is None:
            self.refused(reply, "SESSION_NOT_FOUND")
            return
        if index >= model.env.splits["test"]:
            self.refused(reply, "UNKNOWN_TASK")
            return
        model.reset(seed, f"test/{index}")
        self.check(name, reply)
        self.repeat(name, http)

    def repeat(self, name: str, http: bool) -> None:
        """Send the last step again: it is answered from store, or there was none since the reset."""
        model = self.models[name]
        for action in {model.last_action or "Left", "Right"}:
            item = {"session": name, "action": action, "step_index": model.step_index - 1}
            (reply,) = self.ask("step", [item], not http)
            self.stepped(name, action, model.step_index - 1, reply)

    @rule(name=names, action=actions, offset=st.sampled_from([None, 0, 0, 0, -1, 1, -2, 10**30]), http=st.booleans())
    def step(self, name: str, action: str, offset: int | None, http: bool) -> None:
        model = self.models.get(name)
        index = None if model is None or offset is None else model.step_index + offset
        item = {"session": name, "action": action} | ({} if index is None else {"step_index": index})
        (reply,) = self.ask("step", [item], not http)
        self.stepped(name, action, index, reply)

    def stepped(self, name: str, action: str, index: int | None, reply: Reply) -> None:
        model = self.models.get(name)
        if model is None:
            self.refused(reply, "SESSION_NOT_FOUND")
        elif index is not None and index != model.step_index:
            if index == model.step_index - 1 and action == model.last_action:
                self.check(name, reply)
            else:
                self.refused(reply, "STEP_CONFLICT")
        elif model.last is None:
            self.refused(reply, "NOT_RESET")
        elif model.env.done:
            self.refused(reply, "EPISODE_OVER")
        else:
            model.step(action)
            self.check(name, reply)

    @rule(steps=st.lists(st.tuples(names, actions), min_size=1, max_size=6), http=st.booleans())
    def step_many(self, steps: list[tuple[str, str]], http: bool) -> None:
        replies = self.ask("step", [{"session": name, "action": action} for name, action in steps], not http)
        for (name, action), reply in zip(steps, replies, strict=True):
            self.stepped(name, action, None, reply)

    @rule(name=names, to=names, seed=st.none() | seeds, http=st.booleans())
    def fork(self, name: str, to: str, seed: int | None, http: bool) -> None:
        item: dict[str, Any] = {"session": name, "to": to} | ({} if seed is None else {"seed": seed})
        (reply,) = self.ask("fork", [item], not http)
        if to in self.models:
            if self.models[to].origin == ("fork", item):
                self.check(to, reply)
            else:
                self.refused(reply, "STEP_CONFLICT")
        elif name not in self.models:
            self.refused(reply, "SESSION_NOT_FOUND")
        elif self.models[name].last is None:
            self.refused(reply, "NOT_RESET")
        else:
            self.models[to] = self.models[name].fork(seed)
            self.models[to].origin = ("fork", item)
            self.check(to, reply)
            self.repeat(to, http)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), to=names, http=st.booleans())
    def restore(self, data: st.DataObject, to: str, http: bool) -> None:
        source = self.models[data.draw(st.sampled_from(sorted(self.models)))]
        if source.last is None:
            return
        task, seed = source.start
        item = {**source.make_up, "task": task, "seed": seed, "log": source.log, "session": to}
        (reply,) = self.ask("restore", [item], not http)
        if to in self.models:
            if self.models[to].origin == ("restore", item):
                self.check(to, reply)
            else:
                self.refused(reply, "STEP_CONFLICT")
            return
        self.models[to] = source.fork(None)
        self.models[to].origin = ("restore", msgspec.json.decode(msgspec.json.encode(item)))
        self.check(to, reply)
        self.repeat(to, http)

    @rule(members=st.lists(names, min_size=1, max_size=3, unique=True), seed=seeds, shared=st.booleans())
    def group(self, members: list[str], seed: int, shared: bool) -> None:
        item = {"env": "frozen-lake", "n": len(members), "seed": seed, "task": "test/2", "sessions": members}
        item |= {"shared_noise": shared}
        for member, reply in enumerate(self.ask("group", [item])):
            name, origin = members[member], ("group", member, item)
            if name not in self.models:
                model = self.models[name] = Model("frozen-lake", "text", {})
                model.origin = origin
                model.reset(seed if shared else member_seed(seed, member), "test/2")
            elif self.models[name].origin != origin:
                self.refused(reply, "STEP_CONFLICT")
                continue
            self.check(name, reply)

    @rule(name=names, http=st.booleans())
    def state(self, name: str, http: bool) -> None:
        (reply,) = self.ask("state", [{"session": name}], not http)
        if name in self.models:
            self.check(name, reply)
        else:
            self.refused(reply, "SESSION_NOT_FOUND")

    @rule(name=names)
    def expert(self, name: str) -> None:
        (reply,) = self.ask("expert", [{"session": name}])
        model = self.models.get(name)
        if model is None:
            self.refused(reply, "SESSION_NOT_FOUND")
        elif model.last is None:
            self.refused(reply, "NOT_RESET")
        elif model.env.done:
            self.refused(reply, "EPISODE_OVER")
        else:
            assert reply.action == model.env.expert_action()

    @rule(name=names, http=st.booleans())
    def close(self, name: str, http: bool) -> None:
        (reply,) = self.ask("close", [{"session": name}], not http)
        if self.models.pop(name, None) is None:
            self.refused(reply, "SESSION_NOT_FOUND")
        else:
            assert reply.error is None

    @rule(
        op=st.sampled_from(["create", "step", "fork", "restore", "group"]),
        body=st.binary(max_size=60) | st.sampled_from([b'{"items":[{"session":"a","action":"\\ud800"}]}', b"[" * 9000]),
    )
    def nonsense(self, op: str, body: bytes) -> None:
        response: httpx.Response = self.http.post(f"/v1/{op}", content=body)
        assert response.status_code == 422
        assert response.json()["code"] == "INVALID_REQUEST"
        self.socket.send(body)
        assert msgspec.json.decode(self.socket.recv(10), type=Answer).error is not None

    @invariant()
    def the_hub_holds_what_the_model_holds(self) -> None:
        if self.hub is not None:
            assert set(self.hub.hub.accounts[0].sessions) == set(self.models)
            assert self.hub.hub.total == len(self.models)


@pytest.fixture
def machine(start_hub: Any) -> Iterator[type[Sessions]]:
    with start_hub(envs=("frozen-lake", "bandit", "odd-process", "odd-inline")) as hub, hub.socket() as socket:

        class Bound(Sessions):
            pass

        Bound.hub, Bound.http, Bound.socket = hub, hub.http, socket
        yield Bound


def test_the_hub_does_what_local_environments_do(machine: type[Sessions]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
