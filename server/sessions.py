"""Sessions and who holds them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Protocol

from ..envs.core import TextEnv, shown
from ..errors import InvalidRequest, SessionNotFound
from ..protocol import Level, Reply, SessionCard
from .metrics import EnvStats

if TYPE_CHECKING:
    from ..envs.turn.env import TurnEnv
    from .remote import Remote

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
MAX_WAITING = 64
"""Operations that may wait for one session; one more is answered SESSION_BUSY."""


class Link(Protocol):
    """A WebSocket connection, as far as eviction and draining need to know it."""

    @property
    def open(self) -> bool:
        """Whether the peer is still there."""

    @property
    def idle(self) -> bool:
        """Whether every message was answered."""

    def close(self, code: int, reason: str) -> None:
        """Close the connection once the answers under way are sent."""


class Account:
    """The holdings of one API key, or of everyone where no key is asked for.

    Attributes:
        name: name of the key, "" where none is asked for.
        sessions: the sessions of this key by id; ids of different keys never meet.
    """

    __slots__ = ("name", "sessions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions: dict[str, Session] = {}


class Session:
    """One environment with its history's end, as the hub holds it.

    Attributes:
        id: session id.
        account: who holds it.
        env_id: registry id.
        level: "text" or "turn".
        stats: counters of its environment id.
        inline: the environment lives in this process and steps on the event loop; else in a worker process.
        env: the environment, or what is known of it; None while it is being made and after it was closed.
        origin: digest of the request that made it, so that a repeat is recognised; b"" where the hub chose the id.
        step_index: steps since the reset.
        last: the last reply, returned again to a repeated step.
        last_action: the action that ``last`` answers.
        created: monotonic seconds.
        touched: monotonic seconds of the last use.
        link: the WebSocket that used it last; while that is open, the session is not evicted.
        pending: operations that run off the event loop, or wait for those.
        tail: the last of them.
        closed: no longer in the account.
    """

    __slots__ = (
        "account",
        "closed",
        "created",
        "env",
        "env_id",
        "id",
        "inline",
        "last",
        "last_action",
        "level",
        "link",
        "origin",
        "pending",
        "stats",
        "step_index",
        "tail",
        "touched",
    )

    def __init__(
        self, id: str, account: Account, stats: EnvStats, level: Level, inline: bool, origin: bytes, now: float
    ) -> None:
        self.id = id
        self.account = account
        self.env_id = stats.env
        self.level: Level = level
        self.stats = stats
        self.inline = inline
        self.env: TextEnv | TurnEnv | Remote | None = None
        self.origin = origin
        self.step_index = 0
        self.last = Reply(id)
        self.last_action: str | None = None
        self.created = now
        self.touched = now
        self.link: Link | None = None
        self.pending = 0
        self.closed = False
        self.tail: asyncio.Future[Reply] | None = None

    def held(self) -> bool:
        """Return whether something forbids eviction: a running operation, or an open socket."""
        return self.pending > 0 or (self.link is not None and self.link.open)

    def card(self, now: float) -> SessionCard:
        """Describe this session for people and tools."""
        env = self.env
        return SessionCard(
            session=self.id,
            env=self.env_id,
            level=self.level,
            task=env.task if env is not None else "",
            seed=env.seed if env is not None else 0,
            step_index=self.step_index,
            done=env.done if env is not None else False,
            age_s=round(now - self.created, 3),
            idle_s=round(now - self.touched, 3),
        )


def check_id(session: str) -> str:
    """Return a session id chosen by a client, or raise :class:`InvalidRequest`."""
    if not SESSION_ID.fullmatch(session):
        raise InvalidRequest(
            f"Session id {session!r:.60} does not fit.",
            hint='Use 1 to 128 letters, digits, ".", "_", ":", "-"; start with a letter or digit.',
        )
    return session


def missing(session: str) -> SessionNotFound:
    """Return the error for a session that is not there."""
    return SessionNotFound(
        f"No session {shown(session)!r}.",
        hint="It was never created, was closed, or was evicted: create or restore it.",
    )
