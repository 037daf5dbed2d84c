"""OpenEnv's HTTP routes under each environment's prefix: play, describe, list tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import WebSocketRoute

from .. import __version__, protocol
from ..envs.core import shown
from ..errors import (
    CapacityReached,
    EnvironmentFailed,
    EpisodeOver,
    InvalidRequest,
    NotReset,
    QuotaExceeded,
    SessionNotFound,
    StepTimeout,
    UnknownEnvironment,
    UnknownTask,
)
from ..protocol import MAX_ITEMS, EnvCard
from . import mcp, openenv
from .gate import ACCOUNT
from .hub import Hub
from .native import UNREADABLE, encode_json, unreadable
from .schemas import Api, Parameter, flat_schema
from .sessions import Account

PREFIX = "/{env:env}"
API_VERSION = "1.0.0"
"""Version of OpenEnv's HTTP API, as its validator reads it."""
T = TypeVar("T")


class EnvConvertor(Convertor[str]):
    """The first part of a path, unless the native protocol lies there."""

    regex = f"(?!{protocol.PREFIX[1:]}/)[^/]+"

    def convert(self, value: str) -> str:
        """Take it as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Take it as it is."""
        return value


register_url_convertor("env", EnvConvertor())


class InvalidIndex(InvalidRequest):
    """The split has no task with this index."""

    code, status, title = "INVALID_INDEX", 400, "Invalid task index"


class SplitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``tasks`` and ``num_tasks``."""

    split: str


class TaskRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``task``."""

    split: str
    index: int


class RangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``task_range``: a slice as Python has it."""

    split: str
    start: int | None = None
    stop: int | None = None


class Task(msgspec.Struct):
    """One task."""

    id: str
    split: str
    index: int


class TaskList(msgspec.Struct):
    """Tasks of a split."""

    tasks: list[Task]
    env_name: str


class Split(msgspec.Struct):
    """One split; ``type`` is one of train, validation, test."""

    name: str
    type: str


class Metadata(msgspec.Struct):
    """What an environment is."""

    name: str
    description: str
    readme_content: str
    version: str
    author: str
    documentation_url: str | None


class Schemas(msgspec.Struct):
    """JSON schemas of actions, observations and states."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any]


_SCHEMAS = Schemas(
    action=flat_schema(openenv.Action),
    observation=flat_schema(openenv.Observation),
    state=flat_schema(openenv.State),
    reset_observation=flat_schema(openenv.Observation),
)
_HERE = (UnknownEnvironment,)
_PLAY = (SessionNotFound, InvalidRequest, EnvironmentFailed, StepTimeout)


def _json(value: Any) -> Response:
    return Response(encode_json(value), media_type="application/json")


async def _body(request: Request, kind: type[T], *, optional: bool = False) -> T:
    data = await request.body()
    try:
        return msgspec.json.decode(b"{}" if optional and not data.strip() else data, type=kind)
    except UNREADABLE as error:
        raise unreadable(error) from error


def mount(api: Api, hub: Hub) -> None:
    """Add the routes of every environment.

    Raises:
        InvalidRequest: an environment's id is the prefix of the native protocol.
    """
    if protocol.PREFIX[1:] in hub.specs:
        raise InvalidRequest(
            f"An environment with the id {protocol.PREFIX[1:]!r} cannot be served: the native protocol lies there.",
            hint="Register it under another id.",
        )
    answers = mcp.Mcp(hub)
    Routes(api, hub).mount(answers)
    routes = api.app.router.routes
    routes.append(WebSocketRoute(f"{PREFIX}/ws", openenv.OpenEnvSocket(hub, answers)))
    routes.append(WebSocketRoute(f"{PREFIX}/mcp", mcp.McpSocket(answers)))


