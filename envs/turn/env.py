"""The turn level: ``TurnEnv`` makes a text environment speak in prompts and completions."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ...errors import EpisodeOver, InvalidRequest, NotReset, Unsupported, nearest
from ...records import Completion, Message, Turn
from ..core import Text, TextEnv, _flag, _positive
from ..registry import get_spec
from .hooks import RewardHook, make_hooks, revise
from .prompts import PromptStyle, change_style, get_style, render_prompt, with_grammar

DEFAULT_STYLE = "think-action"
VARIANTS = ("default", "released")


class ChatSpace(gymnasium.spaces.Space[list[Message]]):
    """Lists of chat messages with the keys role and content."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> list[Message]:
        """Return a short conversation; ``mask`` and ``probability`` are not used."""
        return [Message(role="user", content=f"{self.np_random.integers(1_000_000)}")]

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a list of messages."""
        return isinstance(x, list) and all(
            isinstance(m, dict) and set(m) == {"role", "content"} and isinstance(m["content"], str) for m in x
        )

    @property
    def is_np_flattenable(self) -> bool:
        """Chat messages have no array form."""
        return False


class TurnEnv(gymnasium.Env[list[Message], str]):
    """Wrap a text environment with a prompt style, its tag grammar, reward hooks and a memory window.

    The observation is the next prompt as chat messages; ``step`` takes the model's raw completion. A reply out of
    which no action can be taken is executed as the empty action, which the environment answers as invalid.

    Args:
        env: the text environment; it is owned (and closed) by this wrapper.
        style: id of a prompt style (``turngym.envs.turn.prompts.STYLES``).
        prompt: fields of the style to change, for example ``{"hidden": ["help"]}``.
        grammar: another grammar over the style's tags (``turngym.envs.turn.grammar.GRAMMARS``).
        memory: past turns shown in the prompt, None for the style's default, -1 for all.
        hooks: reward hooks as ``{name: {setting: value}}``.
        max_turns: turns after which the episode is truncated, None for no limit but the environment's own.
        success_reward: if given, the environment's component is this on the last turn of an episode that solved its
            task and 0 on every other turn (T2PO, GiGPO and RLVMR train with 10).
        variant: "released" executes the end of a tagless reply as an action, as the papers' code does.
        strict: a malformed reply is never executed, even where the relaxed rule finds an action.
        language_rule: whether Chinese characters make a reply malformed (the papers' rule); None as the grammar says.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        env: TextEnv,
        *,
        style: str = DEFAULT_STYLE,
        prompt: Mapping[str, Any] | None = None,
        grammar: str | None = None,
        memory: int | None = None,
        hooks: Mapping[str, Mapping[str, Any]] | None = None,
        max_turns: int | None = None,
        success_reward: float | None = None,
        variant: str = "default",
        strict: bool = False,
        language_rule: bool | None = None,
    ) -> None:
        self.env = env
        self.style: PromptStyle = get_style(style)
        if prompt is not None:
            self.style = change_style(self.style, prompt)
        if grammar is not None:
            self.style = with_grammar(self.style, grammar)
        self.memory = self.style.memory if memory is None else _memory(memory)
        self.hooks: list[RewardHook] = make_hooks({} if hooks is None else hooks)
        self.max_turns = None if max_turns is None else _positive("max_turns", max_turns)
        self.success_reward = None if success_reward is None else _number("success_reward", success_reward)
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise InvalidRequest(f"Unknown variant {variant!r:.60}.", hint=nearest(str(variant), VARIANTS))
        self.variant = variant
        self.strict = _flag("strict", strict)
        self.observation_space = ChatSpace()
        self.action_space = Text()
        self.render_mode = env.render_mode
        self.turns: list[Turn] = []
        self.done = False
        self._grammar = self.style.rules
        if language_rule is not None and language_rule != self._grammar.ban_cjk:
            self._grammar = dataclasses.replace(self._grammar, ban_cjk=bool(language_rule))
        self._plan = ""
        self._observation = ""
        self._last: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode; arguments and errors as for ``TextEnv.reset``.

        Returns:
            The first prompt, and the text level's info plus ``observation`` (the raw text) and ``turn`` = 0.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self.turns = []
        self.done = False
        self._plan = ""
        self._remember(observation, info)
        return self.prompt(), {**info, "observation": observation, "turn": 0}

    def step(self, completion: str | Completion) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Play one turn.

        Args:
            completion: the raw reply, or a :class:`Completion` whose token data shall stay in ``turns``.

        Returns:
            The next prompt, the turn's reward (sum of its components), terminated, truncated, and the info
            described in ``docs/protocol.md``.

        Raises:
            NotReset, EpisodeOver, InvalidRequest: as for ``TextEnv.step``.
        """
        if isinstance(completion, str):
            completion = Completion(text=completion)
        if not isinstance(completion, Completion):
            raise InvalidRequest(f"The completion is a {type(completion).__name__}.", hint="Send the reply as text.")
        if self.done:
            raise EpisodeOver(f"The episode of task {self.task} is over.", hint="Call reset to start another.")
        if not self._last:
            raise NotReset("step was called before reset.", hint="Call reset first.")
        reply = self._grammar.parse(completion.text, "released" if self.variant == "released" else "default")
        action = "" if self.strict and not reply.format_valid else reply.action
        before = self._last
        observation, reward, terminated, truncated, info = self.env.step(action)
        turn = Turn(
            index=len(self.turns),
            observation=self._observation,
            completion=completion,
            action=action,
            anchor=before["anchor"],
            next_anchor=info["anchor"],
            action_valid=info["action_valid"],
            format_valid=reply.format_valid,
            void=reply.void,
            tag=reply.tag if reply.format_valid else "",
            steps=info["steps"],
            info={"prompt": before["prompt"]},
        )
        self._plan = reply.plan or self._plan
        if self.max_turns is not None and not terminated and len(self.turns) + 1 >= self.max_turns:
            truncated = True
        self.done = terminated or truncated
        if self.success_reward is not None:
            reward = self.success_reward if self.done and info["won"] else 0.0
        turn = self._reward(turn, reward)
        self.turns.append(turn)
        revised = self._settle(bool(info["won"])) if self.done else {}
        turn = self.turns[-1]
        self._remember(observation, info)
        info = {
            **info,
            "admissible": [] if self.done else info["admissible"],
            "observation": observation,
            "turn": len(self.turns),
            "action": turn.action,
            "format_valid": turn.format_valid,
            "parse_error": reply.error,
            "void": turn.void,
            "tag": turn.tag,
            "rewards": turn.rewards,
            "revised": revised,
        }
        return self.prompt(), turn.reward, terminated, truncated, info

    def prompt(self) -> list[Message]:
        """Return the current prompt again.

        Raises:
            NotReset: there was no ``reset``.
        """
        if not self._last:
            raise NotReset("There is no prompt before reset.", hint="Call reset first.")
        env = self.env
        several = ""
        if env.separator is not None and env.max_actions_per_step > 1:
            several = self.style.several.format(separator=env.separator, max_actions=env.max_actions_per_step)
        listing = self.style.listed(self._last["admissible"])
        values = {
            "instructions": env.instructions,
            "observation": self._observation,
            "start": self.turns[0].observation if self.turns else self._observation,
            "listing": listing,
            "several": several,
            "max_actions": env.max_actions_per_step,
            "plan": self._plan or "none yet",
            **self._last["prompt"],
        }
        messages = render_prompt(self.style, self.turns, self.memory, values)
        if self.style.mode == "chat":
            # The conversation shows it again, with the rules where older turns fell out of the memory.
            self._last["prompt"] |= {"content": messages[-1]["content"], "listing": listing}
        return messages

    def wrap(self, action: str, thought: str = "") -> str:
        """Return a well-formed reply that takes ``action``."""
        return self.style.wrap(action, thought)

    def expert_action(self) -> str | None:
        """Return a well-formed reply that takes the expert's action, None where no expert is known.

        Where several actions may be joined and no action draws noise, the reply holds as many as are allowed.
        """
        env = self.env
        action = env.expert_action()
        if action is None:
            return None
        actions = [action]
        if env.separator is not None and env.deterministic and env.max_actions_per_step > 1:
            scout = env.fork()
            while len(actions) < env.max_actions_per_step:
                scout.step(actions[-1])
                following = None if scout.done else scout.expert_action()
                if following is None:
                    break
                actions.append(following)
        return self.wrap(f" {env.separator} ".join(actions))

    def expert(self) -> Iterator[str]:
        """Yield expert replies, each made in the state at the time it is asked for."""
        while not self.done:
            reply = self.expert_action()
            if reply is None:
                raise Unsupported("The environment knows no expert action here.")
            yield reply

    def fork(self, seed: int | None = None) -> TurnEnv:
        """Return an independent copy in the current state; ``seed`` as for ``TextEnv.fork``."""
        twin = copy.copy(self)
        twin.env = self.env.fork(seed)
        twin.turns = list(self.turns)
        return twin

    def reseed(self, seed: int) -> None:
        """Restart the environment's noise from ``seed``."""
        self.env.reseed(seed)

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split."""
        return self.env.tasks(split)

    def render(self) -> Any:
        """Render the text environment."""
        return self.env.render()

    def picture(self) -> NDArray[np.uint8]:
        """Return the text environment's picture."""
        return self.env.picture()

    def task_type(self) -> str:
        """Return the kind of the current task."""
        return self.env.task_type()

    def close(self) -> None:
        """Close the text environment."""
        self.env.close()

    @property
    def task(self) -> str:
        """Id of the current task."""
        return self.env.task

    @property
    def seed(self) -> int:
        """Seed of the current episode's noise."""
        return self.env.seed

    @property
    def _np_random(self) -> np.random.Generator | None:  # type: ignore[override]
        """The text environment's noise: the turn level draws none of its own."""
        return self.env._np_random

    @property
    def splits(self) -> Mapping[str, int]:
        """Split name -> number of tasks."""
        return self.env.splits

    @property
    def instructions(self) -> str:
        """The rules."""
        return self.env.instructions

    @property
    def unwrapped(self) -> TurnEnv:
        """This environment: the turn level is not a transparent wrapper."""
        return self

    def _remember(self, observation: str, info: dict[str, Any]) -> None:
        self._observation = observation
        reward = self.turns[-1].rewards["env"] if self.turns else 0.0
        self._last = {
            "anchor": info["anchor"],
            "admissible": info["admissible"],
            "prompt": {"actions_left": self.env.max_steps - self.env.steps, "reward": reward},
        }

    def _reward(self, turn: Turn, reward: float) -> Turn:
        rewards = {"env": reward}
        turns = [*self.turns, turn]
        for hook in self.hooks:
            value = hook.turn(turns)
            if value is not None:
                rewards[hook.name] = value
        turn.rewards = rewards
        turn.reward = sum(rewards.values())
        return turn

    def _settle(self, success: bool) -> dict[str, dict[str, float]]:
        """Let the hooks rewrite components at the end; return what changed in earlier turns."""
        changed: dict[str, dict[str, float]] = {}
        for hook in self.hooks:
            for index, value in hook.end(self.turns, success).items():
                if index == len(self.turns) - 1:
                    # The last turn's reward has not been returned yet: nothing is rewritten.
                    self.turns[-1].rewards[hook.name] = value
                    self.turns[-1].reward = sum(self.turns[-1].rewards.values())
                elif self.turns[index].rewards.get(hook.name) != value:
                    self.turns[index] = revise(self.turns[index], hook.name, value)
                    changed.setdefault(str(index), {})[hook.name] = value
        return changed


OPTIONS = tuple(inspect.signature(TurnEnv).parameters)[1:]


def at_turn_level(env_id: str, env: TextEnv, turn: Mapping[str, Any]) -> TurnEnv:
    """Wrap ``env`` with the turn options ``turn``, in the style of its registry row where they name none.

    Raises:
        InvalidRequest: an unknown option or a value that does not fit.
    """
    for name in turn:
        if name not in OPTIONS:
            raise InvalidRequest(f"The turn level has no option {name!r:.60}.", hint=nearest(str(name), OPTIONS))
    return TurnEnv(env, **{"style": get_spec(env_id).style, **turn})


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give a number.")
    return float(value)


def _memory(value: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise InvalidRequest(f"memory is {value!r:.60}.", hint="Give a number of turns, or -1 for all.")
    return None if value == -1 else value
