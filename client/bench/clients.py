"""Measurements of our own client against a hub process."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Any

from ..connect import connect, connect_async
from .servers import hub_command, running

Row = dict[str, Any]
ENDLESS = 1_000_000_000


def clients(seconds: float, count: int = 64) -> list[Row]:
    """Measure the synchronous, vectorised and asynchronous clients on the 1 KB echo."""
    rows: list[Row] = []
    with running(hub_command("echo")) as server:
        with closing(connect(server.url, "echo", max_steps=ENDLESS)) as env:
            env.reset(seed=0)
            rows.append(_count("EnvClient.step, one session", 1, lambda: env.step("hello"), seconds))
        with closing(connect(server.url, "echo", n=count, max_steps=ENDLESS)) as vector:
            vector.reset(seed=0)
            actions = ("hello",) * count
            rows.append(_count(f"VectorClient.step, {count} sessions", count, lambda: vector.step(actions), seconds))
        rate = asyncio.run(_concurrent(server.url, count, seconds))
        rows.append({"client": f"AsyncEnvClient.step, {count} tasks", "steps_per_s": rate})
    return rows


def _count(name: str, steps: int, call: Any, seconds: float) -> Row:
    call()
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        call()
        done += steps
    return {"client": name, "steps_per_s": done / elapsed}


async def _concurrent(url: str, count: int, seconds: float) -> float:
    async with await connect_async(url) as hub:
        envs = [await hub.make("echo", max_steps=ENDLESS) for _ in range(count)]
        for env in envs:
            await env.reset(seed=0)
        steps, start = 0, time.perf_counter()

        async def play(env: Any) -> None:
            nonlocal steps
            while time.perf_counter() - start < seconds:
                await env.step("hello")
                steps += 1

        await asyncio.gather(*(play(env) for env in envs))
        return steps / (time.perf_counter() - start)
