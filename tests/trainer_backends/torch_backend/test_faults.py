"""What may go wrong around a run: full disks, damaged and half-written files, kills in mid-step, two at a time."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec
import torch
from safetensors import SafetensorError

from turngym import cli
from turngym.envs.presets import load_preset
from turngym.errors import InvalidRequest, RecordError
from turngym.records import Completion, Episode, Turn
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend import assembly, checkpoint, command
from turngym.trainer_backends.torch_backend import trainer as training
from turngym.trainer_backends.torch_backend.learner import Diverged
from turngym.trainer_backends.torch_backend.measures import measures
from turngym.trainer_backends.torch_backend.new_policy import new_policy
from turngym.trainer_backends.torch_backend.trainer import Trainer

from .test_trainer import lines, recipe_of, run, weights


def with_run(recipe: Recipe, **changes: Any) -> Recipe:
    return msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, **changes))


def raising(error: Exception) -> Any:
    def raises(*args: Any, **kwargs: Any) -> None:
        raise error

    return raises


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("torch.save", OSError(errno.ENOSPC, "No space left on device")),
        ("torch.save", RuntimeError("unexpected pos 704 vs 598")),
        ("weights", SafetensorError("I/O error: No space left on device")),
    ],
)
def test_a_full_disk_leaves_the_older_checkpoint(
    where: str,
    error: Exception,
    policy_folder: Path,
    preset_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer(recipe_of(policy_folder, preset_file), tmp_path / "run")
    kept = trainer.save()
    if where == "weights":
        monkeypatch.setattr(type(trainer.model), "save_pretrained", raising(error))
    else:
        monkeypatch.setattr(torch, "save", raising(error))
    trainer.step = 1
    with pytest.raises(RecordError, match=str(error)[-20:]) as caught:
        trainer.save()
    assert "Free disk space" in caught.value.hint
    assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == [kept]


def test_a_full_disk_under_a_new_policy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SafetensorError("I/O error: No space left on device")
    monkeypatch.setattr("transformers.Qwen3ForCausalLM.save_pretrained", raising(error))
    with pytest.raises(RecordError, match="No space left"):
        new_policy(load_preset("compact-frozen-lake"), tmp_path / "policy")


def test_a_full_disk_under_the_metrics_names_the_file(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trainer = Trainer(recipe_of(policy_folder, preset_file), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RecordError, match=r"Cannot write .*metrics\.jsonl: No space left"):
        trainer._log("train", {"reward": 0.0})


def test_a_full_disk_is_said_wherever_it_is_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("turngym.trainer_backends.torch_backend.command.run", raising(full))
    assert cli.main(["train", "small"]) == 1
    told = capsys.readouterr().err
    assert "No space left on device" in told and "Free disk space" in told
    monkeypatch.setattr("turngym.trainer_backends.torch_backend.command.run", raising(OSError(errno.EIO, "I/O")))
    with pytest.raises(OSError, match="I/O"):
        cli.main(["train", "small"])


def test_the_error_that_ends_a_run_is_not_hidden_by_its_report(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "save", raising(OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(command, "write_report", raising(RecordError("Cannot write report.html.")))
    with pytest.raises(RecordError, match="Checkpoint"):
        command.train(recipe_of(policy_folder, preset_file), tmp_path / "run")


def test_a_finished_run_writes_its_checkpoint_once(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    recipe = recipe_of(policy_folder, preset_file)
    run(recipe, tmp_path / "run")
    last = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert last is not None
    before = {path.name: path.stat().st_ino for path in last.iterdir()}
    run(recipe, tmp_path / "run")
    assert {path.name: path.stat().st_ino for path in last.iterdir()} == before


def test_a_checkpoint_is_replaced_as_a_whole(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(recipe_of(policy_folder, preset_file), tmp_path / "run")
    path = trainer.save()
    folder = path.parent
    (folder / ".draft-000007").mkdir()  # of a run that was killed while it wrote
    seen: list[bool] = []
    removed: list[Path] = []
    rename, rmtree = Path.rename, shutil.rmtree

    def watched(self: Path, target: Path) -> Path:
        found = rename(self, target)
        seen.extend([(each / "model.safetensors").is_file() for each in checkpoint.found(folder)])
        return found

    def remove(target: Path, **options: Any) -> None:
        removed.append(target)
        rmtree(target, **options)

    monkeypatch.setattr(Path, "rename", watched)
    monkeypatch.setattr(shutil, "rmtree", remove)
    for step in (0, 1, 2, 3, 4):
        checkpoint.save(folder, step, trainer.model, trainer.tokenizer, {}, {})
    assert seen and all(seen)
    # None is taken apart under its own name, neither the one that is replaced nor those that are superfluous.
    assert len(removed) >= 3 and all(each.name.startswith(".") for each in removed)
    assert [each.name for each in sorted(folder.iterdir())] == ["step-000000", "step-000003", "step-000004"]
    assert path == folder / "step-000000"


@pytest.mark.parametrize(
    ("name", "data"),
    [("model.safetensors", b"{"), ("trainer.json", b"{}"), ("trainer.json", b"{"), ("trainer.pt", b"no archive")],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_is_used(
    name: str, data: bytes, policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(policy_folder, preset_file)
    run(recipe, tmp_path / "run")
    last = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert last is not None
    (last / name).write_bytes(data)
    with pytest.raises(RecordError, match="step-000002 is damaged") as caught:
        Trainer(recipe, tmp_path / "run")
    assert "an older one is used" in caught.value.hint
    for path in last.iterdir():
        path.unlink()
    assert Trainer(recipe, tmp_path / "run").step == 1


def test_going_back_forgets_what_came_later(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    trainer = Trainer(recipe_of(policy_folder, preset_file), tmp_path / "run")
    asyncio.run(trainer.train())
    first, second, third = checkpoint.found(tmp_path / "run" / "checkpoints")
    trainer.load(second)
    assert trainer.step == 1 and list(checkpoint.found(tmp_path / "run" / "checkpoints")) == [first, second]
    asyncio.run(trainer.train())
    assert third.is_dir() and [entry["step"] for entry in lines(tmp_path / "run", "train")] == [1, 2]


def test_a_damaged_line_is_left_where_it_is(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    recipe = recipe_of(policy_folder, preset_file)
    run(recipe, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, b"{damaged\n", *rest, b'{"kind":"tr']))
    run(with_run(recipe, steps=3), tmp_path / "run")
    assert file.read_bytes().splitlines()[1] == b"{damaged"
    assert file.read_bytes().count(b'"train"') == 3


class Killed(BaseException):
    """Stands for a kill in the middle of a step."""


def cut(recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Begin a run, and end it after so many episodes of its first step."""
    real, played = training.EpisodeWriter.write, []

    def write(self: Any, episode: Episode) -> None:
        real(self, episode)
        if self.path.name.startswith("part-"):
            played.append(episode)
            if len(played) == after:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(training.EpisodeWriter, "write", write)
        with pytest.raises(Killed):
            run(recipe, out)


