"""The examples in CONTRIBUTING.md work as they are printed."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

import turngym
from turngym.envs import registry
from turngym.envs.turn import hooks
from turngym.records import Completion, Turn

TEXT = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = [re.sub("^   ", "", block, flags=re.M) for block in re.findall(r"```python\n(.*?)```", TEXT, re.S)]


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the first example as the module it is meant to be and execute its registry row."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    module = types.ModuleType("turngym.envs.guess")
    module.__package__ = "turngym.envs"
    exec(BLOCKS[0], vars(module))
    monkeypatch.setitem(sys.modules, "turngym.envs.guess", module)
    row = re.search(r"`(EnvSpec\(.*?\))`", TEXT)
    assert row is not None
    registry.register(eval(row[1], vars(registry)))
    yield
    del gymnasium.registry["turngym/Guess-v0"]


def test_the_environment_plays(guess: None) -> None:
    env = turngym.make("guess")
    env.reset(seed=1, options={"task": "test/3"})
    _, _, terminated, _, info = env.step("ten")
    assert not terminated
    assert not info["action_valid"]
    assert "1 to 9" in env.instructions
    for action in env.expert():
        _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["won"]) == (1.0, True, True)


def test_the_hook_pays() -> None:
    space = dict(vars(hooks))
    exec(BLOCKS[1], space)
    hook = space["ShortReply"](limit=5)
    short, long = (
        Turn(index=index, observation="", completion=Completion(text=text))
        for index, text in enumerate(("abc", "abcdef"))
    )
    assert hook.turn([short]) == 0.1
    assert hook.turn([short, long]) == 0.0
