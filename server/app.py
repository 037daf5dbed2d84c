"""The application: all routes behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from .. import __version__
from . import listings, native, openenv_routes, problems, runs, shop
from .auth import Keyring
from .console import routes as console
from .gate import Gate
from .hub import Hub
from .schemas import Api
from .settings import HubSettings


def create_app(settings: HubSettings | None = None) -> FastAPI:
    """Make the hub's application; ``app.state.hub`` is the :class:`Hub`.

    Args:
        settings: see :class:`HubSettings`; None for the defaults.

    Raises:
        InvalidRequest: an environment's id is a path that the hub needs itself, or there is no folder of runs.
    """
    settings = settings or HubSettings()
    keyring = Keyring(settings.api_keys)
    hub = Hub(settings, keyring.accounts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        hub.open()
        yield
        await hub.close()

    app = FastAPI(
        title="turngym",
        version=__version__,
        summary="Multi-turn text environments: many sessions in one request under /v1, OpenEnv under /{env}.",
        lifespan=lifespan,
        docs_url=None,  # Swagger's page loads its scripts from elsewhere
        redoc_url=None,
    )
    app.state.hub = hub
    problems.install(app, hub.request_errors)
    api = Api(app, keys=bool(settings.api_keys))
    console.mount(app, hub)
    sites = shop.mount(app, hub, keyring)
    listings.mount(api, hub)
    runs.mount(api, settings.runs)
    native.mount(api, hub)
    openenv_routes.mount(api, hub)  # last: its paths start with a parameter
    app.add_middleware(
        Gate,
        keyring=keyring,
        max_body_bytes=settings.max_body_bytes,
        counts=hub.request_errors,
        open_paths=frozenset(console.PAGES) | shop.open_paths(sites),
        sites=sites,
    )
    return app
