"""Arbitrary JSON over every WebSocket: each message is answered, and the socket goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WORDS = ["step", "reset", "Up", "test/1", "turn", "a", "2.0", "tools/call", "start"]
NAMES = (
    *("id", "op", "items", "session", "env", "level", "config", "turn", "seed", "split", "task", "action"),
    *("step_index", "to", "n", "log", "type", "data", "metadata", "episode_id", "index"),
    *("jsonrpc", "method", "params", "name", "arguments", "session_id"),
)
texts = st.text(max_size=20) | st.sampled_from(WORDS)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
names = texts | st.sampled_from(NAMES)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5))
OPS = ["create", "reset", "step", "fork", "expert", "state", "render", "restore", "group"]
item = st.fixed_dictionaries(
    {},
    optional={
        "session": st.sampled_from(["a", "b"]) | values,
        "env": st.sampled_from(["bandit", "sokoban", "odd-process"]) | values,
        "level": st.sampled_from(["text", "turn"]) | values,
        "config": st.dictionaries(st.sampled_from(["size", "boxes", "max_steps", "vocab", "x"]), values, max_size=3),
        "turn": st.dictionaries(st.sampled_from(["style", "memory", "hooks", "max_turns"]), values, max_size=3),
        "reset": values,
        "seed": values,
        "split": values,
        "task": values,
        "action": st.sampled_from(["Up", "Teacher"]) | values,
        "step_index": values,
        "to": st.sampled_from(["a", "b"]) | values,
        "n": st.integers(-1, 3) | values,
        "log": st.lists(values, max_size=3),
        "picture": values,
    },
)
native = st.fixed_dictionaries(
    {"id": st.integers(0, 9), "op": st.sampled_from(OPS), "items": st.lists(item, max_size=3)}
)
openenv = st.fixed_dictionaries(
    {"type": st.sampled_from(["reset", "step", "state", "mcp", "nope"])},
    optional={"data": st.dictionaries(names, values, max_size=4) | values},
)
tool = st.fixed_dictionaries(
    {"name": st.sampled_from(["start", "act", "look"]) | values}, optional={"arguments": values}
)
rpc = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": st.sampled_from(["tools/call", "tools/list", "initialize", "ping"]) | texts},
    optional={"id": values, "params": tool | values},
)


@pytest.mark.parametrize(
    ("path", "messages"),
    [("/v1/ws", native | values), ("/sokoban/ws", openenv | values), ("/bandit/mcp", rpc | values)],
    ids=["native", "openenv", "mcp"],
)
def test_every_message_is_answered(running_hub: Any, path: str, messages: Any) -> None:
    with running_hub.socket(path) as socket:

        @settings(
            max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(messages)
        def talk(message: Any) -> None:
            text = json.dumps(message)  # NaN, Infinity and lone surrogates included
            if path == "/v1/ws" and text.count('"close"'):
                return
            if isinstance(message, dict) and str(message.get("method", "")).startswith("notifications/"):
                return
            socket.send(text)
            answer = json.loads(socket.recv(20))
            assert "INTERNAL" not in str(answer)
            assert "ENVIRONMENT_FAILED" not in str(answer)

        talk()
        assert socket.ping().wait(10)
    for session in list(running_hub.hub.accounts[0].sessions):
        running_hub.post("close", {"session": session})
