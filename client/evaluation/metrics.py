"""Numbers about episodes: definitions, estimates with intervals, rows of a table.

An episode is reduced to a :class:`Summary` of numbers once, so that a run of any size is read through and never
held in memory as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import comb
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...records import Episode
from ..policies.hosted import OVERFLOW
from ..rollout import INFO
from .definitions import CONFIDENCE, RESAMPLES, Unit
from .plan import label_of

CELLS = 4_000_000  # numbers resampled at once: 32 MB


class Summary(msgspec.Struct, gc=False):
    """What counts of one episode; sums over its turns.

    Attributes:
        won_after: turns until the task was solved, 0 if it was not.
        judged: turns whose format was judged.
        told: turns whose reply tokens are known.
        info: numbers of the episode's last info, by path.
    """

    id: str
    policy: str
    env: str
    split: str
    task: str
    task_type: str
    attempt: int
    failed: bool
    won: bool
    score: float
    reward: float
    truncated: bool
    overflow: bool
    turns: int
    actions: int
    won_after: int
    invalid: int
    repetitive: int
    judged: int
    format_valid: int
    void: int
    cut: int
    told: int
    tokens: int
    prompt_told: int
    prompt_tokens: int
    seconds: float
    cost: float | None
    components: dict[str, float]
    info: dict[str, float]


class Estimate(msgspec.Struct, frozen=True):
    """A mean and its bootstrap interval."""

    mean: float
    low: float
    high: float


class Row(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The numbers of one group of episodes; see :mod:`.definitions`. None where nothing is known.

    Attributes:
        by: what the group is: all episodes of a policy in an environment, of one split, or of one task type.
    """

    by: Literal["env", "split", "task_type"]
    policy: str
    env: str
    split: str = ""
    task_type: str = ""
    tasks: int = 0
    episodes: int = 0
    failed: int = 0
    success: Estimate | None = None
    score: Estimate | None = None
    reward: Estimate | None = None
    pass_at: dict[int, float] = msgspec.field(default_factory=dict)
    turns: float | None = None
    turns_won: float | None = None
    actions: float | None = None
    tokens_turn: float | None = None
    tokens_won: float | None = None
    prompt_tokens_turn: float | None = None
    invalid: float | None = None
    repetitive: float | None = None
    format_valid: float | None = None
    void: float | None = None
    cut: float | None = None
    truncated: float | None = None
    overflow: float | None = None
    components: dict[str, float] = msgspec.field(default_factory=dict)
    info: dict[str, float] = msgspec.field(default_factory=dict)
    seconds: float | None = None
    cost: float | None = None


def summarise(episode: Episode) -> Summary:
    """Reduce an episode to its numbers."""
    turns = [turn for turn in episode.turns if turn.completion.finish_reason != OVERFLOW]
    seen: set[tuple[str, str]] = set()
    repetitive = 0
    components: dict[str, float] = defaultdict(float)
    for turn in turns:
        deed = (turn.anchor, turn.action)
        repetitive += bool(turn.action) and deed in seen
        seen.add(deed)
        for name, value in turn.rewards.items():
            components[name] += value
    replies = [turn.completion for turn in episode.turns]
    tokens = [reply.completion_tokens for reply in replies if reply.completion_tokens is not None]
    prompts = [reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None]
    costs = [reply.cost for reply in replies if reply.cost is not None]
    judged = [turn.format_valid for turn in turns if turn.format_valid is not None]
    return Summary(
        id=episode.id,
        policy=episode.policy,
        env=label_of(episode.group, episode.env),
        split=episode.split,
        task=episode.task,
        task_type=episode.task_type,
        attempt=episode.attempt,
        failed=episode.status not in ("terminated", "truncated"),
        won=episode.won,
        score=episode.score,
        reward=episode.reward,
        truncated=episode.status == "truncated",
        overflow=len(turns) < len(episode.turns),
        turns=len(turns),
        actions=sum(turn.steps for turn in turns),
        won_after=len(turns) if episode.won else 0,
        invalid=sum(not turn.action_valid or turn.format_valid is False for turn in turns),
        repetitive=repetitive,
        judged=len(judged),
        format_valid=sum(judged),
        void=sum(turn.void for turn in turns),
        cut=sum(turn.completion.finish_reason == "length" for turn in turns),
        told=len(tokens),
        tokens=sum(tokens),
        prompt_told=len(prompts),
        prompt_tokens=sum(prompts),
        seconds=episode.seconds,
        cost=sum(costs) if costs else None,
        components=dict(components),
        info={name.removeprefix(INFO): value for name, value in episode.metrics.items() if name.startswith(INFO)},
    )


def latest(summaries: Iterable[Summary]) -> list[Summary]:
    """Return one summary an episode, in the order of first appearance; a repeated episode's last record counts."""
    return list({summary.id: summary for summary in summaries}.values())