class Routes:
    """The handlers; the environment is the path's first part.

    Args:
        api: where they are added.
        hub: where the sessions live.
    """

    def __init__(self, api: Api, hub: Hub) -> None:
        self.api = api
        self.hub = hub
        self.env = Parameter("env", "path", {"type": "string", "enum": list(hub.specs)}, "Environment id.")

    def mount(self, answers: mcp.Mcp) -> None:
        """Add every route."""
        self._play()
        self._mcp(answers)
        self._describe()
        self._tasks()

    def _play(self) -> None:
        hub = self.hub

        async def reset(request: Request) -> Response:
            arguments = await _body(request, openenv.ResetArguments, optional=True)
            return _json(await openenv.http_reset(hub, *_who(request), arguments))

        async def step(request: Request) -> Response:
            body = await _body(request, openenv.EpisodeStep)
            return _json(await openenv.http_step(hub, *_who(request), body))

        async def state(request: Request) -> Response:
            episode_id = request.query_params.get("episode_id")
            if episode_id is not None and len(episode_id) > openenv.MAX_EPISODE_ID:
                raise InvalidRequest("episode_id is too long.", hint=f"Use {openenv.MAX_EPISODE_ID} characters.")
            return _json(openenv.http_episode(hub, *_who(request), episode_id).state())

        name = {"type": "string", "maxLength": openenv.MAX_EPISODE_ID}
        shown = {"answer": openenv.Envelope}
        self._add(
            "POST",
            "/reset",
            reset,
            "Start an episode",
            body=openenv.ResetArguments,
            optional=True,
            errors=(*_PLAY, UnknownTask, QuotaExceeded, CapacityReached),
            **shown,
        )
        self._add(
            "POST",
            "/step",
            step,
            "Act in the episode that episode_id names",
            body=openenv.EpisodeStep,
            errors=(*_PLAY, NotReset, EpisodeOver),
            **shown,
        )
        self._add(
            "GET",
            "/state",
            state,
            "Tell where an episode stands",
            answer=openenv.State,
            parameters=[Parameter("episode_id", "query", name, "As it was given to reset.")],
            errors=(InvalidRequest,),
        )

    def _mcp(self, answers: mcp.Mcp) -> None:
        async def call(request: Request) -> Response:
            return await mcp.serve_http(answers, request)

        async def end(request: Request) -> Response:
            return await mcp.delete_http(answers, request)

        session = Parameter(mcp.SESSION_HEADER, "header", {"type": "string"}, "As initialize answered it.")
        self._add(
            "POST",
            "/mcp",
            call,
            "Answer a JSON-RPC call (Model Context Protocol)",
            answer={"type": "object"},
            body={},  # what is no call is answered by a JSON-RPC error
            optional=True,
            parameters=[session],
            errors=(SessionNotFound,),
            also={"202": "A notification; no answer"},
        )
        self._add(
            "DELETE",
            "/mcp",
            end,
            "End the session that the header names",
            parameters=[session],
            errors=(SessionNotFound,),
            also={"204": "Ended"},
        )

    def _describe(self) -> None:
        hub = self.hub

        async def health(request: Request) -> Response:
            hub.spec(request.path_params["env"])
            return _json({"status": "healthy"})

        async def metadata(request: Request) -> Response:
            return _json(metadata_of(await hub.card(request.path_params["env"])))

        async def schema(request: Request) -> Response:
            hub.spec(request.path_params["env"])
            return _json(_SCHEMAS)

        async def document(request: Request) -> Response:
            env_id = request.path_params["env"]
            hub.spec(env_id)
            return _json(self.api.document_under("/{env}", "env", f"turngym {env_id}", API_VERSION))

        async def manifest(request: Request) -> Response:
            card = await hub.card(request.path_params["env"])
            low, high = hub.spec(card.id).load().reward_range
            text = manifest_of(card, (low, high), hub.settings.step_timeout_s)
            return Response(text, media_type="application/yaml")

        alive = {"type": "object", "properties": {"status": {"const": "healthy"}}, "required": ["status"]}
        self._add("GET", "/health", health, "Say that the environment is served", answer=alive)
        self._add("GET", "/metadata", metadata, "Describe the environment", answer=Metadata)
        self._add("GET", "/schema", schema, "Give the schemas of actions, observations and states", answer=Schemas)
        self._add("GET", "/openapi.json", document, "Document this prefix", answer={"type": "object"})
        self._add("GET", "/openenv.yaml", manifest, "Give the environment's OpenEnv manifest", media="application/yaml")

    def _tasks(self) -> None:
        hub = self.hub

        async def names(request: Request) -> Response:
            return _json([hub.spec(request.path_params["env"]).id])

        async def splits(request: Request) -> Response:
            card = await hub.card(_same(request))
            known = ("train", "validation", "test")
            return _json([Split(name, name if name in known else "validation") for name in card.splits])

        async def tasks(request: Request) -> Response:
            env_id, body = _same(request), await _body(request, SplitRequest)
            every = await hub.tasks(env_id, body.split)
            return _json(TaskList(_described(body.split, range(min(len(every), MAX_ITEMS))), env_id))

        async def num_tasks(request: Request) -> Response:
            env_id, body = _same(request), await _body(request, SplitRequest)
            return _json({"num_tasks": len(await hub.tasks(env_id, body.split))})

        async def task(request: Request) -> Response:
            env_id, body = _same(request), await _body(request, TaskRequest)
            size = len(await hub.tasks(env_id, body.split))
            if not 0 <= body.index < size:
                raise InvalidIndex(f"Split {shown(body.split)!r} has no task {body.index}.", hint=f"It has {size}.")
            return _json({"task": _described(body.split, [body.index])[0]})

        async def task_range(request: Request) -> Response:
            env_id, body = _same(request), await _body(request, RangeRequest)
            wanted = range(len(await hub.tasks(env_id, body.split)))[body.start : body.stop]
            if len(wanted) > MAX_ITEMS:
                raise InvalidRequest(f"{len(wanted)} tasks in one answer.", hint=f"Ask for at most {MAX_ITEMS}.")
            return _json({"tasks": _described(body.split, wanted)})

        wrong = (UnknownTask, InvalidRequest)
        count = {"type": "object", "properties": {"num_tasks": {"type": "integer"}}, "required": ["num_tasks"]}
        some = {"type": "object", "properties": {"tasks": {"type": "array"}}, "required": ["tasks"]}
        one = {"type": "object", "properties": {"task": {"type": "object"}}, "required": ["task"]}
        self._add("GET", "/list_environments", names, "List the one environment of this prefix", answer=list[str])
        self._add("GET", "/{name}/splits", splits, "List the splits", answer=list[Split])
        summary = f"List the tasks of a split (the first {MAX_ITEMS})"
        self._add("POST", "/{name}/tasks", tasks, summary, answer=TaskList, body=SplitRequest, errors=wrong)
        self._add(
            "POST", "/{name}/num_tasks", num_tasks, "Count the tasks", answer=count, body=SplitRequest, errors=wrong
        )
        self._add(
            "POST", "/{name}/task", task, "Give one task", answer=one, body=TaskRequest, errors=(*wrong, InvalidIndex)
        )
        self._add(
            "POST", "/{name}/task_range", task_range, "Slice a split", answer=some, body=RangeRequest, errors=wrong
        )

    def _add(self, method: str, path: str, endpoint: Any, summary: str, **more: Any) -> None:
        parameters = [self.env, *more.pop("parameters", ())]
        if "{name}" in path:
            parameters.append(Parameter("name", "path", self.env.schema, "The environment id again."))
        errors = (*_HERE, *more.pop("errors", ()))
        self.api.add(
            method, PREFIX + path, endpoint, summary, parameters=parameters, errors=errors, tag="openenv", **more
        )


