"""The supervised start: imitate episodes that went well (RFT; RLVMR's cold start).

The model, or the environment's expert, plays training tasks; episodes whose score passes the threshold are kept, and
the model is fine-tuned on their replies. Experts act but do not think: a *writer* gives their replies thoughts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ...client.policies.base import BasePolicy, Context
from ...client.policies.expert import ExpertPolicy
from ...client.policies.uniform import RandomPolicy
from ...envs.core import stable_rng
from ...records import Completion, Episode
from ..recipes import StartTable
from .batch import Sample, micro_batches, samples_of
from .thoughts import plan_thought, tag_thought

Writer = Callable[[str, str, random.Random], str]
"""(expert's reply, observation, randomness) -> the reply with a thought."""


WRITERS: Mapping[str, Writer] = {"": plan_thought, "rules": tag_thought}
"""Annotators by the name that a recipe's ``start.tags`` gives."""


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
    """Train on the replies of episodes; yield the loss of every step.

    Args:
        model: the policy's.
        episodes: with token ids.
        table: batch, epochs, learning rate.
        learner: computes log-probabilities.
        rows: "turn" or "trajectory".
        seed: of the order of rows.
    """
    samples = [sample for episode in episodes for sample in samples_of(episode, rows)]
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=table.learning_rate,
        weight_decay=0.0,
    )
    steps = max(1, table.epochs * -(-len(samples) // table.batch))
    done = 0
    for epoch in range(table.epochs):
        order = stable_rng("start", seed, epoch).permutation(len(samples)).tolist()
        for place in range(0, len(order), table.batch):
            chosen = [samples[number] for number in order[place : place + table.batch]]
            # A short rise, then down to a tenth: the next step is reinforcement from here.
            rate = min(1.0, (done + 1) / max(1.0, 0.05 * steps)) * (1 - 0.9 * done / steps)
            for group in optimizer.param_groups:
                group["lr"] = table.learning_rate * rate
            loss = _imitate(model, chosen, learner)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            yield {"start_loss": loss, "epoch": epoch + place / max(1, len(order)), "steps": steps}


def _imitate(model: Any, samples: Sequence[Sample], learner: Any) -> float:
    model.train()
    model.zero_grad(set_to_none=True)
    total, loss = sum(len(sample.places) for sample in samples), 0.0
    for batch in micro_batches(samples, learner.recipe.update.micro_tokens):
        part = [samples[number] for number in batch]
        logprobs = learner.run(part).logprobs_BT
        piece = -logprobs.sum() / total
        piece.backward()
        loss += float(piece.detach())
    return loss


def retold(episode: Episode, write: Writer, seed: int) -> Episode:
    """Return an expert's episode with thoughts written into its replies, also where later prompts repeat them."""
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
