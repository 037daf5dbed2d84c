"""The supervised start: imitate episodes that went well (RFT; RLVMR's cold start).

The model, the environment's expert or a hosted teacher plays training tasks; episodes whose score passes the threshold
are kept, and the model is fine-tuned on their replies. Experts act but do not think: rules or the teacher write
thoughts into their replies.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...client.policies.base import BasePolicy, Context, Policy
from ...client.policies.expert import ExpertPolicy
from ...client.policies.replay import ReplayPolicy
from ...client.policies.uniform import RandomPolicy
from ...client.rollout import Job
from ...envs.core import stable_rng
from ...errors import InvalidRequest, from_problem
from ...records import Completion, Episode
from ..recipes import StartTable
from .batch import Sample, samples_of
from .learner import Diverged
from .lines import in_order
from .optimizer import Optimizer
from .teacher import FILE, Annotator, Teacher, Writer
from .thoughts import plan_thought, rule_thought

Play = Callable[[Policy, Sequence[Job]], AsyncIterator[Episode]]
"""Plays jobs to the end, with the prompt of every turn in the record."""


class WaveringExpert(BasePolicy):
    """The environment's expert, who now and then does something at random.

    What succeeds in spite of it is kept, so that a policy that imitates it can play, but not well.

    Args:
        noise: share of turns with a random admissible action.
    """

    def __init__(self, noise: float) -> None:
        self.name = "expert"
        self.noise = noise
        self._expert, self._random = ExpertPolicy(), RandomPolicy()

    async def act(self, context: Context) -> Completion:
        """Return an action."""
        wavers = context.admissible and context.rng(0).random() < self.noise
        return await (self._random if wavers else self._expert).act(context)


class Retelling(BasePolicy):
    """Takes an episode's actions again, with thoughts written into the replies.

    The environment itself makes the prompts then, so that they hold what the thoughts leave in them: the plan so far,
    or the conversation.

    Args:
        episodes: what was played; each course must repeat itself.
        write: writes the thoughts; the actions stay.
    """

    def __init__(self, episodes: Sequence[Episode], write: Writer) -> None:
        self.name = "expert"
        self._replay, self._write = ReplayPolicy(episodes), write

    async def act(self, context: Context) -> Completion:
        """Return the recorded action with a thought."""
        return Completion(await self._write((await self._replay.act(context)).text, context))


async def examples(
    table: StartTable, policy: Any, jobs: Sequence[Job], play: Play, out: Path, seed: int
) -> tuple[list[Episode], dict[str, float]]:
    """Play episodes and return those to imitate, with token ids, and what there is to log about them.

    Args:
        table: who plays, who writes thoughts, what is kept.
        policy: the policy that is to be trained.
        jobs: what is played.
        play: plays it.
        out: folder of the run, which holds the teacher's answers.
        seed: of the rules' randomness.

    Raises:
        InvalidRequest: no episode is good enough, or the teacher's API key is missing.
        PolicyFailed: the teacher cannot be reached, or writes nothing that can be used.
    """
    teacher = None if table.teacher is None else Teacher(table.teacher, out / FILE)
    try:
        players = {"self": policy, "expert": WaveringExpert(table.noise), "teacher": teacher}
        played = await _played(play(players[table.policy], jobs), teacher)
        episodes = kept(played, table.threshold)
        if not episodes:
            raise InvalidRequest(
                f"None of {len(jobs)} episodes scored above {table.threshold:g}.",
                hint='Lower start.threshold, play more episodes, or let the expert play: start.policy = "expert".',
            )
        metrics = {"episodes": float(len(jobs)), "kept": float(len(episodes))}
        if table.tags:
            episodes, counts = await _retold(table, episodes, jobs, play, teacher, seed)
            metrics |= counts
        elif table.policy == "expert":
            episodes = [retold(episode, plan_thought, seed) for episode in episodes]
        if teacher is not None:
            metrics |= teacher.metrics
        if table.policy != "self":
            episodes = [tokenised(episode, policy) for episode in episodes]
        return episodes, metrics
    finally:
        if teacher is not None:
            await teacher.aclose()


async def _played(episodes: AsyncIterator[Episode], teacher: Teacher | None) -> list[Episode]:
    """Return all episodes in order, unless the teacher went away."""
    done = in_order([episode async for episode in episodes])
    if teacher is not None and teacher.failure is not None:
        raise teacher.failure
    return done


async def _retold(
    table: StartTable, episodes: Sequence[Episode], jobs: Sequence[Job], play: Play, teacher: Teacher | None, seed: int
) -> tuple[list[Episode], dict[str, float]]:
    """Return an expert's episodes with thoughts that rules or the teacher wrote, and what there is to log."""

    async def by_rules(reply: str, context: Context) -> str:
        draw = random.Random(f"{seed} {context.task} {context.seed} {context.turn}")
        return rule_thought(reply, context.text, draw)

    annotator = None
    if teacher is not None and table.teacher is not None:
        annotator = Annotator(teacher, table.teacher.attempts, by_rules, jobs[0].wanted.turn)
    names = {episode.id for episode in episodes}
    again = [job for job in jobs if job.id in names]
    played = await _played(play(Retelling(episodes, annotator or by_rules), again), teacher)
    told = kept(played, table.threshold)
    if not told:
        error = next((episode.error for episode in played if episode.error), None)
        raise from_problem(error) if error else InvalidRequest("The expert's episodes took another course when retold.")
    if annotator is not None:
        annotator.check()
    lost = {"lost": float(len(episodes) - len(told))}
    return told, lost | (annotator.metrics if annotator is not None else {})