@pytest.mark.parametrize("old", ["sampled", "recomputed"])
def test_a_deterministic_run_cut_off_in_a_step_goes_on_bitwise(
    old: str, policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(
        policy_folder,
        preset_file,
        start={"policy": "expert", "episodes": 12, "threshold": -1.0, "epochs": 1, "learning_rate": 5e-3},
        rollout={"id": "chains", "samples": 8},
        sampling={"tasks": 4, "max_tokens": 10, "slots": 32},
        entropy={"coefficient": 0.1},
        update={"learning_rate": 1e-3, "old_logprobs": old},
    )
    recipe = with_run(recipe, eval_every=1)
    run(recipe, tmp_path / "whole")
    cut(recipe, tmp_path / "cut", monkeypatch, after=20)
    assert len(list((tmp_path / "cut").glob("part-*.jsonl"))) == 1
    trainer = Trainer(recipe, tmp_path / "cut")
    # The rest would be generated in other company, which may round otherwise: the whole step is taken again.
    assert not list((tmp_path / "cut").glob("part-*.jsonl"))
    asyncio.run(trainer.train())
    whole, after = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], after[name]) for name in whole)
    for name in ("prompt_tokens", "reward", "gradient_norm"):
        assert [entry[name] for entry in lines(tmp_path / "whole", "train")] == [
            entry[name] for entry in lines(tmp_path / "cut", "train")
        ]


