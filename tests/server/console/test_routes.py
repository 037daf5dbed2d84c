"""How the console's files are served, without a browser."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from turngym.errors import InvalidRequest
from turngym.server.console.routes import PAGES, mount


@pytest.fixture
def client() -> httpx.AsyncClient:
    app = FastAPI()
    mount(app, _hub())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub")


def _hub(*envs: str) -> Any:
    return SimpleNamespace(specs=dict.fromkeys(envs))


async def test_every_file_is_served_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    assert {"/", "/console/app.js", "/console/style.css"} <= set(PAGES)
    for path, page in PAGES.items():
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.content == page.body
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].endswith("charset=utf-8")


async def test_unchanged_files_are_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/")
    again = await client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = await client.get("/", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200
    head = await client.head("/")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])


async def test_no_other_file_is_served(client: httpx.AsyncClient) -> None:
    for path in ("/console/", "/console/routes.py", "/console/../routes.py", "/console/%2e%2e/app.js", "/index.html"):
        assert (await client.get(path)).status_code == 404


def test_an_environment_cannot_take_the_console_s_prefix() -> None:
    with pytest.raises(InvalidRequest, match="'console'"):
        mount(FastAPI(), _hub("sokoban", "console"))


def test_files_name_no_other_host_and_parse_no_markup() -> None:
    for path, page in PAGES.items():
        text = page.body.decode()
        # The one address is the name of the SVG namespace, which nothing fetches.
        addresses = set(re.findall(r"https?://[\w./-]+", text)) - {"http://www.w3.org/2000/svg"}
        assert addresses == set(), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path


def test_the_page_has_no_inline_code_and_loads_what_exists() -> None:
    page = PAGES["/"].body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\s(?:on\w+|style)=", page) == []
    loaded = {f"/{path}" for path in re.findall(r'(?:src|href)="(console/[^"]+)"', page)}
    assert loaded == set(PAGES) - {"/"}


def test_modules_import_what_exists() -> None:
    for path, page in PAGES.items():
        for name in re.findall(r'from "\./([^"]+)"', page.body.decode()):
            assert f"/console/{name}" in PAGES, path
