"""MCP (Model Context Protocol) over JSON-RPC 2.0: an agent plays an environment with three tools.

The same answers are given over ``POST /{env}/mcp`` (MCP's streamable HTTP, replies as plain JSON), over the WebSocket
``/{env}/mcp`` and inside ``{"type": "mcp"}`` messages of ``/{env}/ws``. A session is named by the header
``Mcp-Session-Id`` (MCP clients) or by ``session_id`` in the parameters (OpenEnv clients).
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from .. import __version__
from ..errors import InvalidRequest, SessionBusy, TurngymError, nearest
from .gate import ACCOUNT, refuse
from .hub import Hub
from .links import Hangup, Receive, Scope, Send, SocketLink
from .native import UNREADABLE, encode_json
from .openenv import Envelope, Episode, ResetArguments
from .problems import problem_response
from .sessions import Account, missing

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, SERVER_ERROR = -32700, -32600, -32601, -32602, -32000
VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol versions this server speaks, newest first."""
SESSION_HEADER = "Mcp-Session-Id"
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 0}
# The stock framework keeps the names reset, step, state and close to itself.
TOOLS: list[dict[str, Any]] = [
    {
        "name": "start",
        "description": "Start an episode. Returns the rules and the first observation.",
        "inputSchema": {
            "type": "object",
            "properties": {"seed": _NUMBER, "split": _TEXT, "index": _NUMBER, "task": _TEXT, "episode_id": _TEXT},
            "additionalProperties": False,
        },
    },
    {
        "name": "act",
        "description": "Take one action. Returns the observation, the reward and whether the episode is over.",
        "inputSchema": {
            "type": "object",
            "properties": {"action": {"type": "string", "description": "One of the admissible actions."}},
            "required": ["action"],
            "additionalProperties": False,
        },
    },
    {
        "name": "look",
        "description": "Show the running episode's last observation again.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
    },
]


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON-RPC request."""

    jsonrpc: str
    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str | int | None = None


class ActArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of the tool ``act``."""

    action: str


_decode = msgspec.json.Decoder(Call).decode


class RpcError(Exception):
    """A JSON-RPC error answer."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def _failed(number: str | int | None, error: RpcError) -> dict[str, Any]:
    members: dict[str, Any] = {"code": error.code, "message": error.message, "data": error.data}
    return {"jsonrpc": "2.0", "id": number, "error": members}


class Mcp:
    """Answers JSON-RPC calls about the hub's environments.

    Args:
        hub: where the sessions live.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._attached: dict[tuple[str, str], Episode] = {}
        self._closing: set[tuple[str, str]] = set()

    # Sessions shared by HTTP and a WebSocket -------------------------------------------------------

    def attach(self, episode: Episode, session_id: str) -> None:
        """Let a WebSocket play a session made by ``openenv/session/create``.

        Raises:
            SessionNotFound: there is none, or not of this environment.
            SessionBusy: another WebSocket plays it.
        """
        key = (episode.account.name, session_id)
        if key in self._attached:
            raise SessionBusy(f"Session {session_id} has a WebSocket already.", hint="Close that one first.")
        episode.session_id = session_id
        session = episode.session
        if session is None:
            episode.session_id = ""
            raise missing(session_id)
        session.link = episode.link
        self._attached[key] = episode

    def detach(self, episode: Episode) -> None:
        """Let go of an attached session; close it if that was asked for meanwhile."""
        key = (episode.account.name, episode.session_id)
        if self._attached.get(key) is episode:
            del self._attached[key]
            if key in self._closing:
                self._closing.discard(key)
                episode.close()

    # Calls -----------------------------------------------------------------------------------------

    async def answer(self, data: bytes | str, episode: Episode, *, own: bool) -> dict[str, Any] | None:
        """Answer one JSON-RPC message, None for a notification.

        Args:
            data: the message.
            episode: what the caller plays; over HTTP its session may still have to be named.
            own: the episode belongs to the caller's socket.
        """
        number: str | int | None = None
        try:
            try:
                call = _decode(data)
            except msgspec.ValidationError as error:
                raise RpcError(INVALID_REQUEST, f"Invalid request: {error}") from error
            except UNREADABLE as error:
                raise RpcError(PARSE_ERROR, f"Parse error: {error}") from error
            number = call.id
            if call.jsonrpc != "2.0":
                raise RpcError(INVALID_REQUEST, 'Invalid request: "jsonrpc" must be "2.0"')
            if call.method.startswith("notifications/"):
                return None
            return {"jsonrpc": "2.0", "id": number, "result": await self._result(call, episode, own)}
        except RpcError as error:
            return _failed(number, error)
        except TurngymError as error:
            return _failed(number, RpcError(SERVER_ERROR, str(error), {"problem": error.to_problem()}))

    async def _result(self, call: Call, episode: Episode, own: bool) -> dict[str, Any]:
        method, params = call.method, call.params
        if method == "initialize":
            return await self._initialize(params, episode, own)
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": TOOLS}
        if method == "tools/call":
            self._name_session(params, episode, own)
            return await self._call_tool(params, episode)
        if method == "openenv/session/create":
            if not own:
                await episode.open()
            return {"session_id": episode.session_id}
        if method == "openenv/session/close":
            return self._close_session(params, episode, own)
        known = ["initialize", "ping", "tools/list", "tools/call", "openenv/session/create", "openenv/session/close"]
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:60]}. {nearest(method[:60], known)}")

    async def _initialize(self, params: dict[str, Any], episode: Episode, own: bool) -> dict[str, Any]:
        if not own:
            await episode.open()
        asked = params.get("protocolVersion")
        spec = self.hub.spec(episode.env_id)
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": f"turngym {spec.id}", "version": __version__},
            "instructions": f"{spec.summary}. Call start, then act until the episode is over.",
        }

    def _name_session(self, params: dict[str, Any], episode: Episode, own: bool) -> None:
        if own or episode.session_id:
            return
        session_id = params.get("session_id")
        if not isinstance(session_id, str):
            hint = f'Send openenv/session/create and its "session_id", or initialize and its {SESSION_HEADER} header.'
            raise RpcError(INVALID_PARAMS, f"The call names no session. {hint}")
        episode.session_id = session_id
        if episode.session is None:
            raise RpcError(INVALID_PARAMS, f"Unknown session_id: {session_id[:60]}")

    def _close_session(self, params: dict[str, Any], episode: Episode, own: bool) -> dict[str, Any]:
        session_id = params.get("session_id")
        if not isinstance(session_id, str):
            raise RpcError(INVALID_PARAMS, "Invalid params: 'session_id' is required")
        if own and session_id == episode.session_id:
            raise RpcError(INVALID_REQUEST, "A WebSocket's own session ends with the socket; close that")
        key = (episode.account.name, session_id)
        if key in self._attached:
            self._closing.add(key)
            return {"session_id": session_id, "closed": False, "closing": True}
        other = Episode(self.hub, episode.env_id, episode.account, None, session_id)
        if other.session is None:
            raise RpcError(INVALID_PARAMS, f"Unknown session_id: {session_id[:60]}")
        other.close()
        return {"session_id": session_id, "closed": True}

    async def _call_tool(self, params: dict[str, Any], episode: Episode) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "Missing 'name' in params")
        try:
            if name == "start":
                shown = await episode.reset(msgspec.convert(arguments, ResetArguments))
            elif name == "act":
                answer = episode.step(msgspec.convert(arguments, ActArguments).action)
                shown = answer if isinstance(answer, Envelope) else await answer
            elif name == "look":
                return _looked(episode)
            else:
                hint = nearest(name[:60], [tool["name"] for tool in TOOLS])
                raise RpcError(INVALID_PARAMS, f"Tool not found: {name[:60]}. {hint}")
        except msgspec.ValidationError as error:
            return _tool_error(InvalidRequest(f"Invalid arguments: {error}.", hint="tools/list has the schemas."))
        except TurngymError as error:
            return _tool_error(error)
        return _told(shown)


