"""The papers' presets of the worlds, by what a model sees and what it is paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turngym.envs.presets import load_preset
from turngym.envs.registry import unmet
from turngym.envs.turn.env import TurnEnv


def played(name: str, turns: int) -> tuple[TurnEnv, list[list[str]]]:
    """Play the expert for some turns; return the contents of every prompt."""
    preset = load_preset(name)
    if (error := unmet(preset.env)) is not None:
        pytest.skip(f"data: {error}")
    env = preset.make_turn()
    messages, _ = env.reset(seed=0, options={"task": "test/1"})
    prompts = [messages]
    while len(prompts) <= turns and not env.done:
        prompts.append(env.step(str(env.expert_action()))[0])
    return env, [[message["content"] for message in prompt] for prompt in prompts]


@pytest.mark.parametrize(("name", "turns"), [("t2po-webshop", 15), ("t2po-alfworld", 50), ("rlvmr-alfworld", 30)])
def test_turn_limits_and_the_reward_of_success(name: str, turns: int) -> None:
    env, _ = played(name, 0)
    env.reset(seed=0, options={"task": "test/1"})
    while not env.done:
        # Well-formed, admissible and of no use.
        action = "search[x]" if name.endswith("webshop") else "look"
        _, reward, terminated, truncated, _ = env.step(env.wrap(action))
        assert reward == 0 and not terminated
    assert truncated and len(env.turns) == turns
    env, _ = played(name, turns)
    assert [turn.rewards["env"] for turn in env.turns] == [0.0] * (len(env.turns) - 1) + [10.0]


def test_t2po_on_webshop() -> None:
    env, prompts = played("t2po-webshop", 3)
    (last,) = prompts[-1]
    task = env.instructions.rpartition("Your task is to: ")[2]
    assert last.count(task) == 1, "the task stands once, and not in every observation"
    assert "[Observation 3: ''Back to Search' [SEP] " in last and "[Observation 1" not in last
    assert "'click[buy now]'" in last and prompts[0][0].endswith("<action> </action>.")
    long = env.fork()
    long.style = replace(env.style, max_chars=len(last) - 1)
    assert "[Observation" not in long.prompt()[0]["content"] and env.style.max_chars == 13_000


@pytest.mark.parametrize("name", ["t2po-alfworld", "rlvmr-alfworld"])
def test_alfworld(name: str) -> None:
    env, prompts = played(name, 3)
    last = prompts[-1][-1]
    assert "'inventory', 'look'" in last and "'help'" not in last
    remembered = range(1, 4) if name.startswith("rlvmr") else range(2, 4)
    assert [number for number in range(1, 4) if f"[Observation {number}:" in last] == list(remembered)
    assert ("Your plan so far: none yet" in last) is ("How actions are written" in last) is name.startswith("rlvmr")
    *_, reward, _, _, info = env.step(env.wrap("fly away"))
    paid = {"t2po-alfworld": -0.1, "rlvmr-alfworld": 0.0}[name]
    assert info["format_valid"] and not info["action_valid"] and reward == paid


def test_ragen_on_webshop() -> None:
    _, prompts = played("ragen-webshop", 2)
    roles = prompts[-1]
    assert len(roles) == 1 + 2 * 2 + 1 and "Use at most 200 words." in roles[-1]
    assert roles[-1].startswith("Reward: 0\n\nTurn 3\n") and "Available actions: 'click[back to search]'" in roles[-1]
    assert "You have 7 action(s) left" in roles[-1] and "Available actions: 'search[<your query>]'" in roles[1]


def test_t2po_on_sokoban_takes_the_first_move_named() -> None:
    env, _ = played("t2po-sokoban", 0)
    *_, info = env.step("so <action>go DOWN, then up</action> <think>as I said</think>")
    assert info["action"] == "up" and info["format_valid"]
