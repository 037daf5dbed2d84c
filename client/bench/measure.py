"""The measurements: each returns rows of plain numbers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from ...envs.registry import get_spec, make, playable
from ...envs.turn.env import at_turn_level
from ...protocol import PREFIX
from .load import Frames, LoadResult, cpu_seconds, drive
from .servers import YARDSTICKS, Running, hub_command, running, yardstick_command

Row = dict[str, Any]
BATCH = 16
SLOW_US = 1e3
FILLING_S = 30.0
ENDLESS = 1_000_000_000  # environment actions; no episode ends under load


def environments(seconds: float) -> list[Row]:
    """Measure resets and steps of every environment in this process, on one core."""
    rows = []
    for env_id in playable():
        env = make(env_id)
        tasks = env.tasks("train")
        resets = [_timed(env.reset, seed=i, options={"task": tasks[i]}) for i in range(64)]
        turn = at_turn_level(env_id, make(env_id), {})
        rows.append(
            {
                "environment": env_id,
                "steps_per_s": _steps_per_s(env, lambda info: info["admissible"][0], seconds),
                "turns_per_s": _steps_per_s(turn, _always(turn.wrap("x")), seconds),
                "reset_ms": 1e3 * statistics.median(resets),
                "reset_max_ms": 1e3 * max(resets),
            }
        )
    return rows


def _timed(call: Callable[..., object], *args: Any, **kwargs: Any) -> float:
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


def _always(reply: str) -> Callable[[Row], str]:
    return lambda info: reply


def _step_us(env: Any, action: str, seconds: float) -> float:
    """Repeat a step for some seconds; return its processor time in microseconds, an engine's of its own included."""
    steps, cpu, end = 0, cpu_seconds(os.getpid()), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(16):
            env.step(action)
        steps += 16
    return 1e6 * (cpu_seconds(os.getpid()) - cpu) / steps


def _steps_per_s(env: Any, choose: Callable[[Row], str], seconds: float) -> float:
    """Count steps only: the clock stops during resets."""
    steps, spent, index = 0, 0.0, 0
    while spent < seconds:
        _, info = env.reset(seed=index, options={"task": f"test/{index % 256}"})
        index += 1
        start = time.perf_counter()
        while not env.done:
            info = env.step(choose(info))[4]
            steps += 1
        spent += time.perf_counter() - start
    return steps / spent


def hub_sessions(url: str, env: str, count: int, config: Row, seconds: float = math.inf) -> list[str]:
    """Create and reset ``count`` sessions over HTTP, or as many as some seconds allow; return their ids."""
    sessions: list[str] = []
    end = time.perf_counter() + seconds
    with httpx.Client(timeout=120) as client:
        while len(sessions) < count and time.perf_counter() < end:
            items = [
                {"env": env, "config": config, "reset": True, "seed": i, "task": f"test/{i % 256}"}
                for i in range(len(sessions), min(count, len(sessions) + 250))
            ]
            reply = client.post(f"{url}{PREFIX}/create", json={"items": items}).raise_for_status().json()
            sessions += [item["session"] for item in reply["items"]]
    return sessions


def hub_frames(sessions: list[str], action: str) -> Frames:
    """Return the messages of one socket that steps ``sessions`` together, with step indices."""
    parts = [f'{{"session":"{session}","action":"{action}","step_index":' for session in sessions]

    def frame(n: int) -> bytes:
        return f'{{"id":{n},"op":"step","items":[{",".join([f"{part}{n}}}" for part in parts])}]}}'.encode()

    return frame


def bare_frames(per_message: int) -> Frames:
    """Return the messages of one socket of the bare echo: as long as the hub's."""
    return hub_frames([f"{i:032x}" for i in range(per_message)], "hello")


def _chunks(sessions: list[str], size: int) -> Iterable[list[str]]:
    return (sessions[start : start + size] for start in range(0, len(sessions), size))


def _row(server: str, sessions: int, per_message: int, result: LoadResult) -> Row:
    return {
        "server": server,
        "sessions": sessions,
        "per_message": per_message,
        "steps_per_s": result.rate,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "server_cpu_us": result.cpu_us,
    }


