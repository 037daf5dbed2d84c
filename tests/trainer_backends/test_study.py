"""Studies: methods from one start with several seeds; finished runs stay, and what is wrong is told at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main
from turngym.envs.presets import config_names
from turngym.errors import InvalidRequest
from turngym.trainer_backends.study import load_study

PRESET = """
env = "frozen-lake"
[config]
size = 3
max_actions_per_step = 1
[turn]
style = "think-action"
memory = 0
max_turns = 3
prompt = { first = "{observation}", later = "{observation}" }
"""
BASE = """
[env]
preset = "PRESET"
[model]
dtype = "float32"
new = { length = 96, episodes = 5 }
[start]
policy = "expert"
episodes = 8
threshold = -1.0
epochs = 1
learning_rate = 1e-3
[rollout]
id = "chains"
samples = 2
[sampling]
tasks = 2
max_tokens = 8
max_prompt_tokens = 64
[credit]
id = "grpo"
[run]
steps = 1
eval_tasks = 4
"""
STUDY = """
base = "BASE"
seeds = [3]
[methods.grpo]
[methods.gigpo]
credit = { id = "gigpo" }
update = { learning_rate = 1e-4 }
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two methods with one step each."""
    for name, text in (("preset", PRESET), ("base", BASE), ("study", STUDY)):
        for other in ("preset", "base"):
            text = text.replace(f'"{other.upper()}"', f'"{tmp_path / other}.toml"')
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path / "study.toml"


def entries(folder: Path, kind: str) -> list[dict[str, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_methods_go_on_from_one_start_and_are_not_made_twice(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert main(["study", str(study), "--out", str(out), "--jobs", "1"]) == 0
    told = capfd.readouterr().out
    assert "grpo" in told and "gigpo" in told
    assert (out / "compared.html").is_file()
    assert entries(out / "start-seed3", "start") and not entries(out / "start-seed3", "train")
    for method in ("grpo", "gigpo"):
        assert not entries(out / f"{method}-seed3", "start")
        assert len(entries(out / f"{method}-seed3", "train")) == 1
    first = {run: entries(out / run, "eval")[0]["eval_reward"] for run in ("start-seed3", "grpo-seed3", "gigpo-seed3")}
    assert len(set(first.values())) == 1
    recipe = json.loads((out / "gigpo-seed3" / "recipe.json").read_text())
    assert recipe["update"]["learning_rate"] == 1e-4 and recipe["run"]["seed"] == 3
    before = (out / "grpo-seed3" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["study", str(study), "--out", str(out), "--jobs", "1"]) == 0
    assert (out / "grpo-seed3" / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('[methods.bad]\ncredit = { id = "gigqo" }', "gigpo"),
        ("[methods.bad]\nupdate = { learning_rat = 1 }", "learning_rat"),
        ('[methods.bad]\ncredit = { id = "turn-tree" }', "tree"),
    ],
)
def test_a_wrong_method_is_told_before_anything_is_trained(study: Path, wrong: str, told: str) -> None:
    study.write_text(STUDY.replace('"BASE"', f'"{study.parent / "base"}.toml"') + wrong)
    with pytest.raises(InvalidRequest) as caught:
        load_study(str(study))
    assert told in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize("name", config_names("studies"))
def test_packaged_studies_load(name: str) -> None:
    assert load_study(name).summary


def test_one_setting_is_changed_at_any_depth(study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(tmp_path / "base.toml"), "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "env.config.size=4", "--set", "run.tokens=1", "--set", "run.steps=3"]) == 0
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["env"]["config"] == {"size": 4}
    assert len(entries(tmp_path / "run", "train")) == 1  # so many tokens were sampled in the first step
    told = capfd.readouterr().out.splitlines()[-2:]
    assert [line.split(":")[0] for line in told] == ["Held-out success at step 0", "Held-out success at step 1"]
    assert main(["train", str(tmp_path / "base.toml"), "--set", "update.=3"]) == 1
