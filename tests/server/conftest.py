"""Real hubs on real sockets, and environments that misbehave on purpose."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvloop
from websockets.sync.client import ClientConnection, connect

from turngym.envs import registry
from turngym.protocol import Answer, Reply
from turngym.server.hub import Hub
from turngym.server.run import HubServer, listen, server_of, url_of
from turngym.server.settings import HubSettings

WAIT_S = 20.0


# Worker processes import these environments too, by the path that the hub hands on.
sys.path.insert(0, str(Path(__file__).with_name("odd")))
import odd_envs  # noqa: E402

os.environ["TURNGYM_ODD"] = tempfile.mkdtemp(prefix="turngym-odd-")
atexit.register(shutil.rmtree, os.environ["TURNGYM_ODD"], ignore_errors=True)
for _row in odd_envs.ROWS:
    if not registry.is_registered(_row.id):
        registry.register(_row)


class Running:
    """A hub that runs in a thread of this process.

    Attributes:
        url: its address.
        hub: the hub itself; look, but touch only through :meth:`on_loop`.
        http: an HTTP client of it.
    """

    def __init__(self, server: HubServer, url: str, loop: asyncio.AbstractEventLoop, headers: dict[str, str]) -> None:
        self.server = server
        self.url = url
        self.hub: Hub = server._hub
        self.headers = headers
        self.http = httpx.Client(base_url=url, headers=headers, timeout=WAIT_S)
        self._loop = loop
        self._ids = itertools.count()

    def on_loop(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function (or run a coroutine function) on the hub's event loop."""

        async def call() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(WAIT_S)

    def post(self, op: str, *items: dict[str, Any]) -> list[Reply]:
        """Run one native operation over HTTP."""
        response = self.http.post(f"/v1/{op}", json={"items": list(items)})
        assert response.status_code == 200, response.text
        return msgspec.json.decode(response.content, type=Answer).items

    def one(self, op: str, **item: Any) -> Reply:
        """Run one native operation on one item; it must not fail."""
        (reply,) = self.post(op, item)
        assert reply.error is None, reply.error
        return reply

    def fail(self, op: str, **item: Any) -> str:
        """Run one native operation on one item; return the code it fails with."""
        (reply,) = self.post(op, item)
        assert reply.error is not None, reply
        return str(reply.error["code"])

    def socket(self, path: str = "/v1/ws", **options: Any) -> ClientConnection:
        """Open a WebSocket."""
        url = self.url.replace("http", "ws", 1) + path
        options.setdefault("additional_headers", self.headers)
        # Without pings of its own: they draw from the process's generator, which Hypothesis watches.
        return connect(url, open_timeout=WAIT_S, max_size=None, ping_interval=None, **options)

    def new(self) -> str:
        """Return a session id not used before."""
        return f"s{next(self._ids)}"


def ask(socket: ClientConnection, op: str, *items: dict[str, Any], number: int = 1) -> Answer:
    """Send one native request and await its answer."""
    socket.send(msgspec.json.encode({"id": number, "op": op, "items": list(items)}).decode())
    return msgspec.json.decode(socket.recv(WAIT_S), type=Answer)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@contextmanager
def running(key: str = "", **settings: Any) -> Iterator[Running]:
    """Run a hub in a thread; ``key`` is sent with every request."""
    listener = listen("127.0.0.1", 0)
    ready = threading.Event()
    server = server_of(HubSettings(**{"drain_timeout_s": 5.0, **settings}), listener, ready.set)
    loop = uvloop.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.serve(sockets=[listener]))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(WAIT_S)
    hub = Running(server, url_of(listener), loop, {"Authorization": f"Bearer {key}"} if key else {})
    try:
        yield hub
    finally:
        hub.http.close()
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


ODD = ("bandit", "frozen-lake", "sokoban", "odd-inline", "odd-process")


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Running]:
    """A hub with all kinds of environments, shared by the tests of a module."""
    with running(envs=ODD) as hub:
        yield hub


@pytest.fixture(scope="session")
def start_hub() -> Callable[..., Any]:
    """The context manager that runs a hub with settings of one's own."""
    return running


class Gate:
    """What the action "wait NAME" waits for."""

    def __init__(self, name: str) -> None:
        self._file = odd_envs.folder() / f"open-{name}"

    def open(self) -> None:
        """Let those who wait go on."""
        self._file.touch()


@pytest.fixture
def tools() -> Any:
    """The helpers ``ask`` and ``wait_for``, and what the odd environments hear and say."""
    where = odd_envs.folder()
    for file in where.iterdir():
        file.unlink()

    class Tools:
        ask = staticmethod(ask)
        wait_for = staticmethod(wait_for)
        gate = Gate
        folder = where

        @staticmethod
        def closed() -> list[str]:
            """Names of the environments closed so far."""
            file = where / "closed"
            return file.read_text().splitlines() if file.exists() else []

    return Tools
