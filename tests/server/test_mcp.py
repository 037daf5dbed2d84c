"""The Model Context Protocol over HTTP, over its own socket, and inside OpenEnv's socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed


def call(method: str, params: dict[str, Any] | None = None, number: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "id": number} | ({} if params is None else {"params": params})


def over(socket: Any, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    socket.send(json.dumps(call(method, params)))
    return json.loads(socket.recv(10))


def test_an_mcp_client_plays_over_http(running_hub: Any) -> None:
    http = running_hub.http
    started = http.post("/sokoban/mcp", json=call("initialize", {"protocolVersion": "2025-03-26"}, "first"))
    assert started.status_code == 200
    answer = started.json()
    assert answer["id"] == "first"
    assert answer["result"]["protocolVersion"] == "2025-03-26"
    assert answer["result"]["capabilities"]["tools"] == {"listChanged": False}
    header = {"Mcp-Session-Id": started.headers["mcp-session-id"]}

    def ask(method: str, params: dict[str, Any] | None = None) -> Any:
        response = http.post("/sokoban/mcp", json=call(method, params), headers=header)
        assert response.status_code == 200
        assert "mcp-session-id" not in response.headers
        return response.json()["result"]

    notified = http.post("/sokoban/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=header)
    assert (notified.status_code, notified.content) == (202, b"")
    assert ask("ping") == {}
    names = [tool["name"] for tool in ask("tools/list")["tools"]]
    assert names == ["start", "act", "look"]
    early = ask("tools/call", {"name": "act", "arguments": {"action": "Up"}})
    assert early["isError"]
    begun = ask("tools/call", {"name": "start", "arguments": {"split": "test", "index": 2}})
    assert not begun["isError"]
    assert "Sokoban" in begun["content"][0]["text"]
    assert begun["structuredContent"]["metadata"]["task"] == "test/2"
    acted = ask("tools/call", {"name": "act", "arguments": {"action": "Up"}})
    assert acted["structuredContent"]["metadata"]["step"] == 1
    looked = ask("tools/call", {"name": "look"})
    assert looked["structuredContent"]["observation"]["text"] == acted["structuredContent"]["observation"]["text"]
    for arguments in ({}, {"action": 7}, {"action": "Up", "x": 1}, 7, None):
        assert ask("tools/call", {"name": "act", "arguments": arguments})["isError"]
    assert http.request("DELETE", "/sokoban/mcp", headers=header).status_code == 204
    # A client whose session is gone gets a 404 and initializes anew.
    assert http.post("/sokoban/mcp", json=call("tools/list"), headers=header).status_code == 404
    assert http.request("DELETE", "/sokoban/mcp", headers=header).status_code == 404
    # A session of one environment is none of another.
    other = http.post("/bandit/mcp", json=call("initialize")).headers["mcp-session-id"]
    assert http.post("/sokoban/mcp", json=call("ping"), headers={"Mcp-Session-Id": other}).status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", -32700),
        ("{", -32700),
        ("{}", -32600),
        ("[]", -32600),
        ("7", -32600),
        (json.dumps({"jsonrpc": "1.0", "method": "ping", "id": 1}), -32600),
        (json.dumps({"jsonrpc": "2.0", "method": 7, "id": 1}), -32600),
        (json.dumps({"jsonrpc": "2.0", "method": "ping", "id": 1.5}), -32600),
        (json.dumps({"jsonrpc": "2.0", "method": "ping", "id": 1, "extra": 1}), -32600),
        (json.dumps(call("ping", [])), -32600),  # type: ignore[arg-type]
        (json.dumps(call("tools/cal", {})), -32601),
        (json.dumps(call("tools/call", {"name": "act", "arguments": {"action": "Up"}})), -32602),
        (json.dumps(call("tools/call", {"session_id": "nobody", "name": "act"})), -32602),
        (json.dumps(call("tools/call", {"session_id": 7, "name": "act"})), -32602),
        (json.dumps(call("openenv/session/close", {})), -32602),
        (json.dumps(call("openenv/session/close", {"session_id": "nobody"})), -32602),
    ],
)
def test_calls_that_do_not_fit(running_hub: Any, body: str, code: int) -> None:
    response = running_hub.http.post("/sokoban/mcp", content=body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["jsonrpc"] == "2.0"
    assert "result" not in answer
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]


def test_openenv_sessions_are_shared_by_http_and_a_socket(running_hub: Any, tools: Any) -> None:
    http = running_hub.http

    def ask(method: str, **params: Any) -> Any:
        return http.post("/sokoban/mcp", json=call(method, params)).json()

    session = ask("openenv/session/create")["result"]["session_id"]
    ask("tools/call", session_id=session, name="start", arguments={"seed": 1})
    assert ask("tools/call", session_id=session, name="nope")["error"]["code"] == -32602
    with running_hub.socket(f"/sokoban/ws?session_id={session}") as socket:
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv(10))["data"]["seed"] == 1
        with running_hub.socket(f"/sokoban/ws?session_id={session}") as second:
            refused = json.loads(second.recv(10))
            assert refused["data"]["code"] == "SESSION_ERROR"
            with pytest.raises(ConnectionClosed):
                second.recv(10)
    # The session outlives the socket.
    tools.wait_for(lambda: not running_hub.hub.links)
    assert ask("tools/call", session_id=session, name="act", arguments={"action": "Up"})["result"]
    with running_hub.socket(f"/sokoban/ws?session_id={session}") as socket:
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv(10))["data"]["step_count"] == 1
        closing = ask("openenv/session/close", session_id=session)["result"]
        assert closing == {"session_id": session, "closed": False, "closing": True}
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv(10))["data"]["step_count"] == 1
    tools.wait_for(lambda: ask("openenv/session/close", session_id=session).get("error") is not None)
    other = ask("openenv/session/create")["result"]["session_id"]
    assert ask("openenv/session/close", session_id=other)["result"] == {"session_id": other, "closed": True}
    with running_hub.socket("/sokoban/ws?session_id=nobody") as socket:
        assert json.loads(socket.recv(10))["data"]["code"] == "SESSION_ERROR"


def test_over_its_own_socket(running_hub: Any, tools: Any) -> None:
    before = running_hub.hub.total
    with running_hub.socket("/bandit/mcp") as socket:
        assert over(socket, "initialize")["result"]["protocolVersion"] == "2025-06-18"
        socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))  # no answer
        assert len(over(socket, "tools/list")["result"]["tools"]) == 3
        own = over(socket, "openenv/session/create")["result"]["session_id"]
        assert own == over(socket, "openenv/session/create")["result"]["session_id"]
        assert over(socket, "openenv/session/close", {"session_id": own})["error"]["code"] == -32600
        begun = over(socket, "tools/call", {"name": "start", "arguments": {"seed": 1}})["result"]
        arm = begun["structuredContent"]["observation"]["admissible"][0]
        ended = over(socket, "tools/call", {"name": "act", "arguments": {"action": arm}})["result"]
        assert "The episode is over." in ended["content"][0]["text"]
        assert over(socket, "tools/call", {"name": "act", "arguments": {"action": arm}})["result"]["isError"]
        socket.send("{")
        assert json.loads(socket.recv(10))["error"]["code"] == -32700
    tools.wait_for(lambda: running_hub.hub.total == before)


def test_inside_the_openenv_socket(running_hub: Any) -> None:
    with running_hub.socket("/bandit/ws") as socket:

        def ask(data: Any) -> Any:
            socket.send(json.dumps({"type": "mcp", "data": data}))
            answer = json.loads(socket.recv(10))
            assert answer["type"] == "mcp"
            return answer["data"]

        assert ask(call("tools/call", {"name": "start", "arguments": {"seed": 1}}))["result"]["structuredContent"]
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv(10))["data"]["seed"] == 1
        assert ask({})["error"]["code"] == -32600
        assert ask(7)["error"]["code"] == -32600


def test_no_room_is_a_server_error(start_hub: Any) -> None:
    with start_hub(envs=("bandit",), max_sessions=1) as hub:
        hub.one("create", env="bandit")
        answer = hub.http.post("/bandit/mcp", json=call("initialize")).json()
        assert answer["error"]["code"] == -32000
        assert answer["error"]["data"]["problem"]["code"] == "CAPACITY_REACHED"
        with hub.socket("/bandit/mcp") as socket:
            assert json.loads(socket.recv(10))["error"]["code"] == -32000
            with pytest.raises(ConnectionClosed):
                socket.recv(10)