def _who(request: Request) -> tuple[str, Account]:
    return request.path_params["env"], request.scope[ACCOUNT]


def _same(request: Request) -> str:
    """Return the environment of a task route, whose path names it twice."""
    env_id, name = request.path_params["env"], request.path_params["name"]
    if name.lower() != env_id:
        raise UnknownEnvironment(f"unknown environment {shown(name)!r}", hint=f"Under this prefix there is {env_id!r}.")
    return str(env_id)


def _described(split: str, indices: Sequence[int]) -> list[Task]:
    return [Task(f"{split}/{index}", split, index) for index in indices]


def metadata_of(card: EnvCard) -> Metadata:
    """Return what OpenEnv calls metadata."""
    readme = f"# {card.id}\n\n{card.doc}\n"
    if card.instructions:
        readme += f"\n## Rules\n\n{card.instructions}\n"
    return Metadata(card.id, card.summary, readme, __version__, "turngym contributors", None)


def manifest_of(card: EnvCard, reward_range: tuple[float, float], step_timeout_s: float) -> str:
    """Return the environment's ``openenv.yaml``, the validation block included.

    Args:
        card: what it is.
        reward_range: least and greatest reward of a step.
        step_timeout_s: the server's limit for a step.
    """
    low, high = reward_range
    counts = "".join(f"\n      {name}: {size}" for name, size in card.splits.items())
    # JSON strings are YAML strings.
    return f"""\
spec_version: 1
name: {json.dumps(card.id)}
description: {json.dumps(card.summary)}
version: {json.dumps(__version__)}
type: space
runtime: fastapi
app: turngym.server.app:create_app
port: 8000
validation:
  reward:
    range: [{low!r}, {high!r}]
    oracle_tolerance: 0.0
    floor_margin: 0.0
  resources:
    cpu: 1.0
    memory_mb: 1024
    disk_mb: 512
    episode_timeout_s: {max(600.0, step_timeout_s)!r}
  capabilities:
    verifier:
      kind: reward_channel
    task_api: true
    declared_tools: [{", ".join(tool["name"] for tool in mcp.TOOLS)}]
    declared_task_count:{counts}
  types:
    tags: [text-game]
"""
