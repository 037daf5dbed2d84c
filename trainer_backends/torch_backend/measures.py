"""What a training step notes: numbers of its episodes and its advantages, and where its time went."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from ...client.evaluation.metrics import measure, summarise
from ...records import Episode
from ..algorithms.diagnosis.echo_trap import repetition
from ..algorithms.rows import Rows
from ..backend import Grown

Metrics = dict[str, float]


def peak_memory_mb() -> float:
    """Return the most memory that this process has held, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, KiB elsewhere


def memory(device: torch.device) -> Metrics:
    """Return the most memory that this process has held, on the GPU too where it has one, MiB."""
    metrics = {"peak_memory_mb": peak_memory_mb()}
    if device.type == "cuda":
        metrics["device_memory_mb"] = torch.cuda.max_memory_allocated(device) / (1 << 20)
    return metrics


def sampled_tokens(episodes: Sequence[Episode]) -> int:
    """Return how many tokens were sampled for some episodes, those of discarded turns included."""
    completions = [turn.completion for episode in episodes for turn in episode.turns]
    return sum(len(each.token_ids or ()) + each.info.get("discarded_tokens", 0) for each in completions)


def measures(episodes: Sequence[Episode]) -> Metrics:
    """Return the numbers of some episodes that a run notes, by name; see ``docs/training.md``."""
    row = measure([summarise(episode) for episode in episodes], resample=False)
    # What failed says nothing about the policy.
    ended = [episode for episode in episodes if episode.status in ("terminated", "truncated")] or episodes
    turns = [turn for episode in episodes for turn in episode.turns]
    completions = [turn.completion for turn in turns]
    rewards: dict[str, list[float]] = {}
    for episode in ended:
        rewards.setdefault(episode.group, []).append(episode.reward)
    stds = [float(np.std(each, ddof=1)) for each in rewards.values() if len(each) > 1]
    tokens = [completion.completion_tokens or 0 for completion in completions]
    thrown = [completion.info.get("discarded", 0) for completion in completions]
    forced = [completion for completion in completions if completion.forced]
    metrics = {
        "episodes": float(len(episodes)),
        "failed": float(sum(episode.status == "failed" for episode in episodes)),
        "success": row.success.mean if row.success is not None else 0.0,
        "reward": float(np.mean([episode.reward for episode in ended])),
        "score": float(np.mean([episode.score for episode in ended])),
        "reward_std": float(np.mean(stds)) if stds else 0.0,
        "turns": float(np.mean([len(episode.turns) for episode in ended])),
        "response_tokens": float(np.mean(tokens)) if tokens else 0.0,
        "invalid": float(np.mean([not turn.action_valid for turn in turns])) if turns else 0.0,
        "malformed": float(np.mean([turn.format_valid is False for turn in turns])) if turns else 0.0,
        "repetitive": float(row.repetitive or 0.0),
        "repetition": repetition([each.token_ids for each in completions if each.token_ids]),
        "sampling_entropy": float(np.mean([h for each in completions for h in each.entropies or ()] or [0.0])),
        "interventions": float(len(forced)) / max(1, len(completions)),
        "discarded": float(sum(thrown)) / max(1, len(completions) + sum(thrown)),
    }
    won = [episode for episode in episodes if episode.won]
    if won:
        spent = [sum(turn.completion.completion_tokens or 0 for turn in episode.turns) for episode in won]
        metrics["tokens_won"] = float(np.mean(spent))
        metrics["turns_won"] = float(np.mean([len(episode.turns) for episode in won]))
    return metrics


def tree_measures(trees: Sequence[Grown]) -> Metrics:
    """Return the numbers of a step's trees, means over trees: their turns, ended episodes and forked states.

    ``tree_shared`` is the share of the tokens in the leaves' episodes that was not sampled for each anew.
    """
    if not trees:
        return {}
    forks, sampled, told = 0, 0, 0
    for grown in trees:
        nodes = grown.plan.tree.nodes
        forks += sum(len(node.children) > 1 for node in nodes[1:])
        turns = {id(turn): turn for episode in grown.episodes for turn in episode.turns}
        sampled += sum(turn.completion.completion_tokens or 0 for turn in turns.values())
        told += sum(turn.completion.completion_tokens or 0 for episode in grown.episodes for turn in episode.turns)
    return {
        "tree_turns": float(np.mean([len(grown.plan.tree.nodes) - 1 for grown in trees])),
        "tree_leaves": float(np.mean([len(grown.leaves) for grown in trees])),
        "tree_forks": forks / len(trees),
        "tree_shared": 1 - sampled / max(1, told),
    }


def spread(rows: Rows, advantages: torch.Tensor) -> Metrics:
    """Return how advantages and entropies lie over the trained tokens."""
    mask = rows.loss_mask_BT.bool()
    taken = advantages[mask]
    if not taken.numel():
        return {}
    return {
        "advantage_mean": float(taken.mean()),
        "advantage_std": float(taken.std()) if taken.numel() > 1 else 0.0,
        "advantage_zero": float((taken == 0).float().mean()),
        "policy_entropy": float(rows.need("entropies_BT", "trainer")[mask].mean()),
        "trained_tokens": float(mask.sum()),
    }


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: Metrics = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to ``name``."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now
