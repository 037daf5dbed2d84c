"""``turngym bench algorithms``: the plain loops agree with the library, and what is missing is said."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.cli import main
from turngym.trainer_backends import bench


@pytest.mark.parametrize("part", sorted({case.part for case in bench.CASES if case.compare}))
def test_the_plain_loop_agrees_on_a_small_batch(part: str) -> None:
    case = next(case for case in bench.CASES if case.part == part and case.compare)
    row = bench.measure(case._replace(rows=16 if "anchors" in part else 4), repeats=1)
    assert row["what"] == part and row["ms"] > 0 and row["loop_ms"] > 0


def test_results_that_differ_are_not_reported() -> None:
    zeros, ones = torch.zeros(2), torch.ones(2)
    case = bench.Case("wrong", 2, lambda rows: bench.Pair(lambda: zeros, lambda: ones))
    with pytest.raises(AssertionError):
        bench.measure(case)


def test_memory_is_that_of_the_call() -> None:
    peak = bench.peak_mib(lambda: torch.ones(32, 2**18).sum())
    assert peak is None or 24 <= peak < 48


def test_one_case_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CASES", [case for case in bench.CASES if (case.part, case.rows) == ("GAE", 32)])
    monkeypatch.setattr("turngym.client.bench.command.pin", lambda core: None)
    out = tmp_path / "out.json"
    assert main(["bench", "algorithms", "--markdown", "--out", str(out)]) == 0
    assert "| what | size | ms |" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["algorithms"]
    assert (row["what"], row["size"]) == ("GAE", "32 x 1000")


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    assert main(["bench", "algorithms"]) == 1
    assert 'pip install "turngym[torch]"' in capsys.readouterr().err


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nothing"]) == 2
    assert "algorithms" in capsys.readouterr().err