def _told(shown: Envelope) -> dict[str, Any]:
    lines = [shown.observation.instructions, shown.observation.text]
    if shown.observation.admissible:
        lines.append(f"Admissible actions: {', '.join(shown.observation.admissible)}")
    if shown.reward is not None:
        lines.append(f"Reward: {shown.reward:g}")
    if shown.done:
        lines.append("The episode is over.")
    text = "\n\n".join(line for line in lines if line)
    return {"content": [{"type": "text", "text": text}], "structuredContent": shown, "isError": False}


def _tool_error(error: TurngymError) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def _looked(episode: Episode) -> dict[str, Any]:
    from .openenv import envelope

    session = episode.session
    if session is None or session.last.observation is None:
        return _tool_error(InvalidRequest("No episode was started.", hint="Call start."))
    return _told(envelope(session.last))


# Transports ----------------------------------------------------------------------------------------


async def serve_http(mcp: Mcp, request: Request) -> Response:
    """Answer ``POST /{env}/mcp``: 200 with a JSON-RPC answer, 202 for a notification.

    Raises:
        SessionNotFound: the header names a session that is gone; an MCP client then initializes anew.
    """
    account: Account = request.scope[ACCOUNT]
    env_id = request.path_params["env"]
    mcp.hub.spec(env_id)
    data = await request.body()
    named = request.headers.get(SESSION_HEADER, "")
    episode = Episode(mcp.hub, env_id, account, None, named)
    if named and episode.session is None:
        raise missing(named)
    answer = await mcp.answer(data, episode, own=False)
    if answer is None:
        return Response(status_code=202)
    headers = {}
    if not named and episode.session is not None and _is_initialize(data):
        headers[SESSION_HEADER] = episode.session_id
    return Response(encode_json(answer), headers=headers, media_type="application/json")


def _is_initialize(data: bytes) -> bool:
    return _decode(data).method == "initialize"


async def delete_http(mcp: Mcp, request: Request) -> Response:
    """Answer ``DELETE /{env}/mcp``: end the session that the header names."""
    named = request.headers.get(SESSION_HEADER, "")
    env_id = request.path_params["env"]
    mcp.hub.spec(env_id)
    episode = Episode(mcp.hub, env_id, request.scope[ACCOUNT], None, named)
    if episode.session is None:
        return problem_response(missing(named))
    episode.close()
    return Response(status_code=204)


class McpSocket:
    """ASGI application of the WebSocket ``/{env}/mcp``: one socket, one session."""

    def __init__(self, mcp: Mcp) -> None:
        self.mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket until it closes."""
        hub, env_id = self.mcp.hub, scope["path_params"]["env"]
        try:
            hub.spec(env_id)
        except TurngymError as error:
            await refuse(scope, receive, send, error)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        link = SocketLink(hub, lambda data: self._answer(data, episode), serial=True)
        episode = Episode(hub, env_id, scope[ACCOUNT], link)
        try:
            await link.serve(scope, receive, send, first=self._begin(episode))
        finally:
            episode.close()

    async def _begin(self, episode: Episode) -> None:
        try:
            await episode.open()
        except TurngymError as error:
            answer = _failed(None, RpcError(SERVER_ERROR, str(error), {"problem": error.to_problem()}))
            raise Hangup(encode_json(answer)) from error

    async def _answer(self, data: bytes | str, episode: Episode) -> bytes | None:
        answer = await self.mcp.answer(data, episode, own=True)
        return None if answer is None else encode_json(answer)
