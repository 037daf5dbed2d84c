"""Addresses, keys, listings, errors on connecting, and the end of clients."""

from __future__ import annotations

import asyncio
import gc
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import turngym
from turngym.client.address import parse_address
from turngym.client.connect import HubClient, connect_async
from turngym.client.env import AsyncEnvClient, EnvClient
from turngym.client.hub import AsyncHub
from turngym.client.vector import AsyncVectorClient, VectorClient
from turngym.errors import (
    CapacityReached,
    InvalidRequest,
    ServerUnavailable,
    SessionNotFound,
    Unauthorized,
    UnknownEnvironment,
    UnknownTask,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("url", "env", "base", "found"),
    [
        ("http://h:8000", None, "http://h:8000", None),
        ("h:8000", None, "http://h:8000", None),
        ("127.0.0.1:8000/sokoban", None, "http://127.0.0.1:8000", "sokoban"),
        ("https://h", None, "https://h:443", None),
        ("wss://h/sokoban", None, "https://h:443", "sokoban"),
        ("ws://h/", None, "http://h:80", None),
        ("http://h/hub/", None, "http://h:80/hub", None),
        ("http://h/hub/sokoban", None, "http://h:80/hub", "sokoban"),
        ("http://h/hub", "sokoban", "http://h:80/hub", "sokoban"),
        ("http://[::1]:81/sokoban", None, "http://[::1]:81", "sokoban"),
    ],
)
def test_what_a_url_means(url: str, env: str | None, base: str, found: str | None) -> None:
    address, name = parse_address(url, env)
    assert (address.base, name) == (base, found)
    assert address.websocket == base.replace("http", "ws", 1) + "/v1/ws"


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://u:p@h", "http://h/?a=1"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address(url)
    assert "http://127.0.0.1:8000" in caught.value.hint


def test_the_key_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("h")[0].headers == {}
    monkeypatch.setenv("TURNGYM_API_KEY", "from-outside")
    assert parse_address("h")[0].headers == {"Authorization": "Bearer from-outside"}
    address = parse_address("h", None, "given")[0]
    assert address.headers == {"Authorization": "Bearer given"}
    assert "given" not in repr(address)
    assert parse_address("h", None, "")[0].headers == {}
    with pytest.raises(InvalidRequest):
        parse_address("h", None, "two\nlines")


def test_connect_gives_a_hub_an_environment_or_many(url: str) -> None:
    with turngym.connect(url) as hub:
        assert isinstance(hub, HubClient)
    for env in (turngym.connect(url, "frozen-lake"), turngym.connect(f"{url}/frozen-lake")):
        assert isinstance(env, EnvClient)
        env.close()
    vector = turngym.connect(url, "frozen-lake", n=3)
    assert isinstance(vector, VectorClient) and vector.num_envs == 3
    vector.close()


async def test_connect_async_gives_the_same_with_coroutines(url: str) -> None:
    async with await connect_async(url) as hub:
        assert isinstance(hub, AsyncHub)
    async with await connect_async(url, "frozen-lake") as env:
        assert isinstance(env, AsyncEnvClient)
    async with await connect_async(url, "frozen-lake", n=2) as vector:
        assert isinstance(vector, AsyncVectorClient)


def test_listings(url: str) -> None:
    with turngym.connect(url) as hub:
        cards = {card.id: card for card in hub.envs()}
        assert {"bandit", "frozen-lake", "sokoban"} <= set(cards)
        assert hub.card("sokoban") == cards["sokoban"]
        assert cards["sokoban"].splits == dict(turngym.make("sokoban").splits)
        assert hub.tasks("sokoban", "test", 3, 5) == ["test/3", "test/4"]
        assert hub.tasks("sokoban") == list(turngym.make("sokoban").tasks("test"))
        assert len(hub.tasks("sokoban", "train", 10, 9_000)) == 8_990
        assert hub.tasks("sokoban", "test", 1_000, 2_000) == []
        assert hub.health()["status"] == "healthy"
        env = hub.make("sokoban")
        env.reset(seed=3)
        assert [(card.env, card.seed) for card in hub.sessions() if card.session == env.remote.session.id] == [
            ("sokoban", 3)
        ]
        with pytest.raises(UnknownTask):
            hub.tasks("sokoban", "holiday")
        with pytest.raises(UnknownEnvironment):
            hub.tasks("sokobahn")


