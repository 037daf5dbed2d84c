"""From episodes to training rows: exact tokens, masks, turns and rewards.

A row's tensors hold the *sampled* tokens only, in order (T of them at most); prompts and observations stay in ``ids``,
which the model reads. Nothing is tokenised again: prompt and reply are the ids that the engine was given and drew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidRequest
from ...records import Episode, Turn
from ..algorithms.rows import Rows, number
from .packing import Pack, lay_out

META = "meta-reasoning"
"""The reward component that belongs to the tag and not to the outcome (RLVMR)."""
PENALTY = "-penalty"
"""Components whose names end so are lost by a turn for itself alone (T2PO's format penalty)."""

WIDE, ENOUGH = 0.8, 1024
"""A batch of ``ENOUGH`` tokens takes none that is narrower than ``WIDE`` times its widest."""


@dataclass
class Sample:
    """One training row.

    Attributes:
        ids: tokens as the model reads them.
        places: where in ``ids`` the sampled tokens stand; at least 1.
        trained: whether each of them is trained; forced tokens are not.
        turns: turn of each.
        logprobs: as the engine recorded them.
        entropies: as the engine recorded them; empty where it did not.
        rewards: of each.
        episode: the episode it comes from.
        turn: place in the episode of a turn row; 0 for a row of a whole trajectory.
        nodes: node of each token over the trees of a batch; empty without trees.
        weight: how often its tokens count where a row stands for a shared prefix, else None.
        leaf: whether such a row ends an episode.
    """

    ids: list[int]
    places: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    episode: Episode = field(default_factory=lambda: Episode("", "", "", 0))
    turn: int = 0
    nodes: list[int] = field(default_factory=list)
    weight: float | None = None
    leaf: bool = False


def samples_of(episode: Episode, rows: Literal["turn", "trajectory"]) -> Iterator[Sample]:
    """Yield the training rows of an episode; an episode without tokens (a scripted policy's) has none.

    Raises:
        InvalidRequest: a whole trajectory is wanted, but its prompts do not continue one another.
    """
    if rows == "turn":
        for turn in episode.turns:
            if turn.completion.token_ids:
                sample = _extended(Sample(ids=[], episode=episode, turn=turn.index), turn)
                _reward_turn_row(sample, episode, turn)
                yield sample
        return
    sample = Sample(ids=[], episode=episode)
    for turn in episode.turns:
        if turn.completion.token_ids:
            _extended(sample, turn)
            sample.rewards[-1] += turn.reward
    if sample.places:
        yield sample


def _extended(sample: Sample, turn: Turn) -> Sample:
    completion = turn.completion
    prompt, tokens = completion.prompt_ids or [], completion.token_ids or []
    if sample.ids != prompt[: len(sample.ids)]:
        raise InvalidRequest(
            f"Turn {turn.index} of episode {sample.episode.id} does not go on from the turn before.",
            hint='Whole trajectories need a prompt style that grows ("chat"); else set sampling.rows = "turn".',
        )
    sample.ids = [*prompt, *tokens]
    sample.places += range(len(prompt), len(sample.ids))
    sample.trained += [not forced for forced in completion.forced or [False] * len(tokens)]
    sample.turns += [turn.index] * len(tokens)
    sample.logprobs += completion.logprobs or [0.0] * len(tokens)
    sample.entropies += completion.entropies or []
    sample.rewards += [0.0] * len(tokens)
    return sample


def parts_of(rewards: Mapping[str, float]) -> tuple[float, float, float]:
    """Return what a turn earned for the task, lost for itself (positive), and earned for its tag."""
    meta = rewards.get(META, 0.0)
    lost = -sum(value for name, value in rewards.items() if name.endswith(PENALTY))
    return sum(rewards.values()) - meta + lost, lost, meta


def _reward_turn_row(sample: Sample, episode: Episode, turn: Turn) -> None:
    """Give a turn row the episode's outcome, less what this very turn lost (GiGPO, RLVMR)."""
    outcome = sum(parts_of(each.rewards)[0] for each in episode.turns)
    sample.rewards[-1] = outcome - parts_of(turn.rewards)[1]


def rows_of(samples: Sequence[Sample]) -> Rows:
    """Return the tensors of some rows, on the CPU."""
    width = max(len(sample.places) for sample in samples)

    def padded(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*each, *[fill] * (width - len(each))] for each in values], dtype=dtype)

    earned = [_turn_parts(sample) for sample in samples]
    floats = torch.float32
    recorded = all(len(sample.entropies) == len(sample.places) for sample in samples)
    return Rows(
        loss_mask_BT=padded([sample.trained for sample in samples], 0, torch.bool),
        token_rewards_BT=padded([sample.rewards for sample in samples], 0.0, floats),
        group_B=number([sample.episode.group or (sample.episode.env, sample.episode.task) for sample in samples]),
        trajectory_B=number([sample.episode.id for sample in samples]),
        turn_B=torch.tensor([sample.turn for sample in samples]),
        turn_ids_BT=padded([sample.turns for sample in samples], -1, torch.long),
        step_reward_B=torch.tensor([each[0] for each in earned], dtype=floats),
        step_penalty_B=torch.tensor([each[1] for each in earned], dtype=floats),
        environment_B=number([sample.episode.env for sample in samples]),
        anchors=[_turn(sample).anchor for sample in samples],
        tags=[_turn(sample).tag or "none" for sample in samples],
        meta_reward_B=torch.tensor([each[2] for each in earned], dtype=floats),
        rollout_logprobs_BT=padded([sample.logprobs for sample in samples], 0.0, floats),
        entropies_BT=padded([sample.entropies for sample in samples], 0.0, floats) if recorded else None,
        token_weights_BT=_weights(samples, width),
    )


def _turn(sample: Sample) -> Turn:
    return sample.episode.turns[sample.turn]


def _turn_parts(sample: Sample) -> tuple[float, float, float]:
    return parts_of(_turn(sample).rewards)


def _weights(samples: Sequence[Sample], width: int) -> Tensor | None:
    weights = [sample.weight for sample in samples if sample.weight is not None]
    return torch.tensor(weights).unsqueeze(-1).expand(-1, width).contiguous() if weights else None


class MicroBatch(NamedTuple):
    """Rows that are computed together.

    Attributes:
        rows: their numbers.
        packs: how they are laid out.
    """

    rows: list[int]
    packs: list[Pack]


def micro_batches(samples: Sequence[Sample], tokens: int, ratio: float = 0.0) -> Iterator[MicroBatch]:
    """Yield the rows in batches of at most ``tokens``, padding included, long ones first.

    Args:
        samples: the rows.
        tokens: a row that has more is alone.
        ratio: of costs, where rows may share what they begin with, see ``packing.lay_out``; else 0.
    """
    batch: list[Pack] = []
    for pack in sorted(lay_out([sample.ids for sample in samples], ratio, tokens), key=lambda pack: -pack.size):
        width = batch[0].size if batch else 0
        full = (len(batch) + 1) * width > tokens
        # A batch of some size does without padding rather than with more rows.
        if batch and (full or (pack.size < WIDE * width and len(batch) * width >= ENOUGH)):
            yield _micro_batch(batch)
            batch = []
        batch.append(pack)
    if batch:
        yield _micro_batch(batch)


def _micro_batch(packs: list[Pack]) -> MicroBatch:
    return MicroBatch([row for pack in packs for row in pack.rows], packs)
