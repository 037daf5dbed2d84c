"""Rollouts: policies play episodes, many at once, in this process or on a hub."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

from ..envs.core import StepInfo
from ..envs.turn.hooks import revise
from ..errors import EnvironmentFailed, PolicyFailed, TurngymError
from ..records import Completion, Episode, Observation, Turn
from .policies.base import AsyncEnv, Context, Policy
from .policies.hosted import OVERFLOW
from .sources import HubSource, LocalSource, Source, Wanted

SECONDS_IN_POLICY = "policy_seconds"
INFO = "info."
"""Prefix of the metrics that come from an episode's last info."""
_KNOWN_INFO = StepInfo.__annotations__.keys() | {
    "observation", "turn", "action", "format_valid", "parse_error", "void", "tag", "rewards", "revised",
}  # fmt: skip


class Job(msgspec.Struct, frozen=True):
    """One episode to be played.

    Attributes:
        id: the episode's id.
        wanted: the environment.
        task: task id.
        seed: seed of the environment's noise.
        attempt: number of the attempt at this task, from 0.
        group: id shared by the attempts at one task.
        policy: which policy plays, where a rollout has several.
    """

    id: str
    wanted: Wanted
    task: str
    seed: int
    attempt: int = 0
    group: str = ""
    policy: str = ""


async def rollout(
    policy: Policy | Mapping[str, Policy],
    jobs: Iterable[Job],
    *,
    source: Source | str | None = None,
    concurrency: int = 32,
    keep_prompts: bool = False,
) -> AsyncIterator[Episode]:
    """Play jobs and yield each episode as soon as it is over.

    An episode that fails is yielded too, with ``status`` "failed" and the cause in ``error``; the others go on.
    A finished episode frees its place at once. ``jobs`` is read only as fast as places become free.

    Args:
        policy: the policy, or several by the name that ``Job.policy`` holds.
        jobs: what to play; may be a generator.
        source: where environments come from: a source, or the address of a hub; this process by default.
        concurrency: most episodes in play at once.
        keep_prompts: keep the prompt of every turn in the record and not only of the first.
    """
    own = not isinstance(source, Source)
    place = source if isinstance(source, Source) else HubSource(source) if source else LocalSource()
    queue = iter(jobs)
    done: asyncio.Queue[Episode | None] = asyncio.Queue(maxsize=concurrency)

    async def work() -> None:
        for job in queue:
            player = policy[job.policy] if isinstance(policy, Mapping) else policy
            await done.put(await play(player, job, place, keep_prompts=keep_prompts))

    async def supervise() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            # When cancelled, nobody waits for the end any more.
            if not cancelled:
                await done.put(None)

    cancelled = False
    supervisor = asyncio.create_task(supervise())
    try:
        while (episode := await done.get()) is not None:
            yield episode
        await supervisor
    finally:
        cancelled = True
        supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await supervisor
        if own:
            await place.aclose()


async def play(policy: Policy, job: Job, source: Source, *, keep_prompts: bool = False) -> Episode:
    """Play one episode; whatever goes wrong is recorded in it."""
    wanted = job.wanted
    episode = Episode(
        id=job.id,
        env=wanted.env,
        task=job.task,
        seed=job.seed,
        config=wanted.config,
        level=wanted.level,
        split=job.task.rpartition("/")[0],
        group=job.group,
        member=job.attempt,
        policy=policy.name,
        attempt=job.attempt,
    )
    started = time.perf_counter()
    try:
        if wanted.level == "turn":
            episode.style = {"style": await source.style(wanted.env), **wanted.turn}
        async with source.lend(wanted) as env:
            await Player(policy, env, episode, keep_prompts).run()
    except Exception as error:
        episode.status = "failed"
        episode.error = problem_of(error)
    episode.seconds = time.perf_counter() - started
    return episode


def problem_of(error: Exception) -> dict[str, Any]:
    """Return what an episode that failed with an error records."""
    if isinstance(error, TurngymError):
        return error.to_problem()
    return EnvironmentFailed(
        f"{type(error).__name__}: {error}"[:500], hint="See the trace.", trace=traceback.format_exc(limit=-4)
    ).to_problem()


