"""Servers to compare with, each run as a process of its own: ``python yardsticks.py bare|stock|stock-client …``.

``bare`` is the least a Python server can do: uvicorn with uvloop and a raw ASGI WebSocket that decodes a JSON message
and answers with 1 KB for every step in it. ``stock`` is OpenEnv's own server with a synchronous environment, and
``stock-client`` OpenEnv's own client; both need an interpreter that has the ``openenv`` package. The file is run by
path, because that interpreter need not have turngym.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import Any

LENGTH = 1024


def listen() -> socket.socket:
    """Return a listening socket on a free port and print the port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(2048)
    print(f"on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    return sock


def bare() -> None:
    """Serve the bare echo."""
    import msgspec
    import uvicorn

    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            request = decode(event["text"])
            items = [{"observation": item["action"].ljust(LENGTH, "."), "reward": 0.0} for item in request["items"]]
            await send({"type": "websocket.send", "text": encode({"id": request["id"], "items": items}).decode()})

    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="websockets-sansio", ws_per_message_deflate=False, log_level="warning",
        lifespan="off",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listen()])


def stock() -> None:
    """Serve an echo on OpenEnv's server with its defaults."""
    import uvicorn
    from openenv.core.env_server import (  # type: ignore[import-not-found]
        Action,
        Environment,
        Observation,
        State,
        create_app,
    )

    class EchoAction(Action):  # type: ignore[misc]
        action: str

    class EchoObservation(Observation):  # type: ignore[misc]
        text: str = ""

    class Echo(Environment[EchoAction, EchoObservation, State]):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id="", step_count=0)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
            self._state = State(episode_id=episode_id or "", step_count=0)
            return EchoObservation(text="." * LENGTH, reward=0.0, done=False)

        def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
            self._state.step_count += 1
            return EchoObservation(text=action.action.ljust(LENGTH, "."), reward=0.0, done=False)

        @property
        def state(self) -> State:
            return self._state

    app = create_app(Echo, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=2048)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listen()])


async def stock_client(url: str, sessions: int, seconds: float) -> dict[str, float]:
    """Drive a stock server with OpenEnv's own client, one task a session."""
    from openenv.core import GenericEnvClient  # type: ignore[import-not-found]

    latencies: list[float] = []
    stop = asyncio.Event()
    counting = False

    async def play() -> None:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset()
            while not stop.is_set():
                start = time.perf_counter()
                await client.step({"action": "hello"})
                if counting:
                    latencies.append(time.perf_counter() - start)

    tasks = [asyncio.create_task(play()) for _ in range(sessions)]
    await asyncio.sleep(1.0 + sessions / 200)
    counting, start = True, time.perf_counter()
    await asyncio.sleep(seconds)
    counting, elapsed = False, time.perf_counter() - start
    stop.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for error in done if isinstance(error, BaseException)]
    if errors:
        raise errors[0]
    marks = sorted(latencies)
    return {
        "rate": len(marks) / elapsed,
        "p50_ms": 1e3 * marks[len(marks) // 2],
        "p99_ms": 1e3 * marks[int(0.99 * len(marks))],
    }


if __name__ == "__main__":
    if sys.argv[1] == "stock-client":
        print(json.dumps(asyncio.run(stock_client(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))))
    else:
        {"bare": bare, "stock": stock}[sys.argv[1]]()
