"""Training over a hub that dies in mid-step and comes back: it goes on, and every episode counts once."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec

from turngym.client.sources import HubSource
from turngym.records import Episode, read_episodes
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend import trainer as training
from turngym.trainer_backends.torch_backend.trainer import Trainer

CHAINS = {"rollout": {"id": "chains", "samples": 3}}
TREE = {
    "rollout": {"id": "entropy-tree", "chains": 2, "rounds": 1, "picks": 2},
    "credit": {"id": "turn-tree"},
    "loss": {"id": "atpo"},
}


class Hub:
    """A hub in a process of its own, on a port that it keeps."""

    def __init__(self, *options: str) -> None:
        self.port = 0
        self.options = options
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "turngym.cli", "serve", "--port", str(self.port), *self.options]
        environment = {name: value for name, value in os.environ.items() if name != "TURNGYM_API_KEY"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[^ ]*:(\d+)", line)
        assert found is not None, line
        self.port = int(found[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("TURNGYM_API_KEY", raising=False)
    hub = Hub()
    yield hub
    hub.kill()


def recipe_of(policy: Path, preset: Path, **changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "env": {"preset": str(preset)},
        "model": {"path": str(policy)},
        "sampling": {"tasks": 2, "max_tokens": 10, "slots": 8},
        "credit": {"id": "grpo"},
        "run": {"steps": 1, "eval_tasks": 3, "eval_every": 1},
    }
    return msgspec.convert({**base, **changes}, Recipe)


def played(out: Path, name: str = "episodes") -> list[Episode]:
    return sorted(read_episodes(out / f"{name}.jsonl"), key=lambda episode: episode.id)


def course(episode: Episode) -> tuple[str, list[str], float, list[tuple[int, int]]]:
    return episode.id, [turn.completion.text for turn in episode.turns], episode.reward, episode.reseeds


@pytest.mark.parametrize(
    ("method", "retry_s"),
    [(CHAINS, 0.3), (TREE, 0.3), (TREE, 30.0)],
    ids=["chains", "tree", "tree, within the client's patience"],
)
def test_no_episode_is_lost_or_counted_twice(
    method: dict[str, Any],
    retry_s: float,
    hub: Hub,
    policy_folder: Path,
    preset_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of(policy_folder, preset_file, **method)
    asyncio.run(Trainer(recipe, tmp_path / "calm").train())
    monkeypatch.setattr(training, "WAIT_S", 0.2)
    monkeypatch.setattr(training, "HubSource", functools.partial(HubSource, retry_s=retry_s))
    said: list[str] = []
    trainer = Trainer(recipe, tmp_path / "run", url=hub.url, report=lambda kind, _: said.append(kind))
    act, calls = trainer.policy.act, 0
    # In the middle of the first evaluation, and of the first step.
    deaths, absences = {4, 24}, []

    async def disturbed(context: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in deaths:
            hub.kill()
            absences.append(threading.Timer(0.8, hub.start))
            absences[-1].start()
        return await act(context)

    monkeypatch.setattr(trainer.policy, "act", disturbed)
    asyncio.run(trainer.train())
    for timer in absences:
        timer.join()
    assert len(absences) == 2
    assert ("waiting" in said) == (retry_s < 1)
    assert said.count("train") == 1
    # Everything took the course that it takes without a hub.
    for name in ("episodes", "eval"):
        calm, run = played(tmp_path / "calm", name), played(tmp_path / "run", name)
        assert [episode.id for episode in run] == [episode.id for episode in calm]
        assert all(episode.status in ("terminated", "truncated") for episode in run)
        # (The last evaluation is left out: its weights come from a batch that was summed in another order.)
        before = [place for place, episode in enumerate(calm) if episode.id[1:7] == "000000"]
        assert before
        assert [course(run[place]) for place in before] == [course(calm[place]) for place in before]


@pytest.mark.parametrize(("method", "room"), [(CHAINS, 2), (TREE, 1)], ids=["chains", "tree"])
def test_a_full_hub_is_waited_for(
    method: dict[str, Any],
    room: int,
    policy_folder: Path,
    preset_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TURNGYM_API_KEY", raising=False)
    monkeypatch.setattr(training, "WAIT_S", 0.05)
    hub = Hub("--max-sessions", str(room))
    said: list[str] = []

    def told(kind: str, metrics: Any) -> None:
        said.append(metrics["why"]) if kind == "waiting" else None

    try:
        trainer = Trainer(recipe_of(policy_folder, preset_file, **method), tmp_path / "run", url=hub.url, report=told)
        asyncio.run(trainer.train())
    finally:
        hub.kill()
    assert said and str(room) in said[0]
    episodes = played(tmp_path / "run")
    if method is CHAINS:
        assert len(episodes) == 6 and all(episode.status in ("terminated", "truncated") for episode in episodes)
    else:  # there is room for the roots, one after the other, and for none of their branches
        assert {episode.group for episode in episodes} == {"s000000.g0", "s000000.g1"}
        assert all(episode.error and episode.error["code"] == "CAPACITY_REACHED" for episode in episodes)
