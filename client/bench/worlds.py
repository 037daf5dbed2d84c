"""Measurements of the text worlds: WebShop at any size, and ALFWorld beside the stock engine.

What takes memory or needs a cold start is measured in processes of its own: ``python -m turngym.client.bench.worlds``
with the name of a measurement and its settings as JSON prints one row. Times are processor time, which other work on
the machine disturbs least; only the start of a shop, which waits for the disk, is on the clock.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...envs.alfworld.data import save_game
from ...envs.core import TextEnv
from ...envs.registry import make
from ...errors import Unavailable

Row = dict[str, Any]
Player = Callable[[TextEnv, Row, random.Random], str]

STOCK_ALFWORLD = Path(__file__).with_name("stock_alfworld.py")
SEARCHES = 300
SESSIONS = 100  # few enough that the products on their pages fit the shared cache
EPISODES = 500
STOCK_GAMES = 12
GAME_STEPS = 15


# WebShop -------------------------------------------------------------------------------------------------------------


def webshop(sizes: list[int], seconds: float) -> list[Row]:
    """Measure the procedural shop at each size, and WebShop's own products where their files are at hand."""
    rows = []
    for name, config in _shops(sizes):
        with tempfile.TemporaryDirectory(prefix="turngym-bench-") as cache:
            row = {"products": name, **_measured("built", config, seconds, cache)}
            rows.append({**row, **_measured("started", config, seconds, cache)})
    return rows


def _shops(sizes: list[int]) -> list[tuple[str, Row]]:
    """Return the settings of each shop by its name in tables."""
    shops: list[tuple[str, Row]] = [(f"{size:,}", {"products": size}) for size in sizes]
    # Without spaCy, which need not be there and is slow the first time it sees a title.
    official = {"data": "official", "tagger": "words"}
    with suppress(Unavailable):
        shops.append((f"{_products(make('webshop', **official)):,} of WebShop", official))
    return shops


def _products(env: TextEnv) -> int:
    return len(env._shop.catalogue)  # type: ignore[attr-defined]


