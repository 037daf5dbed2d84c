from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main

Make = Callable[..., Path]


@pytest.fixture
def folders(make_run: Make) -> list[str]:
    """Two seeds of one method and one of another."""
    runs = [make_run(f"gigpo-{seed}", seed=seed, success=0.4 + 0.2 * seed) for seed in range(2)]
    return [*map(str, runs), str(make_run("grpo", credit="grpo", success=0.3, line=lambda step: {"kl": 0.25}))]


def test_the_table_says_how_methods_came_out(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *folders]) == 0
    text = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    gigpo = next(line.split() for line in text.splitlines() if line.startswith("gigpo"))
    assert gigpo[:5] == ["gigpo", "2", "30", "20.0", "%"] and gigpo[5] == "50.0" and gigpo[-1] == "fine"
    grpo = re.split(r"\s{2,}", next(line.strip() for line in text.splitlines() if line.startswith("grpo")))
    assert grpo == ["grpo", "1", "30", "20.0 %", "30.0 % (20.0 to 40.0)", "50", "4", "30,000", "60 s", "fine"]


def test_other_numbers_are_compared_on_request(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *folders, "--metric", "kl", "--interval", "95"]) == 0
    text = capsys.readouterr().out
    assert "last kl" in text and "0.25" in text
    assert main(["compare", *folders, "--metric", "succes"]) == 1
    said = capsys.readouterr().err
    assert "No run has a number 'succes'" in said and "success" in said


def test_the_page_overlays_methods(folders: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "compared.html"
    assert main(["compare", *folders, "--out", str(out), "--over", "tokens", "--metric", "eval_success"]) == 0
    assert out.resolve().as_uri() in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == ["Success"]
    assert "gigpo (2 runs): 50 % at sampled tokens 30000" in page and "grpo: 30 % at sampled tokens 30000" in page
    assert 'class="band"' in page
    settings = re.search(r"<td class='key'>credit.id</td><td>(.*?)</td><td>(.*?)</td>", page)
    assert settings is not None and settings.groups() == ("gigpo", "grpo")


def test_runs_that_go_on_are_told(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(make_run("one", done=12))]) == 0
    assert "one is not over: 12 of 30 steps were noted." in capsys.readouterr().out
