"""The application: all routes behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from .. import __version__
from ..protocol import ITEMS, PREFIX
from . import listings, native, problems
from .auth import Keyring
from .gate import Gate
from .hub import Hub
from .settings import HubSettings


def create_app(settings: HubSettings | None = None) -> FastAPI:
    """Make the hub's application; ``app.state.hub`` is the :class:`Hub`.

    Args:
        settings: see :class:`HubSettings`; None for the defaults.
    """
    settings = settings or HubSettings()
    keyring = Keyring(settings.api_keys)
    hub = Hub(settings, keyring.accounts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        hub.open()
        yield
        await hub.close()

    app = FastAPI(title="turngym", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.hub = hub
    problems.install(app)
    for op in ITEMS:
        app.add_api_route(f"{PREFIX}/{op}", partial(native.serve_http, hub, op), methods=["POST"])
    app.router.routes.append(WebSocketRoute(f"{PREFIX}/ws", native.NativeSocket(hub)))
    listings.mount(app, hub)
    app.add_middleware(Gate, keyring=keyring, max_body_bytes=settings.max_body_bytes)
    return app
