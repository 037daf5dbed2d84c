"""A server of the website for this process alone, on 127.0.0.1: the browser environment's shop.

It answers the few operations that the site asks for with environments of its own. Sessions are a cache: whoever uses
one can have it rebuilt from its log, so that the oldest give way.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from ...errors import InvalidRequest, ServerUnavailable, SessionNotFound, StepConflict, TurngymError
from ...protocol import Create, Reply, Restore, Step, Target
from .env import WebShop
from .site import Site

SESSIONS = 4096
START_S = 30.0


@dataclass
class _Session:
    env: WebShop
    reply: Reply
    action: str | None = None


class LocalShop:
    """Sessions of the shop in this process, as far as the site needs them."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def dispatch(self, request: Request, op: str, item: Any) -> Reply:
        """Run one operation; a failure becomes the reply."""
        try:
            if op == "create":
                return self._create(item)
            if op == "restore":
                return self._restore(item)
            session = self._find(item)
            return self._step(session, item) if op == "step" else session.reply
        except TurngymError as error:
            return Reply(error=error.to_problem())

    def _create(self, item: Create) -> Reply:
        given = {"split": item.split, "task": item.task}
        options = {name: value for name, value in given.items() if value is not None}
        return self._begin(item.config, item.seed, options).reply

    def _restore(self, item: Restore) -> Reply:
        session = self._begin(item.config, item.seed, {"task": item.task})
        for number, entry in enumerate(item.log):
            if not isinstance(entry, str):
                raise InvalidRequest("This shop's log holds actions only.", hint="Leave noise seeds out.")
            self._step(session, Step(session.reply.session, entry, number))
        return session.reply

    def _begin(self, config: Mapping[str, Any], seed: int | None, options: Mapping[str, Any]) -> _Session:
        env = WebShop(**config)
        observation, info = env.reset(seed=seed, options=options)
        name = secrets.token_hex(12)
        session = _Session(env, Reply(name, 0, observation, info=info))
        self._sessions[name] = session
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _find(self, item: Target | Step) -> _Session:
        session = self._sessions.get(item.session)
        if session is None:
            raise SessionNotFound("There is no such session.", hint="Start another.")
        self._sessions.move_to_end(item.session)
        return session

    def _step(self, session: _Session, item: Step) -> Reply:
        at = session.reply.step_index
        if item.step_index != at:
            if item.step_index == at - 1 and item.action == session.action:
                return session.reply
            raise StepConflict(f"The session stands at step {at}.", hint="Ask for its state.")
        observation, reward, terminated, truncated, info = session.env.step(item.action)
        session.action = item.action
        session.reply = Reply(item.session, at + 1, observation, reward, terminated, truncated, info)
        return session.reply


_lock = threading.Lock()
_running: dict[int, tuple[str, uvicorn.Server]] = {}


def local_site() -> str:
    """Return the address of this process's own site, with a slash at the end; started on first use.

    Raises:
        ServerUnavailable: it does not start.
    """
    with _lock:
        if os.getpid() not in _running:  # a fork has its parent's memory, not its threads
            _running[os.getpid()] = _serve()
        return _running[os.getpid()][0]


def _serve() -> tuple[str, uvicorn.Server]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=Site("webshop", LocalShop().dispatch).routes())
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", loop="asyncio", ws="none")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listener],), name="turngym-webshop-site", daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    _wait(server, address)
    return address, server


def _wait(server: uvicorn.Server, address: str) -> None:
    waited = threading.Event()
    for _ in range(int(START_S / 0.005)):
        if server.started:
            return
        waited.wait(0.005)
    raise ServerUnavailable(f"The shop's own server at {address} did not start.", hint="Try again.")
