"""What is there: environments, tasks, sessions, health and metrics."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from .. import __version__
from ..envs.core import shown
from ..errors import Draining, InvalidRequest
from ..protocol import MAX_ITEMS, PREFIX, TaskPage
from .gate import ACCOUNT
from .hub import Hub
from .metrics import registry_of
from .sessions import Account, missing

JSON = "application/json"


def json_response(value: Any) -> Response:
    """Encode structs and plain values."""
    return Response(msgspec.json.encode(value), media_type=JSON)


def mount(app: FastAPI, hub: Hub) -> None:
    """Add the listing routes."""
    registry = registry_of(hub)

    async def health(request: Request) -> Response:
        """Say that the process lives."""
        return json_response({"status": "healthy", "version": __version__})

    async def ready(request: Request) -> Response:
        """Say whether new sessions are taken."""
        if hub.draining:
            raise Draining("The hub shuts down.", hint="Use another hub.")
        return json_response({"status": "ready"})

    async def metrics(request: Request) -> Response:
        """Give the counters in the Prometheus text format."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def envs(request: Request) -> Response:
        """List the environments."""
        return json_response([await hub.card(env_id) for env_id in hub.specs])

    async def env(request: Request) -> Response:
        """Describe one environment."""
        return json_response(await hub.card(request.path_params["env"]))

    async def tasks(request: Request) -> Response:
        """List task ids of a split, a page at a time."""
        query = request.query_params
        split = query.get("split", "test")
        every = await hub.tasks(request.path_params["env"], split)
        start = _number(query.get("start"), "start", 0)
        stop = _number(query.get("stop"), "stop", start + 256)
        if stop - start > MAX_ITEMS:
            raise InvalidRequest(f"{stop - start} tasks in one page.", hint=f"Ask for at most {MAX_ITEMS}.")
        return json_response(TaskPage(split, start, len(every), list(every[start:stop])))

    async def sessions(request: Request) -> Response:
        """List the sessions of the caller's key."""
        return json_response(hub.cards(request.scope[ACCOUNT]))

    async def session(request: Request) -> Response:
        """Describe one session."""
        account: Account = request.scope[ACCOUNT]
        found = account.sessions.get(request.path_params["session"])
        if found is None:
            raise missing(request.path_params["session"])
        return json_response(found.card(time.monotonic()))

    app.get("/health")(health)
    app.get("/ready")(ready)
    app.get("/metrics")(metrics)
    app.get(f"{PREFIX}/envs")(envs)
    app.get(f"{PREFIX}/envs/{{env}}")(env)
    app.get(f"{PREFIX}/envs/{{env}}/tasks")(tasks)
    app.get(f"{PREFIX}/sessions")(sessions)
    app.get(f"{PREFIX}/sessions/{{session}}")(session)


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidRequest(f"{name} is {shown(text)!r}.", hint="Give a number from 0.")
    return int(text)
