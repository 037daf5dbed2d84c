"""The shop's website on the hub: ``/{env}/site/`` of every environment that is a WebShop.

Its sessions are ordinary ones of whoever asks. A browser cannot send a key with a link or a form; where the hub asks
for one, it is typed in once and the browser keeps a ticket for it, which counts below the site's prefix only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from ..envs.registry import EnvSpec
from ..envs.webshop.site import OPEN, VERSION, Site, fields_of, page_response, redirect
from ..envs.webshop.site_html import login_page
from ..errors import InvalidRequest, Unauthorized
from ..protocol import Reply
from .auth import COOKIE, TICKET_S, Keyring
from .gate import ACCOUNT
from .hub import Hub

ENTRY = ".webshop.env:WebShop"
"""How the entry of a registry row ends whose environment has this site."""


def mount(app: FastAPI, hub: Hub, keyring: Keyring) -> list[str]:
    """Add the sites' routes; return their prefixes, each with a slash at the end."""

    async def dispatch(request: Request, op: str, item: Any) -> Reply:
        replies = hub.dispatch(op, [item], request.scope[ACCOUNT])
        return (replies if isinstance(replies, list) else await replies)[0]

    prefixes = []
    for env_id in (env_id for env_id, spec in hub.specs.items() if _is_shop(spec)):
        prefix = f"/{env_id}/site"
        logins = _login_routes(prefix, keyring)
        app.router.routes.extend([*logins, *Site(env_id, dispatch).routes(prefix)])
        prefixes.append(f"{prefix}/")
    return prefixes


def open_paths(prefixes: Iterable[str]) -> frozenset[str]:
    """Return the paths that need no key."""
    return frozenset(path for prefix in prefixes for path in (prefix[:-1], *(prefix + name for name in OPEN)))


def _is_shop(spec: EnvSpec) -> bool:
    return spec.entry.endswith(ENTRY)


def _login_routes(prefix: str, keyring: Keyring) -> list[Route]:
    async def enter(request: Request) -> Response:
        return redirect("site/")

    async def ask(request: Request) -> Response:
        if not keyring.asks:
            return redirect("./")
        return page_response(login_page(VERSION, request.query_params.get("next", "")))

    async def log_in(request: Request) -> Response:
        fields: dict[str, str] = {}
        try:
            fields = dict(await fields_of(request))
            ticket = keyring.ticket(fields.get("key", ""))
        except (InvalidRequest, Unauthorized) as error:
            return page_response(login_page(VERSION, fields.get("next", ""), error.detail), error.status)
        response = redirect(_within(fields.get("next", "")))
        # Without a path of its own the cookie is sent to the site's folder only, under whatever prefix that lies.
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, ticket, TICKET_S, path=None, secure=secure, httponly=True, samesite="lax")
        return response

    def route(path: str, endpoint: Any, method: str) -> Route:
        return Route(f"{prefix}{path}", endpoint, methods=[method], include_in_schema=False)

    return [route("", enter, "GET"), route("/login", ask, "GET"), route("/login", log_in, "POST")]


def _within(address: str) -> str:
    """Return an address inside the site: one that begins with "./" names neither another host nor a scheme."""
    return "./" + address.lstrip("/\\")
