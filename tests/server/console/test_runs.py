"""The runs view in a browser: a list, a training that goes on, its episodes, and text that tries to become code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turngym.records import Completion, Episode, EpisodeWriter, Turn

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]

ATTACK = "<img src=x onerror='window.attacked = 1'><script>window.attacked = 1</script>"
NAME = "learns <b>"


def line(kind: str, step: int, **numbers: float) -> bytes:
    return msgspec.json.encode({"kind": kind, "step": step, **numbers}) + b"\n"


def train(step: int) -> bytes:
    return line("train", step, success=step / 10, reward=1.5, gradient_norm=0.5, interventions=0.0)


def play(path: Path, names: list[str]) -> None:
    with EpisodeWriter(path) as writer:
        for name in names:
            turn = Turn(0, ATTACK, Completion(f"<think>{ATTACK}</think>"), action="up")
            writer.write(Episode(name, "frozen-lake", "test/1", 1, status="terminated", turns=[turn], policy="policy"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    run = root / NAME
    run.mkdir()
    recipe = {"summary": ATTACK, "env": {"preset": "lake"}, "run": {"steps": 9}}
    (run / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    first = line("eval", 0, eval_success=0.25, eval_success_low=0.125, eval_success_high=0.5)
    (run / "metrics.jsonl").write_bytes(first + train(1) + train(2) + b"damaged\n")
    play(run / "eval.jsonl", [f"e00000{step}.{place}.0" for step in (0, 2) for place in range(3)])
    play(run / "episodes.jsonl", [f"s00000{step}.g0.{place}" for step in (0, 1) for place in range(2)])
    rows = [{"by": "env", "env": "bandit", "policy": "expert", "episodes": 4, "success": {"mean": 0.75}, "turns": 2.0}]
    other = root / "evaluated"
    other.mkdir()
    (other / "plan.json").write_bytes(msgspec.json.encode({"summary": "Plan", "envs": [{"name": "bandit"}]}))
    (other / "metrics.json").write_bytes(msgspec.json.encode({"rows": rows}))
    play(other / "episodes.jsonl", ["x", "y"])
    return root


@pytest.fixture(scope="module")
def hub_url(serve: Any, folder: Path) -> Iterator[str]:
    with serve(envs=("bandit",), runs=str(folder)) as url:
        yield url


def captions(console: Any) -> list[str]:
    return [caption.text for caption in console.all(".chart figcaption")]


def test_a_training_is_watched_while_it_goes_on(console: Any, folder: Path) -> None:
    console.go("/runs")
    assert "2 of 9" in console.find("tbody tr", NAME).text
    console.click("a", NAME)
    console.find("h1", NAME)
    console.wait(lambda: console.figure("step") == "2 of 9", "the second step")
    assert console.figure("held-out success") == "25 % 12.5 % to 50 %"
    # What was never noted, and what a control that is not used notes as 0, has no chart.
    assert captions(console) == ["Success", "Reward", "Gradient norm"]
    with open(folder / NAME / "metrics.jsonl", "ab") as file:
        file.write(train(3) + line("eval", 3, eval_success=0.75))
    console.wait(lambda: console.figure("step") == "3 of 9", "the third step")
    assert console.figure("held-out success") == "75 %"
    assert "success over steps" in (console.find(".chart svg").get_attribute("aria-label") or "").lower()
    (folder / NAME / "draft").write_bytes(line("eval", 0, eval_success=0.5) + train(1))
    (folder / NAME / "draft").replace(folder / NAME / "metrics.jsonl")  # resumed after the first step
    console.wait(lambda: console.figure("step") == "1 of 9", "the resumed run")
    assert console.driver.execute_script("return window.attacked") is None


def test_episodes_of_a_step_are_shown_in_the_viewer(console: Any) -> None:
    console.go(f"/runs/{NAME.replace(' ', '%20').replace('<', '%3C').replace('>', '%3E')}")
    console.click("p:has(b) button", "Step 0")
    console.find(".drop", "eval.jsonl, step 0")
    assert [row.text.split("\n")[0] for row in console.all(".episode-row")] == ["frozen-lake test/1"] * 3
    assert "e000000.0.0" in console.find(".episode").text and ATTACK in console.find(".observation").text
    assert console.driver.execute_script("return window.attacked") is None


def test_an_evaluation_is_shown_with_its_table(console: Any) -> None:
    console.go("/runs/evaluated")
    assert "bandit\nexpert\n4\n75 %" in console.find("tbody tr", "bandit").text.replace(" expert 4 ", "\nexpert\n4\n")
    console.click("p:has(b) button", "The first")
    console.find(".drop", "evaluated, episodes.jsonl")
    assert len(console.all(".episode-row")) == 2


def test_a_run_that_is_not_there(console: Any) -> None:
    console.go("/runs/nothing")
    assert "There is no run 'nothing'." in console.find(".problem").text


def test_a_hub_without_runs_says_how_to_have_them(browser: Any, serve: Any) -> None:
    with serve(envs=("bandit",)) as url:
        browser.visit(url)
        browser.go("/runs")
        assert "turngym serve --runs DIR" in browser.find(".problem").text
