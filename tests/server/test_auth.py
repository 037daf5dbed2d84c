"""The API key guards every route but health, readiness and the console's static files."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from turngym.errors import InvalidRequest, Unauthorized
from turngym.server.app import create_app
from turngym.server.auth import Keyring
from turngym.server.console.routes import PAGES
from turngym.server.settings import HubSettings

KEY = "a-secret-key"
OPEN = {"/health", "/ready", *PAGES}
SETTINGS: dict[str, Any] = {"envs": ("bandit", "odd-inline"), "api_keys": {"me": KEY}}


@pytest.fixture(scope="module")
def locked(start_hub: Any) -> Iterator[Any]:
    with start_hub(KEY, **SETTINGS) as hub:
        yield hub


@pytest.fixture(scope="module")
def bare(locked: Any) -> Iterator[httpx.Client]:
    """A client of the locked hub that has no key."""
    with httpx.Client(base_url=locked.url) as client:
        yield client


def routes() -> list[tuple[str, str]]:
    """Return (method or "WS", path) of every route of the application, whatever added it."""
    found = []
    for route in create_app(HubSettings(**SETTINGS)).routes:
        if isinstance(route, WebSocketRoute):
            found.append(("WS", route.path))
        elif isinstance(route, Route):
            found += [(method, route.path) for method in sorted(route.methods or ())]
        else:
            pytest.fail(f"a route of unknown kind: {route!r}")
    return found


def concrete(path: str) -> str:
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: {"env": "bandit", "name": "bandit"}.get(m[1], "x"), path)


def test_the_routes_that_must_be_there_are_there() -> None:
    found = set(routes())
    assert {
        ("WS", "/v1/ws"),
        ("WS", "/{env:env}/ws"),
        ("WS", "/{env:env}/mcp"),
        ("POST", "/v1/step"),
        ("GET", "/"),
    } <= found
    assert {("GET", "/openapi.json"), ("GET", "/metrics"), ("POST", "/{env:env}/mcp")} <= found
    assert len(found) > 40


@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda value: str(value))
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "wrong"}], ids=str)
def test_every_route_asks_for_the_key(
    locked: Any, bare: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    url = locked.url + concrete(path)
    if method == "WS":
        with pytest.raises(InvalidStatus) as refused:
            connect(url.replace("http", "ws", 1), additional_headers=headers)
        response = refused.value.response
        assert response.status_code == 401
        assert response.headers["Content-Type"] == "application/problem+json"
        assert b'"UNAUTHORIZED"' in response.body
        return
    answer = bare.request(method, url, headers=headers)
    if path in OPEN:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert method == "HEAD" or answer.json()["code"] == "UNAUTHORIZED"


@pytest.mark.parametrize("headers", [{"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}], ids=["bearer", "header"])
@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda value: str(value))
def test_the_key_opens_every_route(
    locked: Any, bare: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    url = locked.url + concrete(path)
    if method == "WS":
        with connect(url.replace("http", "ws", 1), additional_headers=headers) as socket:
            assert socket.ping().wait(10)
    else:
        assert bare.request(method, url, headers=headers).status_code != 401


def test_what_is_served_nowhere_asks_for_the_key_too(locked: Any, bare: httpx.Client) -> None:
    assert bare.get("/nothing/here").status_code == 401
    assert locked.http.get("/nothing/here").status_code == 404
    # Paths that only look like an open one.
    for path in ("/health/", "//health", "/health/../v1/envs", "/HEALTH", "/ready/x"):
        assert bare.get(locked.url + path).status_code == 401


def test_refusals_are_counted(locked: Any, bare: httpx.Client) -> None:
    before = locked.hub.request_errors["UNAUTHORIZED"]
    bare.get("/metrics")
    assert locked.hub.request_errors["UNAUTHORIZED"] == before + 1
    assert 'turngym_errors_total{code="UNAUTHORIZED",env=""}' in locked.http.get("/metrics").text


def test_the_keyring_takes_any_of_its_keys_and_no_other() -> None:
    keys = {"a": "first-key-aaa", "b": "second-key-bbb"}
    ring = Keyring(keys)
    for name, key in keys.items():
        for header in ((b"authorization", b"Bearer " + key.encode()), (b"authorization", b"bearer  " + key.encode())):
            assert ring.account([(b"host", b"x"), header]).name == name
        assert ring.account([(b"x-api-key", key.encode())]).name == name
    basic = base64.b64encode(b"a:first-key-aaa")
    for header in (
        [(b"authorization", b"Basic " + basic)],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"first-key-aa")],
        [(b"x-api-key", b"\xff\xfe")],
        [(b"x-api-key", os.urandom(1000))],
        [],
    ):
        with pytest.raises(Unauthorized, match="key"):
            ring.account(header)


def test_without_keys_everyone_shares_one_account() -> None:
    ring = Keyring({})
    assert ring.account([]) is ring.account([(b"x-api-key", b"whatever")])
    assert [account.name for account in ring.accounts] == [""]


def test_an_environment_may_not_hide_the_hubs_own_paths() -> None:
    from turngym.envs import registry

    spec = registry.EnvSpec("v1", "turngym.envs.bandit:Bandit", hidden=True)
    registry._registry["v1"] = spec
    try:
        with pytest.raises(InvalidRequest, match="v1"):
            create_app(HubSettings(envs=("v1",)))
    finally:
        del registry._registry["v1"]