def tokenised(episode: Episode, policy: Any) -> Episode:
    """Return a played episode with the token ids that a policy's model would have read and written."""
    turns = []
    memory: dict[str, Any] = {}
    for turn in episode.turns:
        if turn.prompt is None:
            continue
        context = Context(episode.env, episode.task, episode.seed, 0, "turn", "", handle=None)  # type: ignore[arg-type]
        context.observation, context.memory = turn.prompt, memory
        prompt = policy.prompt(context)
        ids = [*policy.tokenizer.encode(turn.completion.text, add_special_tokens=False), policy.tokenizer.eos_token_id]
        memory["ids"] = [*prompt, *ids]
        memory["messages"] = [*turn.prompt, {"role": "assistant", "content": turn.completion.text}]
        completion = msgspec.structs.replace(turn.completion, prompt_ids=prompt, token_ids=ids)
        turns.append(msgspec.structs.replace(turn, completion=completion))
    return msgspec.structs.replace(episode, turns=turns)


def kept(episodes: Sequence[Episode], threshold: float) -> list[Episode]:
    """Return the episodes to imitate: finished, and with a score above the threshold."""
    return [each for each in episodes if each.status in ("terminated", "truncated") and each.score > threshold]


def fine_tune(
    model: Any, episodes: Sequence[Episode], table: StartTable, learner: Any, rows: Any, seed: int
) -> Iterator[dict[str, float]]:
    """Train on the replies of episodes, also on their prompts where the table says so; yield the replies' loss.

    Args:
        model: the policy's.
        episodes: with token ids.
        table: batch, epochs, learning rate, weight of the prompts.
        learner: computes log-probabilities.
        rows: "turn" or "trajectory".
        seed: of the order of rows.

    Raises:
        Diverged: a gradient is no finite number; the weights are as before that update.
    """
    samples = [sample for episode in episodes for sample in samples_of(episode, rows)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = Optimizer([{"params": trained, "lr": table.learning_rate}])
    steps = max(1, table.epochs * -(-len(samples) // table.batch))
    done = 0
    for epoch in range(table.epochs):
        order = stable_rng("start", seed, epoch).permutation(len(samples)).tolist()
        for place in range(0, len(order), table.batch):
            chosen = [samples[number] for number in order[place : place + table.batch]]
            # A short rise, then down to a tenth: the next step is reinforcement from here.
            rate = min(1.0, (done + 1) / max(1.0, 0.05 * steps)) * (1 - 0.9 * done / steps)
            model.train()
            optimizer.zero_grad()
            loss = _imitate(optimizer, chosen, learner, table.prompts)
            if not torch.isfinite(norm := optimizer.clip(1.0)):
                raise Diverged(
                    f"The start's gradient is {float(norm)} in update {done + 1}.", hint="Lower start.learning_rate."
                )
            optimizer.step(rate)
            done += 1
            yield {"start_loss": loss, "epoch": epoch + place / max(1, len(order)), "steps": steps}


def _imitate(optimizer: Optimizer, samples: Sequence[Sample], learner: Any, prompts: float) -> float:
    """Leave the gradient of the replies' mean loss plus ``prompts`` times the other tokens'; return the former."""
    replies, loss = sum(len(sample.places) for sample in samples), 0.0
    others = max(1, sum(len(sample.ids) - 1 for sample in samples) - replies)
    read = [replace(sample, places=list(range(1, len(sample.ids)))) for sample in samples] if prompts else samples
    for batch in learner.batches(read):
        part = [samples[number] for number in batch.rows]
        logprobs = learner.run(read, batch).logprobs_BT
        own = torch.zeros_like(logprobs, dtype=torch.bool)
        for row, sample in enumerate(part):
            own[row, [place - 1 for place in sample.places] if prompts else slice(len(sample.places))] = True
        optimizer.backward((-logprobs * torch.where(own, 1 / replies, prompts / others)).sum())
        loss -= float(logprobs.detach()[own].sum()) / replies
    return loss


def retold(episode: Episode, write: Callable[[str, str, random.Random], str], seed: int) -> Episode:
    """Return an expert's episode with thoughts written into its replies, also where later prompts repeat them.

    Unlike :class:`Retelling` it plays nothing again, and the replies may leave actions out.

    Args:
        episode: what was played, with all prompts.
        write: (reply, observation, randomness) -> the reply with a thought.
        seed: of the randomness.
    """
    turns = []
    replies: list[str] = []
    for turn in episode.turns:
        draw = random.Random(f"{seed} {episode.id} {turn.index}")
        text = write(turn.completion.text, turn.observation, draw)
        prompt = turn.prompt and _with_replies(turn.prompt, replies)
        turns.append(msgspec.structs.replace(turn, prompt=prompt, completion=Completion(text)))
        replies.append(text)
    return msgspec.structs.replace(episode, turns=turns)


def _with_replies(prompt: Sequence[Mapping[str, Any]], replies: Sequence[str]) -> list[dict[str, Any]]:
    """Return a prompt in which the assistant's messages are the newest of ``replies``."""
    count = sum(message["role"] == "assistant" for message in prompt)
    newest = iter(replies[len(replies) - count :])
    return [
        {**message, "content": next(newest)} if message["role"] == "assistant" else dict(message) for message in prompt
    ]
