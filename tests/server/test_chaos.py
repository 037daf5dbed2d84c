"""Worker processes are killed at random under load: every episode ends, and as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from turngym.envs.registry import make, unmet
from turngym.protocol import Answer, Reply

KILLS = 25
STEPS = 12
"""Environment actions of an episode at most."""
Plays = list[tuple[str, str, int]]
"""(environment id, task id, seed) of each episode."""


def choose(info: dict[str, Any], seed: int, step: int) -> str:
    """Return an action that depends on what was seen and on nothing else."""
    actions = info["admissible"]
    rng = random.Random(f"{seed} {step} {info['anchor']}")
    action = rng.choice(actions) if actions else "look"
    return "search[red shirt]" if action.startswith("search[") else action


def line(*outcome: Any) -> bytes:
    return msgspec.json.encode(outcome)


def undisturbed(env_id: str, task: str, seed: int) -> list[bytes]:
    """Return the transcript of an episode in this process; halfway it goes on as a fork with noise of its own."""
    env = make(env_id, max_steps=STEPS)
    observation, info = env.reset(seed=seed, options={"task": task})
    lines = [line(observation, 0.0, False, False, info)]
    for step in range(STEPS):
        if step == STEPS // 2:
            env = env.fork(seed + 1)
        outcome = env.step(choose(info, seed, step))
        lines.append(line(*outcome))
        info = outcome[4]
        if env.done:
            break
    return lines


class Driver:
    """Plays episodes over a socket of its own, all of them in step."""

    def __init__(self, hub: Any, name: str) -> None:
        self.hub = hub
        self.name = name
        self.number = 0

    def ask(self, socket: Any, op: str, items: list[dict[str, Any]]) -> list[Reply]:
        self.number += 1
        socket.send(msgspec.json.encode({"id": self.number, "op": op, "items": items}).decode())
        answer = msgspec.json.decode(socket.recv(120), type=Answer)
        assert answer.error is None, answer.error
        for reply in answer.items:
            assert reply.error is None, reply.error
        return answer.items

    def play(self, plays: Plays) -> list[list[bytes]]:
        """Return the transcripts."""
        sessions = [f"{self.name}-{self.number}-{i}" for i in range(len(plays))]
        lines: list[list[bytes]] = [[] for _ in plays]
        with self.hub.socket() as socket:
            creates = [
                {"env": env, "session": s, "config": {"max_steps": STEPS}, "reset": True, "task": task, "seed": seed}
                for s, (env, task, seed) in zip(sessions, plays, strict=True)
            ]
            replies = dict(enumerate(self.ask(socket, "create", creates)))
            for step in range(STEPS + 1):
                for i, reply in replies.items():
                    lines[i].append(
                        line(reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info)
                    )
                going = [i for i, reply in replies.items() if not (reply.terminated or reply.truncated)]
                if not going:
                    break
                if step == STEPS // 2:
                    forks = [{"session": sessions[i], "to": f"{sessions[i]}f", "seed": plays[i][2] + 1} for i in going]
                    self.ask(socket, "fork", forks)
                    self.ask(socket, "close", [{"session": sessions[i]} for i in going])
                    for i in going:
                        sessions[i] += "f"
                items = [
                    {
                        "session": sessions[i],
                        "action": choose(replies[i].info or {}, plays[i][2], step),
                        "step_index": step,
                    }
                    for i in going
                ]
                replies = dict(zip(going, self.ask(socket, "step", items), strict=True))
            self.ask(socket, "close", [{"session": session} for session in sessions])
        return lines


def killing(hub: Any, enough: threading.Event, over: threading.Event) -> None:
    """Kill a worker process at a random moment, again and again."""
    rng = random.Random(7)
    killed = 0
    while killed < KILLS and not over.is_set():
        time.sleep(rng.uniform(0.02, 0.3))
        # Those at work: one that only starts has nothing to lose.
        alive = hub.on_loop(
            lambda: [w.process.pid for w in hub.hub.places.pool._workers if w.process and w.process.answers]
        )
        if alive:
            with suppress(ProcessLookupError):  # buried already
                os.kill(rng.choice(alive), signal.SIGKILL)
                killed += 1
    enough.set()


def playable(*env_ids: str) -> Iterator[str]:
    for env_id in env_ids:
        if unmet(env_id) is None:
            yield env_id


@pytest.mark.slow
def test_episodes_do_not_notice_that_their_processes_are_killed(start_hub: Any) -> None:
    # AlfWorld's games are there only where its data is.
    env_ids = list(playable("lake-process", "sokoban-process", "odd-process", "webshop", "alfworld"))
    plays = [(env_ids[i % len(env_ids)], f"test/{i % 5}", i) for i in range(8 * len(env_ids))]
    expected = [undisturbed(*play) for play in plays]
    enough, over = threading.Event(), threading.Event()
    parts = 4
    with start_hub(envs=tuple(env_ids), workers=3) as hub, ThreadPoolExecutor(parts + 1) as threads:
        killer = threads.submit(killing, hub, enough, over)

        def drive(part: int) -> int:
            driver, rounds = Driver(hub, f"d{part}"), 0
            mine = plays[part::parts]
            while not enough.is_set() or not rounds:
                assert driver.play(mine) == expected[part::parts]
                rounds += 1
            return rounds

        try:
            rounds = [future.result() for future in [threads.submit(drive, part) for part in range(parts)]]
        finally:
            over.set()
        killer.result()
        assert min(rounds) >= 1
        assert sum(hub.hub.places.pool.rebuilt.values()) > KILLS
        assert hub.hub.places.pool.restarts > 0
        assert all(not stats.errors for stats in hub.hub.stats.values())
        assert hub.hub.total == 0
