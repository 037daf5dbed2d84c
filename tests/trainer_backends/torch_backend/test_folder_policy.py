"""``turngym eval --policy DIR``: folders of weights and runs, evaluated like any policy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main
from turngym.records import Episode, read_episodes
from turngym.trainer_backends.torch_backend import checkpoint
from turngym.trainer_backends.torch_backend.loading import load_model

ENV = ["--env", "frozen-lake", "--memory", "0", "--max-turns", "2", "--episodes", "3", "--quiet"]


def evaluate(out: Path, *words: str) -> int:
    return main(["eval", *ENV, "--out", str(out), *words])


def episodes(out: Path) -> list[Episode]:
    return sorted(read_episodes(out / "episodes.jsonl"), key=lambda episode: episode.id)


def run_of(policy: Path, out: Path, *steps: int) -> Path:
    """Make a run's folder with checkpoints, as training leaves them."""
    model, tokenizer = load_model(str(policy), "cpu")
    for step in steps:
        checkpoint.save(out / "checkpoints", step, model, tokenizer, {}, {})
    return out


@pytest.fixture(scope="module")
def long_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that takes the environment's own prompts, which explain everything."""
    out = tmp_path_factory.mktemp("long") / "mine"
    words = ["policy", "new", "--env", "compact-frozen-lake", "--size", "tiny", "--length", "4096", "--episodes", "4"]
    assert main([*words, "--out", str(out)]) == 0
    return out


def test_a_new_policy_is_evaluated_beside_the_expert(long_policy: Path, tmp_path: Path, capsys: Any) -> None:
    assert evaluate(tmp_path / "a", "--policy", f"{long_policy},expert", "--max-tokens", "6") == 0
    assert "mine" in capsys.readouterr().out
    found = episodes(tmp_path / "a")
    assert {episode.policy for episode in found} == {"mine", "expert"}
    own = [turn.completion for episode in found if episode.policy == "mine" for turn in episode.turns]
    assert own
    assert all(0 < (each.completion_tokens or 0) <= 6 and each.finish_reason in ("stop", "length") for each in own)
    assert all(each.token_ids is None and each.logprobs is None for each in own)
    # The same again gives the same; greedy gives something else, and tokens where they are asked for.
    words = ["--policy", str(long_policy), "--max-tokens", "6"]
    assert evaluate(tmp_path / "b", *words) == 0
    texts = [[turn.completion.text for turn in each.turns] for each in found if each.policy == "mine"]
    assert texts == [[turn.completion.text for turn in each.turns] for each in episodes(tmp_path / "b")]
    assert evaluate(tmp_path / "c", *words, "--temperature", "0", "--logprobs", "--device", "cpu") == 0
    greedy = [turn.completion for each in episodes(tmp_path / "c") for turn in each.turns]
    assert [each.text for each in greedy] != [text for each in texts for text in each]
    assert all(len(each.token_ids or ()) == len(each.logprobs or ()) > 0 for each in greedy)


def test_a_run_is_its_newest_checkpoint(long_policy: Path, tmp_path: Path, capsys: Any) -> None:
    run = run_of(long_policy, tmp_path / "run", 2, 10)
    assert evaluate(tmp_path / "a", "--policy", str(run), "--max-tokens", "4") == 0
    assert {episode.policy for episode in episodes(tmp_path / "a")} == {"run-step-000010"}
    # A later checkpoint is another policy: its episodes are not mixed with those.
    run_of(long_policy, run, 12)
    assert evaluate(tmp_path / "a", "--policy", str(run), "--max-tokens", "4") == 1
    assert "another" in capsys.readouterr().err
    both = [f"{run}/checkpoints/step-000010", f"{run}/checkpoints/step-000012"]
    assert evaluate(tmp_path / "b", "--policy", ",".join(both), "--max-tokens", "4") == 0
    assert {episode.policy for episode in episodes(tmp_path / "b")} == {"run-step-000010", "run-step-000012"}


def test_what_is_no_policy_is_refused(long_policy: Path, tmp_path: Path, capsys: Any) -> None:
    def error(*words: str) -> str:
        assert evaluate(tmp_path / "out", *words) == 1
        return str(capsys.readouterr().err)

    assert "is no folder" in error("--policy", str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    assert "holds no model" in error("--policy", str(tmp_path / "empty"))
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    assert "no checkpoint yet" in error("--policy", str(tmp_path / "young"))
    assert "CUDA device" in error("--policy", str(long_policy), "--device", "cuda:99")
    assert "--max-tokens" in error("--policy", str(long_policy), "--max-tokens", "4096")
    assert "No policy 'exprt'" in error("--policy", "exprt")
    mute = tmp_path / "mute"
    shutil.copytree(long_policy, mute)
    (mute / "chat_template.jinja").unlink()
    assert "no chat template" in error("--policy", str(mute), "--max-tokens", "4")
    broken = tmp_path / "broken"
    shutil.copytree(long_policy, broken)
    (broken / "model.safetensors").write_bytes(b"nothing")
    assert "No model at" in error("--policy", str(broken), "--max-tokens", "4")


NEW = ["policy", "new", "--env", "compact-frozen-lake", "--size", "tiny", "--episodes", "2"]


@pytest.mark.parametrize(
    "words",
    [
        ["--vocabulary", "0"],
        ["--vocabulary", "10"],
        ["--vocabulary", "200"],
        ["--length", "0"],
        ["--episodes", "0"],
        ["--seed", "-1"],
    ],
)
def test_a_policy_that_cannot_be_made_is_refused(words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main([*NEW, "--out", str(tmp_path / "new"), *words]) == 1
    told = capsys.readouterr().err
    assert f"{words[0].removeprefix('--')} {words[1]}" in told and len(told.splitlines()) == 2
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_told(long_policy: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("mine")
    for words in (NEW, ["policy", "export", str(long_policy)]):
        for out in ("file", "file/inside"):
            assert main([*words, "--out", str(tmp_path / out)]) == 1
            assert f"{out} cannot be made" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("torch", ["eval", *ENV, "--policy", "POLICY"]),
        ("transformers", ["eval", *ENV, "--policy", "POLICY"]),
        ("torch", [*NEW, "--out", "OUT"]),
        ("transformers", [*NEW, "--out", "OUT"]),
        ("torch", ["policy", "export", "POLICY", "--out", "OUT"]),
        ("torch", ["train", "small", "--out", "OUT"]),
        ("transformers", ["train", "small", "--out", "OUT"]),
        ("peft", ["train", "small", "--out", "OUT", "--set", 'model.lora={"r": 4}']),
    ],
)
def test_the_extra_that_is_missing_is_named(package: str, words: list[str], long_policy: Path, tmp_path: Path) -> None:
    given = {"POLICY": str(long_policy), "OUT": str(tmp_path / "out")}
    words = [given.get(word, word) for word in words]
    script = f"import sys; sys.modules[{package!r}] = None\nfrom turngym.cli import main\nsys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 1
    assert package in done.stderr and 'pip install "turngym[torch]"' in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not (tmp_path / "out").exists()
