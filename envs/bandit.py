"""Bi-arm bandit (RAGEN, app. C.1): two names hint at two reward distributions; one pull ends the episode."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

from ..errors import InvalidRequest, nearest
from .core import Effect, TextEnv, _flag, shown, stable_rng

# (low arm, high arm): the low arm is safe, the high arm is risky and better on average.
PAIRS: dict[str, tuple[str, str]] = {
    "phoenix-dragon": ("Phoenix", "Dragon"),
    "teacher-engineer": ("Teacher", "Engineer"),
    "librarian-trader": ("Librarian", "Trader"),
}
SPLIT_PAIRS = {"train": "teacher-engineer", "validation": "teacher-engineer", "test": "librarian-trader"}
LOW_REWARD = {"paper": 0.15, "released": 0.1}
HIGH_CHANCE = 0.25


class _State(NamedTuple):
    low: str
    high: str
    order: tuple[str, str]
    pulled: str = ""
    points: float = 0.0


class Bandit(TextEnv):
    """Choose the arm with the higher mean.

    The high arm pays 1 with probability 0.25 and else 0; the low arm always pays 0.15 (``variant="paper"``) or
    0.1 ("released": RAGEN's code). ``won`` means that the high arm was pulled, whatever it paid.

    Args:
        pair: name pair (a key of ``PAIRS``), or "low-high" in any two words, or None for the paper's choice:
            teacher-engineer to train and validate, librarian-trader to test.
        reversed: swap the two names' roles (RAGEN's BanditRev).
        variant: "paper" or "released".
        low_reward: reward of the low arm; overrides ``variant``.
    """

    splits: ClassVar = {"train": 100_000, "validation": 256, "test": 256}
    expert_success: ClassVar[float] = 1.0
    default_max_steps: ClassVar[int] = 3

    def __init__(
        self,
        *,
        pair: str | None = None,
        reversed: bool = False,
        variant: str = "paper",
        low_reward: float | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if not isinstance(variant, str) or variant not in LOW_REWARD:
            raise InvalidRequest(f"Unknown variant {variant!r:.60}.", hint=nearest(str(variant), LOW_REWARD))
        if pair is not None and not _is_pair(pair):
            raise InvalidRequest(f"Unknown pair {pair!r:.60}.", hint=nearest(str(pair), PAIRS))
        self.pair = pair
        self.reversed = _flag("reversed", reversed)
        self.low_reward = LOW_REWARD[variant] if low_reward is None else _finite("low_reward", low_reward)

    @property
    def instructions(self) -> str:
        """The rules; the names stand in the observation."""
        return (
            "You face a bandit with two arms. You may pull one arm, once. Each arm pays by a rule of its own, and its "
            "name hints at that rule. Think about what the names stand for, guess which arm pays more on average, and "
            "answer with the name of that arm."
        )

    def _begin(self, split: str, index: int) -> None:
        name = self.pair or SPLIT_PAIRS[split]
        low, high = PAIRS.get(name) or name.title().split("-")
        if self.reversed:
            low, high = high, low
        first_low = bool(stable_rng("bandit", split, index).integers(2))
        self._state = _State(low, high, (low, high) if first_low else (high, low))

    def _apply(self, action: str) -> Effect:
        state: _State = self._state
        arm = next((arm for arm in state.order if arm.lower() == action.lower()), None)
        if arm is None:
            note = f"There is no arm {shown(action)!r}. Pull one of: {', '.join(state.order)}."
            return Effect(valid=False, effective=False, note=note)
        # One draw whatever the arm: the noise does not depend on the choice.
        lucky = float(self.np_random.random() < HIGH_CHANCE)
        points = lucky if arm == state.high else self.low_reward
        self._state = state._replace(pulled=arm, points=points)
        return Effect(points, terminated=True)

    def _observe(self) -> str:
        state: _State = self._state
        if state.pulled:
            return f"{state.pulled}: {state.points} points"
        return f"Arms: {state.order[0]}, {state.order[1]}"

    def _admissible(self) -> list[str]:
        return list(self._state.order)

    def _won(self) -> bool:
        return bool(self._state.pulled == self._state.high)

    def _copy_state(self, state: _State) -> _State:
        return state

    def expert_action(self) -> str:
        """Return the arm with the higher mean."""
        return str(self._state.high)


def _is_pair(pair: Any) -> bool:
    """Return whether ``pair`` is two words that an action can tell apart."""
    names = [name.strip().lower() for name in pair.split("-")] if isinstance(pair, str) else []
    return len(names) == 2 and all(names) and names[0] != names[1] and pair == pair.strip()


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give a finite number.")
    return float(value)