def test_an_unknown_environment_or_setting_is_named(url: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        turngym.connect(url, "sokobahn")
    assert "sokoban" in caught.value.hint
    with pytest.raises(UnknownEnvironment):
        turngym.connect(url, "a/b?c")
    with pytest.raises(InvalidRequest) as unknown:
        turngym.connect(url, "sokoban", boxen=2)
    assert "boxes" in unknown.value.hint
    with pytest.raises(InvalidRequest):
        turngym.connect(url, "sokoban", turn={"memory": 3})
    with pytest.raises(InvalidRequest):
        turngym.connect(url, "sokoban", n=0)
    with pytest.raises(InvalidRequest, match="cannot be sent as JSON"):
        turngym.connect(url, "sokoban", boxes=object())
    with pytest.raises(InvalidRequest, match="n, level was given without"):
        turngym.connect(url, n=3, level="turn")
    with pytest.raises(InvalidRequest, match="timeout_s"):
        turngym.connect(url, timeout_s=0)


def test_nobody_there_says_how_to_start_a_hub_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(ServerUnavailable, match="refused") as caught:
        turngym.connect(f"http://127.0.0.1:{free_port()}", "sokoban")
    assert "turngym serve" in caught.value.hint
    assert time.monotonic() - started < 30  # far below retry_s: a first connection is not retried


def test_wait_s_waits_for_a_hub_that_is_still_starting(new_hub: Callable[..., Any]) -> None:
    port = free_port()
    timer = threading.Timer(0.3, lambda: new_hub(port=port))
    timer.start()
    with turngym.connect(f"http://127.0.0.1:{port}", wait_s=60) as hub:
        assert hub.health()["status"] == "healthy"
    timer.join()


@pytest.fixture(params=["HTTP/1.1", "HTTP/1.0"])
def no_hub(request: pytest.FixtureRequest) -> Iterator[str]:
    """A web server that is no hub; the older one does not even know WebSockets."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        protocol_version = request.param

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_server_that_is_no_hub_is_recognised(no_hub: str) -> None:
    with pytest.raises(InvalidRequest, match="no turngym hub"):
        turngym.connect(no_hub, wait_s=20)


def test_a_server_that_hangs_up_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ServerUnavailable):
            turngym.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_api_keys(new_hub: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hub = new_hub(api_keys={"me": "right-key-123"})
    with pytest.raises(Unauthorized):
        turngym.connect(hub.url)
    with pytest.raises(Unauthorized):
        turngym.connect(hub.url, api_key="wrong-key-123")
    with turngym.connect(hub.url, api_key="right-key-123") as client:
        assert client.envs()
    monkeypatch.setenv("TURNGYM_API_KEY", "right-key-123")
    env = turngym.connect(hub.url, "frozen-lake")
    env.reset(seed=1)
    env.close()


def test_a_full_hub_makes_all_or_none(new_hub: Callable[..., Any]) -> None:
    hub = new_hub(max_sessions=5)
    with turngym.connect(hub.url) as client:
        with pytest.raises(CapacityReached):
            client.make_vec("frozen-lake", 6)
        vector = client.make_vec("frozen-lake", 5)
        vector.reset(seed=0)
        assert len(client.sessions()) == 5


def test_close_ends_the_sessions(url: str) -> None:
    with turngym.connect(url) as other:
        before = len(other.sessions())
        env = turngym.connect(url, "frozen-lake")
        vector = turngym.connect(url, "frozen-lake", n=4)
        env.reset(seed=0)
        assert len(other.sessions()) == before + 5
        env.close()
        env.close()
        vector.close()
        assert len(other.sessions()) == before
        with pytest.raises((SessionNotFound, ServerUnavailable)):
            env.reset()


def test_closing_one_of_two_leaves_the_other(url: str) -> None:
    with turngym.connect(url) as hub:
        first, second = hub.make("frozen-lake"), hub.make("frozen-lake")
        first.reset(seed=0)
        second.reset(seed=0)
        first.close()
        second.step("Left")
        with pytest.raises(SessionNotFound, match="closed by this client"):
            first.step("Left")


def test_environments_that_are_dropped_are_closed(url: str) -> None:
    with turngym.connect(url) as hub:
        envs = [hub.make("frozen-lake") for _ in range(3)]
        ids = {env.remote.session.id for env in envs}
        del envs
        gc.collect()
        keeper = hub.make("frozen-lake")  # the next request takes the closing along
        keeper.reset(seed=0)
        left = ids
        while left:  # it runs beside it
            left = ids & {card.session for card in hub.sessions()}


def test_a_dropped_connection_is_closed(url: str) -> None:
    env = turngym.connect(url, "frozen-lake")
    own = env.remote.session.id
    del env
    gc.collect()
    with turngym.connect(url) as other:
        while own in {card.session for card in other.sessions()}:
            time.sleep(0.01)


def test_an_environment_outlives_its_hub_client(url: str) -> None:
    env = turngym.connect(url).make("frozen-lake")
    gc.collect()
    assert env.reset(seed=4)[1]["seed"] == 4


SCRIPTS = {
    "left open": "env = turngym.connect(url, 'frozen-lake'); env.reset(seed=1); env.step('Left')",
    "many left open": "envs = [turngym.connect(url, 'frozen-lake', n=3) for _ in range(3)]; envs[0].reset()",
    "dropped": "turngym.connect(url, 'frozen-lake').reset(seed=1)",
    "closed": "hub = turngym.connect(url); hub.close()",
    "exception": """
env = turngym.connect(url, 'frozen-lake'); env.reset()
try: env.step(3)
except turngym.errors.InvalidRequest: pass
""",
    "forked": """
env = turngym.connect(url, 'frozen-lake'); env.reset(seed=1)
child = os.fork()
if child == 0:
    try: env.step('Left')
    except turngym.errors.ServerUnavailable as error: assert 'forked' in str(error)
    mine = turngym.connect(url, 'frozen-lake'); mine.reset(seed=1); mine.step('Left'); mine.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
env.step('Left')
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_process_ends_quietly(name: str, url: str) -> None:
    code = f"import os, sys, turngym, turngym.errors\nurl = sys.argv[1]\n{SCRIPTS[name]}\n"
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # The development mode reports callbacks that take more than 0.1 s: the first import of httpx is one.
    noise = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, noise) == (0, [])


def test_the_clients_work_inside_a_running_loop(url: str) -> None:
    async def main() -> None:
        env = turngym.connect(url, "frozen-lake")
        assert env.reset(seed=1)[1]["seed"] == 1
        env.close()

    asyncio.run(main())


def test_threads_share_a_hub(url: str) -> None:
    results: dict[int, Any] = {}
    with turngym.connect(url) as hub:

        def play(seed: int) -> None:
            env = hub.make("frozen-lake")
            results[seed] = [env.reset(seed=seed)[0], env.step("Left")[0]]

        threads = [threading.Thread(target=play, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    local = turngym.make("frozen-lake")
    assert results == {seed: [local.reset(seed=seed)[0], local.step("Left")[0]] for seed in range(6)}


def test_the_loop_of_the_clients_is_one_thread(url: str) -> None:
    with turngym.connect(url), turngym.connect(url):
        assert sum(thread.name == "turngym-client" for thread in threading.enumerate()) == 1
