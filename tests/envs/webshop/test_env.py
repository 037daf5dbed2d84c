"""WebShop as an environment, on both kinds of shop."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from turngym import make
from turngym.envs.webshop.env import WebShop
from turngym.envs.webshop.nouns import MODELS
from turngym.envs.webshop.procedural import ProceduralGoals, procedural, split_of
from turngym.envs.webshop.shop import ITEM
from turngym.errors import InvalidRequest, MissingExtra


def test_official_data(data: Path) -> None:
    env = WebShop(data=str(data), tagger="words", split_rule="all", observation="text_rich")
    assert env.splits == {"train": 7, "validation": 7, "test": 7}
    for task in env.tasks("test"):
        env.reset(seed=0, options={"task": task})
        for action in env.expert():
            *_, info = env.step(action)
        assert info["score"] >= 2 / 3, "all but the options that cannot be clicked"
        assert info["task_score"] == 100 * info["score"] and {"r_type", "r_att", "r_price"} <= set(info["reward_parts"])
    for rule in ("t2po", "webshop", "ragen"):
        with pytest.raises(InvalidRequest, match="split_rule"):
            WebShop(data=str(data), tagger="words", split_rule=rule)


@pytest.mark.skipif(any(map(importlib.util.find_spec, MODELS)), reason="data: the tagger is installed")
def test_the_tagger_is_an_extra(data: Path) -> None:
    with pytest.raises(MissingExtra, match="turngym\\[webshop\\]"):
        WebShop(data=str(data), split_rule="all")


@pytest.mark.skipif(importlib.util.find_spec("pyserini") is not None, reason="data: pyserini is installed")
def test_lucene_is_an_extra() -> None:
    with pytest.raises(MissingExtra, match="turngym\\[lucene\\]"):
        make("webshop", search="lucene")


@pytest.mark.parametrize("observation", ["text", "text_rich", "html"])
def test_observations(observation: str) -> None:
    env = make("webshop", observation=observation)
    first, _ = env.reset(seed=0, options={"task": "test/0"})
    pages = [first, *(env.step(action)[0] for action in env.expert())]
    mark = {"text": " [SEP] ", "text_rich": "[button] Search [button_]\n", "html": "<!DOCTYPE html>"}[observation]
    # Only the plain text does not show which options are chosen.
    assert mark in first and len(set(pages)) == (4 if observation == "text" else len(pages))
    for action in ("click[description]", "click[features]", "click[reviews]", "click[attributes]"):
        env = make("webshop", observation=observation, attributes_page=True)
        env.reset(seed=0, options={"task": "test/0"})
        while not any(page == "click[buy now]" for page in env._admissible()):
            env.step(str(env.expert_action()))
        before = env.render() or env._observe()
        assert env.step(action)[0] != before and env.step("click[< prev]")[0] == before


def test_quoted_observations_leave_the_task_to_the_instructions() -> None:
    env, plain = make("webshop", observation="quoted"), make("webshop")
    first, _ = env.reset(seed=0, options={"task": "test/0"})
    task = plain.reset(seed=0, options={"task": "test/0"})[0].split(" [SEP] ")[2]
    assert first == "'Search'" and env.instructions.endswith(f"Your task is to: {task}")
    for action in plain.expert():
        page, quoted = plain.step(action)[0], env.step(action)[0]
        shown = [f"'{part}'" for part in page.split(" [SEP] ")[2:]]
        assert quoted == (page if plain.done else " [SEP] ".join(shown))


def test_success_reward() -> None:
    env = make("webshop", success_reward=10)
    env.reset(seed=0, options={"task": "test/1"})
    assert [env.step(action)[1] for action in env.expert()][-1] == 10
    env.reset(seed=0, options={"task": "test/1"})
    while not any(action == "click[buy now]" for action in env._admissible()):
        env.step(str(env.expert_action()))
    _, reward, terminated, _, info = env.step("click[buy now]")  # without the wanted options
    assert terminated and reward == 0 and 0 < info["score"] < 1


def test_released_variant_takes_actions_as_they_are() -> None:
    for variant, valid in (("default", True), ("released", False)):
        env = make("webshop", variant=variant)
        env.reset(seed=0, options={"task": "test/0"})
        assert env.step(" search[tea]")[4]["action_valid"] is valid


def test_shortcuts_do_not_win() -> None:
    """The first result as it is wins nothing; options by their words alone win about half."""
    env = make("webshop")
    scores = []
    for task in env.tasks("test")[:100]:
        observation, _ = env.reset(seed=0, options={"task": task})
        _, _, _, _, info = env.step(f"search[{observation.split(' [SEP] ')[2]}]")
        env.step(next(action for action in info["admissible"] if action.startswith("click[b0")))
        info = env.step("click[buy now]")[4]
        scores.append(info["score"])
    assert max(scores) < 1 and 0.3 < sum(scores) / 100 < 0.75


def test_procedural_goals_of_the_splits_are_of_different_products() -> None:
    catalogue = procedural(300, 5)
    goals = ProceduralGoals(catalogue, 5)
    asins = {split: {goals.goal(split, n).asin for n in range(200)} for split in ("train", "validation", "test")}
    assert not asins["train"] & asins["test"] and not asins["validation"] & (asins["train"] | asins["test"])
    assert len({goals.goal("train", n).instruction for n in range(200)}) == 200
    assert all(split_of(5, catalogue.find(asin) or 0) == "test" for asin in asins["test"])


def test_procedural_products_do_not_depend_on_the_number() -> None:
    assert list(procedural(200, 1)) == list(procedural(300, 1))[:200]
    assert procedural(200, 1).product(0) != procedural(200, 2).product(0)
    assert len({product.asin for product in procedural(300, 1)}) == 300


def test_pinned_goal() -> None:
    """Goals stay what they are: raise GENERATOR_VERSION and this line together."""
    env = make("webshop")
    observation, info = env.reset(seed=0, options={"task": "test/0"})
    assert observation == PINNED and info["task_type"] == "grocery"


PINNED = (
    "WebShop [SEP] Instruction: [SEP] Can you get me ground coffee known for caffeine free and fair trade, in a light"
    " roast, and I take the size 12 ounce, and price lower than 40.00 dollars [SEP] Search"
)


def test_a_session_is_small() -> None:
    env = make("webshop")
    env.reset(seed=0, options={"task": "test/0"})
    while env._state.page != ITEM:
        env.step(str(env.expert_action()))
    own = [*vars(env).values(), *env._state, *env._goal]
    shared = (env._shop, env._supply, env.splits, env.metadata)
    size = sum(sys.getsizeof(value) for value in own if not any(value is other for other in shared))
    assert size + sys.getsizeof(vars(env)) < 10_000
    assert env.fork()._state is env._state


@pytest.mark.parametrize(
    "settings",
    [
        {"observation": "image"}, {"search": "google"}, {"variant": "paper"}, {"goals": "robot"}, {"split_rule": "x"},
        {"products": 10}, {"products": 1.5}, {"catalogue_seed": -1}, {"data": 3}, {"data": "/nowhere"},
        {"success_reward": "ten"},
    ],
)  # fmt: skip
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        make("webshop", **settings)
