"""The figures of a run: which numbers are drawn together, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...client.evaluation import charts
from .folder import SECONDS, Run
from .units import Unit, brief


class Figure(NamedTuple):
    """One figure of a report.

    Attributes:
        title: heading.
        text: what it shows.
        lines: number of a training step or an evaluation -> its name in the legend.
        unit: how it reads.
        optional: left out where it is 0 throughout.
    """

    title: str
    text: str
    lines: Mapping[str, str]
    unit: Unit = "number"
    optional: bool = False


FIGURES = (
    Figure(
        "Success",
        "Share of episodes that solved their task.",
        {"eval_success": "held-out", "success": "training"},
        "share",
    ),
    Figure("Reward", "Mean per episode.", {"eval_reward": "held-out", "reward": "training"}),
    Figure(
        "Reward std within groups",
        "Deviation of the episodes' rewards within a group, mean over groups; at 0 groups teach nothing.",
        {"reward_std": "training"},
    ),
    Figure(
        "Entropy",
        "Of the distributions that tokens are drawn from, nats.",
        {
            "policy_entropy": "before the update",
            "entropy": "during the update",
            "sampling_entropy": "as sampled",
            "eval_sampling_entropy": "held-out",
        },
    ),
    Figure("Gradient norm", "Before it is clipped, mean over the step's updates.", {"gradient_norm": "gradient"}),
    Figure(
        "Response length",
        "Tokens of a reply.",
        {"eval_response_tokens": "held-out", "response_tokens": "training"},
    ),
    Figure(
        "Invalid actions",
        "Share of turns whose action the environment did not take.",
        {"eval_invalid": "held-out", "invalid": "training"},
        "share",
    ),
    Figure(
        "Malformed replies",
        "Share of turns whose reply broke the tag grammar.",
        {"eval_malformed": "held-out", "malformed": "training"},
        "share",
    ),
    Figure(
        "Repeated actions",
        "Share of turns that repeat an action in a state where it was taken before.",
        {"eval_repetitive": "held-out", "repetitive": "training"},
        "share",
    ),
    Figure(
        "Repetition in replies",
        "Share of the replies' 4-grams that occurred before in the step: templates.",
        {"repetition": "training"},
        "share",
        optional=True,
    ),
    Figure(
        "Tokens per successful trajectory",
        "Sampled tokens of an episode that solved its task (T2PO, fig. 5b).",
        {"eval_tokens_won": "held-out", "tokens_won": "training"},
    ),
    Figure(
        "Turns per success",
        "Turns of an episode that solved its task (T2PO, fig. 5c).",
        {"eval_turns_won": "held-out", "turns_won": "training"},
    ),
    Figure(
        "Successes per 1,000 tokens",
        "Solved episodes for every 1,000 sampled tokens, discarded ones included (T2PO, fig. 5b, line).",
        {"won_per_1k_tokens": "training"},
    ),
    Figure("Turns", "Of an episode, solved or not.", {"eval_turns": "held-out", "turns": "training"}),
    Figure(
        "Thinking ended (TTI)",
        "Share of turns whose thinking the token control ended.",
        {"interventions": "training"},
        "share",
        optional=True,
    ),
    Figure(
        "Turns sampled again (TDS)",
        "Share of generated turns that the turn control discarded.",
        {"discarded": "training"},
        "share",
        optional=True,
    ),
    Figure(
        "Turn trees",
        "Of a task: sampled turns, ended episodes, states in which several turns were sampled (the root aside).",
        {"tree_turns": "turns", "tree_leaves": "leaves", "tree_forks": "forks"},
        "count",
        optional=True,
    ),
    Figure(
        "Shared tokens",
        "Share of the tokens in the leaves' episodes that was not sampled anew for each.",
        {"tree_shared": "training"},
        "share",
        optional=True,
    ),
    Figure(
        "Distance between policies",
        "KL to the reference where there is one, and from the policy that sampled (k3 estimate).",
        {"kl": "to the reference", "approx_kl": "from the sampling policy"},
        optional=True,
    ),
    Figure(
        "Staleness",
        "Updates that a step's rows take: how far the policy moves while they are learnt from (T2PO, eq. 14).",
        {"staleness_lag": "lag"},
    ),
    Figure(
        "Clipped tokens",
        "Share of tokens whose ratio was clipped.",
        {"clip_fraction": "training"},
        "share",
        optional=True,
    ),
    Figure(
        "Tokens without advantage",
        "Share of trained tokens whose advantage is exactly 0.",
        {"advantage_zero": "training"},
        "share",
    ),
    Figure("Advantages", "Of trained tokens.", {"advantage_std": "deviation", "advantage_mean": "mean"}),
    Figure("Episodes kept", "Share that the filters let through.", {"kept_share": "training"}, "share", optional=True),
    Figure("Policy loss", "Mean over the step's updates.", {"policy_loss": "policy"}),
    Figure("Value loss", "Of the critic.", {"value_loss": "critic"}),
    Figure("Learning rate", "Of the last update.", {"learning_rate": "rate"}),
    Figure(
        "Failed episodes",
        "Episodes of a step that could not be finished.",
        {"failed": "training"},
        "count",
        optional=True,
    ),
    Figure(
        "Tokens of a step",
        "Sampled, discarded ones included; read as prompts; trained.",
        {"sampled_tokens": "sampled", "prompt_tokens": "prompts", "trained_tokens": "trained"},
        "count",
    ),
    Figure("Sampled tokens a second", "While episodes are played.", {"tokens_per_second": "rollout"}, "count"),
    Figure(
        "Time of a step",
        "Seconds of each part: rollout, of it generation, old log-probabilities, credit, updates.",
        {name: name.removesuffix("_seconds") for name in (*SECONDS, "generation_seconds")},
        "seconds",
    ),
    Figure(
        "Memory",
        "Greatest memory so far, MiB: resident in the process, and of its tensors on the GPU.",
        {"peak_memory_mb": "process", "device_memory_mb": "GPU"},
        "count",
    ),
)
UNITS: Mapping[str, Unit] = {name: figure.unit for figure in FIGURES for name in figure.lines}
"""Number -> how it reads, of those that have a figure."""
# Beside a run's other numbers these say nothing of their own.
_UNDRAWN = {"seconds", "episodes", "score", "updates", "trained_rows", "staleness_ratio"}
INTERVALS = {"eval_success": ("eval_success_low", "eval_success_high")}
"""Number -> the ends of its 95 % interval."""


def figures_of(runs: Sequence[Run], names: Sequence[str] = ()) -> Iterator[Figure]:
    """Yield the figures that these runs have numbers for; every number without a figure gets its own at the end.

    Args:
        runs: the runs.
        names: only these numbers; all by default.
    """
    there = list(dict.fromkeys(name for run in runs for name in run.names if not names or name in names))
    for figure in FIGURES:
        lines = {name: label for name, label in figure.lines.items() if name in there}
        if lines and (names or not figure.optional or any(says(runs, name) for name in lines)):
            yield figure._replace(lines=lines)
    known = {*UNITS, *_UNDRAWN, *(name for both in INTERVALS.values() for name in both)}
    for name in there:
        own = name not in known and name.removeprefix("eval_") not in known and says(runs, name)
        if own or (name in names and name not in UNITS):
            yield Figure(name.replace("_", " ").capitalize(), "", {name: name})


def says(runs: Iterable[Run], name: str) -> bool:
    """Return whether a number was ever anything but 0 and the noise of rounding."""
    return any(not abs(value) < 1e-6 for run in runs for _, value in run.points(name))


def draw(lines: Sequence[charts.Curve], unit: Unit, x: str = "step", marks: Sequence[tuple[float, str]] = ()) -> str:
    """Return the chart of some lines."""
    return charts.curves(lines, x, lambda value: brief(value, unit), marks=marks, share=unit == "share")
