"""The text level: ``TextEnv``, the base class of every environment.

A new environment fills in four methods (``_begin``, ``_apply``, ``_observe``, ``_admissible``); seeds, tasks,
limits, typed infos, several actions a turn, forks and errors are handled here, once.
"""

from __future__ import annotations

import abc
import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypedDict, overload

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..errors import EpisodeOver, InvalidRequest, NotReset, UnknownTask, Unsupported, nearest

SEED_LIMIT = 2**53  # seeds stay exact in JSON readers that know only doubles
MAX_TEXT = 1_000_000


class StepInfo(TypedDict, total=False):
    """Info of ``reset`` and ``step``; every value is JSON-serialisable.

    ``reset`` fills the first block; ``step`` both. Environments may add further keys.
    """

    task_type: str  # kind of the task, for tables; ``reset`` only, and only where there are several kinds

    task: str  # canonical task id, "split/index"
    seed: int  # seed of the noise; with task and actions it rebuilds the episode
    step: int  # environment actions so far
    admissible: list[str]  # actions that will be accepted next; [] when the episode is over
    anchor: str  # key of the state now: equal for equal observations
    won: bool
    score: float  # task score in [0, 1]

    action_valid: bool  # the environment knew the action (every part of it, where joined)
    action_effective: bool  # the state changed
    steps: int  # environment actions executed by this call


class Effect(NamedTuple):
    """What one action did.

    Attributes:
        reward: reward of the action.
        terminated: the action ended the task.
        valid: the action was understood and admissible.
        effective: the state changed.
        note: one line for the agent, put before the observation; "" for none.
    """

    reward: float = 0.0
    terminated: bool = False
    valid: bool = True
    effective: bool = True
    note: str = ""


