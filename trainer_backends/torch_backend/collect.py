"""Collecting experience: groups of episodes as chains, or as trees that fork the environment."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from ...client.policies.base import Context, Policy
from ...client.rollout import Job, Player, problem_of, rollout
from ...client.sources import Source, Wanted
from ...envs.core import SEED_LIMIT, member_seed, stable_rng
from ...errors import CapacityReached, Draining, ServerUnavailable
from ...records import Episode
from ..algorithms.parts import Part
from ..algorithms.step_entropy import of_entropies, turn_entropy
from ..algorithms.tree import Node, Plan, name_of
from ..backend import Grown
from .policy import TorchPolicy

Wait = Callable[[int, str], Awaitable[None]]
AWAY = (ServerUnavailable, Draining)
"""What an environment fails with because its server is away, and not for a fault of its own."""
LATER = tuple(error.code for error in (*AWAY, CapacityReached))
"""Codes of what an episode is played again after."""


class Group(msgspec.Struct, frozen=True):
    """One task that a group plays.

    Attributes:
        id: unique in the run.
        wanted: the environment.
        task: task id.
        seed: seed of the group; member i draws its noise from (seed, i).
    """

    id: str
    wanted: Wanted
    task: str
    seed: int


def jobs(group: Group, samples: int) -> list[Job]:
    """Return the episodes of a group of chains."""
    return [
        Job(
            id=f"{group.id}.{member}",
            wanted=group.wanted,
            task=group.task,
            seed=member_seed(group.seed, member),
            attempt=member,
            group=group.id,
        )
        for member in range(samples)
    ]


async def played_through(
    policy: Policy, wanted: Iterable[Job], source: Source, concurrency: int, wait: Wait, *, keep_prompts: bool = False
) -> AsyncIterator[Episode]:
    """Play episodes; yield each as it ends. Those for which a server was away or full are played again, from the start.

    Args:
        policy: who plays.
        wanted: the episodes.
        source: where environments come from.
        concurrency: most episodes in play at once.
        wait: awaited while the server is away, with the number of episodes that are left, and why.
        keep_prompts: keep the prompt of every turn.
    """
    left, why = {job.id: job for job in wanted}, ""
    while left:
        again = list(left.values())
        async for episode in rollout(policy, again, source=source, concurrency=concurrency, keep_prompts=keep_prompts):
            if episode.error is not None and episode.error.get("code") in LATER:
                why = str(episode.error.get("detail", ""))
            else:
                del left[episode.id]
                yield episode
        if left:
            await wait(len(left), why)


async def tree(policy: TorchPolicy, group: Group, part: Part, source: Source, vocabulary: int, wait: Wait) -> Grown:
    """Grow the tree of one task; one that a server's absence cut off is grown again, from the root.

    Every node keeps the environment in its state, so that more turns can be sampled there; a turn is played on a fork
    whose noise is drawn from (group seed, path).
    """
    while True:
        try:
            return await _grown(policy, group, part, source, vocabulary)
        except (*AWAY, CapacityReached) as error:  # no room for a fork ends a branch, none for the root comes here
            await wait(1, error.detail)
        except BaseExceptionGroup as errors:
            away, other = errors.split(AWAY)
            if away is None or other is not None:
                raise
            await wait(1, next(_leaves(away)).detail)


def _leaves(errors: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in errors.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]


async def _grown(policy: TorchPolicy, group: Group, part: Part, source: Source, vocabulary: int) -> Grown:
    plan: Plan = part(seed=group.seed, can_fork=True)
    async with source.lend(group.wanted) as env:
        player = Player(policy, env, _episode(policy, group))
        root = _Branch(player, await player.begin())
        grower = _Grower(plan, group, vocabulary)
        try:
            async with asyncio.TaskGroup() as tasks:
                grower.start(tasks, {0: root}, plan.begin())
        finally:
            await grower.close()
    leaves = plan.tree.leaves()
    return Grown(plan, [leaf.turn.episode for leaf in leaves], [leaf.number for leaf in leaves], grower.failed)


class _Grower:
    def __init__(self, plan: Plan, group: Group, vocabulary: int) -> None:
        self.plan = plan
        self.group = group
        self.vocabulary = vocabulary
        self.states: dict[int, _Branch] = {}
        self.failed: list[Episode] = []

    def start(self, tasks: asyncio.TaskGroup, states: dict[int, _Branch], nodes: Sequence[Node]) -> None:
        self.states |= states
        for node in nodes:
            tasks.create_task(self.sample(tasks, node))

    async def sample(self, tasks: asyncio.TaskGroup, node: Node) -> None:
        state, name = self.states[node.parent or 0], f"{self.group.id}.{name_of(node)}"
        branch: _Branch | None = None
        try:
            noise = int(stable_rng("fork", self.group.seed, *node.path).integers(SEED_LIMIT))
            branch = await state.fork(noise, name)
            await branch.player.turn(branch.context)
        except Exception as error:
            if branch is not None:
                await branch.close()
            if isinstance(error, AWAY):
                raise
            # One failed turn ends one branch; the rest of the tree goes on.
            begun = state.episode if branch is None else branch.episode
            self.failed.append(
                msgspec.structs.replace(
                    begun, id=name, status="failed", error=problem_of(error), parent=state.episode.id
                )
            )
            self.start(tasks, {}, self.plan.lost(node))
            return
        completion = branch.episode.turns[-1].completion
        entropies = torch.tensor(completion.entropies or [], dtype=torch.float64)
        ended = branch.episode.status != "running"
        if ended:
            branch.player.finish(branch.context)
            await branch.close()
        else:
            self.states[node.number] = branch
        following = self.plan.sampled(
            node,
            entropy=float(turn_entropy(torch.tensor(completion.logprobs or [], dtype=torch.float64))),
            step_entropy=float(of_entropies(entropies, self.vocabulary)),
            ended=ended,
            reward=branch.episode.reward if ended else None,
            turn=branch,
        )
        self.start(tasks, {}, following)

    async def close(self) -> None:
        for number, state in self.states.items():
            if number:  # the root's environment is lent
                await state.close()
        self.states.clear()


def _episode(policy: TorchPolicy, group: Group) -> Episode:
    wanted = group.wanted
    return Episode(
        id=group.id,
        env=wanted.env,
        task=group.task,
        seed=group.seed,
        config=wanted.config,
        level=wanted.level,
        style=dict(wanted.turn),
        split=group.task.rpartition("/")[0],
        group=group.id,
        policy=policy.name,
    )


class _Branch:
    """An episode in a tree: what is known of it, and its environment, in one state."""

    def __init__(self, player: Player, context: Context) -> None:
        self.player = player
        self.context = context
        self._forking = asyncio.Lock()

    @property
    def episode(self) -> Episode:
        return self.player.episode

    async def fork(self, noise: int, episode_id: str) -> _Branch:
        """Return a copy with noise of its own, in the same state."""
        async with self._forking:  # an environment does one thing at a time
            env = await self.player.env.fork(noise)
        old, here = self.episode, self.context.turn
        episode = msgspec.structs.replace(
            old,
            id=episode_id,
            turns=list(old.turns),
            parent=old.id,
            fork_turn=here,
            reseeds=[*old.reseeds, (here, noise)],
            metrics=dict(old.metrics),
        )
        # A generator of its own: its samples must differ from its siblings'.
        memory = {**self.context.memory, "rng": stable_rng("branch", noise)}
        context = dataclasses.replace(self.context, handle=env, memory=memory)
        return _Branch(Player(self.player.policy, env, episode), context)

    async def close(self) -> None:
        await self.player.env.close()
