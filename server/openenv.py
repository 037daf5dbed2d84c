"""The OpenEnv protocol (0.10) under each environment's prefix, in light code of our own.

``/{env}/ws`` is a session: one socket, one environment, request and reply in turn. ``POST /{env}/reset`` and ``/step``
and ``GET /{env}/state`` are stateful when they carry an ``episode_id``; without one, ``reset`` shows an episode's
first observation and forgets it, as the stock server does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs

import msgspec

from ..envs.core import shown
from ..errors import (
    CapacityReached,
    Draining,
    InvalidRequest,
    NotReset,
    QuotaExceeded,
    SessionNotFound,
    TurngymError,
    from_problem,
)
from ..protocol import Create, Reply, Reset, Step
from .gate import ACCOUNT, refuse
from .hub import Hub
from .links import Hangup, Receive, Scope, Send, SocketLink
from .native import UNREADABLE, encode_json
from .sessions import Account, Link, Session

if TYPE_CHECKING:
    from .mcp import Mcp

MAX_EPISODE_ID = 255
FULL = (CapacityReached, QuotaExceeded, Draining)


class ResetArguments(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Arguments of ``reset``.

    Attributes:
        seed: seed of the noise.
        episode_id: name of the episode, echoed by ``state``.
        split: split that the task is taken from, "train" by default.
        index: index of the task in the split; without one, the seed draws it.
        task: task id like "test/7", instead of split and index.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    episode_id: Annotated[str, msgspec.Meta(max_length=MAX_EPISODE_ID)] | None = None
    split: str | None = None
    index: Annotated[int, msgspec.Meta(ge=0)] | None = None
    task: str | None = None


class Action(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One action.

    Attributes:
        action: the action as text, for example one of the last observation's ``admissible``.
        metadata: not used.
    """

    action: str
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Shown(msgspec.Struct, forbid_unknown_fields=True):
    """The ``observation`` member of an answer.

    Attributes:
        text: the observation.
        admissible: actions that will be accepted next; [] when the episode is over.
        truncated: a limit ended the episode, not the task.
        instructions: the rules; sent by ``reset`` only.
        metadata: the environment's info: task, seed, anchor, won, score, action_valid and more.
    """

    text: str
    admissible: list[str]
    truncated: bool
    instructions: str
    metadata: dict[str, Any]


class Observation(Shown, forbid_unknown_fields=True):
    """What ``/schema`` calls an observation: ``Shown`` with the answer's ``done`` and ``reward``.

    Attributes:
        done: the episode is over.
        reward: reward of the action; null after ``reset``.
    """

    done: bool = False
    reward: float | None = None


class State(msgspec.Struct):
    """Where an episode stands.

    Attributes:
        episode_id: as given to ``reset``.
        step_count: steps since the reset.
        env: registry id.
        task: task id, "" before the first reset.
        seed: seed of the noise.
        done: the episode is over.
    """

    episode_id: str | None = None
    step_count: int = 0
    env: str = ""
    task: str = ""
    seed: int = 0
    done: bool = False


class Envelope(msgspec.Struct):
    """Answer to ``reset`` and ``step``."""

    observation: Shown
    reward: float | None
    done: bool
    metadata: dict[str, Any]