def serving(counts: Iterable[int], seconds: float, stock_python: str | None) -> list[Row]:
    """Load the hub, the bare echo and, with an interpreter that has it, stock OpenEnv; 1 KB replies."""
    rows = []
    for count in counts:
        for per_message in (1, BATCH) if count >= BATCH else (1,):
            sockets = count // per_message
            with running(yardstick_command("bare")) as server:
                frames = [bare_frames(per_message) for _ in range(sockets)]
                result = asyncio.run(drive(server.port, "/", frames, per_message, server.pid, seconds))
                rows.append(_row("bare echo", count, per_message, result))
            with running(hub_command("echo")) as server:
                rows.append(_row("turngym", count, per_message, load_hub(server, "echo", count, per_message, seconds)))
        if stock_python is not None:
            rows += stock_rows(stock_python, count, seconds)
    return rows


def load_hub(
    server: Running, env: str, count: int, per_message: int, seconds: float, action: str = "hello"
) -> LoadResult:
    """Step ``count`` sessions of one environment over ``count // per_message`` sockets."""
    sessions = hub_sessions(server.url, env, count, {"max_steps": ENDLESS})
    frames = [hub_frames(chunk, action) for chunk in _chunks(sessions, per_message)]
    return asyncio.run(drive(server.port, f"{PREFIX}/ws", frames, per_message, server.pid, seconds))


def stock_rows(python: str, count: int, seconds: float) -> list[Row]:
    """Load stock OpenEnv (synchronous environment) with its own client and with the lean generator."""
    rows = []
    with running(yardstick_command("stock", python)) as server:

        def frame(n: int) -> bytes:
            return b'{"type":"step","data":{"action":"hello"}}' if n else b'{"type":"reset","data":{}}'

        result = asyncio.run(drive(server.port, "/ws", [frame] * count, 1, server.pid, seconds))
        rows.append(_row("stock OpenEnv", count, 1, result))
    with running(yardstick_command("stock", python)) as server:
        command = [python, str(YARDSTICKS), "stock-client", server.url, str(count), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        own = json.loads(done.stdout)
        rows.append(
            {
                "server": "stock OpenEnv, own client",
                "sessions": count,
                "per_message": 1,
                "steps_per_s": own["rate"],
                "p50_ms": own["p50_ms"],
                "p99_ms": own["p99_ms"],
                "server_cpu_us": None,
            }
        )
    return rows


def step_costs(seconds: float, count: int = 64) -> list[Row]:
    """Measure the processor time of the hub and its workers per step of every environment, less its own.

    Beside a step of more than :data:`SLOW_US` the hub's part cannot be told; there only the step is measured.
    """
    rows = []
    for env_id in ("echo", *playable()):
        env = make(env_id, max_steps=ENDLESS)
        env.reset(seed=0, options={"task": "test/0"})
        # An action that never ends an episode: the inadmissible one, answered in-world.
        own = _step_us(env, "hello", seconds)
        where = "the hub" if get_spec(env_id).inline else "a worker process"
        row: Row = {"environment": env_id, "steps_in": where, "environment_us": own}
        rows.append(row)
        if own > SLOW_US:
            continue
        with running(hub_command(env_id)) as server:
            for per_message, name in ((1, "single"), (BATCH, "batched")):
                result = load_hub(server, env_id, count, per_message, seconds)
                row[f"{name}_cpu_us"] = result.cpu_us
                row[f"{name}_overhead_us"] = result.cpu_us - own
    return rows


def memory(count: int) -> list[Row]:
    """Measure the memory of a hub and its workers per idle session.

    Each environment has ``count`` sessions, or as many as start in :data:`FILLING_S` seconds.
    """
    rows = []
    for env_id in playable():
        with running(hub_command(env_id)) as server:
            hub_sessions(server.url, env_id, 256, {}, FILLING_S)
            before = server.memory_kib()
            made = len(hub_sessions(server.url, env_id, count, {}, FILLING_S))
            after = server.memory_kib()
        rows.append(
            {
                "environment": env_id,
                "sessions": made,
                "kib_per_session": (after - before) / made,
                "hub_mib": before / 1024,
            }
        )
    return rows
