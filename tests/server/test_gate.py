"""Bodies too large, paths unknown, and other requests that no route sees."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

MIB = 1 << 20


@pytest.fixture(scope="module")
def small(start_hub: Any) -> Iterator[Any]:
    with start_hub(envs=("bandit",), max_body_bytes=100_000) as hub:
        yield hub


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("path", ["/v1/create", "/bandit/reset", "/bandit/mcp", "/nowhere"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(small: Any, path: str) -> None:
    connection = http.client.HTTPConnection(small.url.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str(200 * MIB))
    connection.endheaders()
    response = connection.getresponse()
    problem = response.read()
    assert response.status == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert b"PAYLOAD_TOO_LARGE" in problem
    connection.close()


def test_200_mb_are_neither_kept_nor_answered_by_a_reset(small: Any) -> None:
    before = rss()
    blocks = (b"x" * MIB for _ in range(200))
    started = time.monotonic()
    with httpx.Client(base_url=small.url, timeout=30) as client:
        response = client.post("/v1/create", content=blocks, headers={"Content-Length": str(200 * MIB)})
        assert response.status_code == 413
        # Without one, the hub counts.
        response = client.post("/v1/create", content=(b"x" * MIB for _ in range(200)))
        assert response.status_code == 413
        assert response.json()["code"] == "PAYLOAD_TOO_LARGE"
    assert rss() - before < 80 * MIB
    assert time.monotonic() - started < 30


def test_a_body_of_just_the_limit_is_read(small: Any) -> None:
    body = b'{"items":[]' + b" " * (100_000 - 12) + b"}"
    assert small.http.post("/v1/create", content=body).status_code == 200
    assert small.http.post("/v1/create", content=body + b" ").status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "abc", "9" * 60, "\u0661"])
def test_lengths_that_are_no_numbers(small: Any, length: str) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(f"POST /v1/create HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 422")


def test_unknown_paths_and_methods_are_problems_too(small: Any) -> None:
    for method, path, status, code in (
        ("GET", "/nothing", 404, "ROUTE_NOT_FOUND"),
        ("GET", "/v1/create", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/envs", 405, "METHOD_NOT_ALLOWED"),
        ("PUT", "/bandit/reset", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/no-such-env/health", 404, "UNKNOWN_ENVIRONMENT"),
        ("POST", "/no-such-env/reset", 404, "UNKNOWN_ENVIRONMENT"),
        ("GET", "/v1/envs/%00", 404, "UNKNOWN_ENVIRONMENT"),
        ("GET", "/v1/sessions/%F0%9F%92%A9", 404, "SESSION_NOT_FOUND"),
        ("GET", "/%ff%fe", 404, "ROUTE_NOT_FOUND"),
    ):
        response = small.http.request(method, path, content=b"{}" if method == "POST" else None)
        assert response.status_code == status, path
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert problem["code"] == code
        assert problem["status"] == status
        assert problem["type"].startswith("urn:turngym:error:")
        assert problem["title"]
        if status == 405:
            assert response.headers["allow"] in problem["hint"]


def test_a_websocket_nowhere_is_refused(small: Any) -> None:
    for path in ("/nowhere", "/v1/create", "/no-such-env/ws", "/no-such-env/mcp"):
        with pytest.raises(InvalidStatus) as refused:
            small.socket(path)
        assert refused.value.response.status_code in (403, 404)
    assert refused.value.response.headers["Content-Type"] == "application/problem+json"


def test_a_failure_of_the_hub_itself_is_a_500_problem(start_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_hub(envs=("bandit",)) as hub:

        def fail(*_: Any) -> Any:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(hub.hub, "dispatch", fail)
        response = hub.http.post("/v1/create", json={"items": []})
        assert response.status_code == 500
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["code"] == "INTERNAL"
        assert "a bug" not in response.text
        with hub.socket() as client:
            from websockets.exceptions import ConnectionClosed

            client.send('{"id":1,"op":"create","items":[]}')
            with pytest.raises(ConnectionClosed):
                client.recv(10)
