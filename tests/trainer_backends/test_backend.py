"""The backend in this process, driven through the protocol alone, and what other engines need of an experience."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec
import numpy as np
import torch

from turngym.client.policies import BasePolicy, Context
from turngym.client.rollout import Job, rollout
from turngym.client.sources import Wanted
from turngym.envs.presets import EnvPreset
from turngym.errors import InvalidRequest
from turngym.records import Completion, Episode
from turngym.trainer_backends.backend import Experience, TrainerBackend
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend.new_policy import new_policy
from turngym.trainer_backends.torch_backend.trainer import Trainer

PRESET = EnvPreset(
    "frozen-lake",
    config={"size": 4},
    turn={"style": "think-action", "max_turns": 3, "prompt": {"first": "{observation}", "later": "{observation}"}},
)


class BackendPolicy(BasePolicy):
    """Plays with whatever backend there is."""

    name = "backend"

    def __init__(self, backend: TrainerBackend, tokenizer: Any) -> None:
        self.backend = backend
        self.tokenizer = tokenizer

    async def act(self, context: Context) -> Completion:
        text = self.tokenizer.apply_chat_template(context.messages, tokenize=False, add_generation_prompt=True)
        return await self.backend.generate(self.tokenizer.encode(text, add_special_tokens=False), context.rng(0))


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    torch.set_num_threads(1)
    new_policy(PRESET, tmp_path / "policy", size="tiny", vocabulary=300, length=128, episodes=4)
    preset = tmp_path / "lake.toml"
    preset.write_text('env = "frozen-lake"\n[turn]\nmax_turns = 3\n')
    recipe = msgspec.convert(
        {
            "env": {"preset": str(preset)},
            "model": {"path": str(tmp_path / "policy")},
            "sampling": {"max_tokens": 8, "slots": 8},
            "credit": {"id": "grpo"},
            "entropy": {"coefficient": 0.1},
            "update": {"learning_rate": 1e-3},
        },
        Recipe,
    )
    return Trainer(recipe, tmp_path / "run")


def play(backend: TrainerBackend, tokenizer: Any) -> Experience:
    wanted = Wanted(PRESET.env, PRESET.config, "turn", PRESET.turn)
    jobs = [
        Job(f"s{backend.policy_version}.g{group}.{member}", wanted, f"train/{group}", member, member, group=f"g{group}")
        for group in range(2)
        for member in range(2)
    ]

    async def played() -> list[Episode]:
        return [episode async for episode in rollout(BackendPolicy(backend, tokenizer), jobs)]

    return Experience(sorted(asyncio.run(played()), key=lambda episode: episode.id))


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_backend_learns_saves_and_goes_back(trainer: Trainer) -> None:
    backend: TrainerBackend = trainer
    assert backend.policy_version == 0
    first = backend.update(play(backend, trainer.tokenizer))
    assert first["updates"] == 1
    assert first["update_seconds"] > 0
    assert backend.policy_version == 1
    saved, there = backend.save(), weights(trainer)
    second = play(backend, trainer.tokenizer)
    assert {turn.completion.policy_version for episode in second.episodes for turn in episode.turns} == {1}
    backend.update(second)
    after = weights(trainer)
    assert not same(there, after)
    backend.load(saved)
    assert backend.policy_version == 1
    assert same(there, weights(trainer))
    # From there on everything comes as it came.
    again = play(backend, trainer.tokenizer)
    assert [each.turns[0].completion.token_ids for each in again.episodes] == [
        each.turns[0].completion.token_ids for each in second.episodes
    ]
    backend.update(again)
    assert same(after, weights(trainer))


def test_an_experience_holds_what_engines_with_a_loop_of_their_own_take(trainer: Trainer) -> None:
    episodes = play(trainer, trainer.tokenizer).episodes
    # verl: one output a turn, tokens and mask, and in extra fields what groups and turns are told by.
    for episode in episodes:
        assert episode.group
        for turn in episode.turns:
            completion = turn.completion
            tokens = completion.token_ids or []
            assert completion.prompt_ids
            assert len(completion.logprobs or []) == len(completion.entropies or []) == len(tokens) > 0
            assert set(turn.rewards) and sum(turn.rewards.values()) == pytest.approx(turn.reward)
    # TRL: one row a prompt, its tokens the first turn's prompt and all that follows; a style that grows is needed.
    from turngym.trainer_backends.torch_backend.batch import samples_of

    longer = next(episode for episode in episodes if len(episode.turns) > 1)
    with pytest.raises(InvalidRequest, match="does not go on"):
        list(samples_of(longer, "trajectory"))
    growing = [msgspec.structs.replace(episode, turns=episode.turns[:1]) for episode in episodes]
    for episode in growing:
        (row,) = samples_of(episode, "trajectory")
        prompt = episode.turns[0].completion.prompt_ids or []
        drawn = np.isin(np.arange(len(row.ids)), row.places)
        assert row.ids[: len(prompt)] == prompt
        assert drawn[len(prompt) :].all() and len(row.logprobs) == drawn.sum()
