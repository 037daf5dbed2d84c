"""Training runs: every method end to end, resuming after a kill, servers that go away, losses that are no numbers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec
import torch

from turngym.cli import main
from turngym.errors import InvalidRequest
from turngym.records import read_episodes
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend import checkpoint
from turngym.trainer_backends.torch_backend import trainer as trainer_module
from turngym.trainer_backends.torch_backend.learner import Diverged
from turngym.trainer_backends.torch_backend.trainer import Trainer

METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"kl": {"coefficient": 0.01}},
    "gigpo": {"credit": {"id": "gigpo"}, "start": {"policy": "expert", "episodes": 12, "epochs": 1}},
    "grpo-mr": {"credit": {"id": "grpo-mr"}},
    "t2po": {
        # Thinking must be open to be stopped: a little imitation teaches that.
        "start": {
            "policy": "expert",
            "episodes": 24,
            "threshold": -1.0,
            "epochs": 6,
            "learning_rate": 5e-3,
            "batch": 8,
        },
        "credit": {"id": "gigpo"},
        "signal": {"id": "paper"},
        "token_control": {"id": "tti", "min_tokens": 2, "window": 2, "epsilon": 10.0, "budget": 9},
        "turn_control": {"id": "tds", "eta": 10.0, "max_generations": 2},
    },
    "at2po": {
        "rollout": {"id": "entropy-tree", "chains": 2, "rounds": 1, "picks": 2},
        "credit": {"id": "turn-tree"},
        "loss": {"id": "atpo"},
    },
    "arpo": {"rollout": {"id": "arpo", "samples": 4, "initial": 2}, "credit": {"id": "arpo", "share": "hard"}},
    "aepo": {
        "rollout": {"id": "aepo", "samples": 4, "initial": 2},
        "shaping": [{"id": "entropy-advantage"}],
        "loss": {"id": "aepo"},
    },
    "ppo": {"credit": {"id": "gae"}, "critic": {}, "entropy": {"coefficient": 0.01}, "importance": {}},
    "starpo-s": {"filters": [{"id": "starpo-s", "ratio": 0.5}]},
}


def recipe_of(policy: Path, preset: Path, **changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "env": {"preset": str(preset)},
        "model": {"path": str(policy), "dtype": "float32"},
        "rollout": {"id": "chains", "samples": 2},
        "sampling": {"tasks": 2, "max_tokens": 10, "slots": 8},
        "credit": {"id": "grpo"},
        "update": {"mini_batch": 8, "learning_rate": 1e-3, "micro_tokens": 512},
        "run": {"steps": 2, "eval_every": 0, "eval_tasks": 4, "save_every": 1, "deterministic": True},
    }
    return msgspec.convert({**base, **changes}, Recipe)


def run(recipe: Recipe, out: Path) -> dict[str, float]:
    return asyncio.run(Trainer(recipe, out).train())


def lines(out: Path, kind: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["kind"] == kind]


def weights(out: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    newest = checkpoint.newest(out / "checkpoints")
    return dict(AutoModelForCausalLM.from_pretrained(newest).state_dict())


def test_the_reference_is_the_policy_after_its_start_also_in_a_resumed_run(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    start = {"policy": "expert", "episodes": 12, "threshold": -1.0, "epochs": 2, "learning_rate": 1e-2}
    changes = {"kl": {"coefficient": 0.01}, "entropy": {"coefficient": 0.1}, "update": {"learning_rate": 0.01}}
    recipe = recipe_of(policy_folder, preset_file, start=start, **changes)
    run(recipe, tmp_path / "run")
    first, second = (entry["kl"] for entry in lines(tmp_path / "run", "train"))
    assert abs(first) < 1e-5 < second
    longer = msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, steps=5))
    resumed = Trainer(longer, tmp_path / "run")
    started = dict(weights_of(tmp_path / "run" / "checkpoints" / "step-000000"))
    assert all(torch.equal(value, started[name]) for name, value in resumed.reference.state_dict().items())
    asyncio.run(resumed.train())
    names = [path.name for path in checkpoint.found(tmp_path / "run" / "checkpoints")]
    assert names == ["step-000000", "step-000004", "step-000005"]


def test_the_rate_rises_over_a_share_of_the_training_steps(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    update = {"mini_batch": 2, "learning_rate": 1e-4, "warmup": 0.5}
    recipe = recipe_of(policy_folder, preset_file, update=update, run={"steps": 6, "eval_tasks": 1})
    run(recipe, tmp_path / "run")
    train = lines(tmp_path / "run", "train")
    assert all(entry["updates"] > 1 for entry in train)
    rates = [entry["learning_rate"] / 1e-4 for entry in train]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])


def test_a_start_tells_how_far_it_is(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "TELL_S", -1.0)
    start = {"policy": "expert", "episodes": 6, "threshold": -1.0, "tags": "rules"}
    recipe = recipe_of(policy_folder, preset_file, start=start, run={"steps": 0, "eval_tasks": 1})
    heard: list[tuple[str, dict[str, float]]] = []
    trainer = Trainer(recipe, tmp_path / "run", report=lambda kind, metrics: heard.append((kind, dict(metrics))))
    asyncio.run(trainer.train())
    played = [metrics for kind, metrics in heard if kind == "playing"]
    # The expert's episodes, and the kept ones again with their thoughts.
    assert played[:6] == [{"episodes": number, "of": 6} for number in range(1, 7)]
    assert 0 < len(played[6:]) <= 6 and played[-1]["episodes"] == played[-1]["of"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_trains_and_leaves_a_model(
    name: str, policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(policy_folder, preset_file, **METHODS[name])
    final = run(recipe, tmp_path / "run")
    assert 0 <= final["eval_success"] <= 1
    train = lines(tmp_path / "run", "train")
    assert [entry["step"] for entry in train] == [1, 2]
    assert all(entry["trained_rows"] > 0 and entry["updates"] > 0 for entry in train)
    assert all(entry["gradient_norm"] == entry["gradient_norm"] for entry in train)
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert len({episode.id for episode in episodes}) == len(episodes) == 2 * sum(e["episodes"] for e in train) / 2
    before = weights_of(policy_folder)
    after = weights(tmp_path / "run")
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert all(0 < entry["generation_seconds"] < entry["rollout_seconds"] for entry in train)
    assert ("tree_turns" in train[0]) == ("rollout" in METHODS[name])
    if name == "at2po":
        first = [episode for episode in episodes if episode.id.startswith("s000000.")]
        replies = [[tuple(turn.completion.token_ids or ()) for turn in episode.turns] for episode in first]
        told = [reply for each in replies for reply in each]
        paths = {
            (episode.group, *each[: count + 1])
            for episode, each in zip(first, replies, strict=True)
            for count in range(len(each))
        }
        assert train[0]["tree_leaves"] == len(first) / 2
        assert train[0]["tree_turns"] == len(paths) / 2
        shared = 1 - sum(len(path[-1]) for path in paths) / sum(map(len, told))
        assert train[0]["tree_shared"] == pytest.approx(shared)
    if name == "t2po":
        assert train[0]["interventions"] > 0
        assert train[0]["discarded"] > 0
        turns = [turn.completion for episode in episodes for turn in episode.turns]
        assert all(len(each.certainty or ()) == len(each.token_ids or ()) for each in turns)


def test_hooks_that_compare_episodes_reach_the_leaves_of_trees(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewarded: list[tuple[list[float], list[float]]] = []
    real = trainer_module.samples_of_trees

    def watched(episodes: Any, trees: Any, *args: Any, **options: Any) -> Any:
        leaves = [grown.plan.tree.nodes[leaf].reward for grown in trees for leaf in grown.leaves]
        rewarded.append(([episode.reward for episode in episodes], leaves))
        return real(episodes, trees, *args, **options)

    def ranked(hooks: Any, group: Any) -> Any:
        return [msgspec.structs.replace(episode, reward=episode.reward + n) for n, episode in enumerate(group)]

    monkeypatch.setattr(trainer_module, "samples_of_trees", watched)
    monkeypatch.setattr(trainer_module, "apply_group_hooks", ranked)
    env = {"preset": str(preset_file), "turn": {"hooks": {"length": {}}}}
    run(recipe_of(policy_folder, preset_file, env=env, **METHODS["at2po"]), tmp_path / "run")
    assert all(entry["trained_rows"] > 0 for entry in lines(tmp_path / "run", "train"))
    assert len(rewarded) == 2
    for trained, leaves in rewarded:
        assert sorted(trained) == sorted(leaves) and max(leaves) >= 1


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def test_a_group_is_one_task_with_noise_of_its_own(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    run(recipe_of(policy_folder, preset_file, rollout={"id": "chains", "samples": 4}), tmp_path / "run")
    groups: dict[str, list[Any]] = {}
    for episode in read_episodes(tmp_path / "run" / "episodes.jsonl"):
        groups.setdefault(episode.group, []).append(episode)
    assert len(groups) == 4
    for members in groups.values():
        assert len({episode.task for episode in members}) == 1
        assert len({episode.seed for episode in members}) == len(members) == 4
        assert len({episode.turns[0].observation for episode in members}) == 1


def test_a_resumed_run_goes_on_bitwise(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    recipe = recipe_of(policy_folder, preset_file, **METHODS["t2po"])
    longer = msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, steps=4))
    run(longer, tmp_path / "whole")
    run(recipe, tmp_path / "parts")
    run(longer, tmp_path / "parts")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    for name in ("reward", "gradient_norm", "policy_loss", "trained_tokens"):
        assert [entry[name] for entry in lines(tmp_path / "whole", "train")] == [
            entry[name] for entry in lines(tmp_path / "parts", "train")
        ]


SCRIPT = """
import asyncio, sys, msgspec, torch
torch.set_num_threads(1)
from pathlib import Path
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend.trainer import Trainer
recipe = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Recipe)
asyncio.run(Trainer(recipe, Path(sys.argv[2]), report=lambda kind, m: print(kind, flush=True)).train())
"""


def test_a_killed_run_resumes_without_losing_or_counting_twice(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(policy_folder, preset_file)
    recipe = msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, steps=5, save_every=2))
    run(recipe, tmp_path / "whole")
    file = tmp_path / "recipe.json"
    file.write_bytes(msgspec.json.encode(recipe))
    command = [sys.executable, "-c", SCRIPT, str(file), str(tmp_path / "killed")]
    # Killed after the first, second … line it printed: in the middle of a step, and with and without a checkpoint.
    for count in (1, 2, 3):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ) as process:
            assert process.stdout is not None
            for _ in range(count):
                if not process.stdout.readline():
                    break
            time.sleep(0.02 * count)
            process.send_signal(signal.SIGKILL)
    run(recipe, tmp_path / "killed")
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(whole[key], killed[key]) for key in whole)
    ids = [episode.id for episode in read_episodes(tmp_path / "killed" / "episodes.jsonl")]
    assert sorted(ids) == sorted(episode.id for episode in read_episodes(tmp_path / "whole" / "episodes.jsonl"))
    assert [entry["step"] for entry in lines(tmp_path / "killed", "train")] == [1, 2, 3, 4, 5]
    assert not list((tmp_path / "killed").glob("part-00000[0-4].jsonl"))


def test_a_run_of_another_recipe_is_not_continued(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    run(recipe_of(policy_folder, preset_file), tmp_path / "run")
    with pytest.raises(InvalidRequest, match="another recipe"):
        Trainer(recipe_of(policy_folder, preset_file, credit={"id": "gigpo"}), tmp_path / "run")


def test_a_loss_that_is_no_number_stops_with_its_batch(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(recipe_of(policy_folder, preset_file, credit={"id": "gigpo"}), tmp_path / "run")
    run_of = trainer.learner.run

    def poisoned(*args: Any) -> Any:
        passed = run_of(*args)
        passed.logprobs_BT = passed.logprobs_BT * torch.nan
        return passed

    monkeypatch.setattr(trainer.learner, "run", poisoned)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(Diverged, match="nan"):
        asyncio.run(trainer.train())
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    saved = json.loads((tmp_path / "run" / "diverged.json").read_text())
    assert saved
    assert all(row["ids"] for row in saved)


def test_what_cannot_be_is_refused_at_once(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No model was named"):
        Trainer(recipe_of(policy_folder, preset_file, model={}), tmp_path / "a")
    with pytest.raises(InvalidRequest, match="No model at"):
        Trainer(recipe_of(policy_folder, preset_file, model={"path": str(tmp_path / "nothing")}), tmp_path / "b")
    with pytest.raises(InvalidRequest, match="go on from the turn before"):
        Trainer(recipe_of(policy_folder, preset_file, sampling={"rows": "trajectory"}), tmp_path / "c")
    # The model has 256 positions.
    with pytest.raises(InvalidRequest, match=r"takes 256 tokens in all, and replies may have 256\..*max_tokens"):
        Trainer(recipe_of(policy_folder, preset_file, sampling={"max_tokens": 256}), tmp_path / "d")
    with pytest.raises(InvalidRequest, match=r"No prompt fits: all 4 have more than 1 tokens.*max_prompt_tokens"):
        run(recipe_of(policy_folder, preset_file, sampling={"tasks": 2, "max_tokens": 255}), tmp_path / "e")


@pytest.mark.parametrize(("device", "told"), [("cuda", "torch sees no CUDA device"), ("gpu", "No device 'gpu'")])
def test_a_device_that_is_not_there_is_told_before_anything_is_written(
    device: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", "small", "--device", device, "--out", str(tmp_path / "run")]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_limit_of_the_gradient_is_made_longer(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(policy_folder, preset_file, update={"grad_clip": math.inf}, run={"steps": 1, "eval_tasks": 1})
    run(recipe, tmp_path / "run")
    run(msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, steps=2)), tmp_path / "run")
    assert [entry["step"] for entry in lines(tmp_path / "run", "train")] == [1, 2]
