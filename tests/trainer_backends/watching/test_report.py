from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.cli import main
from turngym.trainer_backends.watching.report import method_of, write_report

Make = Callable[..., Path]


class Page(HTMLParser):
    """What a browser would see of a page: elements, attributes, texts of scripts and of everything else."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1] == "script" and self.get_starttag_text():
            self.scripts.append(data)
        self.text += data

    @property
    def data(self) -> dict[str, Any]:
        """What the browser of episodes reads."""
        return dict(json.loads(self.scripts[0]))

    def figures(self) -> dict[str, list[str]]:
        """Return the titles in each chart by the chart's caption."""
        found = {}
        for caption, svg in re.findall(r"<figcaption>(.*?)</figcaption>.*?(<svg.*?</svg>)", self.source, re.DOTALL):
            assert "NaN" not in svg and "nan" not in svg
            found[caption] = [title.text or "" for title in ElementTree.fromstring(svg).iter("title")]
        return found


def test_the_report_of_a_run_has_the_papers_figures(make_run: Make) -> None:
    page = Page(write_report([make_run("one")]))
    figures = page.figures()
    wanted = {"Success", "Reward", "Reward std within groups", "Entropy", "Gradient norm", "Response length",
              "Invalid actions", "Repeated actions", "Tokens per successful trajectory", "Turns per success",
              "Thinking ended (TTI)", "Successes per 1,000 tokens", "Time of a step", "Tree nodes"}  # fmt: skip
    assert wanted <= set(figures)
    assert "held-out: 60 % at step 30" in figures["Success"] and "training: 2 % at step 1" in figures["Success"]
    assert "Turns sampled again (TDS)" not in figures  # 0 throughout
    assert "30 of 30" in page.text and "gigpo, ppo" not in page.text
    assert "href" not in {name for name, _ in page.attributes} and not re.search(
        r"url\(|@import|https?://", page.source
    )


def test_no_text_of_a_run_becomes_markup(make_run: Make) -> None:
    attack = "<img src=x onerror=alert(1)>{{figures}}"
    page = Page(write_report([make_run("one", summary=attack)]))
    assert page.elements.count("script") == 2 and "img" not in page.elements
    assert page.source.count("<h2>Figures</h2>") == 1
    (turn,) = page.data["episodes"][0]["turns"]
    assert "window.attacked" in turn["t"] and turn["forced"] == 1


def test_episodes_of_the_first_and_last_step_stand_side_by_side(make_run: Make) -> None:
    data = Page(write_report([make_run("one")])).data
    shown = {(each["env"], each["policy"], each["task"], each["attempt"]) for each in data["episodes"]}
    assert len(shown) == len(data["episodes"]) == 2 * 4 + 2 * 2
    assert ("held-out: frozen-lake", "step 0", "test/3", 0) in shown
    assert ("held-out: frozen-lake", "step 30", "test/3", 0) in shown
    assert ("training: frozen-lake", "step 0", "train/0", 1) in shown
    assert ("training: frozen-lake", "step 29", "train/29", 0) in shown
    # Tasks that came out differently come first.
    assert data["policies"] == ["step 0", "step 30", "step 29"]


def test_a_run_that_goes_on_is_reported_so_far(make_run: Make) -> None:
    folder = make_run("one", done=12)
    with open(folder / "episodes.jsonl", "ab") as file:
        file.write(b'{"id":"s000011.g1.0","env')
    page = Page(write_report([folder]))
    assert "one is not over: 12 of 30 steps were noted." in page.text
    assert "held-out: 20 % at step 0" in page.figures()["Success"]


def test_a_run_that_has_only_begun_is_reported(make_run: Make) -> None:
    folder = make_run("one")
    for name in ("metrics.jsonl", "episodes.jsonl", "eval.jsonl"):
        (folder / name).unlink()
    page = Page(write_report([folder]))
    assert "one: no training step was noted yet." in page.text
    assert page.data == {"policies": [], "episodes": []} and page.figures() == {}


def test_a_collapse_is_shown_with_its_evidence(make_run: Make, collapse: Callable[[int], dict[str, Any]]) -> None:
    page = Page(write_report([make_run("one", steps=60, line=collapse)]))
    rows = re.findall(
        r"<tr><td class='key'>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td class='key'>(.*?)</td></tr>", page.source
    )
    told = {sign: (now, since, text) for sign, now, since, text in rows}
    assert told["entropy"] == ("fired", "25", "entropy went from 1 to 0.1; below 0.5.")
    assert told["reward"][:2] == ("fired", "45") and told["grad norm"][:2] == ("quiet", "–")
    assert ">collapse</span>" in page.source
    assert "first seen at step 25: entropy" in page.figures()["Entropy"]


def test_numbers_that_were_not_finite_leave_a_gap(make_run: Make) -> None:
    page = Page(write_report([make_run("one", line=lambda step: {"gradient_norm": None if step == 9 else 1.0})]))
    assert len([title for title in page.figures()["Gradient norm"] if title.startswith("gradient: ")]) == 29


def test_a_supervised_start_has_its_figure(make_run: Make) -> None:
    folder = make_run("one")
    start = b"".join(b'{"kind":"start","step":0,"start_loss":%d,"epoch":0.%d}\n' % (9 - n, n) for n in range(5))
    (folder / "metrics.jsonl").write_bytes(start + (folder / "metrics.jsonl").read_bytes())
    page = Page(write_report([folder]))
    assert "loss: 5 at epoch 0.4" in page.figures()["Supervised start"]


def test_several_runs_are_one_line_each(make_run: Make, tmp_path: Path) -> None:
    folders = [make_run(f"m-{seed}", seed=seed, success=0.4 + seed / 10) for seed in range(3)]
    page = Page(write_report(folders, tmp_path / "all.html"))
    titles = page.figures()["Success, held-out"]
    assert {f"m-{seed}: {40 + 10 * seed} % at step 30" for seed in range(3)} <= set(titles)
    assert page.data["policies"] == ["m-0", "m-1", "m-2"]
    assert {each["env"] for each in page.data["episodes"]} == {"held-out: frozen-lake"}


def test_the_parts_of_a_method_are_named() -> None:
    recipe = {
        "rollout": {"id": "chains"},
        "token_control": {"id": "tti"},
        "turn_control": {"id": "tds"},
        "filters": [{"id": "dapo"}],
        "credit": {"id": "gigpo"},
        "loss": {"id": "ppo"},
    }
    assert method_of(recipe) == "tti, tds, dapo, gigpo, ppo"
    assert method_of({}) == ""


def test_the_command_writes_the_report(make_run: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = make_run("one")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").is_file() and "report.html" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 1
    assert "not the folder of a training run" in capsys.readouterr().err
    assert main(["report", str(folder), "--out", str(tmp_path / "nowhere" / "x.html")]) == 1
    assert "Cannot write" in capsys.readouterr().err
