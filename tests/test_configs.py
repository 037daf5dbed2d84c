"""Every preset that ships loads, and what it names exists and runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from turngym.client.evaluation.plan import resolve
from turngym.client.evaluation.presets import load_eval_preset
from turngym.client.sources import LocalSource
from turngym.envs.presets import config_names, load_preset
from turngym.errors import InvalidRequest, Unavailable

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def test_every_file_is_found_by_name() -> None:
    for kind in ("envs", "eval"):
        files = sorted(path.stem for path in (CONFIGS / kind).iterdir())
        assert files
        assert config_names(kind) == files


@pytest.mark.parametrize("name", config_names("envs"))
def test_an_environment_preset_plays(name: str) -> None:
    preset = load_preset(name)
    assert preset.summary, "say in one line whose setting this is"
    try:
        env = preset.make_turn()
    except Unavailable as error:
        pytest.skip(f"data: {error}")
    prompt, info = env.reset(seed=1, options={"split": "test", "task": 0})
    assert prompt[-1]["content"]
    assert info["task"] == "test/0"
    env.close()


@pytest.mark.parametrize("name", config_names("eval"))
async def test_an_evaluation_preset_fits_the_environments(name: str) -> None:
    plan = load_eval_preset(name)
    assert plan.summary, "say in one line whose setting this is"
    # A preset for hosted models leaves it to the caller to name one.
    plan.policies = plan.policies or ["random"]
    try:
        resolved = await resolve(plan, LocalSource())
    except Unavailable as error:
        pytest.skip(f"data: {error}")
    assert resolved.total > 0
    assert all(env.turn["style"] for env in resolved.envs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('env = "bandit"\nstyle = "x"', "style"),
        ('env = "bandit"\nconfig = 3', "config"),
        ('env = "bandit', "TOML"),
        ("summary = 'no environment'", "env"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message) as caught:
        load_preset(str(path))
    assert "mine.toml" in str(caught.value)


def test_nothing_but_toml_lies_in_configs() -> None:
    for path in CONFIGS.rglob("*"):
        if path.is_file():
            assert path.suffix == ".toml"
            assert tomllib.loads(path.read_text("utf-8"))
