"""Reward hooks over groups in an evaluation: applied when a group is complete, on resumption too."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngym.client.evaluation.plan import EvalPlan
from turngym.client.evaluation.runner import Results, evaluate
from turngym.client.policies import BasePolicy, Context, ExpertPolicy
from turngym.envs.turn.hooks import length_rewards
from turngym.errors import InvalidRequest, PolicyFailed
from turngym.records import Completion, Episode, read_episodes

HOOKS = {"hooks": {"length": {}, "format-penalty": {}}}


class Talker(BasePolicy):
    """Plays as the expert does, in replies whose length depends on the attempt; fails where it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.name = "random"
        self.fails = fails
        self.expert = ExpertPolicy()

    async def act(self, context: Context) -> Completion:
        if self.fails and context.attempt == 1 and context.task == "test/0":
            raise PolicyFailed("not now")
        reply = (await self.expert.act(context)).text
        return Completion(reply, token_ids=[0] * (10 * (context.attempt + 1)))


def run(folder: Path, talker: Talker, **changes: object) -> Results:
    settings = {"envs": ["sokoban"], "policies": ["random"], "episodes": 2, "pass_k": 3, "spread": "first"}
    plan = EvalPlan(**{**settings, "turn": HOOKS, **changes})  # type: ignore[arg-type]
    return evaluate(plan, folder, policies={"random": talker})


def latest(folder: Path) -> dict[str, Episode]:
    return {episode.id: episode for episode in read_episodes(folder / "episodes.jsonl")}


def lengths(episodes: list[Episode]) -> list[int]:
    return [sum(len(turn.completion.token_ids or ()) for turn in episode.turns) for episode in episodes]


def check(group: list[Episode]) -> None:
    """Compare a group's rewards with eq. 15."""
    group = sorted(group, key=lambda episode: episode.attempt)
    wanted = length_rewards(lengths(group), [episode.won for episode in group])
    assert [episode.turns[-1].rewards["length"] for episode in group] == pytest.approx(wanted)
    for episode in group:
        assert episode.turns[-1].revised == ["length"] and "length" not in episode.turns[0].rewards
        assert episode.reward == pytest.approx(sum(turn.reward for turn in episode.turns))
    assert len(set(wanted)) == len(wanted)


def test_a_complete_group_gets_its_length_rewards(tmp_path: Path) -> None:
    results = run(tmp_path, Talker(), seeds=2)
    episodes = list(latest(tmp_path).values())
    assert len(episodes) == 12 and not results.notes
    for task in ("test/0", "test/1"):
        for seed in (0, 1):
            check([e for e in episodes if e.task == task and e.attempt // 3 == seed])
    (row,) = [row for row in results.rows if row.by == "env"]
    assert row.components["length"] == pytest.approx(sum(e.turns[-1].rewards["length"] for e in episodes) / 12)
    size = (tmp_path / "episodes.jsonl").stat().st_size
    assert run(tmp_path, Talker(), seeds=2).played == 0
    assert (tmp_path / "episodes.jsonl").stat().st_size == size, "nothing is written twice"


def test_a_group_waits_for_its_failed_member(tmp_path: Path) -> None:
    results = run(tmp_path, Talker(fails=True))
    assert any("1 group(s) are not complete and lack the reward of length" in note for note in results.notes)
    done = [e for e in latest(tmp_path).values() if e.task == "test/0" and e.status != "failed"]
    assert len(done) == 2 and all("length" not in episode.turns[-1].rewards for episode in done)
    check([e for e in latest(tmp_path).values() if e.task == "test/1"])
    results = run(tmp_path, Talker())
    assert results.played == 1 and not results.notes
    check([e for e in latest(tmp_path).values() if e.task == "test/0"])


def test_a_run_that_stopped_between_the_records_of_a_group_is_mended(tmp_path: Path) -> None:
    run(tmp_path, Talker())
    path = tmp_path / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    # The header, six episodes as played, then one revised record of six.
    path.write_bytes(b"".join(lines[:8]))
    assert run(tmp_path, Talker()).played == 0
    for task in ("test/0", "test/1"):
        check([e for e in latest(tmp_path).values() if e.task == task])


def test_one_attempt_is_no_group(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--pass-k 2"):
        run(tmp_path, Talker(), pass_k=1)
