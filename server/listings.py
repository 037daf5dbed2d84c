"""What is there: environments, tasks, sessions, health and metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request, Response

from .. import __version__
from ..envs.core import shown
from ..errors import CapacityReached, Draining, InvalidRequest, SessionNotFound, UnknownEnvironment, UnknownTask
from ..protocol import MAX_ITEMS, PREFIX, EnvCard, SessionCard, TaskPage
from .gate import ACCOUNT
from .hub import Hub
from .metrics import registry_of
from .native import encode_json
from .schemas import Api, Parameter
from .sessions import Account, missing

TASKS_PER_PAGE = 256
MAX_INDEX = 10**9


def json_response(value: Any) -> Response:
    """Encode structs and plain values."""
    return Response(encode_json(value), media_type="application/json")


def mount(api: Api, hub: Hub) -> None:
    """Add the listing routes."""
    _mount_envs(api, hub)
    _mount_sessions(api, hub)
    _mount_service(api, hub)


def _mount_envs(api: Api, hub: Hub) -> None:
    async def envs(request: Request) -> Response:
        return json_response(await hub.all_cards())

    async def env(request: Request) -> Response:
        return json_response(await hub.card(request.path_params["env"]))

    async def tasks(request: Request) -> Response:
        query = request.query_params
        split = query.get("split", "test")
        every = await hub.tasks(request.path_params["env"], split)
        start = _number(query.get("start"), "start", 0)
        stop = _number(query.get("stop"), "stop", start + TASKS_PER_PAGE)
        page = every[start : min(stop, start + MAX_ITEMS)]
        return json_response(TaskPage(split, start, len(every), list(page)))

    which = Parameter("env", "path", {"type": "string", "enum": list(hub.specs)}, "Environment id.")
    number = {"type": "integer", "minimum": 0, "maximum": MAX_INDEX}
    page = [
        Parameter("split", "query", {"type": "string", "default": "test"}, "Name of the split."),
        Parameter("start", "query", {**number, "default": 0}, "First task."),
        Parameter("stop", "query", number, f"Task to stop before: {TASKS_PER_PAGE} on, at most {MAX_ITEMS}."),
    ]
    root = f"{PREFIX}/envs"
    unknown = (UnknownEnvironment,)
    api.add("GET", root, envs, "List the environments", answer=list[EnvCard])
    api.add("GET", f"{root}/{{env}}", env, "Describe one", answer=EnvCard, parameters=[which], errors=unknown)
    api.add(
        "GET",
        f"{root}/{{env}}/tasks",
        tasks,
        "List task ids of a split, a page at a time",
        answer=TaskPage,
        parameters=[which, *page],
        errors=(*unknown, UnknownTask, InvalidRequest),
    )


def _mount_sessions(api: Api, hub: Hub) -> None:
    async def sessions(request: Request) -> Response:
        return json_response(hub.cards(request.scope[ACCOUNT]))

    async def session(request: Request) -> Response:
        account: Account = request.scope[ACCOUNT]
        found = account.sessions.get(request.path_params["session"])
        if found is None:
            raise missing(request.path_params["session"])
        return json_response(found.card(time.monotonic()))

    root = f"{PREFIX}/sessions"
    which = [Parameter("session", "path", {"type": "string"}, "Session id.")]
    missed = (SessionNotFound,)
    api.add("GET", root, sessions, "List the sessions of the caller's key", answer=list[SessionCard])
    api.add(
        "GET",
        f"{root}/{{session}}",
        session,
        "Describe one session",
        answer=SessionCard,
        parameters=which,
        errors=missed,
    )


def _mount_service(api: Api, hub: Hub) -> None:
    registry = registry_of(hub)

    async def health(request: Request) -> Response:
        health: dict[str, Any] = {"status": "healthy", "version": __version__}
        pool = hub.places.pool
        if pool.used:
            rebuilt = sum(pool.rebuilt.values())
            health["workers"] = {"alive": pool.alive, "restarts": pool.restarts, "rebuilt": rebuilt}
        return json_response(health)

    async def ready(request: Request) -> Response:
        if hub.draining:
            raise Draining("The hub shuts down.", hint="Use another hub.")
        hub.places.check()
        return json_response({"status": "ready"})

    async def metrics(request: Request) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    text = {"type": "string"}
    status = {"type": "object", "properties": {"status": text}, "required": ["status"]}
    api.add("GET", "/health", health, "Say that the process lives", answer=status, tag="service", locked=False)
    api.add(
        "GET",
        "/ready",
        ready,
        "Say whether new sessions are taken",
        answer=status,
        errors=(Draining, CapacityReached),
        tag="service",
        locked=False,
    )
    api.add(
        "GET", "/metrics", metrics, "Give the counters for Prometheus", answer=text, media="text/plain", tag="service"
    )


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) > MAX_INDEX:
        raise InvalidRequest(f"{name} is {shown(text)!r}.", hint=f"Give a number from 0 to {MAX_INDEX}.")
    return int(text)
