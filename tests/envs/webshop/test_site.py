"""The website's pages: the texts of the original's, in markup that data cannot break out of."""

from __future__ import annotations

import json
import os
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.webshop.env import WebShop
from turngym.envs.webshop.pages import BUTTON, LINK, OPTION, TEXT, text_of
from turngym.envs.webshop.site_html import problem_page, shop_page, start_page
from turngym.envs.webshop.site_page import page_from

VOID = {"meta", "link", "input", "br", "circle", "path"}
KINDS = {"button": BUTTON, "label": OPTION, "a": LINK}


class Read(HTMLParser):
    """A page as a program reads it.

    Attributes:
        nodes: texts inside ``main`` with their kinds, white space as the original's parser leaves it.
        said: texts of the body outside of ``main``.
        tags: every element, name and attributes.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.nodes: list[tuple[int, str]] = []
        self.said: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice: {attrs}"
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if "main" not in self._open:
            if "body" in self._open and data.strip():
                self.said.append(data)
        elif data.strip(" \n\t\f\r"):
            self.nodes.append((KINDS.get(self._open[-1], TEXT), data))
        elif "\n" not in data:
            self.nodes.append((TEXT, " "))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Return the attributes of the elements of a kind that have these."""
        return [own for name, own in self.tags if name == tag and attributes.items() <= own.items()]


def equal_walk(settings: dict[str, Any], task: str, seed: int, actions: list[str] | None = None) -> list[str]:
    """Play text and page side by side: the texts of each page must be equal. Return the pages' names."""
    text, page = WebShop(**settings, max_steps=60), WebShop(**settings, max_steps=60, observation="page")
    choice = random.Random(seed)
    shown, _ = text.reset(seed=seed, options={"task": task})
    drawn, _ = page.reset(seed=seed, options={"task": task})
    names = []
    for number in range(40 if actions is None else len(actions) + 1):
        data = page_from(drawn)
        read = Read(shop_page(data, number, "v"))
        assert text_of(read.nodes) == shown
        if not text.done:
            # Scripts and agents see no text but the original's until the episode is over.
            assert read.said == []
        names.append(type(data).__name__)
        if text.done or (actions is not None and number == len(actions)):
            break
        if actions is None:
            searches = [f"search[{choice.choice(['red shoes', 'small', 'coffee', 'mugs green lid'])}]"]
            known = [*text._admissible(), *searches, "nonsense"]
            action = text.expert_action() if choice.random() < 0.4 else choice.choice(known)
        else:
            action = actions[number]
        shown = text.step(str(action))[0]
        drawn = page.step(str(action))[0]
    return names


@pytest.mark.parametrize("attributes_page", [False, True])
def test_the_texts_of_procedural_shops(attributes_page: bool) -> None:
    names: set[str] = set()
    for seed in range(12):
        names |= set(equal_walk({"attributes_page": attributes_page}, f"test/{seed}", seed))
    assert names == {"Index", "Results", "Item", "Detail", "Done"}


def test_the_texts_of_the_originals_files(data: Path) -> None:
    settings = {"data": str(data), "tagger": "words", "split_rule": "all", "attributes_page": True}
    names = {name for seed in range(7) for name in equal_walk(settings, f"test/{seed}", seed)}
    assert names == {"Index", "Results", "Item", "Detail", "Done"}


@pytest.mark.needs("oracles")
def test_the_texts_of_recorded_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Path(os.environ["TURNGYM_ORACLES"], "webshop_episodes.jsonl")
    folder = Path(os.environ.get("TURNGYM_DATA") or "/nonexistent", "webshop")
    if not (recording.is_file() and folder.is_dir()):
        pytest.skip("data: TURNGYM_DATA has no webshop, or TURNGYM_ORACLES no webshop_episodes.jsonl")
    monkeypatch.undo()  # a catalogue of this size is worth keeping
    played = 0
    for line in recording.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["type"] != "episode":
            continue
        settings = {"data": str(folder), "tagger": "words", "split_rule": "all", "goals": record["goals"]}
        settings["attributes_page"] = record["show_attrs"]
        actions = [step["action"] for step in record["steps"]]
        played += len(equal_walk(settings, f"test/{record['goal_idx']}", record["rng_seed"], actions))
    assert played > 0


HOSTILE = '"\'><script>window.attacked=1</script><img src=x onerror="window.attacked=2">&amp;<b>\r</main><!--'


def hostile(folder: Path) -> Path:
    """Fill every text of the shop with markup."""
    for name in ("items_shuffle_5.json", "items_ins_v2_5.json", "items_human_ins.json"):
        content = (folder / name).read_text(encoding="utf-8")
        for word in ("Mug", "tea", "plain", "Small ", "Color", "light weight", "garden", "Coffee"):
            content = content.replace(word, f"{word}{json.dumps(HOSTILE)[1:-1]}")
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def test_markup_in_the_data_stays_text(data: Path) -> None:
    settings = {"data": str(hostile(data)), "tagger": "words", "split_rule": "all", "attributes_page": True}
    seen = ""
    for task in range(3):
        env = WebShop(**settings, observation="page")
        drawn, _ = env.reset(seed=0, options={"task": f"test/{task}"})
        actions = ["search[mug]", "click[b000000003]", "click[description]", "click[< prev]", "click[features]"]
        actions += ["click[< prev]", "click[attributes]", "click[< prev]", "search[<script>x</script>]"]
        drawn_pages = [drawn, *(env.step(action)[0] for action in actions)]
        drawn_pages += [env.step(action)[0] for action in env.expert()]
        for page in map(page_from, drawn_pages):
            html = shop_page(page, 1, "v", notice=HOSTILE)
            read = Read(html)
            seen += html
            assert len(read.all("script")) == 1 and read.all("img") == [] and read.all("b") == []
            assert not [name for _, own in read.tags for name in own if name.startswith("on")]
            assert html.count("</main>") == 1 and "<!--" not in html
    assert seen.count("&lt;script&gt;") > 20, "the texts are there"
    problem = Read(problem_page({"title": HOSTILE, "detail": HOSTILE, "hint": HOSTILE}, "", "v", HOSTILE))
    assert len(problem.all("script")) == 1 and problem.all("img") == []
    assert Read(start_page(HOSTILE, [HOSTILE], "v")).all("img") == []


def test_what_agents_of_the_originals_site_look_for() -> None:
    env = WebShop(observation="page")
    drawn, _ = env.reset(seed=0, options={"task": "test/0"})
    index = Read(shop_page(page_from(drawn), 0, "v"))
    assert len(index.all("input", id="search_input", name="search_query")) == 1
    while "item_page" not in drawn:
        drawn, *_ = env.step(str(env.expert_action()))
        page = Read(shop_page(page_from(drawn), 1, "v"))
        if "search_results" in drawn:
            links = [own for own in page.all("a") if (own["class"] or "").startswith("product-link")]
            assert len(links) == 10 and page.all("input", id="search_input") == []
    buttons = [own["value"] for own in page.all("button", type="submit") if "btn" in (own.get("class") or "")]
    assert buttons == ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    radios = page.all("input", type="radio")
    clicks = [f"click[{own['value']}]" for own in radios]
    assert clicks and set(clicks) <= set(env._admissible())
    labels = {own["for"] for own in page.all("label")}
    assert labels == {own["id"] for own in radios} and len(labels) == len(radios)
    # Both ways of getting at controls that stand for nothing: no name without a label for screen readers.
    assert all(own.get("aria-label") for own in page.all("input", type="search"))