class EpisodeStep(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /{env}/step``.

    Attributes:
        action: the action.
        episode_id: the episode, as it was given to ``reset``.
        timeout_s: accepted for the stock client's sake; the server's own limit applies.
        request_id: accepted for the stock client's sake.
    """

    action: Action
    episode_id: Annotated[str, msgspec.Meta(max_length=MAX_EPISODE_ID)] | None = None
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    request_id: Annotated[str, msgspec.Meta(max_length=255)] | None = None


class Message(msgspec.Struct):
    """One WebSocket message; ``data`` is decoded once ``type`` is known."""

    type: str = ""
    data: msgspec.Raw = msgspec.Raw(b"")


decode_reset = msgspec.json.Decoder(ResetArguments).decode
_decode_action = msgspec.json.Decoder(Action).decode
_decode_message = msgspec.json.Decoder(Message).decode


def envelope(reply: Reply, instructions: str = "", *, first: bool = False) -> Envelope:
    """Translate a reply of the native protocol."""
    info = dict(reply.info or {})
    admissible = info.pop("admissible", [])
    text = reply.observation if isinstance(reply.observation, str) else ""
    return Envelope(
        Shown(text, admissible, reply.truncated, instructions, info),
        None if first else reply.reward,
        reply.terminated or reply.truncated,
        info,
    )


class Episode:
    """A session of the hub as OpenEnv sees it.

    Args:
        hub: where the session lives.
        env_id: registry id.
        account: who plays.
        link: the socket it is played over, None for HTTP.
        session_id: id of the session, "" until :meth:`open` has made one.
    """

    def __init__(self, hub: Hub, env_id: str, account: Account, link: Link | None, session_id: str = "") -> None:
        self.hub = hub
        self.env_id = env_id
        self.account = account
        self.link = link
        self.session_id = session_id
        self.episode_id: str | None = None

    @property
    def session(self) -> Session | None:
        """The live session, None if it was never made or is closed."""
        found = self.account.sessions.get(self.session_id)
        return found if found is not None and found.env_id == self.env_id and found.level == "text" else None

    async def open(self) -> None:
        """Make the session.

        Raises:
            TurngymError: there is no room, or the environment cannot be made.
        """
        name = self.session_id or None
        reply = await self._ask("create", Create(self.env_id, session=name))
        self.session_id = reply.session

    async def reset(self, arguments: ResetArguments) -> Envelope:
        """Start an episode; makes the session anew if it is gone."""
        if arguments.task is not None and arguments.index is not None:
            raise InvalidRequest("Both task and index were sent.", hint="Send one of them.")
        if self.session is None:
            await self.open()
        task = arguments.index if arguments.task is None else arguments.task
        reply = await self._ask("reset", Reset(self.session_id, arguments.seed, arguments.split, task))
        self.episode_id = arguments.episode_id
        session = self.session
        rules = "" if session is None else await self.hub.places.rules(session)
        return envelope(reply, rules, first=True)

    def step(self, action: str) -> Envelope | Awaitable[Envelope]:
        """Act once: the envelope at once where the environment steps inline.

        Raises:
            TurngymError: the session is gone, was not reset, or its episode is over.
        """
        if self.session is None:
            raise SessionNotFound("The session is closed.", hint="Reset to start another episode.")
        replies = self.hub.dispatch("step", [Step(self.session_id, action)], self.account, self.link)
        return envelope(_checked(replies[0])) if isinstance(replies, list) else self._stepped(replies)

    async def _stepped(self, replies: Awaitable[list[Reply]]) -> Envelope:
        return envelope(_checked((await replies)[0]))

    def state(self) -> State:
        """Tell where the episode stands."""
        session = self.session
        env = None if session is None else session.env
        if session is None or env is None:
            return State(self.episode_id, env=self.env_id)
        return State(self.episode_id, session.step_index, self.env_id, env.task, env.seed, env.done)

    def close(self) -> None:
        """Close the session."""
        session = self.session
        if session is not None:
            self.hub.drop(session)

    async def _ask(self, op: str, item: Any) -> Reply:
        replies = self.hub.dispatch(op, [item], self.account, self.link)
        return _checked((replies if isinstance(replies, list) else await replies)[0])


def _checked(reply: Reply) -> Reply:
    if reply.error is not None:
        raise from_problem(reply.error)
    return reply


def http_episode(hub: Hub, env_id: str, account: Account, episode_id: str | None) -> Episode:
    """Return the episode that HTTP requests with this ``episode_id`` share."""
    hub.spec(env_id)
    episode = Episode(hub, env_id, account, None)
    if episode_id is not None:
        # An episode_id may be any text; session ids are short words.
        digest = hashlib.blake2b(repr((env_id, episode_id)).encode("utf-8", "replace"), digest_size=16).hexdigest()
        episode.session_id = f"openenv.{digest}"
        episode.episode_id = episode_id
    return episode


async def http_reset(hub: Hub, env_id: str, account: Account, arguments: ResetArguments) -> Envelope:
    """Answer ``POST /{env}/reset``."""
    episode = http_episode(hub, env_id, account, arguments.episode_id)
    try:
        return await episode.reset(arguments)
    finally:
        if arguments.episode_id is None:
            episode.close()


async def http_step(hub: Hub, env_id: str, account: Account, request: EpisodeStep) -> Envelope:
    """Answer ``POST /{env}/step``.

    Raises:
        NotReset: no ``episode_id`` was sent, so that there is no episode to act in.
        SessionNotFound: the episode was never reset, or is closed.
    """
    hub.spec(env_id)
    if request.episode_id is None:
        raise NotReset(
            "The step names no episode.", hint='Reset with an "episode_id" and send it with every step, or use /ws.'
        )
    answer = http_episode(hub, env_id, account, request.episode_id).step(request.action.action)
    return answer if isinstance(answer, Envelope) else await answer


class OpenEnvSocket:
    """ASGI application of ``/{env}/ws``.

    ``?session_id=`` attaches the socket to a session made by ``openenv/session/create``; that one outlives it.
    """

    def __init__(self, hub: Hub, mcp: Mcp) -> None:
        self.hub = hub
        self.mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket until it closes."""
        env_id = scope["path_params"]["env"]
        try:
            self.hub.spec(env_id)
        except TurngymError as error:
            await refuse(scope, receive, send, error)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        wanted = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id", [""])[0]
        conversation = Conversation(self.hub, env_id, scope[ACCOUNT], self.mcp)
        try:
            await conversation.link.serve(scope, receive, send, first=conversation.begin(wanted))
        finally:
            conversation.end()


class Conversation:
    """What is said over one ``/{env}/ws`` socket."""

    def __init__(self, hub: Hub, env_id: str, account: Account, mcp: Mcp) -> None:
        self.link = SocketLink(hub, self.answer, serial=True)
        self.episode = Episode(hub, env_id, account, self.link)
        self.mcp = mcp
        self._attached = False

    async def begin(self, wanted: str) -> bytes | None:
        """Make the session, or attach to one that exists."""
        episode = self.episode
        try:
            if wanted:
                self.mcp.attach(episode, wanted)
                self._attached = True
            else:
                await episode.open()
        except TurngymError as error:
            code = "SESSION_ERROR" if wanted else "CAPACITY_REACHED" if isinstance(error, FULL) else "FACTORY_ERROR"
            details: dict[str, Any] = {}
            if code == "CAPACITY_REACHED":
                hub = episode.hub
                details = {"active_sessions": hub.total, "max_sessions": hub.settings.max_sessions}
            raise Hangup(failure(code, error, **details)) from error
        return None

    def end(self) -> None:
        """Let go of the session when the socket is gone."""
        if self._attached:
            self.mcp.detach(self.episode)
        else:
            self.episode.close()

    def answer(self, data: bytes | str) -> bytes | Awaitable[bytes]:
        """Answer one message."""
        try:
            message = _decode_message(data)
        except msgspec.ValidationError as error:
            return failure("VALIDATION_ERROR", _invalid(error), errors=_details(error))
        except UNREADABLE as error:
            return failure("INVALID_JSON", InvalidRequest(f"Invalid JSON: {shown(str(error), 200)}."))
        try:
            return self._act(message)
        except UNREADABLE as error:
            return failure("VALIDATION_ERROR", _invalid(error), errors=_details(error))
        except TurngymError as error:
            return failure("EXECUTION_ERROR", error)

    def _act(self, message: Message) -> bytes | Awaitable[bytes]:
        if message.type == "step":
            answer = self.episode.step(_decode_action(message.data).action)
            return _said(answer) if isinstance(answer, Envelope) else self._later(answer)
        if message.type == "reset":
            return self._later(self.episode.reset(decode_reset(message.data or b"{}")))
        if message.type == "state":
            return encode_json({"type": "state", "data": self.episode.state()})
        if message.type == "close":
            raise Hangup
        if message.type == "mcp":
            return self._mcp(message.data)
        # The stock server answers this one, too, without closing the socket.
        hint = "Send reset, step, state, mcp or close."
        return failure("UNKNOWN_TYPE", InvalidRequest(f"Unknown message type: {shown(message.type)}.", hint=hint))

    async def _later(self, answer: Awaitable[Envelope]) -> bytes:
        try:
            return _said(await answer)
        except TurngymError as error:
            return failure("EXECUTION_ERROR", error)

    async def _mcp(self, data: msgspec.Raw) -> bytes:
        response = await self.mcp.answer(bytes(data), self.episode, own=True)
        return encode_json({"type": "mcp", "data": response})


def _said(answer: Envelope) -> bytes:
    return encode_json({"type": "observation", "data": answer})


def failure(code: str, error: TurngymError, **details: Any) -> bytes:
    """Encode an error frame."""
    return encode_json({"type": "error", "data": {"message": str(error), "code": code, **details}})


def _invalid(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"Invalid message: {shown(str(error), 200)}.", hint=_FIELDS)


_FIELDS = "reset takes {}; step takes {}.".format(
    *(", ".join(kind.__struct_fields__) for kind in (ResetArguments, Action))
)


def _details(error: Exception) -> list[dict[str, Any]]:
    reason, _, place = str(error).partition(" - at `$.")
    return [{"type": "value_error", "loc": place.rstrip("`").split(".") if place else [], "msg": shown(reason, 200)}]
