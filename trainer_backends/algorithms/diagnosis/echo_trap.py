"""The Echo Trap: collapse of multi-turn RL into repeated templates, and its early signs (RAGEN, section 4.1).

RAGEN reads two direct signs, a fall of the mean reward and spikes of the gradient norm, and early signs that come
before them: the deviation of rewards within groups and the entropy, which break away from their course; replies that
grow short and repeat themselves (finding 2, table 4). It gives no thresholds; those of :class:`Config` are ours.
Medians over windows of steps are compared, so that single outliers move nothing but the gradient's sign, which looks
for them.

Verdict: "collapse" with a direct and an early sign, "warning" with a sign of either sort alone, "fine" with none,
"unknown" where no series is long enough.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from torch import Tensor

from ....errors import InvalidRequest, nearest
from ..parts import PartConfig, require
from ..tensors import dense, segment_sum, spread
from ..verdict import Evidence, Verdict

DIRECT, EARLY = ("reward", "grad_norm"), ("reward_std", "entropy", "response_length", "repetition")


class Config(PartConfig, frozen=True):
    """Thresholds.

    Attributes:
        window: steps in a median; the last window is compared with what was before it.
        drop: a median of reward, deviation, entropy or length that lost more than this share has fallen. Reward and
            deviation are compared with the highest that any window before had, entropy and length with their first.
        rise: so has entropy broken away when it grew by more than this share over the window before.
        spike: a gradient norm of more than this many times the median of the window before it is a spike; one in the
            last two windows is a sign.
        repetition: share of repeated n-grams above which replies repeat themselves, if it was below it at first.
    """

    window: int = 10
    drop: float = 0.5
    rise: float = 1.0
    spike: float = 5.0
    repetition: float = 0.5

    def __post_init__(self) -> None:
        require(self.window >= 2, "window must be at least 2")
        require(0 < self.drop < 1, "drop must lie in (0, 1)")
        require(self.rise > 0, "rise must be positive")
        require(self.spike > 1, "spike must be greater than 1")
        require(0 < self.repetition < 1, "repetition must lie in (0, 1)")


def group_reward_std(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the unbiased standard deviation of scores within groups, averaged over the groups, a scalar.

    Groups of one have no deviation and do not count; without any other the result is 0.
    """
    found = spread(scores_N, groups_N)
    index, size = dense(groups_N)
    counted = (found.size > 1).to(scores_N.dtype)
    # Every member carries its group's deviation: weigh it so that a group counts once.
    groups = segment_sum(counted / found.size, index, size).sum()
    return (counted * found.std / found.size).sum() / groups.clamp_min(1)


def repetition(replies: Sequence[Sequence[int]], n: int = 4, *, across: bool = True) -> float:
    """Return the share of n-grams that occurred before, in [0, 1); 0 without any n-gram.

    Args:
        replies: token ids of each reply.
        n: length of an n-gram.
        across: count what other replies of the batch said too (templates); else only what a reply said itself (loops).

    Raises:
        InvalidRequest: ``n`` is not positive.
    """
    if n < 1:
        raise InvalidRequest(f"n = {n}.", hint="Choose n of at least 1.")
    grams = [[tuple(reply[at : at + n]) for at in range(len(reply) - n + 1)] for reply in replies]
    total = sum(map(len, grams))
    distinct = len({gram for each in grams for gram in each}) if across else sum(len(Counter(each)) for each in grams)
    return 1 - distinct / total if total else 0.0


def indicate(config: Config, series: Mapping[str, Sequence[float]]) -> Verdict:
    """Judge the course of a run.

    Args:
        config: thresholds.
        series: one number a step, oldest first, of any of "reward" (mean), "grad_norm", "reward_std" (see
            :func:`group_reward_std`), "entropy" (mean, nats), "response_length" (tokens) and "repetition" (see
            :func:`repetition`). What is not given, or shorter than two windows, is reported as not judged.

    Raises:
        InvalidRequest: an unknown series.
    """
    known = (*DIRECT, *EARLY)
    for name in series:
        if name not in known:
            raise InvalidRequest(f"No series {name!r:.60}.", hint=nearest(name, known))
    evidence = tuple(_judge(config, name, list(series.get(name, ()))) for name in known)
    fired = {each.name for each in evidence if each.fired}
    direct, early = fired.intersection(DIRECT), fired.intersection(EARLY)
    if all(each.fired is None for each in evidence):
        return Verdict("unknown", evidence)
    return Verdict("collapse" if direct and early else "warning" if fired else "fine", evidence)


def _judge(config: Config, name: str, values: list[float]) -> Evidence:
    if len(values) < 2 * config.window:
        text = f"{name} has {len(values)} steps; {2 * config.window} are needed."
        return Evidence(name, None, None, None, text)
    broken = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    if broken is not None:
        return Evidence(name, True, values[broken], None, f"{name} is {values[broken]} at step {broken}.")
    return _RULES[name](config, name, values)


def _medians(values: list[float], window: int) -> list[float]:
    """Return the medians of the whole windows, counted from the newest back, oldest first."""
    return [median(values[stop - window : stop]) for stop in range(len(values), window - 1, -window)][::-1]


def _fall(config: Config, name: str, values: list[float], before: float) -> Evidence:
    now = _medians(values, config.window)[-1]
    # For rewards below 0 a loss of half is one of half their size.
    least = before - config.drop * abs(before)
    fired = now < least
    text = f"{name} went from {before:.4g} to {now:.4g}; {'below' if fired else 'not below'} {least:.4g}."
    return Evidence(name, fired, now, least, text)


def _from_peak(config: Config, name: str, values: list[float]) -> Evidence:
    window = config.window
    highest = max(median(values[stop - window : stop]) for stop in range(window, len(values) - window + 1))
    return _fall(config, name, values, highest)


def _from_start(config: Config, name: str, values: list[float]) -> Evidence:
    return _fall(config, name, values, _medians(values, config.window)[0])


def _entropy(config: Config, name: str, values: list[float]) -> Evidence:
    fallen = _from_start(config, name, values)
    before, now = _medians(values, config.window)[-2:]
    most = before + config.rise * abs(before)
    if fallen.fired or now <= most:
        return fallen
    return Evidence(name, True, now, most, f"{name} jumped from {before:.4g} to {now:.4g}; above {most:.4g}.")


def _spikes(config: Config, name: str, values: list[float]) -> Evidence:
    window = config.window
    times = {
        step: value / median(values[step - window : step])
        for step, value in enumerate(values)
        if step >= max(window, len(values) - 2 * window) and median(values[step - window : step]) > 0
    }
    step = max(times, key=times.__getitem__, default=None)
    if step is None:
        return Evidence(name, False, 0.0, config.spike, f"{name} is 0.")
    fired = times[step] > config.spike
    text = f"{name} reached {times[step]:.3g} times the median before it, at step {step}; limit {config.spike:g}."
    return Evidence(name, fired, times[step], config.spike, text)


def _repeats(config: Config, name: str, values: list[float]) -> Evidence:
    medians = _medians(values, config.window)
    fired = medians[0] <= config.repetition < medians[-1]
    text = f"{name} went from {medians[0]:.3g} to {medians[-1]:.3g}; limit {config.repetition:g}."
    return Evidence(name, fired, medians[-1], config.repetition, text)


_RULES: Mapping[str, Callable[[Config, str, list[float]], Evidence]] = {
    "reward": _from_peak,
    "grad_norm": _spikes,
    "reward_std": _from_peak,
    "entropy": _entropy,
    "response_length": _from_start,
    "repetition": _repeats,
}
