"""WebShop's checks for ``worlds.py``: rankings, rewards, goals and whole episodes of the original."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from turngym.envs.webshop.analysis import terms
from turngym.envs.webshop.catalogue import Catalogue, Product
from turngym.envs.webshop.goals import Goal, Goals
from turngym.envs.webshop.html import html_of
from turngym.envs.webshop.nouns import MODELS, tagger
from turngym.envs.webshop.official import official
from turngym.envs.webshop.pages import nodes_of, rich_text_of, text_of
from turngym.envs.webshop.reward import rewarded
from turngym.envs.webshop.shop import DONE, INDEX, Shop, State

Case = tuple[str, bool, str]


@lru_cache(maxsize=1)
def catalogue_in(data: Path) -> Catalogue:
    return official(str(data / "webshop"))


def rankings(path: Path, data: Path) -> Iterator[Case]:
    """Every query's terms and its ranked products; every document's terms."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    catalogue = catalogue_in(data)
    for query in recorded["queries"]:
        text = query["q"]
        yield f"terms of {text!r:.60}", terms(text) == query["tokens"], f"{terms(text)}, want {query['tokens']}"
        got = [catalogue.product(number).asin for number in catalogue.search(text)]
        yield f"ranking of {text!r:.60}", got == query["asins"], f"{got}, want {query['asins']}"
    for asin, want in recorded.get("doc_tokens", {}).items():
        number = catalogue.find(asin)
        got = terms(catalogue.product(number).contents()) if number is not None else []
        yield f"terms of {asin}", got == want, f"{got}, want {want}"