def test_tokens_of_a_step_that_was_cut_off_are_counted(
    policy_folder: Path, preset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_run(recipe_of(policy_folder, preset_file), deterministic=False)
    run(recipe, tmp_path / "whole")
    cut(recipe, tmp_path / "cut", monkeypatch, after=3)
    run(recipe, tmp_path / "cut")
    whole, after = lines(tmp_path / "whole", "train"), lines(tmp_path / "cut", "train")
    assert [each["sampled_tokens"] for each in after] == [each["sampled_tokens"] for each in whole]


def test_a_deterministic_run_takes_no_hub(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="order of its own"):
        Trainer(recipe_of(policy_folder, preset_file), tmp_path / "run", url="http://127.0.0.1:1")
    assert not (tmp_path / "run").exists()


def test_two_processes_do_not_train_in_one_folder(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    recipe = recipe_of(policy_folder, preset_file)
    with assembly.alone(tmp_path / "run"), pytest.raises(InvalidRequest, match="Another process"):
        command.train(recipe, tmp_path / "run")
    command.train(recipe, tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="cannot be made"):
        command.train(recipe, tmp_path / "file")


def test_a_recipe_may_be_corrected_until_something_was_trained(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    new = {"new": {"size": "tiny", "length": 256, "vocabulary": 400}}
    Trainer(recipe_of(policy_folder, preset_file, model=new), tmp_path / "run")
    small = recipe_of(policy_folder, preset_file, model={"new": {**new["new"], "length": 512}})
    trainer = Trainer(small, tmp_path / "run")
    assert trainer.model.config.max_position_embeddings == 512
    trainer.save()
    with pytest.raises(InvalidRequest, match="another recipe"):
        Trainer(recipe_of(policy_folder, preset_file, model=new), tmp_path / "run")


def test_a_policy_that_was_named_is_never_removed(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "policy"
    shutil.copytree(policy_folder, theirs)
    recipe = recipe_of(theirs, preset_file)
    assembly.claim(tmp_path / "run", recipe)
    other = msgspec.structs.replace(recipe, sampling=msgspec.structs.replace(recipe.sampling, max_tokens=9))
    assembly.claim(tmp_path / "run", other)
    new = recipe_of(policy_folder, preset_file, model={"new": {"size": "tiny", "length": 256}})
    assembly.claim(tmp_path / "run", new)
    assert theirs.is_dir()


def test_weights_that_are_no_numbers_stop_before_they_are_saved(
    policy_folder: Path, preset_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(
        policy_folder, preset_file, entropy={"coefficient": 0.1}, update={"learning_rate": 1e30, "mini_batch": 8}
    )
    with pytest.raises(Diverged, match="weights' norm is inf") as caught:
        run(recipe, tmp_path / "run")
    first = tmp_path / "run" / "checkpoints" / "step-000000"
    assert list(checkpoint.found(first.parent)) == [first] and str(first) in caught.value.hint
    assert (tmp_path / "run" / "diverged.json").is_file()


def test_failed_episodes_say_nothing_of_the_policy() -> None:
    def episode(number: int, status: Any, reward: float) -> Episode:
        turns = [Turn(0, "", Completion("", token_ids=[3, 4]), reward=reward)]
        return Episode(f"e.{number}", "sokoban", "t/0", 0, group="e", status=status, turns=turns, reward=reward)

    found = measures([episode(0, "terminated", -1.0), episode(1, "failed", 0.0), episode(2, "truncated", -3.0)])
    assert (found["reward"], found["failed"], found["episodes"]) == (-2.0, 1.0, 3.0)
    assert found["reward_std"] == pytest.approx(2**0.5)


def test_staleness_is_the_number_of_updates(policy_folder: Path, preset_file: Path, tmp_path: Path) -> None:
    run(recipe_of(policy_folder, preset_file, update={"mini_batch": 4, "learning_rate": 1e-3}), tmp_path / "run")
    for entry in lines(tmp_path / "run", "train"):
        assert entry["staleness_lag"] == pytest.approx(entry["trained_rows"] / 4)
        assert entry["staleness_ratio"] == pytest.approx(entry["staleness_lag"] / (1 + entry["staleness_lag"]))
