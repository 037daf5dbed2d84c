from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from turngym.client.evaluation import charts, page
from turngym.client.evaluation.definitions import DEFINITIONS
from turngym.client.evaluation.metrics import Estimate, summarise
from turngym.client.evaluation.plan import EvalPlan
from turngym.client.evaluation.report import budgets, choose
from turngym.client.evaluation.runner import Results, evaluate
from turngym.client.policies import BasePolicy, Context, ExpertPolicy
from turngym.records import Completion, Episode, Turn

ATTACK = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'><!-- {{data}} \u2028 & "


class Hostile(BasePolicy):
    """Answers with markup; fails, overflows and loses now and then."""

    name = ATTACK

    async def act(self, context: Context) -> Completion:
        number = int(context.task.rpartition("/")[2])
        if number % 5 == 1:
            raise RuntimeError(ATTACK)
        if number % 5 == 2:
            return Completion(text="", finish_reason="context_overflow")
        if number % 5 == 3 or context.turn < 2:
            return Completion(text=f"<think>{ATTACK}</think>{ATTACK}", completion_tokens=9, finish_reason="length")
        return Completion(text=context.reply(context.admissible[0], ATTACK))


def run(out: Path, **changes: Any) -> Results:
    plan = EvalPlan(
        **{"envs": ["bandit", "sokoban"], "policies": ["expert", ATTACK], "episodes": 12, "pass_k": 2, **changes}
    )
    plan.config = {"max_actions_per_step": 1}
    plan.turn = {"max_turns": 8, "hooks": {"format-penalty": {}}}
    return evaluate(plan, out, policies={"expert": ExpertPolicy(), ATTACK: Hostile()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    run(out, summary=ATTACK)
    return out


class Page(HTMLParser):
    """Collects elements, attributes and the text of scripts as a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += attrs
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def page_of(folder: Path) -> tuple[str, Page]:
    text = (folder / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


# The file ------------------------------------------------------------------------------------------


def test_the_report_needs_nothing_else(folder: Path) -> None:
    text, page = page_of(folder)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "srcset", "action", "background"}
    assert not re.search(r"url\(|@import|https?://", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'") in page.attributes


def test_no_text_of_a_run_becomes_markup(folder: Path) -> None:
    _, page = page_of(folder)
    assert page.elements["script"] == 2 and page.elements["img"] == 0
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    data = json.loads(page.scripts[0])
    assert data["policies"] == ["expert", ATTACK]
    (turn,) = [e["turns"][0] for e in data["episodes"] if (e["policy"], e["env"], e["task"], e["attempt"]) == (
        ATTACK, "sokoban", "test/128", 1)]  # fmt: skip
    assert turn["t"] == f"<think>{ATTACK}</think>{ATTACK}"
    assert turn["malformed"] and turn["invalid"] and turn["finish"] == "length" and turn["tokens"] == 9


def test_charts_are_well_formed_and_carry_their_numbers(folder: Path) -> None:
    text, _ = page_of(folder)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 2 * 6  # success, endings, attempts, budget, turns, reward; two environments
    titles = [title.text or "" for svg in drawings for title in ElementTree.fromstring(svg).iter("title")]
    assert "expert: 100.0%, 95 % interval 100.0% to 100.0%" in titles
    assert any(title.startswith("expert: won 24 of 24") for title in titles)
    assert any("format-penalty" in title for title in titles)


def test_every_number_is_defined_on_the_page(folder: Path) -> None:
    text, page = page_of(folder)
    tooltips = {value for name, value in page.attributes if name == "title"}
    for name in ("success", "pass_at", "invalid", "repetitive", "failed", "overflow"):
        assert DEFINITIONS[name].text in tooltips, name
    assert "bootstrap resamples over tasks" in text and "<dt>pass@k</dt>" in text


def test_outcomes_are_told_apart(folder: Path) -> None:
    data = json.loads(page_of(folder)[1].scripts[0])
    outcomes = Counter(episode["outcome"] for episode in data["episodes"] if episode["policy"] == ATTACK)
    assert set(outcomes) == {"won", "lost", "truncated", "context overflow", "failed"}
    failed = next(episode for episode in data["episodes"] if episode["outcome"] == "failed")
    assert ATTACK in failed["error"]["detail"]


def test_the_first_prompt_is_shown(folder: Path) -> None:
    data = json.loads(page_of(folder)[1].scripts[0])
    episode = next(episode for episode in data["episodes"] if episode["policy"] == "expert")
    assert any("Sokoban" in message["content"] or "bandit" in message["content"] for message in episode["prompt"])


# What is left out ----------------------------------------------------------------------------------


def one(task: int, policy: str = "p", attempt: int = 0, **fields: Any) -> Episode:
    return Episode(
        **{
            "id": f"{policy}:{task}:{attempt}", "env": "e", "task": f"test/{task}", "seed": 0, "policy": policy,
            "attempt": attempt, "status": "terminated", **fields,
        }
    )  # fmt: skip


def test_unsolved_tasks_come_first_and_some_solved_ones_are_kept() -> None:
    episodes = [one(task, policy, won=task >= 100 or policy == "q") for task in range(200) for policy in "pq"]
    ids, said = choose([summarise(episode) for episode in episodes])
    tasks = Counter(int(name.split(":")[1]) for name in ids)
    assert len(tasks) == 50 and set(tasks.values()) == {2}  # whole tasks, so that policies can be compared
    assert sum(task < 100 for task in tasks) == 40
    assert said == ["e: 50 of 200 tasks are shown, unsolved ones first"]


def test_few_unsolved_tasks_leave_room_for_solved_ones() -> None:
    ids, _ = choose([summarise(one(task, won=task != 3)) for task in range(200)])
    assert len(ids) == 50 and "p:3:0" in ids


def test_attempts_count_against_the_room() -> None:
    ids, _ = choose([summarise(one(task, attempt=k)) for task in range(100) for k in range(5)])
    assert len(ids) == 50


def test_a_small_run_is_shown_whole() -> None:
    ids, said = choose([summarise(one(task)) for task in range(20)])
    assert len(ids) == 20 and said == []


def test_long_texts_and_large_runs_are_cut_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TEXT_SHOWN", 20)
    monkeypatch.setattr(page, "BYTES_SHOWN", 30_000)
    run(tmp_path)
    text, shown = page_of(tmp_path)
    data = json.loads(shown.scripts[0])
    assert "more were left out to keep this file small" in text
    assert 0 < len(data["episodes"]) < 96
    assert any(re.search(r"\n… \d+ more characters", turn["o"]) for e in data["episodes"] for turn in e["turns"])


# Numbers behind charts -----------------------------------------------------------------------------


def test_success_against_turn_budget() -> None:
    def episode(number: int, turns: int, won: bool) -> Episode:
        own = [Turn(index=i, observation="", completion=Completion(text="")) for i in range(turns)]
        return one(number, turns=own, won=won)

    played = [summarise(episode(*each)) for each in ((0, 1, True), (1, 3, True), (2, 2, False), (3, 4, False))]
    assert budgets({"p": played, "none": []}) == {"p": [(1.0, 0.25), (2.0, 0.25), (3.0, 0.5), (4.0, 0.5)], "none": []}


def titles_of(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter("title")]


def test_histograms_widen_their_bins() -> None:
    fine = titles_of(charts.histogram({"p": {1: 3, 3: 1}}, "turns"))
    assert fine == ["p: 1 turns, 75.0% of episodes", "p: 3 turns, 25.0% of episodes"]
    wide = titles_of(charts.histogram({"p": {1: 1, 2: 1, 100: 2}}, "turns"))
    assert wide == ["p: 1 to 5 turns, 50.0% of episodes", "p: 96 to 100 turns, 50.0% of episodes"]


def test_charts_of_nothing_are_still_charts() -> None:
    for svg in (
        charts.bars({"p": None}),
        charts.outcomes({"p": {}}, {"won": "won"}),
        charts.lines({"p": []}, "turns", steps=True),
        charts.histogram({"p": {}}, "turns"),
        charts.components({"p": {}}),
    ):
        assert "NaN" not in svg and ElementTree.fromstring(svg).tag == "svg"


def test_a_bar_is_as_long_as_its_share() -> None:
    svg = ElementTree.fromstring(charts.bars({"p": Estimate(0.5, 0.25, 0.75), "q": Estimate(1.0, 1.0, 1.0)}))
    half, whole = (float(rect.attrib["width"]) for rect in svg.iter("rect"))
    assert half == pytest.approx(whole / 2)


# In a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=1400,1000"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.mark.browser
@pytest.mark.needs("chromium")
def test_episodes_are_browsed_side_by_side(folder: Path, browser: Any) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import Select

    def all_of(css: str) -> list[Any]:
        return list(browser.find_elements("css selector", css))

    def listed() -> list[str]:
        return [button.text for button in all_of("#list button")]

    def current() -> str:
        (button,) = all_of("#list button[aria-current]")
        return str(button.text)

    browser.get((folder / "report.html").as_uri())
    assert len(listed()) == 24  # 12 tasks, 2 attempts
    Select(browser.find_element("id", "env")).select_by_visible_text("sokoban")
    assert len(all_of(".side")) == 2
    heads = [side.text for side in all_of(".side h3")]
    assert "expert\ntruncated" in heads[0] and "window.attacked" in heads[1]  # eight turns do not solve this room
    Select(browser.find_element("id", "outcome")).select_by_value("failed")
    assert listed() and len(listed()) < 24 and "Failed" in browser.find_element("id", "view").text
    Select(browser.find_element("id", "outcome")).select_by_value("all")
    all_of("#list button")[0].click()
    first = current()
    ActionChains(browser).send_keys("jjj").perform()
    fourth = current()
    ActionChains(browser).send_keys("k").perform()
    assert len({first, fourth, current()}) == 3
    here, case = browser.current_url, current()
    browser.get("about:blank")
    browser.get(here)
    assert current() == case  # the address names the case
    browser.find_element("id", "find").send_keys("no such text anywhere")
    assert listed() == [] and "No such episodes." in browser.find_element("id", "list").text
    assert browser.execute_script("return window.attacked") is None
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.browser
@pytest.mark.needs("chromium")
def test_a_click_on_a_heading_sorts(folder: Path, browser: Any) -> None:
    browser.get((folder / "report.html").as_uri())
    read = (
        "return [...document.querySelector('table.data').tBodies[0].rows]"
        ".map(row => +row.querySelectorAll('td:not(.key)')[arguments[0]].dataset.v)"
    )
    heads = browser.find_elements("css selector", "table.data thead th:not(.key)")
    column = [head.text for head in heads].index("turns")
    for way in (True, False):
        heads[column].click()
        values = browser.execute_script(read, column)
        assert values == sorted(values, reverse=way) and len(set(values)) > 1
