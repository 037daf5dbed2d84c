"""The native protocol over HTTP and WebSocket: decode, dispatch, encode."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Request, Response
from starlette.routing import WebSocketRoute

from ..envs.core import shown
from ..errors import Draining, InvalidRequest, TurngymError, nearest
from ..protocol import ITEMS, MAX_ITEMS, PREFIX, Answer, Frame, Reply
from ..records import scrub_tree
from . import work
from .gate import ACCOUNT
from .hub import Hub
from .links import Receive, Scope, Send, SocketLink
from .schemas import Api
from .sessions import Account

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding hostile bytes can raise."""


def _some(item: type[msgspec.Struct]) -> Any:
    """Return the type of a request's items."""
    return Annotated[list[item], msgspec.Meta(max_length=MAX_ITEMS)]  # type: ignore[valid-type]


BODIES: dict[str, type[msgspec.Struct]] = {
    op: msgspec.defstruct(f"{op.capitalize()}Request", [("items", _some(item))], forbid_unknown_fields=True)
    for op, item in ITEMS.items()
}
"""Operation -> struct of the HTTP body."""
_bodies = {op: msgspec.json.Decoder(body) for op, body in BODIES.items()}
_items = {op: msgspec.json.Decoder(_some(item)) for op, item in ITEMS.items()}
_frame = msgspec.json.Decoder(Frame)


_encode = msgspec.json.Encoder(enc_hook=work.plain).encode


def encode_json(value: Any) -> bytes:
    """Encode structs and plain values; characters that JSON cannot carry are replaced.

    Raises:
        EnvironmentFailed: an environment put something into its info that is no JSON.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(scrub_tree(msgspec.to_builtins(value, enc_hook=work.plain)))
    except Exception as error:
        raise work.no_json(error) from error


def encode_answer(hub: Hub, answer: Answer, account: Account) -> bytes:
    """Encode an answer; a reply that cannot be encoded becomes a failure of its environment."""
    try:
        return _encode(answer)
    except Exception:
        answer.items = [_encodable(hub, reply, account) for reply in answer.items]
        if answer.error is not None:
            answer.error = scrub_tree(answer.error)
        return _encode(answer)


def _encodable(hub: Hub, reply: Reply, account: Account) -> Reply:
    try:
        _encode(reply)
        return reply
    except UnicodeEncodeError:
        # Lone surrogates in an observation: JSON cannot carry them, the rest of the text it can.
        clean: Reply = msgspec.convert(scrub_tree(msgspec.to_builtins(reply, enc_hook=work.plain)), Reply)
        return clean
    except Exception as error:
        session = account.sessions.get(reply.session)
        failure = work.no_json(error)
        return Reply(reply.session, error=failure.to_problem()) if session is None else hub.failed(session, failure)


def unreadable(error: Exception) -> InvalidRequest:
    """Return the error for bytes that could not be decoded."""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else shown(str(error), 200)
    return InvalidRequest(f"The request cannot be read: {reason}.", hint="GET /openapi.json has the schema.")


async def serve_http(hub: Hub, op: str, request: Request) -> Response:
    """Answer ``POST /v1/{op}``."""
    account: Account = request.scope[ACCOUNT]
    data = await request.body()
    try:
        items = _bodies[op].decode(data).items  # type: ignore[attr-defined]
    except UNREADABLE as error:
        raise unreadable(error) from error
    replies = hub.dispatch(op, items, account)
    if not isinstance(replies, list):
        replies = await replies
    return Response(encode_answer(hub, Answer(replies), account), media_type="application/json")


def mount(api: Api, hub: Hub) -> None:
    """Add the routes of the native protocol."""
    for op, body in BODIES.items():
        api.add(
            "POST",
            f"{PREFIX}/{op}",
            partial(serve_http, hub, op),
            f"{_SUMMARIES[op]}; one reply an item",
            answer=Answer,
            body=body,
            errors=(InvalidRequest, Draining),
        )
    api.app.router.routes.append(WebSocketRoute(f"{PREFIX}/ws", NativeSocket(hub)))


_SUMMARIES = {
    "create": "Make sessions",
    "reset": "Start episodes",
    "step": "Act",
    "fork": "Copy sessions in their current state",
    "close": "End sessions",
    "expert": "Ask the experts for the next actions",
    "state": "Give the last replies again",
    "render": "Show the states",
    "group": "Make sessions of one task",
    "restore": "Rebuild sessions by replay",
}


class NativeSocket:
    """ASGI application of ``/v1/ws``: one socket, many sessions, answers in any order."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket until it closes."""
        hub = self.hub
        account: Account = scope[ACCOUNT]
        link = SocketLink(hub, lambda data: self._answer(data, account, link))
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        await link.serve(scope, receive, send)

    def _answer(self, data: bytes | str, account: Account, link: SocketLink) -> bytes | Awaitable[bytes]:
        number: int | None = None
        try:
            frame = _frame.decode(data)
            number = frame.id
            decoder = _items.get(frame.op)
            if decoder is None:
                raise InvalidRequest(f"Unknown operation {shown(frame.op)!r}.", hint=nearest(frame.op[:60], ITEMS))
            replies = self.hub.dispatch(frame.op, decoder.decode(frame.items), account, link)
        except UNREADABLE as error:
            return self._refuse(number, unreadable(error), account)
        except TurngymError as error:
            return self._refuse(number, error, account)
        if isinstance(replies, list):
            return encode_answer(self.hub, Answer(replies, number), account)
        return self._later(number, replies, account)

    async def _later(self, number: int, replies: Awaitable[list[Reply]], account: Account) -> bytes:
        return encode_answer(self.hub, Answer(await replies, number), account)

    def _refuse(self, number: int | None, error: TurngymError, account: Account) -> bytes:
        self.hub.request_errors[error.code] += 1
        return encode_answer(self.hub, Answer(id=number, error=error.to_problem()), account)
