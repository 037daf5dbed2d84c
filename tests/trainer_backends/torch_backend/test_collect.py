"""Trees of turns: nothing that a branch needs is lost on the way down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec

from turngym.client.policies import Context
from turngym.records import Completion, read_episodes
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend.trainer import Trainer


def test_a_turn_control_follows_every_branch(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    recipe = msgspec.convert(
        {
            "env": {"preset": str(preset_file)},
            "model": {"path": str(policy_folder)},
            "rollout": {"id": "entropy-tree", "chains": 3, "rounds": 1, "picks": 2},
            "sampling": {"tasks": 1, "max_tokens": 8, "slots": 8},
            "signal": {"id": "paper"},
            "turn_control": {"id": "tds", "eta": 10.0, "max_generations": 2},
            "credit": {"id": "turn-tree"},
            "loss": {"id": "atpo"},
            "run": {"steps": 1, "eval_tasks": 1, "eval_every": 0},
        },
        Recipe,
    )
    asyncio.run(Trainer(recipe, tmp_path / "run").train())
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    # Three chains and what grew from two nodes; a branch that failed would have ended after its first turn.
    assert len(episodes) == 5
    assert all(episode.status in ("terminated", "truncated") for episode in episodes)
    assert max(len(episode.turns) for episode in episodes) > 1
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (step,) = [entry for entry in entries if entry["kind"] == "train"]
    # From the second turn of a branch on the control has a turn to compare with.
    assert step["discarded"] > 0
    later = [turn.completion for each in episodes for turn in each.turns[1:]]
    assert any(completion.info.get("discarded") for completion in later)
    assert not any(each.turns[0].completion.info.get("discarded") for each in episodes)


def test_a_branch_that_fails_is_counted(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = msgspec.convert(
        {
            "env": {"preset": str(preset_file)},
            "model": {"path": str(policy_folder)},
            "rollout": {"id": "entropy-tree", "chains": 3, "rounds": 0},
            "sampling": {"tasks": 1, "max_tokens": 8, "slots": 8},
            "credit": {"id": "turn-tree"},
            "loss": {"id": "atpo"},
            "run": {"steps": 1, "eval_tasks": 1, "eval_every": 0},
        },
        Recipe,
    )
    trainer = Trainer(recipe, tmp_path / "run")
    act, calls = trainer.policy.act, 0

    async def failing(context: Context) -> Completion:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("broken on request")
        return await act(context)

    monkeypatch.setattr(trainer.policy, "act", failing)
    asyncio.run(trainer.train())
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert sorted(episode.status == "failed" for episode in episodes) == [False, False, True]
    (failed,) = [episode for episode in episodes if episode.status == "failed"]
    assert "broken on request" in (failed.error or {})["detail"]
