"""What each number of an evaluation means; shown beside the tables and in the report."""

from __future__ import annotations

from typing import Literal, NamedTuple

Unit = Literal["count", "share", "number", "seconds", "money"]
RESAMPLES = 2000
CONFIDENCE = 0.95


class Definition(NamedTuple):
    """What a number means.

    Attributes:
        label: heading in tables.
        unit: how to print it.
        text: the definition.
        good: whether more is better (1), worse (-1) or neither (0).
    """

    label: str
    unit: Unit
    text: str
    good: int = 0


DEFINITIONS: dict[str, Definition] = {
    "tasks": Definition(
        "tasks",
        "count",
        "Tasks with at least one finished episode.",
    ),
    "episodes": Definition(
        "episodes",
        "count",
        "Finished episodes: terminated or truncated. All other numbers are about these.",
    ),
    "failed": Definition(
        "failed",
        "count",
        "Episodes that could not be finished because the policy or the environment failed. They count in "
        "no other number and are played again when the run is resumed.",
    ),
    "success": Definition(
        "success",
        "share",
        "Share of episodes that solved their task: the mean over tasks of the mean over attempts.",
        1,
    ),
    "score": Definition(
        "score",
        "number",
        "Task score in [0, 1], where the environment has one finer than success; mean over tasks of the "
        "mean over attempts.",
        1,
    ),
    "reward": Definition(
        "reward",
        "number",
        "Sum of an episode's rewards, reward hooks included; mean over tasks of the mean over attempts.",
        1,
    ),
    "pass_at": Definition(
        "pass@k",
        "share",
        "Probability that at least one of k attempts solves the task: the mean over tasks of 1 − C(n−c, "
        "k)/C(n, k), for c solved of n attempts. Tasks with fewer than k finished attempts are left out.",
        1,
    ),
    "turns": Definition(
        "turns",
        "number",
        "Turns (prompt and reply) per episode.",
    ),
    "turns_won": Definition(
        "turns if won",
        "number",
        "Turns per episode that solved its task.",
        -1,
    ),
    "actions": Definition(
        "actions",
        "number",
        "Environment actions per episode; a turn may hold several.",
    ),
    "tokens_turn": Definition(
        "tokens/turn",
        "number",
        "Reply tokens per turn, over the turns for which the server told them.",
    ),
    "tokens_won": Definition(
        "tokens if won",
        "number",
        "Reply tokens per episode that solved its task, where the server told them for every turn.",
        -1,
    ),
    "prompt_tokens_turn": Definition(
        "prompt tokens/turn",
        "number",
        "Prompt tokens per turn, over the turns for which the server told them.",
    ),
    "invalid": Definition(
        "invalid",
        "share",
        "Share of turns whose action was inadmissible or whose reply was malformed.",
        -1,
    ),
    "repetitive": Definition(
        "repetitive",
        "share",
        "Share of turns whose action repeats that of an earlier turn of the episode in the same state "
        "(equal action text, equal observation). Turns without an action do not count as repetitive.",
        -1,
    ),
    "format_valid": Definition(
        "format valid",
        "share",
        "Share of turns whose reply kept the tag grammar, over the turns that were judged (turn level only).",
        1,
    ),
    "void": Definition(
        "void",
        "share",
        "Share of turns whose reply held neither an action nor an answer.",
        -1,
    ),
    "cut": Definition(
        "cut off",
        "share",
        "Share of turns whose reply ended at the token limit.",
        -1,
    ),
    "truncated": Definition(
        "truncated",
        "share",
        "Share of episodes ended by a limit (turns, actions or context) and not by the task.",
        -1,
    ),
    "overflow": Definition(
        "overflow",
        "share",
        "Share of episodes ended because the prompt did not fit the model's context. That last turn "
        "counts in no number about turns.",
        -1,
    ),
    "components": Definition(
        "reward components",
        "number",
        "Sum of each reward component over an episode, mean over episodes; “env” is the environment's own.",
    ),
    "info": Definition(
        "info",
        "number",
        "Numbers that the environment told at the end of an episode, for example the parts of a reward; mean over the "
        "episodes that have them.",
    ),
    "seconds": Definition(
        "seconds",
        "seconds",
        "Wall-clock time per episode, waiting for the policy included.",
    ),
    "cost": Definition(
        "cost",
        "money",
        "Price of all calls, finished episodes only, in the currency of the prices given.",
    ),
}
INTERVALS = (
    f"Intervals hold {CONFIDENCE:.0%} of {RESAMPLES:,} bootstrap resamples over tasks, with a fixed seed. Where all "
    "tasks came out the same, the bootstrap sees no uncertainty and the interval has no width."
)
