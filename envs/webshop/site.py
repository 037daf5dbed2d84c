"""The shop as a website: its routes, on whatever keeps the sessions.

A session is an ordinary one of the environment with the observation "page"; this module turns requests into the native
protocol's operations and their replies into HTML. Every page has an address of its own, ``SESSION/STEP``, and its
controls send that step along. So a form that is sent twice acts once, and one of a page that is no longer current acts
not at all. All addresses are relative: the site works under any prefix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...errors import InvalidRequest, StepConflict, TurngymError, from_problem
from ...protocol import Create, LogEntry, Reply, Restore, Step, Target
from ..core import SEED_LIMIT, shown
from .procedural import SPLITS
from .site_html import problem_page, shop_page, start_page
from .site_page import Done, page_from

Dispatch = Callable[[Request, str, Any], Awaitable[Reply]]
"""Runs one operation of the native protocol on one item, on behalf of a request."""
MAX_STEPS = 100  # people look around; agents may ask for fewer
MAX_FIELDS = 100
POLICY = "; ".join(
    (
        # Titles and descriptions come from data: should one ever get through as markup, it can load and run nothing.
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # a page brought back by the back button would act in the past
}
_STATIC = {"site.css": "text/css", "site.js": "text/javascript"}
_FILES = {name: (Path(__file__).parent / name).read_bytes() for name in _STATIC}
VERSION = hashlib.sha256(b"".join(_FILES.values())).hexdigest()[:12]
OPEN = ("login", *(f"static/{name}" for name in _STATIC))
"""Addresses that a person needs before there is a key."""


def static(request: Request) -> Response:
    """Answer with one of the site's own files; their addresses change whenever they do."""
    name = request.path_params["file"]
    if name not in _FILES:
        return Response("There is no such file.", 404, media_type="text/plain")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(_FILES[name], media_type=_STATIC[name], headers=headers)


def page_response(html: str, status: int = 200) -> Response:
    """Return a page of the site with the headers that all of them have."""
    # What UTF-8 cannot carry may stand in what a person typed.
    return Response(html.encode("utf-8", "replace"), status, HEADERS, "text/html")


