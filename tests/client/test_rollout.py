from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from turngym.client.policies import AsyncEnv, BasePolicy, Context, ExpertPolicy, Policy, RandomPolicy
from turngym.client.rollout import Job, rollout
from turngym.client.sources import HubSource, LocalSource, Source, Wanted
from turngym.envs.core import Effect, TextEnv
from turngym.envs.registry import EnvSpec, _registry, register
from turngym.records import Completion, Episode


class Odd(TextEnv):
    """Ends at "end", raises at "break"; two types of task."""

    @property
    def instructions(self) -> str:
        return "Say something."

    def _begin(self, split: str, index: int) -> None:
        self._state = ""

    def _apply(self, action: str) -> Effect:
        if action == "break":
            raise RuntimeError("broken on request")
        self._state += action
        return Effect(1.0, terminated=action == "end")

    def _observe(self) -> str:
        return self._state

    def _admissible(self) -> list[str]:
        return ["a", "end"]

    def task_type(self) -> str:
        return "odd" if int(self.task.rpartition("/")[2]) % 2 else "even"


@pytest.fixture(autouse=True)
def odd() -> Iterator[None]:
    register(EnvSpec("odd", f"{__name__}:Odd"))
    yield
    del _registry["odd"]


class Says(BasePolicy):
    """Plays fixed actions by task, then "end"."""

    name = "says"

    def __init__(self, actions: Mapping[str, list[str | Exception | Completion]]) -> None:
        self.actions = actions

    async def act(self, context: Context) -> Completion:
        own = self.actions.get(context.task, [])
        action = own[context.turn] if context.turn < len(own) else "end"
        if isinstance(action, Exception):
            raise action
        return action if isinstance(action, Completion) else Completion(text=context.reply(action))


def jobs(env: str, count: int, level: str = "text", **turn: Any) -> list[Job]:
    return [Job(f"{env}:{i}", Wanted(env, {}, level, turn), f"test/{i}", seed=i) for i in range(count)]


async def played(policy: Policy, todo: list[Job], **options: Any) -> dict[str, Episode]:
    return {episode.task: episode async for episode in rollout(policy, todo, **options)}


def same(episode: Episode) -> Episode:
    """Return the episode without what depends on the clock."""
    episode.seconds = 0.0
    episode.metrics.pop("policy_seconds", None)
    return episode


# Records -------------------------------------------------------------------------------------------


async def test_an_episode_is_recorded_turn_by_turn() -> None:
    (episode,) = (await played(ExpertPolicy(), jobs("sokoban", 1, "turn", style="think-action"))).values()
    assert (episode.status, episode.won, episode.score) == ("terminated", True, 1.0)
    assert (episode.env, episode.task, episode.seed, episode.split) == ("sokoban", "test/0", 0, "test")
    assert episode.style == {"style": "think-action"} and episode.policy == "expert"
    turns = episode.turns
    assert [turn.index for turn in turns] == list(range(len(turns)))
    assert all(turn.format_valid and turn.action_valid for turn in turns)
    assert [turn.steps for turn in turns] == [len(turn.action.split("||")) for turn in turns]
    assert all(turn.next_anchor == later.anchor for turn, later in pairwise(turns))
    assert all(turn.completion.text != turn.action and "######" in turn.observation for turn in turns)
    assert episode.reward == pytest.approx(sum(turn.rewards["env"] for turn in turns))
    assert "√" in episode.final_observation
    assert turns[0].prompt is not None and turns[0].observation in turns[0].prompt[-1]["content"]
    assert turns[1].prompt is None


async def test_prompts_of_all_turns_are_kept_on_request() -> None:
    (episode,) = (await played(ExpertPolicy(), jobs("sokoban", 1, "turn"), keep_prompts=True)).values()
    assert all(turn.prompt for turn in episode.turns)


