"""Studies: methods from one start with several seeds; finished runs stay, and what is wrong is told at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main
from turngym.envs.presets import config_names
from turngym.errors import InvalidRequest
from turngym.trainer_backends.study import load_study, runs

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
credit = { id = "grpo" }
[methods.gigpo]
credit = { id = "gigpo" }
update = { learning_rate = 1e-4 }
sampling = { tasks = 1 }
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
    (start,) = (tmp_path / "starts").iterdir()
    assert entries(start, "start") and not entries(start, "train")
    for method in ("grpo", "gigpo"):
        assert not entries(out / f"{method}-seed3", "start")
        assert len(entries(out / f"{method}-seed3", "train")) == 1
    first = {entries(run, "eval")[0]["eval_reward"] for run in (start, out / "grpo-seed3", out / "gigpo-seed3")}
    assert len(first) == 1
    recipe = json.loads((out / "gigpo-seed3" / "recipe.json").read_text())
    assert recipe["update"]["learning_rate"] == 1e-4 and recipe["run"]["seed"] == 3
    before = (out / "grpo-seed3" / "metrics.jsonl").stat().st_mtime_ns
    start.rename(tmp_path / "gone")  # and no start that no run needs
    assert main(["study", str(study), "--out", str(out), "--jobs", "1"]) == 0
    assert (out / "grpo-seed3" / "metrics.jsonl").stat().st_mtime_ns == before
    assert not start.exists()


def test_methods_share_a_start_where_what_it_depends_on_agrees(study: Path, tmp_path: Path) -> None:
    text = study.read_text()
    other = '[methods.other]\nstart = { epochs = 2 }\n[methods.none]\nstart = "none"\n'
    other += '[common]\ncredit = { id = "rloo" }'
    study.write_text(text + other)
    loaded = load_study(str(study))
    made = list(runs(loaded, tmp_path / "runs"))
    of = {each.label: each.start and each.start.policy for each in made}
    assert of["grpo"] == of["gigpo"] != of["other"] and of["none"] is None
    assert [each.recipe.credit["id"] for each in made] == ["grpo", "gigpo", "rloo", "rloo"]
    # Another study beside it finds the same starts.
    (beside,) = runs(loaded, tmp_path / "more", ["gigpo"])
    assert beside.start == made[0].start


def test_a_study_that_is_told_to_end_ends_its_runs(study: Path, tmp_path: Path) -> None:
    study.write_text(study.read_text().replace("seeds = [3]", "seeds = [3]\n[common]\nrun = { steps = 100000 }"))
    words = [sys.executable, "-m", "turngym.cli", "study", str(study), "--out", str(tmp_path / "runs"), "--jobs", "1"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        metrics = tmp_path / "runs" / "grpo-seed3" / "metrics.jsonl"
        wait_for(lambda: metrics.is_file() and '"train"' in metrics.read_text())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    length = metrics.stat().st_size
    time.sleep(1)
    assert metrics.stat().st_size == length


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


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


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]", "[-1]", "[9007199254740992]"])
def test_seeds_that_cannot_be_are_refused(study: Path, seeds: str) -> None:
    study.write_text(study.read_text().replace("[3]", seeds))
    with pytest.raises(InvalidRequest, match="seeds"):
        load_study(str(study))


@pytest.mark.parametrize(
    ("words", "told"), [(["--jobs", "-1"], "--jobs is -1"), (["--device", "cuda:99"], "CUDA device")]
)
def test_wrong_options_are_told_before_anything_is_written(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["study", str(study), "--out", str(tmp_path / "runs"), *words]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() and not (tmp_path / "starts").exists()


@pytest.mark.parametrize("name", config_names("studies"))
def test_packaged_studies_load(name: str) -> None:
    assert load_study(name).summary


def test_one_setting_is_changed_at_any_depth(study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(tmp_path / "base.toml"), "--out", str(tmp_path / "run")]
    changes = ["env.config.size=4", "run.tokens=1", "run.steps=3", "update.grad_clip=inf"]
    assert main([*words, *(word for change in changes for word in ("--set", change))]) == 0
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["env"]["config"] == {"size": 4}
    assert recipe["update"]["grad_clip"] is None  # JSON has no infinity
    assert len(entries(tmp_path / "run", "train")) == 1  # so many tokens were sampled in the first step
    told = capfd.readouterr().out.splitlines()[-2:]
    assert [line.split(":")[0] for line in told] == ["Held-out success at step 0", "Held-out success at step 1"]
    assert main(["train", str(tmp_path / "base.toml"), "--set", "update.=3"]) == 1