def redirect(address: str) -> Response:
    """Send the browser on, by GET."""
    return RedirectResponse(address, HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form.

    Raises:
        InvalidRequest: there are far more than any page sends.
    """
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidRequest(f"More than {MAX_FIELDS} fields were sent.", hint="Send a form of this site.") from error


class Site:
    """The website of one environment.

    Args:
        env_id: registry id.
        dispatch: runs operations where the sessions are.
    """

    def __init__(self, env_id: str, dispatch: Dispatch) -> None:
        self.env_id = env_id
        self._dispatch = dispatch

    def routes(self, prefix: str = "") -> list[Route]:
        """Return the routes; ``prefix`` is put in front of each path."""

        def route(path: str, endpoint: Any, *methods: str) -> Route:
            return Route(f"{prefix}/{path}", endpoint, methods=list(methods), include_in_schema=False)

        return [
            route("", self._told(self.start, ""), "GET", "POST"),
            route("static/{file}", static, "GET"),
            route("{session}", self._told(self.current, ""), "GET"),
            route("{session}/{step:int}", self._told(self.page, "../"), "GET"),
            route("{session}/{step:int}/search", self._told(self.search, "../../"), "POST"),
            route("{session}/{step:int}/click", self._told(self.click, "../../"), "GET", "POST"),
        ]

    def _told(self, endpoint: Callable[[Request], Awaitable[Response]], up: str) -> Any:
        """Let an endpoint's errors be answered by a page."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except TurngymError as error:
                stale = isinstance(error, StepConflict)
                back = f"{up}{request.path_params['session']}" if stale else ""
                return page_response(problem_page(error.to_problem(), up, VERSION, back), error.status)

        return answer

    async def _do(self, request: Request, op: str, item: Any) -> Reply:
        reply = await self._dispatch(request, op, item)
        if reply.error is not None:
            raise from_problem(reply.error)
        return reply

    async def start(self, request: Request) -> Response:
        """Start the session that the query or the form describes; without either, ask which."""
        wanted = dict(request.query_params)
        if request.method == "POST":
            wanted |= dict(await fields_of(request))
        if not wanted:
            return page_response(start_page(self.env_id, SPLITS, VERSION))
        reply = await self._do(request, *self._asked(wanted))
        return redirect(f"{quote(reply.session)}/{reply.step_index}")

    def _asked(self, wanted: Mapping[str, str]) -> tuple[str, Any]:
        """Return the operation that starts a session, and its item.

        ``task``, ``split`` and ``seed`` are those of a reset, ``log`` (with task and seed) a JSON list of actions (and
        new noise seeds) to replay, anything else is a setting of the environment, as JSON or as plain text.
        """
        settings = {name: _value(text) for name, text in wanted.items() if name not in ("task", "split", "seed", "log")}
        if "observation" in settings:
            raise InvalidRequest("The site cannot take an observation form.", hint="Leave observation out.")
        config = {"max_steps": MAX_STEPS, **settings, "observation": "page"}
        seed = _seed(wanted["seed"]) if "seed" in wanted else None
        if "log" not in wanted:
            task, split = wanted.get("task") or None, wanted.get("split") or None
            return "create", Create(self.env_id, config=config, reset=True, seed=seed, split=split, task=task)
        if seed is None or "task" not in wanted:
            raise InvalidRequest("A log came without task or seed.", hint="Send all three.")
        try:
            log = msgspec.json.decode(wanted["log"], type=list[LogEntry])
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise InvalidRequest(f"The log cannot be read: {error}.", hint="Send a JSON list of actions.") from error
        return "restore", Restore(self.env_id, wanted["task"], seed, log, config=config)

    async def current(self, request: Request) -> Response:
        """Go to the page where a session stands."""
        session = request.path_params["session"]
        reply = await self._do(request, "state", Target(session))
        return redirect(f"{quote(session)}/{reply.step_index}")

    async def page(self, request: Request) -> Response:
        """Show the page where a session stands; the address of an earlier one leads there."""
        session, step = request.path_params["session"], request.path_params["step"]
        reply = await self._do(request, "state", Target(session))
        if step != reply.step_index:
            return redirect(f"../{quote(session)}/{reply.step_index}")
        try:
            if not isinstance(reply.observation, str):
                raise msgspec.DecodeError("no text")
            page = page_from(reply.observation)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"Session {shown(session)!r} was not started on this site.", hint="Start one here."
            ) from error
        info = reply.info or {}
        over = reply.truncated and not isinstance(page, Done)
        notice = "Nothing happened: the shop does not know that." if info.get("action_valid") is False else ""
        if over:
            notice = f"The episode is over: {step} actions were made and nothing was bought."
        return page_response(shop_page(page, step, VERSION, notice=notice, over=over))

    async def search(self, request: Request) -> Response:
        """Search for what was typed."""
        query = next((value for name, value in await fields_of(request) if name == "search_query"), "")
        # An action's argument ends its line and begins at the last bracket.
        return await self._act(request, f"search[{query.translate(_BREAKS)}]")

    async def click(self, request: Request) -> Response:
        """Press a button, follow a product's link or choose a value: the one field that is sent says which."""
        fields = await fields_of(request) if request.method == "POST" else request.query_params.multi_items()
        if len(fields) != 1:
            raise InvalidRequest(f"{len(fields)} controls were pressed at once.", hint="Press one of the page's.")
        return await self._act(request, f"click[{fields[0][1]}]")

    async def _act(self, request: Request, action: str) -> Response:
        session, step = request.path_params["session"], request.path_params["step"]
        try:
            reply = await self._do(request, "step", Step(session, action, step))
        except StepConflict as error:
            told = "This page is not the current one of its session, and nothing was done."
            raise StepConflict(told, hint="Go on where the shop stands.") from error
        return redirect(f"../{reply.step_index}")


_BREAKS = str.maketrans("[\n", "  ")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < SEED_LIMIT):
        raise InvalidRequest(f"seed is {shown(text)!r}.", hint="Send an integer in [0, 2**53).")
    return int(text)
