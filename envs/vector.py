"""Vector environments: n environments that are reset and stepped together.

The bookkeeping (autoreset, masks, batched infos) is :class:`VectorCore` and does no work of its own: it says which
members to reset and which to step, and takes in what came of it. So the same code serves environments in this
process (:func:`make_vec`) and, in ``turngym.client``, sessions on a hub, synchronous and asynchronous.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import gymnasium
import msgspec
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..errors import EpisodeOver, InvalidRequest, NotReset, TurngymError, nearest
from ..records import Completion, Observation, StepResult
from .core import TextEnv
from .turn.env import TurnEnv

RESET_OPTIONS = ("reset_mask", "split", "task", "tasks")
MODES = {mode.value: mode for mode in AutoresetMode}


class Start(msgspec.Struct, frozen=True):
    """How one member is reset: the arguments of ``TextEnv.reset``; None leaves the choice to the environment."""

    seed: int | None = None
    split: str | None = None
    task: str | int | None = None

    def options(self) -> dict[str, Any]:
        """Return the ``options`` of ``TextEnv.reset``."""
        named = {"split": self.split, "task": self.task}
        return {name: value for name, value in named.items() if value is not None}


Outcome = StepResult | TurngymError
Outcomes = dict[int, Outcome]
Play = tuple[Mapping[int, Start], Mapping[int, str]]
"""Members to reset, members to step; the answer is an outcome for each."""
R = TypeVar("R")
Plan = Generator[Play, Outcomes, R]
ResetResult = tuple[tuple[Observation, ...], dict[str, Any]]
StepResults = tuple[tuple[Observation, ...], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class VectorCore:
    """Bookkeeping of ``n`` members.

    Each method is a generator: it yields what to play, is sent the outcomes, and returns the result.

    Args:
        n: members.
        mode: what happens to a member whose episode is over.

    Attributes:
        last: last result of each member, None before its first reset.
    """

    def __init__(self, n: int, mode: AutoresetMode | str) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidRequest(f"n is {n!r:.60}.", hint="Give a positive number of environments.")
        if mode not in (*MODES, *AutoresetMode):
            raise InvalidRequest(f"Unknown autoreset_mode {mode!r:.60}.", hint=nearest(str(mode), MODES))
        self.n = n
        self.mode = AutoresetMode(mode)
        self.last: list[StepResult | None] = [None] * n

    def reset(self, seed: int | Sequence[int | None] | None, options: Mapping[str, Any] | None) -> Plan[ResetResult]:
        """Reset all members, or those of ``reset_mask``."""
        starts = self._starts(seed, dict(options or {}))
        results = self._take((yield starts, {}))
        return self._observations(), batch_infos(self.n, {i: result.info for i, result in results.items()})

    def reset_some(self, starts: Mapping[int, Mapping[str, Any]]) -> Plan[Outcomes]:
        """Reset these members; a member that fails harms no other."""
        wanted = {i: _start(start) for i, start in starts.items()}
        self._check_members(wanted)
        outcomes = yield wanted, {}
        self._note(outcomes)
        return outcomes

    def step(self, actions: Iterable[str]) -> Plan[StepResults]:
        """Step all members, and reset where the mode says so."""
        actions = list(actions)
        if len(actions) != self.n:
            raise InvalidRequest(f"{len(actions)} actions for {self.n} environments.", hint="Give one each.")
        _check_actions(actions)
        over = {i for i, last in enumerate(self.last) if last is not None and last.done}
        resets = {i: self._next(i) for i in over} if self.mode is AutoresetMode.NEXT_STEP else {}
        steps = {i: action for i, action in enumerate(actions) if i not in resets}
        self._check_ready(steps)
        results = self._take((yield resets, steps))
        infos = {i: result.info for i, result in results.items()}
        final: dict[int, dict[str, Any]] = {}
        if self.mode is AutoresetMode.SAME_STEP:
            again = {i: self._next(i) for i, result in results.items() if result.done}
            final = {i: {"final_obs": results[i].observation, "final_info": results[i].info} for i in again}
            if again:
                fresh = self._take((yield again, {}))
                infos.update((i, result.info) for i, result in fresh.items())
        return (
            self._observations(),
            np.array([results[i].reward for i in range(self.n)], np.float64),
            np.array([results[i].terminated for i in range(self.n)], np.bool_),
            np.array([results[i].truncated for i in range(self.n)], np.bool_),
            {**batch_infos(self.n, infos), **batch_infos(self.n, final)},
        )

    def step_some(self, actions: Mapping[int, str]) -> Plan[Outcomes]:
        """Step these members and reset none; a member that fails harms no other."""
        self._check_members(actions)
        _check_actions(actions.values())
        self._check_ready(actions)
        outcomes = yield {}, actions
        self._note(outcomes)
        return outcomes

    def began(self, results: Sequence[StepResult]) -> None:
        """Take in the first results of members that were reset elsewhere."""
        self.last = list(results)

    def _starts(self, seed: Any, options: dict[str, Any]) -> dict[int, Start]:
        for name in options:
            if name not in RESET_OPTIONS:
                raise InvalidRequest(f"Unknown reset option {name!r:.60}.", hint=nearest(str(name), RESET_OPTIONS))
        seeds: Sequence[Any] = [None] * self.n
        if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
            seeds = [int(seed) + i for i in range(self.n)]
        elif seed is not None:
            seeds = self._each("seed", seed)
        tasks = self._each("tasks", options.get("tasks"))
        if "tasks" in options and options.get("task") is not None:
            raise InvalidRequest("Both task and tasks were given.", hint="Give one of them.")
        mask = options.get("reset_mask")
        if mask is None:
            mask = np.ones(self.n, np.bool_)
        elif not isinstance(mask, np.ndarray) or mask.shape != (self.n,) or mask.dtype != np.bool_ or not mask.any():
            raise InvalidRequest(
                "reset_mask does not fit.", hint=f"Give a numpy array of {self.n} bools, one of them true at least."
            )
        elif any(self.last[i] is None for i in np.flatnonzero(~mask)):
            raise NotReset("reset_mask leaves members out that were never reset.", hint="Reset all of them first.")
        split, task = options.get("split"), options.get("task")
        members = [int(i) for i in np.flatnonzero(mask)]
        return {i: Start(seeds[i], split, task if tasks[i] is None else tasks[i]) for i in members}

    def _each(self, name: str, values: Any) -> Sequence[Any]:
        if values is None:
            return [None] * self.n
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) != self.n:
            raise InvalidRequest(f"{name} does not fit.", hint=f"Give a list of {self.n}, one for each environment.")
        return list(values)

    def _next(self, i: int) -> Start:
        """Return how a member whose episode is over goes on: with a task of the same split."""
        last = self.last[i]
        split = "" if last is None else str(last.info["task"]).rpartition("/")[0]
        return Start(split=split or None)

    def _check_members(self, members: Iterable[int]) -> None:
        for i in members:
            if isinstance(i, bool) or not isinstance(i, int | np.integer) or not 0 <= i < self.n:
                raise InvalidRequest(f"No member {i!r:.60}.", hint=f"Members are 0 to {self.n - 1}.")

    def _check_ready(self, members: Iterable[int]) -> None:
        """Refuse before anything is stepped what would fail for some members only."""
        members = list(members)
        if any(self.last[i] is None for i in members):
            raise NotReset("step was called before reset.", hint="Call reset first.")
        over = [i for i in members if (last := self.last[i]) is not None and last.done]
        if over:
            raise EpisodeOver(
                f"The episodes of members {', '.join(map(str, over[:10]))}{', …' if len(over) > 10 else ''} are over.",
                hint='Reset them (options={"reset_mask": ...}), or step the others with step_some.',
            )

    def _note(self, outcomes: Outcomes) -> None:
        for i, outcome in outcomes.items():
            if isinstance(outcome, StepResult):
                self.last[i] = outcome

    def _take(self, outcomes: Outcomes) -> dict[int, StepResult]:
        """Note every outcome, then raise the first error if there is one."""
        self._note(outcomes)
        results: dict[int, StepResult] = {}
        failed: list[int] = []
        for i, outcome in outcomes.items():
            if isinstance(outcome, StepResult):
                results[i] = outcome
            else:
                failed.append(i)
        if failed:
            error = outcomes[failed[0]]
            assert isinstance(error, TurngymError)
            error.add_note(f"Members {failed} failed. What became of the others is in `last`; step_some skips members.")
            raise error
        return results

    def _observations(self) -> tuple[Observation, ...]:
        return tuple(last.observation for last in self.last if last is not None)


def _check_actions(actions: Iterable[Any]) -> None:
    for action in actions:
        if not isinstance(action, str | Completion):
            raise InvalidRequest(f"An action is a {type(action).__name__}.", hint="Send actions as text.")


def _start(arguments: Mapping[str, Any]) -> Start:
    known = ("seed", "split", "task")
    for name in arguments:
        if name not in known:
            raise InvalidRequest(f"Unknown reset argument {name!r:.60}.", hint=nearest(str(name), known))
    return Start(**arguments)


def batch_infos(n: int, infos: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Batch the infos of members as gymnasium does: an array per key, and a mask ``_key`` of who has it.

    Numbers become numeric arrays, dicts are batched in turn, all else becomes arrays of objects.

    Args:
        n: members.
        infos: info by member.
    """
    columns: dict[str, dict[int, Any]] = {}
    for i, info in infos.items():
        for key, value in info.items():
            columns.setdefault(key, {})[i] = value
    batched: dict[str, Any] = {}
    for key, column in columns.items():
        mask = np.zeros(n, np.bool_)
        mask[list(column)] = True
        batched[key] = _batch_column(n, column)
        batched[f"_{key}"] = mask
    return batched