class Text(gymnasium.spaces.Text):
    """Any text of up to ``max_length`` characters; samples are printable ASCII of up to 32 characters."""

    def __init__(self, max_length: int = MAX_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string that fits."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random word; ``mask`` and ``probability`` are not used."""
        length = int(self.np_random.integers(1, 33))
        return "".join(chr(c) for c in self.np_random.integers(33, 127, size=length))


class Tasks(Sequence[str]):
    """The task ids "split/0" … "split/size-1" of one split, made on demand."""

    def __init__(self, split: str, indices: range) -> None:
        self.split = split
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Tasks: ...
    def __getitem__(self, index: int | slice) -> str | Tasks:
        if isinstance(index, slice):
            return Tasks(self.split, self.indices[index])
        return f"{self.split}/{self.indices[index]}"

    def __repr__(self) -> str:
        return f"Tasks({self.split!r}, {self.indices!r})"


def stable_rng(*key: str | int) -> np.random.Generator:
    """Return a generator that depends on ``key`` alone: the same in every process and on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def member_seed(group_seed: int, member: int) -> int:
    """Return the noise seed of a group's ``member``: a function of (group seed, member) alone."""
    # Spawned and not a list of both: SeedSequence([a + 2**32 * b, 0]) equals SeedSequence([a, b]).
    words = np.random.SeedSequence(group_seed, spawn_key=(member,)).generate_state(1, np.uint64)
    return int(words[0]) % SEED_LIMIT


def anchor_of(text: str) -> str:
    """Return a short key that is equal for equal observations (64-bit BLAKE2b, hexadecimal)."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def check_seed(seed: Any) -> int:
    """Return ``seed`` as an int, or raise :class:`InvalidRequest` if it is no integer in [0, 2**53)."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < SEED_LIMIT:
        raise InvalidRequest(f"seed {seed!r:.60} is not an integer in [0, 2**53).", hint="Send such an integer.")
    return int(seed)


def shown(text: str, limit: int = 60) -> str:
    """Return ``text`` cut and cleaned so that it can be quoted in a message of one line."""
    # Only so much is looked at: actions come from outside and may be megabytes of blanks.
    clean = " ".join(text[: 20 * limit].encode("utf-8", "replace").decode("utf-8").split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


class TextEnv(gymnasium.Env[str, str], abc.ABC):
    """An environment that turns text into text.

    ``task`` fixes the initial state, ``seed`` the noise: (class arguments, task, seed, actions) rebuild any
    state exactly, in any process. The noise comes from ``self.np_random``; no process-wide generator is used.

    Args:
        max_steps: environment actions after which the episode is truncated.
        max_actions_per_step: how many actions joined by ``separator`` one ``step`` executes; the rest is
            dropped.
        render_mode: one of ``metadata["render_modes"]``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - gymnasium's own attribute
    splits: ClassVar[Mapping[str, int]] = {"train": 100_000, "validation": 256, "test": 256}
    separator: ClassVar[str | None] = None
    deterministic: ClassVar[bool] = False
    """Whether no action draws noise, so that a plan made on a fork holds."""
    expert_success: ClassVar[float] = 0.0
    """Share of test tasks that ``expert`` wins at least; 0 where there is no expert."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Least and greatest reward of one ``step`` under the default settings; declared to OpenEnv."""
    default_max_steps: ClassVar[int] = 100

    def __init__(
        self, *, max_steps: int | None = None, max_actions_per_step: int = 5, render_mode: str | None = None
    ) -> None:
        self.max_steps = _positive("max_steps", self.default_max_steps if max_steps is None else max_steps)
        self.max_actions_per_step = _positive("max_actions_per_step", max_actions_per_step)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InvalidRequest(
                f"Unknown render_mode {render_mode!r:.60}.",
                hint=nearest(str(render_mode), self.metadata["render_modes"]),
            )
        self.render_mode = render_mode
        self.task = ""
        self.seed = 0
        self.steps = 0
        self.done = False
        self._state: Any = None

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        """Any text; made on first use, because ten thousand sessions never ask."""
        return Text()

    @cached_property
    def action_space(self) -> Text:  # type: ignore[override]
        """Any text; made on first use."""
        return Text()

    @classmethod
    def check_needs(cls, **config: Any) -> None:
        """Check that the data, packages and programs it needs are on this machine; must be cheap.

        Lists and whole-registry evaluations ask this before they make anything. By default nothing is needed.

        Args:
            **config: arguments it would be made with.

        Raises:
            Unavailable: something is missing; the hint says how to get it.
        """

    # What an environment fills in ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def instructions(self) -> str:
        """The rules as a player must know them, for the prompt; may depend on the task."""

    @abc.abstractmethod
    def _begin(self, split: str, index: int) -> None:
        """Set ``self._state`` to the initial state of a task. Draw from ``stable_rng``, never from the noise."""

    @abc.abstractmethod
    def _apply(self, action: str) -> Effect:
        """Execute one action (stripped text) on ``self._state``; an unknown one gives ``valid=False``."""

    @abc.abstractmethod
    def _observe(self) -> str:
        """Return the observation of ``self._state``."""

    @abc.abstractmethod
    def _admissible(self) -> list[str]:
        """Return the actions that are accepted now."""

    def _won(self) -> bool:
        """Return whether the task is solved in ``self._state``."""
        return False

    def _score(self) -> float:
        """Return the task score in [0, 1]; 1.0 if won, unless the environment has a finer one."""
        return float(self._won())

    def _copy_state(self, state: Any) -> Any:
        """Return an independent copy of ``state``; override with something faster than a deep copy."""
        return copy.deepcopy(state)

    def _extra_info(self) -> dict[str, Any]:
        """Return further JSON-serialisable info keys."""
        return {}

    def task_type(self) -> str:
        """Return the kind of the current task, for tables; "" where there is only one."""
        return ""

    def expert_action(self) -> str | None:
        """Return a good next action for the current state, or None where no expert is known."""
        return None

    def picture(self) -> NDArray[np.uint8]:
        """Return the state as an image (height, width, 3), where a picture helps a person."""
        raise Unsupported(f"{type(self).__name__} has no picture.", hint='Use render_mode="ansi".')

    # What everyone calls ---------------------------------------------------------------------------

    def tasks(self, split: str = "test") -> Sequence[str]:
        """Return the task ids of a split.

        Raises:
            UnknownTask: no such split.
        """
        return Tasks(split, range(self._split_size(split)))

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seed of the noise. Without one, a seed is drawn from the running noise and reported.
            options: ``{"split": "train"}`` draws a task of that split by the seed; ``{"task": "test/7"}`` or
                ``{"split": "test", "task": 7}`` names one.

        Raises:
            InvalidRequest: an unknown option or a bad seed.
            UnknownTask: no such split or task.
        """
        seed = int(self.np_random.integers(SEED_LIMIT)) if seed is None else check_seed(seed)
        split, index = self._choose(seed, options or {})
        super().reset(seed=seed)
        self.seed = seed
        self.task = f"{split}/{index}"
        self.steps = 0
        self.done = False
        self._begin(split, index)
        observation = self._observe()
        info = self._info(observation)
        if kind := self.task_type():
            info["task_type"] = kind
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one action, or several joined by ``separator``.

        Unknown actions are answered in-world (``info["action_valid"]`` is false) and cost one step; the known
        ones among several joined actions are executed.

        Returns:
            observation, reward (sum over the executed actions), terminated, truncated, info.

        Raises:
            NotReset: there was no ``reset``.
            EpisodeOver: the episode is over.
            InvalidRequest: the action is no string.
        """
        if not isinstance(action, str):
            raise InvalidRequest(f"The action is a {type(action).__name__}.", hint="Send the action as text.")
        if not self.task:
            raise NotReset("step was called before reset.", hint="Call reset first.")
        if self.done:
            raise EpisodeOver(f"The episode of task {self.task} is over.", hint="Call reset to start another.")
        reward, terminated, valid, effective = 0.0, False, True, False
        notes = []
        before = self.steps
        for part in self._split(action):
            effect = self._apply(part)
            self.steps += 1
            reward += effect.reward
            valid = valid and effect.valid
            effective = effective or effect.effective
            if effect.note:
                notes.append(effect.note)
            if effect.terminated:
                terminated = True
                break
            if self.steps >= self.max_steps:
                break
        truncated = not terminated and self.steps >= self.max_steps
        self.done = terminated or truncated
        observation = self._observe()
        info = self._info(observation)
        info["action_valid"] = valid
        info["action_effective"] = effective
        info["steps"] = self.steps - before
        if notes:
            observation = "\n".join([*notes, observation])
        return observation, float(reward), terminated, truncated, info

    def fork(self, seed: int | None = None) -> TextEnv:
        """Return an independent copy of this environment in its current state.

        Args:
            seed: None continues the noise exactly as this environment would; an integer gives the copy noise
                of its own (see :meth:`reseed`).
        """
        twin = copy.copy(self)
        twin._state = self._copy_state(self._state)
        if seed is not None:
            twin.reseed(seed)
        elif self._np_random is not None:
            # Several times faster than a deep copy, which pickles.
            twin._np_random = np.random.Generator(np.random.PCG64(0))
            twin._np_random.bit_generator.state = self._np_random.bit_generator.state
        return twin

    def reseed(self, seed: int) -> None:
        """Restart the noise from ``seed`` in the middle of an episode; the state stays."""
        self._np_random = np.random.default_rng(check_seed(seed))

    def expert(self) -> Iterator[str]:
        """Yield expert actions, each chosen in the state at the time it is asked for.

        Raises:
            NotReset: there was no ``reset``.
            Unsupported: the environment has no expert.
        """
        if not self.task:
            raise NotReset("expert was called before reset.", hint="Call reset first.")
        while not self.done:
            action = self.expert_action()
            if action is None:
                raise Unsupported(f"{type(self).__name__} knows no expert action here.")
            yield action

    def render(self) -> Any:
        """Return the state as text ("ansi") or as an image array ("rgb_array"), by ``render_mode``."""
        if self.render_mode is None:
            return None
        if not self.task:
            raise NotReset("render was called before reset.", hint="Call reset first.")
        return self._observe() if self.render_mode == "ansi" else self.picture()

    # Inside ----------------------------------------------------------------------------------------

    def _split(self, action: str) -> list[str]:
        if self.separator is None or self.separator not in action:
            return [action.strip()]
        parts = [part.strip() for part in action.split(self.separator)]
        return [part for part in parts if part][: self.max_actions_per_step] or [""]

    def _split_size(self, split: str) -> int:
        if not isinstance(split, str) or split not in self.splits:
            raise UnknownTask(f"No split {split!r:.60}.", hint=nearest(str(split), self.splits))
        return self.splits[split]

    def _choose(self, seed: int, options: Mapping[str, Any]) -> tuple[str, int]:
        unknown = set(options) - {"split", "task"}
        if unknown:
            name = str(min(unknown, key=str))
            raise InvalidRequest(f"Unknown reset option {shown(name)!r}.", hint=nearest(name, ["split", "task"]))
        split, task = options.get("split"), options.get("task")
        if isinstance(task, str):
            named, _, number = task.rpartition("/")
            plain = number.isascii() and number.isdigit() and len(number) <= 15
            if not named or split not in (None, named) or not plain:
                raise UnknownTask(f"No task {shown(task)!r}.", hint='A task id looks like "test/7".')
            split, task = named, int(number)
        split = "train" if split is None else split
        size = self._split_size(split)
        if task is None:
            return split, int(stable_rng("choose", seed).integers(size))
        if isinstance(task, bool) or not isinstance(task, int | np.integer):
            raise UnknownTask(f"Task {task!r:.60} is no index.", hint='Send an index, or an id like "test/7".')
        if not 0 <= task < size:
            raise UnknownTask(f"No task {task} in split {split!r}.", hint=f"It has tasks 0 to {size - 1}.")
        return split, int(task)

    def _info(self, observation: str) -> dict[str, Any]:
        won = self._won()
        return {
            "task": self.task,
            "seed": self.seed,
            "step": self.steps,
            "admissible": [] if self.done else self._admissible(),
            "anchor": anchor_of(observation),
            "won": won,
            "score": self._score(),
            **self._extra_info(),
        }


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give a positive integer.")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint="Give true or false.")
    return value
