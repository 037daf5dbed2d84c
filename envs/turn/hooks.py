"""Reward hooks: small functions over the turns of an episode that add named reward components.

A hook sees the turns played so far and gives the newest one a component (``turn``); when the episode ends it may
rewrite its component in any turn (``end``); a hook over a group of episodes does so once all are there (``group``).
Every rewrite is listed in ``Turn.revised``. Hooks hold settings, never state, so that environments can be forked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import msgspec

from ...errors import InvalidRequest, nearest
from ...records import Episode, Turn


@dataclass(frozen=True)
class RewardHook:
    """Base: a hook named ``name`` whose fields are its settings."""

    name: ClassVar[str] = ""

    @classmethod
    def of_groups(cls) -> bool:
        """Return whether the hook compares the episodes of a group, so that it needs ``apply_group_hooks``."""
        return cls.group is not RewardHook.group

    def turn(self, turns: Sequence[Turn]) -> float | None:
        """Return the component of the newest turn, None for none."""
        return None

    def end(self, turns: Sequence[Turn], success: bool) -> Mapping[int, float]:
        """Return components to set when the episode is over: turn index -> value."""
        return {}

    def group(self, episodes: Sequence[Episode]) -> Mapping[int, Mapping[int, float]]:
        """Return components to set when a group is complete: episode position -> turn index -> value."""
        return {}


@dataclass(frozen=True)
class FormatPenalty(RewardHook):
    """Subtract ``penalty`` from a turn whose reply breaks the tag grammar (T2PO, RLVMR, RAGEN: 0.1).

    With ``inadmissible`` a well-formed reply whose action the environment did not accept costs the same, and a reply
    that is both costs it once (T2PO and GiGPO on ALFWorld, whose check of the reply includes the list of commands).
    """

    name: ClassVar[str] = "format-penalty"
    penalty: float = 0.1
    inadmissible: bool = False

    def turn(self, turns: Sequence[Turn]) -> float | None:
        """Return -penalty for a malformed reply."""
        now = turns[-1]
        wrong = now.format_valid is False or (self.inadmissible and not now.action_valid)
        return -self.penalty if wrong else 0.0


@dataclass(frozen=True)
class InvalidActionPenalty(RewardHook):
    """Subtract ``penalty`` from a turn whose action the environment did not accept."""

    name: ClassVar[str] = "invalid-action-penalty"
    penalty: float = 0.1

    def turn(self, turns: Sequence[Turn]) -> float | None:
        """Return -penalty for an invalid action."""
        return 0.0 if turns[-1].action_valid else -self.penalty


@dataclass(frozen=True)
class VoidTurn(RewardHook):
    """Make void turns visible as a component (T2PO's comparison; ``Turn.void`` marks them for filters)."""

    name: ClassVar[str] = "void-turn"
    penalty: float = 0.0

    def turn(self, turns: Sequence[Turn]) -> float | None:
        """Return -penalty for a turn without action or answer; no component otherwise."""
        return -self.penalty if turns[-1].void else None


@dataclass(frozen=True)
class MetaReasoning(RewardHook):
    """RLVMR's rewards for planning, exploring and reflecting.

    ``variant="paper"`` (default) is Algorithm 3: the current action must be well-formed and valid; planning pays
    ``plan * gamma**k`` if the episode succeeds, k counting later paid planning turns; exploring pays for a new
    transition (state, action, next state); reflection pays if the previous action was invalid and (state, action)
    differs from it. ``variant="released"`` is the authors' code: only the format of the current turn is checked;
    planning is not discounted; exploring compares action texts with earlier well-formed turns; reflection is paid at
    turn 0 too. Constants are 1 in the code; the paper prints none.
    """

    name: ClassVar[str] = "meta-reasoning"
    plan: float = 1.0
    explore: float = 1.0
    reflect: float = 1.0
    gamma: float = 1.0
    variant: Literal["paper", "released"] = "paper"

    def turn(self, turns: Sequence[Turn]) -> float | None:
        """Return the exploration or reflection reward; planning is settled at the episode's end."""
        if not self._eligible(turns[-1]):
            return 0.0
        now, past = turns[-1], turns[:-1]
        if now.tag == "explore":
            return self.explore if self._new(now, past) else 0.0
        if now.tag == "reflection":
            return self.reflect if self._mended(now, past) else 0.0
        return 0.0

    def end(self, turns: Sequence[Turn], success: bool) -> Mapping[int, float]:
        """Return the planning rewards of a successful episode."""
        plans = [turn.index for turn in turns if turn.tag == "planning" and self._eligible(turn)]
        if not success:
            return {}
        gamma = 1.0 if self.variant == "released" else self.gamma
        return {index: self.plan * gamma**later for later, index in enumerate(reversed(plans))}

    def _eligible(self, turn: Turn) -> bool:
        return bool(turn.format_valid) and (self.variant == "released" or turn.action_valid)

    def _new(self, now: Turn, past: Sequence[Turn]) -> bool:
        if self.variant == "released":
            return all(turn.action != now.action for turn in past if turn.format_valid)
        step = (now.anchor, now.action, now.next_anchor)
        return all((turn.anchor, turn.action, turn.next_anchor) != step for turn in past)

    def _mended(self, now: Turn, past: Sequence[Turn]) -> bool:
        if not past:
            return self.variant == "released" and now.action != ""
        before = past[-1]
        if before.format_valid and before.action_valid:
            return False
        if self.variant == "released":
            return before.action != now.action
        return (before.anchor, before.action) != (now.anchor, now.action)


@dataclass(frozen=True)
class LengthReward(RewardHook):
    """Length reward of T2PO's eq. 15 over a group: short successes gain, long failures lose.

    The length of an episode is its number of sampled tokens, or of characters where tokens are unknown; the
    component is put on the last turn.
    """

    name: ClassVar[str] = "length"
    scale: float = 1.0

    def group(self, episodes: Sequence[Episode]) -> Mapping[int, Mapping[int, float]]:
        """Return ``scale`` times the length reward, on the last turn of each episode."""
        played = [position for position, episode in enumerate(episodes) if episode.turns]
        values = length_rewards(
            [sum(_length(turn) for turn in episodes[p].turns) for p in played], [episodes[p].won for p in played]
        )
        return {p: {len(episodes[p].turns) - 1: self.scale * value} for p, value in zip(played, values, strict=True)}


def _length(turn: Turn) -> int:
    completion = turn.completion
    if completion.token_ids is not None:
        return len(completion.token_ids)
    return completion.completion_tokens if completion.completion_tokens is not None else len(completion.text)


def length_rewards(lengths: Sequence[float], correct: Sequence[bool | int]) -> list[float]:
    """Return the length reward of each response (T2PO eq. 15).

    lambda = 0.5 - (length - min) / (max - min); a correct response gets lambda, a wrong one min(0, lambda). All get 0
    where every length is equal.
    """
    low, high = min(lengths, default=0.0), max(lengths, default=0.0)
    if low == high:
        return [0.0] * len(lengths)
    lambdas = [0.5 - (length - low) / (high - low) for length in lengths]
    return [value if right else min(0.0, value) for value, right in zip(lambdas, correct, strict=True)]


HOOKS: Mapping[str, type[RewardHook]] = {
    hook.name: hook for hook in (FormatPenalty, InvalidActionPenalty, VoidTurn, MetaReasoning, LengthReward)
}


def make_hooks(settings: Mapping[str, Mapping[str, Any]]) -> list[RewardHook]:
    """Build hooks from ``{name: {setting: value}}``.

    Raises:
        InvalidRequest: an unknown hook, setting or value; the hint names the nearest.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(values, Mapping) for values in settings.values()):
        raise InvalidRequest(f"hooks is {settings!r:.80}.", hint='Send {"format-penalty": {"penalty": 0.1}}.')
    return [_make_hook(name, values) for name, values in settings.items()]


def _make_hook(name: str, values: Mapping[str, Any]) -> RewardHook:
    if name not in HOOKS:
        raise InvalidRequest(f"No reward hook {name!r:.60}.", hint=nearest(str(name), HOOKS))
    cls = HOOKS[name]
    known = [field.name for field in fields(cls)]
    for key in values:
        if key not in known:
            raise InvalidRequest(f"Reward hook {name} has no setting {key!r:.60}.", hint=nearest(str(key), known))
    try:
        return msgspec.convert(dict(values), cls)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"Reward hook {name}: {error}.", hint="Correct the setting.") from error


def revise(turn: Turn, name: str, value: float) -> Turn:
    """Return ``turn`` with one component rewritten, its sum renewed and the rewrite listed."""
    rewards = {**turn.rewards, name: value}
    listed = turn.revised if name in turn.revised else [*turn.revised, name]
    return msgspec.structs.replace(turn, rewards=rewards, reward=sum(rewards.values()), revised=listed)


def apply_group_hooks(hooks: Sequence[RewardHook], episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes of one group with the group hooks' components set and the sums renewed."""
    result = list(episodes)
    for hook in hooks:
        for position, changes in hook.group(result).items():
            turns = list(result[position].turns)
            for index, value in changes.items():
                turns[index] = revise(turns[index], hook.name, value)
            total = sum(turn.reward for turn in turns)
            result[position] = msgspec.structs.replace(result[position], turns=turns, reward=total)
    return result
