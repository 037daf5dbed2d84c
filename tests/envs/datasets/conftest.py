"""A data home of the test's own, and an HTTP server that misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.alfworld.data import texts_of
from turngym.envs.datasets.store import locate
from turngym.errors import DataMissing


@dataclass
class Page:
    """One file of the server, and what goes wrong with it.

    Attributes:
        body: its bytes.
        ranges: whether parts may be asked for.
        etag: its version; "" for none.
        cuts: how many further answers break off after half of what they should send.
        fails: statuses that the next answers have instead.
        headers: further headers.
        asked: what each request's Range was.
    """

    body: bytes
    ranges: bool = True
    etag: str = '"v1"'
    cuts: int = 0
    fails: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


class Site:
    """Files by path; ``url`` is the server's root, which ends in a slash."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = pages.get(self.path.lstrip("/"))
                if page is None:
                    return self.answer(404, b"nothing here", {})
                page.asked.append(self.headers.get("Range", ""))
                if page.fails:
                    return self.answer(page.fails.pop(0), b"", page.headers)
                headers = {**({"ETag": page.etag} if page.etag else {}), **page.headers}
                found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                same = self.headers.get("If-Range", page.etag) == page.etag
                start = int(found[1]) if found and page.ranges and same else 0
                if start >= len(page.body) > 0 and start:
                    return self.answer(416, b"", {"Content-Range": f"bytes */{len(page.body)}"})
                body = page.body[start:]
                if start:
                    headers["Content-Range"] = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}"
                cut = page.cuts > 0
                page.cuts -= cut
                return self.answer(206 if start else 200, body, headers, len(body) // 2 if cut else None)

            def answer(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": "application/octet-stream", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if cut is None else body[:cut])
                self.close_connection = cut is not None

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: Any) -> None:
                """Clients of these tests hang up on purpose."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def add(self, path: str, body: bytes, **options: Any) -> Page:
        self.pages[path] = Page(body, **options)
        return self.pages[path]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """turngym's own folder, empty; nothing of this machine's data is seen."""
    for name in ("TURNGYM_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "share" / "turngym"


@pytest.fixture
def shop_files() -> dict[str, bytes]:
    """WebShop's three files, with two products."""
    items = [{"asin": f"B00000000{i}", "name": "Shoe" * 9000} for i in range(2)]
    return {
        "items_shuffle_1000.json": json.dumps(items).encode(),
        "items_ins_v2_1000.json": json.dumps({item["asin"]: {"attributes": ["soft"]} for item in items}).encode(),
        "items_human_ins.json": b"{}",
    }


@pytest.fixture(scope="session")
def some_texts() -> dict[str, bytes]:
    """ALFWorld's domain and grammar, read before a test hides this machine's data."""
    try:
        domain, grammar = texts_of(locate("alfworld"))
    except DataMissing as error:
        pytest.skip(f"data: {error}")
    return {"alfred.pddl": domain.encode(), "alfred.twl2": grammar.encode()}