def _batch_column(n: int, column: Mapping[int, Any]) -> Any:
    kinds = {type(value) for value in column.values()}
    if kinds == {dict}:
        return batch_infos(n, column)
    array: NDArray[Any]
    if kinds == {bool}:
        array = np.zeros(n, np.bool_)
    elif kinds == {int} and all(abs(value) < 2**63 for value in column.values()):
        array = np.zeros(n, np.int64)
    elif float in kinds and kinds <= {int, float}:
        array = np.zeros(n, np.float64)
    else:
        array = np.full(n, None, object)
    for i, value in column.items():
        array[i] = value
    return array


class TextVectorEnv(VectorEnv[Any, Any, Any]):
    """A gymnasium vector environment of text environments; observations are tuples of texts (or of prompts).

    The mode stands in ``metadata["autoreset_mode"]``. An autoreset draws a task of the split that the member's last
    episode was of. Beside gymnasium's surface, ``step_some`` and ``reset_some`` work on chosen members.

    Attributes:
        core: the bookkeeping; ``core.last`` holds the last result of each member.
    """

    def __init__(
        self,
        core: VectorCore,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        render_mode: str | None,
    ) -> None:
        self.core = core
        self.num_envs = core.n
        self.metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4, "autoreset_mode": core.mode}
        self.render_mode = render_mode
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, core.n)
        self.action_space = batch_space(action_space, core.n)

    def _play(self, resets: Mapping[int, Start], steps: Mapping[int, str]) -> Outcomes:
        """Reset these, step those; errors are outcomes."""
        raise NotImplementedError

    def _drive(self, plan: Plan[R]) -> R:
        try:
            play = next(plan)
            while True:
                play = plan.send(self._play(*play))
        except StopIteration as end:
            result: R = end.value
            return result

    @property
    def last(self) -> list[StepResult | None]:
        """Last result of each member, None before its first reset."""
        return list(self.core.last)

    def reset(  # gymnasium's own vector environments take lists of seeds, too
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> ResetResult:
        """Reset all members.

        Args:
            seed: one seed (member i gets ``seed + i``), a list of seeds, or None.
            options: "split" and "task" for all members; "tasks", a list with a task (or None) for each;
                "reset_mask", a numpy array of bools, resets only the members where it is true.

        Returns:
            A tuple of observations (of all members), and the infos of those that were reset.

        Raises:
            InvalidRequest: an option or seed does not fit.
            UnknownTask: no such split or task.
        """
        return self._drive(self.core.reset(seed, options))

    def step(self, actions: Iterable[str]) -> StepResults:
        """Step all members.

        In NEXT_STEP mode a member whose episode is over is reset instead, with reward 0; in SAME_STEP mode it was
        reset in the same call that ended it, and ``infos`` holds "final_obs" and "final_info"; in DISABLED mode
        it must be reset with "reset_mask", or left out with :meth:`step_some`.

        Returns:
            Tuple of observations, rewards (n,), terminations (n,), truncations (n,), infos.

        Raises:
            NotReset, EpisodeOver, InvalidRequest: as for ``TextEnv.step``; then no member was stepped.
            TurngymError: a member failed; the others were stepped, and ``last`` has their results.
        """
        return self._drive(self.core.step(actions))

    def step_some(self, actions: Mapping[int, str]) -> Outcomes:
        """Step the members that ``actions`` names, and reset none.

        Returns:
            By member: its result, or the error with which it failed.

        Raises:
            NotReset, EpisodeOver, InvalidRequest: as for ``TextEnv.step``; then no member was stepped.
        """
        return self._drive(self.core.step_some(actions))

    def reset_some(self, starts: Mapping[int, Mapping[str, Any]]) -> Outcomes:
        """Reset the members that ``starts`` names, each with its own "seed", "split" and "task" (all optional).

        Returns:
            By member: its result, or the error with which it failed.
        """
        return self._drive(self.core.reset_some(starts))

    def expert_actions(self) -> list[str | None]:
        """Return a good next action for each member, None where none is known or the episode is over."""
        raise NotImplementedError


AnyEnv = TextEnv | TurnEnv


class LocalVector(TextVectorEnv):
    """Environments of this process, stepped one after another.

    Attributes:
        envs: the environments.
    """

    def __init__(self, envs: Sequence[AnyEnv], mode: AutoresetMode | str) -> None:
        self.envs = list(envs)
        first = self.envs[0]
        super().__init__(
            VectorCore(len(self.envs), mode), first.observation_space, first.action_space, first.render_mode
        )

    def _play(self, resets: Mapping[int, Start], steps: Mapping[int, str]) -> Outcomes:
        outcomes: Outcomes = {}
        for i, start in resets.items():
            try:
                observation, info = self.envs[i].reset(seed=start.seed, options=start.options())
                outcomes[i] = StepResult(observation, info=info)
            except TurngymError as error:
                outcomes[i] = error
        for i, action in steps.items():
            try:
                outcomes[i] = StepResult(*self.envs[i].step(action))
            except TurngymError as error:
                outcomes[i] = error
        return outcomes

    def expert_actions(self) -> list[str | None]:
        """Return a good next action for each member, None where none is known or the episode is over."""
        return [None if env.done or not env.task else env.expert_action() for env in self.envs]

    def fork(self, member: int, seed: int | None = None) -> AnyEnv:
        """Return an independent copy of one member; ``seed`` as for ``TextEnv.fork``."""
        return self.envs[member].fork(seed)

    def render(self) -> tuple[Any, ...]:
        """Render every member, by ``render_mode``."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def make_vec(
    env_id: str,
    n: int,
    /,
    *,
    level: Literal["text", "turn"] = "text",
    turn: Mapping[str, Any] | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **config: Any,
) -> LocalVector:
    """Make ``n`` environments in this process as one gymnasium ``VectorEnv``.

    Args:
        env_id: registry id, for example "sokoban".
        n: environments.
        level: "text" (actions) or "turn" (prompts and completions).
        turn: options of ``TurnEnv``; turn level only.
        autoreset_mode: "NextStep", "SameStep" or "Disabled"; stated in ``metadata["autoreset_mode"]``.
        **config: arguments of the environment, as for ``turngym.make``.

    Raises:
        UnknownEnvironment: no such id.
        InvalidRequest: an argument does not fit.
    """
    from .presets import EnvPreset

    if level not in ("text", "turn"):
        raise InvalidRequest(f"Unknown level {level!r:.60}.", hint='Use "text" or "turn".')
    if turn is not None and level == "text":
        raise InvalidRequest("Turn options were given for the text level.", hint='Use level="turn", or leave them out.')
    VectorCore(n, autoreset_mode)  # complain before anything is made
    preset = EnvPreset(env_id, config=config, turn=dict(turn or {}))
    return LocalVector(
        [preset.make_text() if level == "text" else preset.make_turn() for _ in range(n)], autoreset_mode
    )


__all__ = ["LocalVector", "Outcome", "Start", "TextVectorEnv", "VectorCore", "batch_infos", "make_vec"]
