"""``turngym bench train``: every table has its rows, and both sides of a comparison do the same work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main
from turngym.trainer_backends.torch_backend import bench


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new policy of the benchmark's kind."""
    out = tmp_path_factory.mktemp("bench") / "run"
    bench.start(bench.recipe(16, 1, run={"steps": 0}), str(out))
    return str(out / "checkpoints" / "step-000000")


@pytest.mark.parametrize("chat", [False, True])
def test_a_step_is_measured_whole(model: str, chat: bool) -> None:
    row = bench.ours(bench.recipe(8, 2, chat=chat), model)
    assert len(row["steps"]) == bench.STEPS
    for step in row["steps"]:
        assert step["episodes"] == 8 and step["updates"] == 1
        parts = [step[name] for name in step if name.endswith("_seconds") and name != "generation_seconds"]
        assert 0 < step["generation_seconds"] < step["rollout_seconds"]
        assert 0 < sum(parts) <= step["seconds"]
    assert row["sampled"] > 0 and row["peak_mib"] > 100


def test_an_update_is_compared_on_the_same_rows(model: str) -> None:
    row = bench.sharing(bench.recipe(16, 2), model)
    # One task's first turn is the same for all of its members.
    assert row["rows"] == 32 and row["computed"] < 0.5 * row["tokens"]


def test_generation_is_compared_on_the_same_number_of_tokens(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REPLIES", 8)
    monkeypatch.setattr(bench, "BATCH", 4)
    row = bench.generate(model, even=False, samples=4)
    assert row["times"] == pytest.approx(row["tokens_per_s"] / row["stock_tokens_per_s"])


@pytest.mark.pretrained
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_trl_trains_on_the_same_episodes(model: str) -> None:
    for turns in (1, 2):
        made = bench.recipe(8, turns, chat=True)
        theirs, mine = bench.trl(made, model), bench.ours(made, model)
        # A new policy writes to the limit, whoever samples: as many tokens, but for those that end early by chance.
        assert theirs["sampled"] == pytest.approx(mine["sampled"], rel=0.1)


def test_the_tables_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def child(case: str, **settings: Any) -> dict[str, Any]:
        asked.append(case)
        return (
            {"stock_tokens_per_s": 1.0, "tokens_per_s": 3.0, "times": 3.0}
            if case == "generate"
            else real(case, **settings)
        )

    real = bench._child
    monkeypatch.setattr(bench, "_child", child)
    monkeypatch.setattr(bench, "EPISODES", (8,))
    monkeypatch.setattr(bench, "TURNS", ())
    monkeypatch.setattr(bench, "SHARING", {})
    monkeypatch.setattr(
        bench.importlib.util,
        "find_spec",
        lambda name, find=bench.importlib.util.find_spec: None if name == "trl" else find(name),
    )
    monkeypatch.setattr("turngym.client.bench.command.pin", lambda core: None)
    assert main(["bench", "train", "--markdown", "--out", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr()
    assert "| episodes | turns | s a step |" in told.out and "turngym[trl]" in told.err
    assert asked == ["start"] * 3 + ["ours"] + ["generate"] * 6
    (row,) = json.loads((tmp_path / "out.json").read_text())["train"]
    shares = [value for name, value in row.items() if name.endswith("%")]
    assert row["episodes"] == 8 and 50 < sum(shares) <= 100
