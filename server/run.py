"""Run the hub: uvicorn on uvloop, sockets that notice a dead peer, and a graceful end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from ..errors import ServerUnavailable
from .app import create_app
from .hub import Hub
from .settings import HubSettings
from .websocket import DirectWebSocket

SHUTDOWN_S = 2
"""Seconds that connections get to close once the hub has drained."""
KEEP_ALIVE_S = 300
"""Seconds an idle HTTP connection stays open: trainers pause for minutes between requests."""


class HubServer(uvicorn.Server):
    """uvicorn, except that the first SIGTERM or SIGINT drains the hub; a second one ends it at once.

    Args:
        config: uvicorn's settings.
        hub: what is drained.
        on_ready: called once connections are accepted.
    """

    def __init__(self, config: uvicorn.Config, hub: Hub, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._hub = hub
        self._on_ready = on_ready
        self._asked_to_end = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; the main loop does the rest."""
        self._hub.hurry = self._asked_to_end
        self._asked_to_end = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Drain when asked to end; called about ten times a second."""
        if self._asked_to_end and not self.should_exit:
            await self._hub.drain()
            self.should_exit = True
            self.force_exit = self._hub.hurry
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket whose connections have TCP keep-alive.

    Keep-alive probes are answered by the peer's kernel: a trainer that is busy for minutes keeps its sockets, which
    WebSocket pings would cut.

    Raises:
        ServerUnavailable: the address cannot be used.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
    except OSError as error:
        raise ServerUnavailable(f"No address {host}:{port}: {error}.", hint="Choose another --host.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServerUnavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}.", hint="Choose another --port; 0 takes a free one."
        ) from error
    return listener


def server_of(settings: HubSettings, listener: socket.socket, on_ready: Callable[[], None]) -> HubServer:
    """Make the server; ``await server.serve(sockets=[listener])`` runs it."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws=DirectWebSocket,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return HubServer(config, app.state.hub, on_ready)


def url_of(listener: socket.socket) -> str:
    """Return the URL under which a listening socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: HubSettings) -> None:
    """Serve until SIGTERM or SIGINT; prints the URL once connections are accepted.

    Raises:
        ServerUnavailable: the address cannot be used.
    """
    listener = listen(settings.host, settings.port)
    url = url_of(listener)
    count = len(settings.env_ids())

    def announce() -> None:
        keys = f", {len(settings.api_keys)} API keys" if settings.api_keys else ""
        print(f"turngym hub: {url} ({count} environments{keys})", flush=True)

    server_of(settings, listener, announce).run(sockets=[listener])