def rewards(path: Path, data: Path) -> Iterator[Case]:
    """Eq. 9 on made-up products, with the nouns given."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    for case in recorded["cases"]:
        given, goal = case["inputs"]["product"], case["inputs"]["goal"]
        nouns = {given["name"]: given["nouns"], goal["name"]: goal["nouns"]}
        product = Product(
            asin="X",
            # The vectors tell the title that attributes are looked up in from the name that nouns are taken from.
            name=given["Title"],
            description=given["Description"],
            bullets=tuple(given["BulletPoints"]),
            price_tag="",
            prices=(case["inputs"]["price"],),
            options={},
            images={},
            image="",
            attributes=tuple(given["Attributes"]),
            category="",
            query=given["query"],
            product_category=given["product_category"],
        )
        nouns[given["Title"]] = given["nouns"]
        options = goal["goal_options"]
        wanted = Goal(
            "Y", "", goal["query"], goal["name"], goal["product_category"], "", tuple(goal["attributes"]),
            options if isinstance(options, dict) else tuple(options), goal["price_upper"],
        )  # fmt: skip
        inputs = (product, wanted, case["inputs"]["price"], case["inputs"]["options"])
        reward, parts = rewarded(*inputs, nouns.__getitem__, "released")
        got = {**parts, "reward": reward}
        want = {key: value for key, value in case["outputs"].items() if not key.startswith("num_")}
        wrong = {key: got.get(key) for key, value in want.items() if not _near(got.get(key), value)}
        yield case["id"], not wrong, f"got {wrong}, want {want}"


def _near(got: Any, want: Any) -> bool:
    if isinstance(want, float) and isinstance(got, int | float):
        return abs(got - want) <= 1e-8 + 1e-7 * abs(want)
    return bool(got == want)


def episodes(path: Path, data: Path) -> Iterator[Case]:
    """The set-up of each recorded server, then every page, reward and list of actions of every episode."""
    catalogue = catalogue_in(data)
    shops: dict[str, tuple[Goals, Shop]] = {}
    tags = RecordedNouns()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        record = json.loads(line)
        kind = record["goals"]
        if record["type"] == "server":
            goals = Goals(catalogue, kind, record["seed_before_construct"])
            shops[kind] = goals, Shop(catalogue, goals.prices, tags, variant="released")  # type: ignore[arg-type]
            yield from server(f"line {number}: {kind} server", record, goals)
            continue
        name = f"line {number}: {record['kind']} {kind} goal {record['goal_idx']}"
        if kind not in shops:  # a recording without its server line: the originals all started from seed 0
            goals = Goals(catalogue, kind, 0)
            shops[kind] = goals, Shop(catalogue, goals.prices, tags, variant="released")  # type: ignore[arg-type]
        goals, shop = shops[kind]
        goal = goals[record["goal_idx"]]
        shop.attributes_page = record["show_attrs"]
        shop._item_clicks.cache_clear()
        yield f"{name}: goal", *_same(_goal(goal), {**record["goal"]})
        yield from episode(name, record, goal, shop, tags)
    if tags.borrowed:
        print(f"spaCy is not installed: the title scores of {tags.borrowed} purchases are the recorded ones")


def _goal(goal: Goal) -> dict[str, Any]:
    named = goal._asdict()
    named["instruction_text"], named["goal_options"] = named.pop("instruction"), named.pop("options")
    named["attributes"] = list(goal.attributes)
    if not isinstance(goal.options, dict):
        named["goal_options"] = list(goal.options)
    return named


def server(name: str, record: dict[str, Any], goals: Goals) -> Iterator[Case]:
    yield f"{name}: goals", len(goals) == record["num_goals"], f"{len(goals)}, want {record['num_goals']}"
    for index, want in enumerate(record["first_goals"]):
        yield f"{name}: goal {index}", *_same(_goal(goals[index]), want)
    got = {product.asin: float(goals.prices[number]) for number, product in enumerate(goals.catalogue)}
    wrong = [asin for asin, price in record["product_prices"].items() if got.get(asin) != price]
    yield f"{name}: prices", not wrong, f"{len(wrong)} differ, {wrong[:3]}"


def episode(name: str, record: dict[str, Any], goal: Goal, shop: Shop, tags: RecordedNouns) -> Iterator[Case]:
    """Replay one episode, its steps behind the purchase too."""
    draws = random.Random(record["rng_seed"])

    def sample(size: int, count: int) -> Sequence[int]:
        return draws.sample(range(size), count)

    state = State()
    yield f"{name}: reset", *_same(seen(shop, state, goal, record["session"]), _pages(record["reset"]))
    for number, step in enumerate(record["steps"]):
        tags.recorded = step.get("reward_details", {}).get("title_score")
        after = shop.act(state, goal, step["action"], sample)
        bought = after is not None and after.page == DONE
        state = state if after is None else after
        got = seen(shop, state, goal, record["session"])
        got.update(reward=(state.reward or 0.0) if bought else 0.0, done=bought)
        if "session" in step:
            got["session"] = {
                "asin": None if state.product is None else shop.product(state).asin,
                "options": dict(state.options),
                "page": state.number,
                "keywords": None if state.keywords is None else list(state.keywords),
                "asins": sorted(state.seen),
            }
            step["session"] = {**step["session"], "asins": sorted(step["session"]["asins"])}
            step["session"].pop("actions", None)  # counters that nothing shows
        if "reward_details" in step:
            got["reward_details"] = state.parts
        yield f"{name}: step {number} {step['action']!r:.60}", *_same(got, _pages(step))


def seen(shop: Shop, state: State, goal: Goal, session: str) -> dict[str, Any]:
    nodes, url = nodes_of(shop, state, goal.instruction), shop.url(state, session)
    html = html_of(shop, state, goal.instruction, session)
    return {
        "obs_text": text_of(nodes),
        "obs_rich": rich_text_of(nodes, state, url),
        "url": url,
        "html_sha16": hashlib.sha256(html.encode()).hexdigest()[:16],
        "html": html,
        "has_search_bar": state.page == INDEX,
        "clickables": list(shop.clickables(state)),
    }


def _pages(step: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key not in ("action", "price")}


def _same(got: dict[str, Any], want: dict[str, Any]) -> tuple[bool, str]:
    wrong = [key for key in want if not _near(got.get(key), want[key])]
    return not wrong, "; ".join(f"{key}: got {got.get(key)!r:.700}, want {want[key]!r:.700}" for key in wrong)


class RecordedNouns:
    """The original's tagger where it is installed; else nouns that give the recorded title score."""

    def __init__(self) -> None:
        self.real = tagger("spacy") if any(map(importlib.util.find_spec, MODELS)) else None
        self.recorded: float | None = None
        self.borrowed = 0
        self._calls = 0

    def __call__(self, title: str) -> Sequence[str]:
        if self.real is not None or self.recorded is None:
            return self.real(title) if self.real is not None else ()
        # The reward asks for the bought title first, for the goal's second.
        self._calls += 1
        common, wanted = self.recorded.as_integer_ratio() if self.recorded in (0.0, 1.0) else _fraction(self.recorded)
        if self._calls % 2:
            self.borrowed += 1
            return [f"n{number}" for number in range(common)]
        return [f"n{number}" for number in range(wanted)]


def _fraction(value: float) -> tuple[int, int]:
    return next((round(value * size), size) for size in range(1, 500) if round(value * size) / size == value)


CHECKS = {
    "webshop_lucene_bm25.json": rankings,
    "webshop_reward.json": rewards,
    "webshop_episodes.jsonl": episodes,
}