async def test_text_level_has_no_format() -> None:
    (episode,) = (await played(Says({"test/0": ["a"]}), jobs("odd", 1))).values()
    first, last = episode.turns
    assert (first.action, first.completion.text, first.format_valid, first.prompt) == ("a", "a", None, None)
    assert (first.observation, last.observation, episode.final_observation) == ("", "a", "aend")
    assert episode.style == {} and episode.level == "text"


async def test_task_types_are_recorded(url: str) -> None:
    episodes = await played(RandomPolicy(), jobs("odd", 4))
    assert [episodes[f"test/{i}"].task_type for i in range(4)] == ["even", "odd", "even", "odd"]
    source = HubSource(url)
    episodes = await played(RandomPolicy(), jobs("tally", 2, level="text"), source=source)
    await source.aclose()
    assert [episodes[f"test/{i}"].task_type for i in range(2)] == ["even", "odd"]


async def test_components_rewritten_at_the_end_are_rewritten_in_the_record() -> None:
    wanted = {"style": "meta-tags", "hooks": {"meta-reasoning": {}}}
    plan = Completion(text="<planning>1. push</planning><action>{}</action>")

    class Planner(ExpertPolicy):
        async def act(self, context: Context) -> Completion:
            if context.turn:
                return await super().act(context)
            action = await context.handle.expert_action()
            assert action is not None
            return Completion(text=plan.text.format(action.rpartition("<action>")[2].removesuffix("</action>")))

    (episode,) = (await played(Planner(), jobs("sokoban", 1, "turn", **wanted))).values()
    assert episode.won
    assert episode.turns[0].revised == ["meta-reasoning"] and episode.turns[0].rewards["meta-reasoning"] > 0
    assert episode.reward == pytest.approx(sum(sum(turn.rewards.values()) for turn in episode.turns))


async def test_context_overflow_truncates() -> None:
    overflow = Completion(text="", finish_reason="context_overflow")
    (episode,) = (await played(Says({"test/0": ["a", overflow]}), jobs("odd", 1, "turn"))).values()
    assert (episode.status, episode.error, episode.won) == ("truncated", None, False)
    assert episode.metrics["context_overflow"] == 1.0
    assert len(episode.turns) == 2 and episode.turns[1].steps == 0


# Failures ------------------------------------------------------------------------------------------


async def test_a_failure_is_recorded_and_stops_nobody_else() -> None:
    policy = Says({"test/1": ["a", "break"], "test/3": ["a", ValueError("no idea")]})
    episodes = await played(policy, jobs("odd", 6), concurrency=2)
    assert [episodes[f"test/{i}"].status for i in range(6)] == [
        "terminated", "failed", "terminated", "failed", "terminated", "terminated",
    ]  # fmt: skip
    broken, clueless = episodes["test/1"].error, episodes["test/3"].error
    assert broken is not None and broken["code"] == "ENVIRONMENT_FAILED"
    assert "broken on request" in broken["detail"] and "_apply" in broken["trace"]
    assert clueless is not None and clueless["code"] == "POLICY_FAILED"
    assert "says raised ValueError: no idea" in clueless["detail"]
    assert len(episodes["test/1"].turns) == 1


async def test_a_task_that_does_not_exist_is_a_failed_episode() -> None:
    job = Job("x", Wanted("odd", {}, "text"), "test/999999999", 0)
    (episode,) = (await played(RandomPolicy(), [job])).values()
    assert episode.error is not None and episode.error["code"] == "UNKNOWN_TASK"


async def test_a_mistake_in_the_list_of_jobs_is_raised() -> None:
    def broken() -> Iterator[Job]:
        yield jobs("odd", 1)[0]
        raise RuntimeError("bad list")

    with pytest.raises(RuntimeError, match="bad list"):
        [episode async for episode in rollout(RandomPolicy(), broken())]


# Concurrency ---------------------------------------------------------------------------------------