class Player:
    """One episode in play: turns step results into records.

    Args:
        policy: who plays.
        env: where.
        episode: the record that is filled in.
        keep_prompts: keep the prompt of every turn and not only of the first.

    Attributes:
        thinking: seconds spent in the policy.
    """

    def __init__(self, policy: Policy, env: AsyncEnv, episode: Episode, keep_prompts: bool = False) -> None:
        self.policy = policy
        self.env = env
        self.episode = episode
        self.keep_prompts = keep_prompts
        self.thinking = 0.0

    async def run(self) -> None:
        """Play to the end."""
        context = await self.begin()
        while self.episode.status == "running":
            await self.turn(context)
        self.finish(context)

    async def begin(self) -> Context:
        """Reset the environment and return what the policy then knows."""
        episode = self.episode
        observation, info = await self.env.reset(seed=episode.seed, options={"task": episode.task})
        episode.task_type = str(info.get("task_type", ""))
        return Context(
            episode.env,
            episode.task,
            episode.seed,
            episode.attempt,
            episode.level,
            style=str(episode.style.get("style", "")),
            handle=self.env,
            observation=observation,
            info=info,
        )

    async def turn(self, context: Context) -> None:
        """Play one turn; ``context`` moves on."""
        before = time.perf_counter()
        completion = await self._ask(context)
        self.thinking += time.perf_counter() - before
        if completion.finish_reason == OVERFLOW:
            self._overflow(context, completion)
            return
        result = await self.env.step(completion.text)
        self._record(context, completion, result)
        context.observation, context.info = result[0], result[4]
        context.turn += 1

    async def _ask(self, context: Context) -> Completion:
        try:
            return await self.policy.act(context)
        except TurngymError:
            raise
        except Exception as error:
            raise PolicyFailed(
                f"{self.policy.name} raised {type(error).__name__}: {error}"[:500],
                hint="See the trace.",
                trace=traceback.format_exc(limit=-4),
            ) from error

    def _turn(self, context: Context, completion: Completion) -> Turn:
        kept = self.keep_prompts or context.turn == 0
        return Turn(
            index=context.turn,
            observation=context.text,
            completion=completion,
            anchor=str(context.info.get("anchor", "")),
            prompt=context.messages if kept and not isinstance(context.observation, str) else None,
        )

    def _record(
        self, context: Context, completion: Completion, result: tuple[Observation, float, bool, bool, dict[str, Any]]
    ) -> None:
        _, reward, terminated, truncated, info = result
        if not isfinite(reward):
            raise EnvironmentFailed(f"The environment gave the reward {reward}.", hint="Mend the environment.")
        turn = self._turn(context, completion)
        turn.next_anchor = str(info.get("anchor", ""))
        turn.action = str(info.get("action", completion.text))
        turn.action_valid = bool(info.get("action_valid", True))
        turn.format_valid = info.get("format_valid")
        turn.void = bool(info.get("void", False))
        turn.tag = str(info.get("tag", ""))
        turn.reward = reward
        turn.rewards = dict(info.get("rewards") or {"env": reward})
        turn.steps = int(info.get("steps", 1))
        if info.get("parse_error"):
            turn.info["parse_error"] = info["parse_error"]
        self.episode.turns.append(turn)
        turns = self.episode.turns
        for index, changed in (info.get("revised") or {}).items():
            for name, value in changed.items():
                turns[int(index)] = revise(turns[int(index)], name, value)
        if terminated:
            self.episode.status = "terminated"
        elif truncated:
            self.episode.status = "truncated"

    def _overflow(self, context: Context, completion: Completion) -> None:
        # The environment never saw this turn: nothing was executed.
        turn = self._turn(context, completion)
        turn.steps = 0
        turn.action_valid = False
        self.episode.turns.append(turn)
        self.episode.status = "truncated"
        self.episode.metrics[OVERFLOW] = 1.0

    def finish(self, context: Context) -> None:
        """Sum the episode up."""
        episode, info = self.episode, context.info
        episode.final_observation = context.text
        episode.reward = float(sum(turn.reward for turn in episode.turns))
        episode.won = bool(info.get("won", False))
        episode.score = float(info.get("score", episode.won))
        episode.metrics |= numbers_of(info)
        episode.metrics[SECONDS_IN_POLICY] = round(self.thinking, 6)


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers and flags that an environment put into its info beside what every info holds.

    Returns:
        ``{"info.task_score": 100.0, "info.reward_parts.r_type": 1.0, …}``: "info." and the path, one level deep.
    """
    found: dict[str, float] = {}
    for name, value in info.items():
        if name not in _KNOWN_INFO:
            members = value.items() if isinstance(value, Mapping) else ()
            for path, number in [(name, value), *((f"{name}.{key}", member) for key, member in members)]:
                if isinstance(number, int | float) and isfinite(number):
                    found[INFO + path] = float(number)
    return found
