"""Folders of training runs, written as the trainer writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turngym.records import SCHEMA, VERSION, Completion, Episode, Turn, encode_episode

MARKUP = "<script>window.attacked = 1</script>{{title}}"


def recipe(seed: int = 0, credit: str = "gigpo", steps: int = 30, **more: Any) -> dict[str, Any]:
    return {
        "summary": more.pop("summary", "A run"),
        "env": {"preset": "compact-frozen-lake"},
        "credit": {"id": credit},
        "run": {"steps": steps, "seed": seed, "eval_every": 10},
        **more,
    }


def train_line(step: int, **changes: Any) -> dict[str, Any]:
    line = {
        "kind": "train",
        "step": step,
        "seconds": 2.0 * step,
        "episodes": 16.0,
        "failed": 0.0,
        "success": min(0.9, 0.02 * step),
        "reward": 0.02 * step,
        "reward_std": 0.4,
        "policy_entropy": 1.0,
        "gradient_norm": 0.5,
        "response_tokens": 20.0,
        "invalid": 0.1,
        "repetitive": 0.0,
        "tokens_won": 60.0,
        "turns_won": 3.0,
        "interventions": 0.25,
        "discarded": 0.0,
        "sampled_tokens": 1000.0,
        "tree_nodes": 12.0,
        "rollout_seconds": 1.5,
        "update_seconds": 0.5,
    }
    return {**line, **changes}


def eval_line(step: int, success: float, **changes: Any) -> dict[str, Any]:
    line = {
        "kind": "eval",
        "step": step,
        "seconds": 2.0 * step,
        "eval_success": success,
        "eval_success_low": max(0.0, success - 0.1),
        "eval_success_high": min(1.0, success + 0.1),
        "eval_tokens_won": 50.0,
        "eval_turns_won": 4.0,
    }
    return {**line, **changes}


def episode(name: str, task: str, won: bool, group: str) -> Episode:
    reply = Completion(f"<think>{MARKUP}</think><action>up</action>", token_ids=[1, 2, 3], forced=[False, True, False])
    turn = Turn(0, "a lake", reply, action="up", format_valid=True)
    return Episode(name, "frozen-lake", task, 1, group=group, status="terminated", turns=[turn], won=won)


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def write_episodes(path: Path, episodes: list[Episode]) -> None:
    header = msgspec.json.encode({"schema": SCHEMA, "version": VERSION})
    path.write_bytes(b"\n".join([header, *map(encode_episode, episodes), b""]))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run: ``make_run(name, seed=, steps=, done=, success=, line=, **recipe)`` returns its folder."""

    def made(
        name: str = "run",
        *,
        seed: int = 0,
        steps: int = 30,
        done: int | None = None,
        success: float = 0.6,
        line: Callable[[int], dict[str, Any]] = lambda step: {},
        **more: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_bytes(msgspec.json.encode(recipe(seed, steps=steps, **more)))
        done = steps if done is None else done
        lines = [eval_line(0, 0.2)]
        training, held_out = [], []
        for step in range(done + 1):
            if step:
                lines.append(train_line(step, **line(step)))
            if step and (step % 10 == 0 or step == steps):
                lines.append(eval_line(step, 0.2 + (success - 0.2) * step / steps))
            if step % 10 == 0 or step == steps:
                played = [(f"e{step:06d}.{place}.0", f"test/{place}", place < step / 10) for place in range(4)]
                held_out += [episode(name, task, won, f"e{step}") for name, task, won in played]
            if step < done:
                group = f"s{step:06d}.g0"
                training += [episode(f"{group}.{member}", f"train/{step}", False, group) for member in range(2)]
        write_episodes(folder / "episodes.jsonl", training)
        write_episodes(folder / "eval.jsonl", held_out)
        write_lines(folder / "metrics.jsonl", lines)
        return folder

    return made


@pytest.fixture
def collapse() -> Callable[[int], dict[str, Any]]:
    """Numbers of a run that falls into the Echo Trap: entropy goes first, the reward follows."""

    def numbers(step: int) -> dict[str, Any]:
        return {
            "policy_entropy": 1.0 if step < 20 else 0.1,
            "reward": 0.8 if step < 40 else 0.05,
            "gradient_norm": 0.5,
        }

    return numbers


@pytest.fixture
def make_policy(tmp_path: Path) -> Callable[[], Path]:
    """Write a policy of random weights, small enough for a test."""

    def made() -> Path:
        from turngym.envs.presets import load_preset
        from turngym.trainer_backends.torch_backend.new_policy import new_policy

        folder = tmp_path / "policy"
        new_policy(load_preset("compact-frozen-lake"), folder, size="tiny", vocabulary=300, length=512, episodes=5)
        return folder

    return made