def pass_at_k(attempts: int, won: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of ``k`` attempts wins, from ``won`` of ``attempts``.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1.
    """
    return 1.0 - comb(attempts - won, k) / comb(attempts, k)


def bootstrap(values_KM: NDArray[np.float64], *, seed: int = 0) -> list[Estimate]:
    """Return the mean of each column with its percentile interval.

    Args:
        values_KM: one row a task, one column a number (tasks, numbers).
        seed: seed of the resampling.
    """
    tasks = len(values_KM)
    rng = np.random.default_rng(seed)
    batch = max(1, min(RESAMPLES, CELLS // (tasks * values_KM.shape[1])))
    means = []
    for start in range(0, RESAMPLES, batch):
        rows = rng.integers(tasks, size=(min(batch, RESAMPLES - start), tasks))
        means.append(values_KM[rows].mean(axis=1))
    tail = (1 - CONFIDENCE) / 2
    low_M, high_M = np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0)
    mean_M = values_KM.mean(axis=0)
    return [Estimate(float(m), float(lo), float(hi)) for m, lo, hi in zip(mean_M, low_M, high_M, strict=True)]


def rows(summaries: Sequence[Summary]) -> list[Row]:
    """Return the table: per policy and environment; per split; and, where tasks are of several types, per type."""
    groups: dict[tuple[Any, ...], list[Summary]] = defaultdict(list)
    for summary in summaries:
        groups["env", summary.policy, summary.env, "", ""].append(summary)
        groups["split", summary.policy, summary.env, summary.split, ""].append(summary)
        if summary.task_type:
            groups["task_type", summary.policy, summary.env, summary.split, summary.task_type].append(summary)
    order = {"env": 0, "split": 1, "task_type": 2}
    keys = sorted(groups, key=lambda key: order[key[0]])
    return [
        measure(groups[key], Row(by=key[0], policy=key[1], env=key[2], split=key[3], task_type=key[4])) for key in keys
    ]


def measure(group: Sequence[Summary], row: Row | None = None, *, resample: bool = True) -> Row:
    """Fill in the numbers of a group of episodes.

    Args:
        group: the episodes.
        row: the row to fill in; a new one by default.
        resample: bootstrap the intervals; without, they have no width.
    """
    done = [summary for summary in group if not summary.failed]
    row = Row(by="env", policy="", env="") if row is None else row
    row.episodes, row.failed = len(done), len(group) - len(done)
    if not done:
        return row
    by_task: dict[str, list[Summary]] = defaultdict(list)
    for summary in done:
        by_task[summary.task].append(summary)
    row.tasks = len(by_task)
    values_KM = np.array(
        [
            [np.mean([s.won for s in own]), np.mean([s.score for s in own]), np.mean([s.reward for s in own])]
            for own in by_task.values()
        ]
    )
    estimates = bootstrap(values_KM) if resample else [Estimate(*[float(m)] * 3) for m in values_KM.mean(axis=0)]
    row.success, row.score, row.reward = estimates
    row.pass_at = _pass_at([(len(own), sum(s.won for s in own)) for own in by_task.values()])
    won = [summary for summary in done if summary.won]
    told = [summary.tokens for summary in won if summary.told == summary.turns]
    total = _summer(done)
    turns = total("turns")
    row.turns = turns / len(done)
    row.turns_won = _ratio(sum(summary.turns for summary in won), len(won))
    row.actions = total("actions") / len(done)
    row.tokens_turn = _ratio(total("tokens"), total("told"))
    row.tokens_won = _ratio(sum(told), len(told)) if total("told") else None
    row.prompt_tokens_turn = _ratio(total("prompt_tokens"), total("prompt_told"))
    row.invalid = _ratio(total("invalid"), turns)
    row.repetitive = _ratio(total("repetitive"), turns)
    row.format_valid = _ratio(total("format_valid"), total("judged"))
    row.void = _ratio(total("void"), turns) if total("judged") else None
    row.cut = _ratio(total("cut"), turns) if total("told") else None
    row.truncated = total("truncated") / len(done)
    row.overflow = total("overflow") / len(done)
    names = sorted({name for summary in done for name in summary.components}, key=lambda name: (name != "env", name))
    row.components = {name: sum(s.components.get(name, 0.0) for s in done) / len(done) for name in names}
    told_by: dict[str, list[float]] = defaultdict(list)
    for summary in done:
        for name, value in summary.info.items():
            told_by[name].append(value)
    row.info = {name: sum(values) / len(values) for name, values in sorted(told_by.items())}
    row.seconds = total("seconds") / len(done)
    costs = [summary.cost for summary in done if summary.cost is not None]
    row.cost = sum(costs) if costs else None
    return row


def _summer(done: list[Summary]) -> Callable[[str], float]:
    return lambda name: float(sum(getattr(summary, name) for summary in done))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _pass_at(counts: list[tuple[int, int]]) -> dict[int, float]:
    """Return pass@k for each k up to the most attempts that any task has; counts are (attempts, won) per task."""
    result = {}
    for k in range(1, max(attempts for attempts, _ in counts) + 1):
        enough = [pass_at_k(attempts, won, k) for attempts, won in counts if attempts >= k]
        result[k] = float(np.mean(enough))
    return result


def show(value: float | Estimate | None, unit: Unit = "number") -> str:
    """Return a number as people read it; "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, Estimate):
        return show(value.mean, unit)
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "money":
        return f"{value:.4f}" if value < 1 else f"{value:.2f}"
    if unit == "seconds" and value < 0.1:
        return f"{1000 * value:.1f} ms"
    if unit == "seconds":
        return f"{value:.1f} s"
    if unit == "count" or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