class Gate(BasePolicy):
    """Notes who is in play; holds one task back until told."""

    name = "gate"

    def __init__(self, held: str = "") -> None:
        self.held = held
        self.free = asyncio.Event()
        self.now: set[str] = set()
        self.most = 0

    async def act(self, context: Context) -> Completion:
        self.now.add(context.task)
        self.most = max(self.most, len(self.now))
        await asyncio.sleep(0.005)
        if context.task == self.held:
            await self.free.wait()
        self.now.discard(context.task)
        return Completion(text="end")


async def test_concurrency_is_bounded_and_used() -> None:
    gate = Gate()
    assert len(await played(gate, jobs("odd", 20), concurrency=5)) == 20
    assert gate.most == 5


async def test_a_slow_episode_holds_up_only_its_own_place() -> None:
    gate = Gate(held="test/0")
    finished = []
    async for episode in rollout(gate, jobs("odd", 10), concurrency=2):
        finished.append(episode.task)
        if len(finished) == 9:
            gate.free.set()
    assert finished[-1] == "test/0"


async def test_jobs_are_taken_only_as_places_become_free() -> None:
    taken = 0

    def todo() -> Iterator[Job]:
        nonlocal taken
        for job in jobs("odd", 50):
            taken += 1
            yield job

    async with aclosing(_generator(rollout(RandomPolicy(), todo(), concurrency=2))) as episodes:
        await anext(episodes)
        assert taken <= 6
    await asyncio.sleep(0)
    assert taken <= 6  # closing ends the work


async def _generator(episodes: AsyncIterator[Episode]) -> Any:
    async for episode in episodes:
        yield episode


async def test_environments_are_used_again_but_not_after_a_failure() -> None:
    made: list[AsyncEnv] = []

    class Counting(LocalSource):
        async def _make(self, wanted: Wanted) -> Any:
            made.append(await super()._make(wanted))
            return made[-1]

    await played(Says({"test/2": ["break"]}), jobs("odd", 6), source=Counting(), concurrency=1)
    assert len(made) == 2


async def test_several_policies_play_one_list() -> None:
    todo = [Job(name, Wanted("bandit"), "test/0", 0, policy=name) for name in ("expert", "random")]
    players: dict[str, Policy] = {"expert": ExpertPolicy(), "random": RandomPolicy()}
    episodes = [episode async for episode in rollout(players, todo)]
    assert sorted(episode.policy for episode in episodes) == ["expert", "random"]


# Over HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["text", "turn"])
async def test_a_hub_gives_the_same_episodes(url: str, level: str) -> None:
    todo = [job for env in ("bandit", "frozen-lake", "sokoban") for job in jobs(env, 6, level)]
    source: Source = HubSource(url)
    try:
        for policy in (ExpertPolicy(), RandomPolicy()):
            here = {episode.id: same(episode) async for episode in rollout(policy, todo)}
            there = {episode.id: same(episode) async for episode in rollout(policy, todo, source=source)}
            assert there == here
    finally:
        await source.aclose()


async def test_a_hub_that_is_killed_and_comes_back_is_survived(new_hub: Any) -> None:
    hub = new_hub()
    source: Source = HubSource(hub.url)
    here = await played(RandomPolicy(), jobs("sokoban", 4))
    there = {}
    async for episode in rollout(RandomPolicy(), jobs("sokoban", 4), source=source, concurrency=2):
        if not there:
            hub.end()
            hub.start()
        there[episode.task] = episode
    await source.aclose()
    assert {task: same(episode) for task, episode in there.items()} == {t: same(e) for t, e in here.items()}


async def test_a_broken_environment_on_a_hub_is_one_failed_episode(url: str) -> None:
    policy = Says({"test/1": ["break"]})
    episodes = await played(policy, jobs("tally", 3), source=url)
    assert [episodes[f"test/{i}"].status for i in range(3)] == ["terminated", "failed", "terminated"]
    error = episodes["test/1"].error
    assert error is not None and error["code"] == "ENVIRONMENT_FAILED"