def _measured(measurement: str, config: Row, seconds: float, cache: str) -> Row:
    command = [sys.executable, "-m", __name__, measurement, json.dumps(config), str(seconds)]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def built(config: Row, seconds: float) -> Row:
    """Make the shop for the first time."""
    start = time.process_time()
    make("webshop", **config)
    elapsed = time.process_time() - start
    files = [path for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*") if path.is_file()]
    return {
        "build_s": elapsed,
        "build_peak_mib": _memory("VmHWM"),
        "disk_mib": sum(path.stat().st_size for path in files) / 2**20,
    }


def started(config: Row, seconds: float) -> Row:
    """Make the shop from the cache, search, play, and hold many sessions."""
    start = time.perf_counter()
    env = make("webshop", **config)
    env.reset(seed=0, options={"task": "test/0"})
    elapsed = time.perf_counter() - start
    # The words of whole requests: long queries with frequent words, none asked twice.
    latencies = sorted(_search_seconds(env, f"train/{index}") for index in range(1, SEARCHES + 1))
    rate = _steps_per_s(env, shopper, "train", SEARCHES + 1, seconds)
    # Before the sessions, because counting their bytes takes memory itself.
    private, shared = _memory("RssAnon"), _memory("RssFile")
    return {
        "start_s": elapsed,
        "search_p50_ms": 1e3 * latencies[len(latencies) // 2],
        "search_p95_ms": 1e3 * latencies[int(0.95 * len(latencies))],
        "steps_per_s": rate,
        "private_mib": private,
        "shared_mib": shared,
        "session_kib": session_bytes(lambda: make("webshop", **config), shopper, SESSIONS) / 1024,
    }


def _search_seconds(env: TextEnv, task: str) -> float:
    """Return the processor time of the step that searches for a task's whole request."""
    observation, _ = env.reset(seed=0, options={"task": task})
    return _seconds(env.step, f"search[{_request(observation)}]")


def _request(observation: str) -> str:
    """Return the request in words, which stands on the first page."""
    return observation.split(" [SEP] ")[2]


def _seconds(call: Callable[..., object], *args: Any) -> float:
    start = time.process_time()
    call(*args)
    return time.process_time() - start


def _memory(field: str) -> float:
    """Return a field of this process's memory in MiB: VmHWM is the peak, RssAnon private, RssFile mapped files."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None, field
    return int(found.group(1)) / 1024


def _steps_per_s(env: TextEnv, player: Player, split: str, first: int, seconds: float) -> float:
    """Play tasks from number ``first`` on; only the steps are on the clock."""
    draw = random.Random(0)
    steps, spent, index = 0, 0.0, first
    while spent < seconds:
        observation, info = env.reset(seed=0, options={"task": f"{split}/{index % env.splits[split]}"})
        index += 1
        info = {**info, "first": observation}
        while not env.done:
            action = player(env, info, draw)
            start = time.process_time()
            result = env.step(action)
            spent += time.process_time() - start
            info = {**result[4], "first": observation}
            steps += 1
    return steps / spent


def session_bytes(make_env: Callable[[], TextEnv], player: Player, count: int) -> float:
    """Return the memory of a session in the middle of its episode, without what sessions share."""

    def sessions() -> list[TextEnv]:
        draw = random.Random(0)
        held = []
        for index in range(count):
            env = make_env()
            observation, info = env.reset(seed=0, options={"task": f"train/{index % env.splits['train']}"})
            for _ in range(5):
                if not env.done:
                    info = {**info, "first": observation}
                    info = env.step(player(env, info, draw))[4]
            held.append(env)
        return held

    sessions()  # fills what is shared: products, queries, pages
    gc.collect()
    tracemalloc.start()
    held = sessions()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / len(held)


# Policies that look for shortcuts ------------------------------------------------------------------------------------


def shopper(env: TextEnv, info: Row, draw: random.Random) -> str:
    """Search for the whole request, then click whatever there is."""
    action = draw.choice(info["admissible"])
    return f"search[{_request(info['first'])}]" if action.startswith("search[") else action


def first_result(env: TextEnv, info: Row, draw: random.Random) -> str:
    """Search for the request, open the first product, buy it as it is."""
    admissible = info["admissible"]
    if "click[buy now]" in admissible:
        return "click[buy now]"
    products = [action for action in admissible if action.startswith("click[b0")]
    return products[0] if products else shopper(env, info, draw)


def first_result_options(env: TextEnv, info: Row, draw: random.Random) -> str:
    """Do the same, but first choose each option whose value stands in the request."""
    if "click[buy now]" not in info["admissible"]:
        return first_result(env, info, draw)
    values = [action[6:-1] for action in info["admissible"]]
    named = [value for value in values[values.index("buy now") + 1 :] if value in info["first"]]
    chosen = info.setdefault("chosen", set())
    left = [value for value in named if value not in chosen]
    if not left:
        return "click[buy now]"
    chosen.add(left[0])
    return f"click[{left[0]}]"


def expert(env: TextEnv, info: Row, draw: random.Random) -> str:
    """Know the product that the goal was made from."""
    return env.expert_action() or "click[back to search]"


PLAYERS: dict[str, Player] = {
    "random clicks, the request as query": shopper,
    "first result": first_result,
    "first result, options by their words": first_result_options,
    "expert": expert,
}


def webshop_policies(sizes: list[int], episodes: int = EPISODES) -> list[Row]:
    """Measure what simple policies and the expert reach on the test split of each shop."""
    rows = []
    for shop, config in _shops(sizes):
        env = make("webshop", **config)
        for name, player in PLAYERS.items():
            played = [_episode(env, player, index) for index in range(min(episodes, env.splits["test"]))]
            row: Row = {"products": shop, "policy": name, "episodes": len(played)}
            row["task_score"] = 100 * statistics.fmean(score for score, _, _ in played)
            row["success_percent"] = 100 * statistics.fmean(won for _, won, _ in played)
            row["steps"] = statistics.fmean(steps for *_, steps in played)
            rows.append(row)
    return rows


def _episode(env: TextEnv, player: Player, index: int) -> tuple[float, bool, int]:
    draw = random.Random(index)
    observation, info = env.reset(seed=0, options={"task": f"test/{index}"})
    memory: Row = {"first": observation}
    while not env.done:
        memory.update(info)
        info = env.step(player(env, memory, draw))[4]
    return info["score"], info["won"], info["step"]


# ALFWorld ------------------------------------------------------------------------------------------------------------


def alfworld(seconds: float, stock_python: str | None) -> list[Row]:
    """Measure the native engine, and the stock engine on the same games and actions; [] without ALFWorld's texts."""
    rows = []
    for games in ("official", "procedural"):
        try:
            env = make("alfworld", games=games)
        except Unavailable:
            continue
        loads = [_seconds(_reset, env, f"train/{index}") for index in range(200)]
        fresh = session_bytes(lambda games=games: make("alfworld", games=games), wanderer, 100)  # type: ignore[misc]
        row: Row = {
            "games": games,
            "engine": "native",
            "load_ms": 1e3 * statistics.median(loads),
            "steps_per_s": _steps_per_s(env, wanderer, "train", 0, seconds),
            "session_kib": fresh / 1024,
        }
        rows.append(row)
        if stock_python is not None:
            stock = _stock(env, stock_python)
            row["to_stock"] = row["steps_per_s"] / stock["steps_per_s"]
            rows.append({"games": games, "engine": "stock", **stock})
    return rows


def _reset(env: TextEnv, task: str) -> None:
    env.reset(seed=0, options={"task": task})


def wanderer(env: TextEnv, info: Row, draw: random.Random) -> str:
    """Do anything admissible."""
    return str(draw.choice(info["admissible"]))


def _stock(env: TextEnv, python: str) -> Row:
    """Have the stock engine play what the native one has just played; the last texts must be the same."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        jobs = []
        for index in range(STOCK_GAMES):
            text, info = env.reset(seed=0, options={"task": f"train/{index}"})
            actions: list[str] = []
            while not env.done and len(actions) < GAME_STEPS:
                actions.append(wanderer(env, info, draw))
                text, *_, info = env.step(actions[-1])
            path = save_game(env.game_file(), Path(folder))  # type: ignore[attr-defined]
            jobs.append({"path": str(path), "actions": actions, "last": text})
        done = subprocess.run(
            [python, str(STOCK_ALFWORLD)], input=json.dumps(jobs), stdout=subprocess.PIPE, text=True, check=True
        )
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _main(arguments: list[str]) -> Iterator[str]:
    measurement, config, seconds = arguments
    yield json.dumps({"built": built, "started": started}[measurement](json.loads(config), float(seconds)))


if __name__ == "__main__":
    print(*_main(sys.argv[1:]))
