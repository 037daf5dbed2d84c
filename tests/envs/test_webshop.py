"""WebShop: text analysis, search, catalogues, goals, reward, pages, and the environment on both kinds of shop."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turngym import make
from turngym.envs.webshop import index, official
from turngym.envs.webshop.analysis import stem, terms, words
from turngym.envs.webshop.catalogue import Product, opened
from turngym.envs.webshop.env import WebShop
from turngym.envs.webshop.goals import NO_LIMIT, Goal, Goals
from turngym.envs.webshop.index import Index, IndexWriter, length_of, quantised
from turngym.envs.webshop.nouns import MODELS
from turngym.envs.webshop.pages import nodes_of, rich_text_of, text_of
from turngym.envs.webshop.procedural import ProceduralGoals, procedural, product_of, split_of
from turngym.envs.webshop.reward import rewarded, token_set_ratio
from turngym.envs.webshop.shop import DONE, ITEM, SEARCH, Shop, State, parse
from turngym.errors import InvalidRequest, MissingExtra

BASE: dict[str, Any] = {
    "full_description": "A plain product.",
    "pricing": "$10.00",
    "images": ["http://pictures/1.jpg"],
    "product_category": "Home \u203a Kitchen \u203a Mugs",
    "small_description": ["Holds tea", "Dishwasher safe"],
    "customization_options": "",
    "category": "garden",
    "query": " Coffee Mugs ",
}
ITEMS: list[dict[str, Any]] = [
    {**BASE, "asin": "B000000001", "name": "Red Mug", "pricing": "$5.00$9.00"},
    {**BASE, "asin": "B000000002", "name": "Blue Mug", "pricing": "$1,200.50", "small_description": "One line"},
    {**BASE, "asin": "nan", "name": "Nothing"},
    {**BASE, "asin": "B0000000011", "name": "Id too long"},
    {**BASE, "asin": "B000000001", "name": "Second of the same id"},
    {
        **BASE,
        "asin": "B000000003",
        "name": 'Big "Green" Mug & Lid',
        "pricing": "",
        "customization_options": {
            "Size": [{"value": "Small "}, {"value": 'Tall 5"', "image": "x.jpg"}, {"value": "a[b]"}],
            "Color": [{"value": "Red/Blue"}, {"value": "small"}],
            "Empty": None,
        },
    },
]
INSTRUCTIONS = {
    "B000000001": {"attributes": ["dishwasher safe"]},
    "B000000002": {
        "attributes": ["dishwasher safe", "light weight"],
        "instruction": "Find me light weight mugs",
        "instruction_attributes": ["light weight"],
    },
    "B000000003": {
        "attributes": ["dishwasher safe"],
        "instruction": "Find me dishwasher safe mugs",
        "instruction_attributes": ["dishwasher safe"],
    },
}
HUMAN = {
    "B000000003": [
        {
            "instruction": "i want a mug.",
            "instruction_attributes": ["dishwasher safe"],
            "instruction_options": ["small"],
        },
        {"instruction": "left out", "instruction_attributes": [], "instruction_options": []},
    ]
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep catalogues of a test in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "turngym" / "webshop"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "items_shuffle_5.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    (folder / "items_ins_v2_5.json").write_text(json.dumps(INSTRUCTIONS), encoding="utf-8")
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN), encoding="utf-8")
    return folder


def shop_of(data: Path, **settings: Any) -> tuple[Shop, Goal]:
    catalogue = official.official(str(data))
    goals = Goals(catalogue, "synthetic", 0)
    wanted = next(goal for goal in goals if goal.asin == "B000000003")
    return Shop(catalogue, goals.prices, lambda title: title.lower().split(), **settings), wanted  # type: ignore[arg-type]


def played(shop: Shop, goal: Goal, *actions: str) -> State:
    state = State()
    for action in actions:
        after = shop.act(state, goal, action, lambda size, count: list(range(count)))
        assert after is not None, action
        state = after
    return state


# Analysis and search -------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert words("it's a field:value 3.5oz x-large 1,200 __a_b__ end.") == [
        "it's", "a", "field:value", "3.5", "oz", "x", "large", "1,200", "__a_b__", "end",
    ] or words("3.5oz") == ["3.5oz"]  # fmt: skip
    assert words("café ½ x² 日本語 カタカナ ★ 👍🏽 ™") == ["café", "x", "日", "本", "語", "カタカナ", "★", "👍🏽", "™"]
    assert [len(word) for word in words("a" * 600)] == [255, 255, 90]


def test_terms_drop_possessives_and_stop_words() -> None:
    assert terms("The women's and men’s SHOES of it") == ["women", "men", "shoe"]


@pytest.mark.parametrize(
    ("word", "want"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"),
        ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"),
        ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("radically", "radic"),
        ("possibly", "possibl"), ("archaeology", "archaeolog"), ("triplicate", "triplic"), ("hopeful", "hope"),
        ("goodness", "good"), ("adoption", "adopt"), ("effective", "effect"), ("probate", "probat"), ("rate", "rate"),
        ("controll", "control"), ("roll", "roll"), ("as", "as"), ("is", "is"),
    ],
)  # fmt: skip
def test_stems(word: str, want: str) -> None:
    assert stem(word) == want


def test_lengths_are_quantised_downwards() -> None:
    stored = [length_of(quantised(length)) for length in range(5000)]
    assert stored[:40] == list(range(40)) and stored[41] == 40 and stored == sorted(stored)
    assert all(stored[length] <= length < 1.15 * stored[length] + 1 for length in range(5000))


def plain_bm25(documents: list[str], query: str) -> list[int]:
    """The formula, term by term, in double precision."""
    bags = [Counter(terms(text)) for text in documents]
    lengths = [length_of(quantised(sum(bag.values()))) for bag in bags]
    average = sum(sum(bag.values()) for bag in bags) / sum(bool(bag) for bag in bags)
    scores = []
    for bag, length in zip(bags, lengths, strict=True):
        score = 0.0
        for term, times in Counter(terms(query)).items():
            found = sum(term in other for other in bags)
            idf = np.log(1 + (sum(map(bool, bags)) - found + 0.5) / (found + 0.5))
            score += times * idf * bag[term] / (bag[term] + 0.9 * (0.6 + 0.4 * length / average))
        scores.append(score)
    return sorted((n for n in range(len(bags)) if scores[n]), key=lambda n: (-round(scores[n], 5), n))


def written(folder: Path, documents: list[str], order: list[int] | None = None) -> Index:
    writer = IndexWriter()
    for text in documents:
        writer.add(text)
    folder.mkdir()
    writer.write(folder, np.array(range(len(documents)) if order is None else order, dtype=np.int32))
    return Index(folder)


def some_documents(count: int) -> list[str]:
    draw = random.Random(1)
    vocabulary = [f"word{n}" for n in range(60)]
    return [" ".join(draw.choices(vocabulary, range(1, 61), k=draw.randrange(0, 60))) for _ in range(count)]


def test_search_is_bm25(tmp_path: Path) -> None:
    documents = some_documents(80)
    found = written(tmp_path / "index", documents)
    for query in ("word1 word50", "word59 word59 word3", "word7", "unknown", "", "the of"):
        assert found.search(query, 20).tolist() == plain_bm25(documents, query)[:20]


def test_pruned_search_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BLOCK", 500)  # several blocks while writing
    found = written(tmp_path / "index", some_documents(2000))
    queries = [f"word{a} word{b} word59 word58 word2 word{a}" for a in range(8) for b in range(0, 60, 7)]
    everything = [found.scored(query, 10) for query in queries]
    monkeypatch.setattr(index, "DIRECT_POSTINGS", 0)
    assert [found._search(query, 10).tolist() for query in queries] == [docs for docs, _ in everything]


def test_documents_are_numbered_by_the_order_given(tmp_path: Path) -> None:
    assert written(tmp_path / "index", ["same text", "same text", "other"], [1, 2, 0]).search("text").tolist() == [0, 2]


# Catalogues ----------------------------------------------------------------------------------------------------------


def test_products_as_the_loader_makes_them(data: Path) -> None:
    catalogue = official.official(str(data))
    red, blue, green = catalogue
    assert [product.asin[-1] for product in catalogue] == ["1", "2", "3"] and red.name == "Red Mug"
    assert (red.price_tag, red.prices) == ("$5.0 to $9.0", (5.0, 9.0)) and red.query == "coffee mugs"
    assert (blue.price_tag, blue.bullets) == ("$1200.5", ("One line",))
    assert green.prices == (100.0,) and green.options == {
        "size": ("small", 'tall 5"', "a[b]"),
        "color": ("red | blue", "small"),
    }
    assert catalogue.find("B000000002") == 1 and catalogue.find("B00") is None and catalogue.find("Z") is None


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_files_are_read_in_pieces(data: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "CHUNK", chunk)
    assert list(official.elements(data / "items_shuffle_5.json")) == ITEMS
    assert dict(official.entries(data / "items_ins_v2_5.json")) == INSTRUCTIONS
    numbers = data / "numbers.json"
    numbers.write_text(" [ 12 , 345,true ] ")
    assert list(official.elements(numbers)) == [12, 345, True]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("items_shuffle_5.json", "[{", "no JSON"),
        ("items_shuffle_5.json", json.dumps(ITEMS)[:-1], "ends too early"),
        ("items_shuffle_5.json", "{}", "expected"),
        ("items_shuffle_5.json", '[{"name": "x"}]', "no asin"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1"}]), "KeyError"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1", "name": 3}]), "Expected `str`"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1", "name": "x", "pricing": "10"}]), "dollar"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1", "name": "x", "pricing": "$"}]), "Invalid"),
        ("items_shuffle_5.json", "[]", "no products"),
        ("items_ins_v2_5.json", "[]", "expected"),
    ],
)
def test_damaged_files(data: Path, own_cache: Path, name: str, text: str, match: str) -> None:
    (data / name).write_text(text)
    with pytest.raises(InvalidRequest, match=match):
        official.official(str(data))
    assert [path.suffix for path in own_cache.iterdir()] == [".lock"], "a draft was left behind"


def test_missing_and_ambiguous_files(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no folder"):
        official.official(str(tmp_path / "nowhere"))
    (data / "items_shuffle_6.json").write_text("[]")
    with pytest.raises(InvalidRequest, match="items_shuffle"):
        official.official(str(data))
    (data / "items_ins_v2_5.json").unlink()
    (data / "items_shuffle_6.json").unlink()
    with pytest.raises(InvalidRequest, match="items_ins_v2"):
        official.official(str(data))


def test_a_catalogue_is_built_once_and_anew_where_it_is_damaged(own_cache: Path) -> None:
    built = []

    def products() -> list[Product]:
        built.append(1)
        return [product_of(0, number) for number in range(5)]

    first = opened({"key": 1}, products)
    assert opened({"key": 1}, products).product(3) == first.product(3) and len(built) == 1
    with open(first.folder / "docs.npy", "ab") as file:
        file.write(b"x")
    assert len(opened({"key": 1}, products)) == 5 and len(built) == 2
    opened({"key": 2}, products)
    assert len(built) == 3


def test_a_read_only_cache_is_no_hindrance(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert len(opened({"key": 1}, lambda: [product_of(0, 1)])) == 1 and not list(own_cache.iterdir())


def test_no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    catalogue = opened({"key": 1}, lambda: [product_of(0, number) for number in range(3)])
    assert catalogue.product(2).asin == product_of(0, 2).asin and catalogue.search(catalogue.product(1).name)[0] == 1
    assert Goals(catalogue, "human", 0).prices.shape == (3,)


# Goals and reward ----------------------------------------------------------------------------------------------------


def test_synthetic_goals(data: Path) -> None:
    goals = Goals(official.official(str(data)), "synthetic", 0)
    # B…2 costs too much for a limit; B…3 has 3 x 2 combinations of options.
    assert sorted(Counter(goal.asin[-1] for goal in goals).items()) == [("2", 1), ("3", 6)]
    dear = next(goal for goal in goals if goal.asin[-1] == "2")
    assert dear.price_upper == NO_LIMIT and dear.instruction == "Find me light weight mugs"
    assert {tuple(goal.options.items()) for goal in goals if goal.asin[-1] == "3"} == {  # type: ignore[union-attr]
        (("color", color), ("size", size)) for color in ("red | blue", "small") for size in ("small", 'tall 5"', "a[b]")
    }
    assert 5 <= goals.prices[0] <= 9 and goals.prices[2] == 100
    draw = random.Random(0)
    assert goals.prices[0] == draw.uniform(5, 9)
    again = Goals(official.official(str(data)), "synthetic", 0)  # from the cache
    assert list(again) == list(goals) and goals[-1] == goals[6] and len(goals[2:4]) == 2


def test_human_goals(data: Path) -> None:
    (goal,) = Goals(official.official(str(data)), "human", 0)
    assert goal.instruction.startswith("i want a mug, and price lower than 1") and goal.options == ("small",)


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        ("red shoes", "shoes red", 100), ("large", "xx-large", 100), ("(x)", "!", 0), ("café", "caf", 100),
        ("machine wash", "machine washable", 86), ("long sleeve", "short sleeve", 70), ("a", "b", 0),
    ],
)  # fmt: skip
def test_token_set_ratio(first: str, second: str, want: int) -> None:
    got = token_set_ratio(first, second)
    assert (got > 85) == (want > 85) and (got == 100) == (want == 100)


def test_options_are_compared_as_pairs_only_in_the_released_variant(data: Path) -> None:
    shop, goal = shop_of(data)
    wanted = goal._replace(options={"size": "small"}, attributes=("dishwasher safe",))
    product = shop.catalogue.product(2)
    nouns = str.split
    for variant, want in (("default", 2 / 3), ("released", 1.0)):
        # The value "size" is a word of the pair ("size", "small") alone.
        reward, parts = rewarded(product, wanted, 5.0, {"color": "size"}, nouns, variant)  # type: ignore[arg-type]
        assert reward == pytest.approx(want) and parts["r_option"] == (variant == "released")


def test_type_part(data: Path) -> None:
    shop, goal = shop_of(data)
    product = shop.catalogue.product(0)
    for names, query, path, want in [
        (("mug",), "coffee mugs", "", 1.0),
        (("cup",), "coffee mugs", "", 0.0),
        (("mug", *"bcdefghijkl"), "coffee mugs", "", 0.1),
        (("mug", *"bcdef"), "other", "", 0.5),
        (("mug", *"bcdef"), "other", " Kitchen \u203aMugs", 1.0),
        ((), "other", "", 0.5),
    ]:
        wanted = goal._replace(name="wanted", query=query, product_category=path)
        nouns = {"wanted": names, "Red Mug": ("red", "mug")}
        assert rewarded(product, wanted, 1.0, {}, nouns.__getitem__)[1]["r_type"] == want


# The shop ------------------------------------------------------------------------------------------------------------


def test_pages_and_buttons(data: Path) -> None:
    shop, goal = shop_of(data)
    results = played(shop, goal, "search[Mug]")
    assert list(shop.clickables(results))[:2] == ["back to search", "next >"] and len(results.results) == 3
    beyond = played(shop, goal, "search[mug]", "click[Next >]", "click[next >]")
    assert text_of(nodes_of(shop, beyond, "Buy")) == (
        "Instruction: [SEP] Buy [SEP] Back to Search [SEP] Page 3 (Total results: 3) [SEP] < Prev [SEP] Next >"
    )
    item = played(shop, goal, "search[mug]", "click[b000000003]", "click[small]", "click[features]", "click[< prev]")
    # Both options have the value: the later one was chosen.
    assert item.page == ITEM and dict(item.options) == {"color": "small"} and item.seen == {"B000000003"}
    back = played(shop, goal, "search[mug]", "click[b000000003]", "click[small]", "click[< prev]")
    assert back.page == SEARCH and back.options == () and back.seen == {"B000000003"}
    assert "[clicked button] B000000003 [clicked button_]" in rich_text_of(nodes_of(shop, back, ""), back, "")
    assert played(shop, goal, "search[mug]", "click[b000000003]", "search[red]", "click[back to search]") == State()


def test_actions_that_are_none(data: Path) -> None:
    shop, goal = shop_of(data)
    item = played(shop, goal, "search[mug]", "click[b000000003]")
    for action in (
        "",
        "click[",
        "click[search]",
        "Click[small]",
        "click[a[b]]",
        "click[b000000001]",
        "search[]",
        "x[y]",
    ):
        assert shop.act(item, goal, action, lambda size, count: []) is None
    assert "a[b]" in shop.clickables(item) and not any("a[b]" in action for action in shop.admissible(item))
    assert shop.act(item, goal, "click[Small] and more", lambda size, count: []) is not None


@pytest.mark.parametrize(
    "action",
    ["a[b]", "a[b", "[b]", "a[]", "a[[]", "a[b[c]]d]e", "a[]]", " a[b]\nc[d]", "a\n[b]", "]a[", "a[b]]", "[[]]", ""],
)
def test_actions_are_parsed_as_by_the_original_pattern(action: str) -> None:
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse(action) == (match.groups() if match else None)


def test_clicked_options_show_by_the_address(data: Path) -> None:
    shop, goal = shop_of(data)
    item = played(shop, goal, "search[mug]", "click[b000000003]", 'click[tall 5"]', "click[red | blue]")
    text = rich_text_of(nodes_of(shop, item, "Buy"), item, shop.url(item, "7"))
    assert text.startswith("You have clicked red | blue.\nInstruction:\nBuy\n[button] Back to Search [button_]\n")
    assert '  [button] tall 5" [button_]' in text, "JSON escapes the quotation mark"
    quoted = played(shop, goal, 'search["small" mug]', "click[b000000003]")
    assert "You have clicked small" in rich_text_of(nodes_of(shop, quoted, ""), quoted, shop.url(quoted, "7"))


def test_special_queries_are_released_code_only(data: Path) -> None:
    shop, goal = shop_of(data)
    released, _ = shop_of(data, variant="released")
    assert played(shop, goal, "search[<q> coffee mugs]").results == shop.catalogue.search("<q> coffee mugs")
    assert played(released, goal, "search[<q> coffee mugs]").results == (0, 1, 2)
    assert played(released, goal, "search[<c> garden]").results == (0, 1, 2)
    assert played(released, goal, "search[<r>]").results == (0, 1, 2)
    for query in ("<a> light weight", "<c>"):
        assert released.act(State(), goal, f"search[{query}]", lambda size, count: []) is None


def test_the_released_code_reads_the_page_off_the_address(data: Path) -> None:
    actions = ("search[search_results mug]", "click[b000000003]", "click[description]", "click[< prev]")
    shop, goal = shop_of(data)
    released, _ = shop_of(data, variant="released")
    assert played(shop, goal, *actions).page == ITEM
    assert played(released, goal, *actions).page == SEARCH


def test_a_purchase(data: Path) -> None:
    shop, goal = shop_of(data)
    wanted = goal._replace(options={"size": 'tall 5"', "color": "red | blue"})
    state = played(
        shop, wanted, "search[mug]", "click[b000000003]", 'click[tall 5"]', "click[red | blue]", "click[buy now]"
    )
    assert (state.page, state.reward) == (DONE, 1.0) and shop.clickables(state) == {}
    assert "[SEP] 1.0 [SEP] Reward Details" in text_of(nodes_of(shop, state, ""))


# The environment -----------------------------------------------------------------------------------------------------


def test_official_data(data: Path) -> None:
    env = WebShop(data=str(data), tagger="words", split_rule="all", observation="text_rich")
    assert env.splits == {"train": 7, "validation": 7, "test": 7}
    for task in env.tasks("test"):
        env.reset(seed=0, options={"task": task})
        for action in env.expert():
            *_, info = env.step(action)
        assert info["score"] >= 2 / 3, "all but the options that cannot be clicked"
        assert info["task_score"] == 100 * info["score"] and {"r_type", "r_att", "r_price"} <= set(info["reward_parts"])
    with pytest.raises(InvalidRequest, match="split_rule"):
        WebShop(data=str(data), tagger="words")


@pytest.mark.skipif(any(map(importlib.util.find_spec, MODELS)), reason="data: the tagger is installed")
def test_the_tagger_is_an_extra(data: Path) -> None:
    with pytest.raises(MissingExtra, match="turngym\\[webshop\\]"):
        WebShop(data=str(data), split_rule="all")


@pytest.mark.parametrize("observation", ["text", "text_rich", "html"])
def test_observations(observation: str) -> None:
    env = make("webshop", observation=observation)
    first, _ = env.reset(seed=0, options={"task": "test/0"})
    pages = [first, *(env.step(action)[0] for action in env.expert())]
    mark = {"text": " [SEP] ", "text_rich": "[button] Search [button_]\n", "html": "<!DOCTYPE html>"}[observation]
    # Only the plain text does not show which options are chosen.
    assert mark in first and len(set(pages)) == (4 if observation == "text" else len(pages))
    for action in ("click[description]", "click[features]", "click[reviews]", "click[attributes]"):
        env = make("webshop", observation=observation, attributes_page=True)
        env.reset(seed=0, options={"task": "test/0"})
        while not any(page == "click[buy now]" for page in env._admissible()):
            env.step(str(env.expert_action()))
        before = env.render() or env._observe()
        assert env.step(action)[0] != before and env.step("click[< prev]")[0] == before


def test_success_reward() -> None:
    env = make("webshop", success_reward=10)
    env.reset(seed=0, options={"task": "test/1"})
    assert [env.step(action)[1] for action in env.expert()][-1] == 10
    env.reset(seed=0, options={"task": "test/1"})
    while not any(action == "click[buy now]" for action in env._admissible()):
        env.step(str(env.expert_action()))
    _, reward, terminated, _, info = env.step("click[buy now]")  # without the wanted options
    assert terminated and reward == 0 and 0 < info["score"] < 1


def test_released_variant_takes_actions_as_they_are() -> None:
    for variant, valid in (("default", True), ("released", False)):
        env = make("webshop", variant=variant)
        env.reset(seed=0, options={"task": "test/0"})
        assert env.step(" search[tea]")[4]["action_valid"] is valid


def test_shortcuts_do_not_win() -> None:
    """The first result as it is wins nothing; options by their words alone win about half."""
    env = make("webshop")
    scores = []
    for task in env.tasks("test")[:100]:
        observation, _ = env.reset(seed=0, options={"task": task})
        _, _, _, _, info = env.step(f"search[{observation.split(' [SEP] ')[2]}]")
        env.step(next(action for action in info["admissible"] if action.startswith("click[b0")))
        info = env.step("click[buy now]")[4]
        scores.append(info["score"])
    assert max(scores) < 1 and 0.3 < sum(scores) / 100 < 0.75


def test_procedural_goals_of_the_splits_are_of_different_products() -> None:
    catalogue = procedural(300, 5)
    goals = ProceduralGoals(catalogue, 5)
    asins = {split: {goals.goal(split, n).asin for n in range(200)} for split in ("train", "validation", "test")}
    assert not asins["train"] & asins["test"] and not asins["validation"] & (asins["train"] | asins["test"])
    assert len({goals.goal("train", n).instruction for n in range(200)}) == 200
    assert all(split_of(5, catalogue.find(asin) or 0) == "test" for asin in asins["test"])


def test_procedural_products_do_not_depend_on_the_number() -> None:
    assert list(procedural(200, 1)) == list(procedural(300, 1))[:200]
    assert procedural(200, 1).product(0) != procedural(200, 2).product(0)
    assert len({product.asin for product in procedural(300, 1)}) == 300


def test_pinned_goal() -> None:
    """Goals stay what they are: raise GENERATOR_VERSION and this line together."""
    env = make("webshop")
    observation, info = env.reset(seed=0, options={"task": "test/0"})
    assert observation == PINNED and info["task_type"] == "grocery"


PINNED = (
    "WebShop [SEP] Instruction: [SEP] Can you get me ground coffee known for caffeine free and fair trade, in a light"
    " roast, and I take the size 12 ounce, and price lower than 40.00 dollars [SEP] Search"
)


def test_a_session_is_small() -> None:
    env = make("webshop")
    env.reset(seed=0, options={"task": "test/0"})
    while env._state.page != ITEM:
        env.step(str(env.expert_action()))
    own = [*vars(env).values(), *env._state, *env._goal]
    shared = (env._shop, env._supply, env.splits, env.metadata)
    size = sum(sys.getsizeof(value) for value in own if not any(value is other for other in shared))
    assert size + sys.getsizeof(vars(env)) < 10_000
    assert env.fork()._state is env._state


@pytest.mark.parametrize(
    "settings",
    [
        {"observation": "image"}, {"variant": "paper"}, {"goals": "robot"}, {"split_rule": "x"}, {"products": 10},
        {"products": 1.5}, {"catalogue_seed": -1}, {"data": 3}, {"data": "/nowhere"}, {"success_reward": "ten"},
    ],
)  # fmt: skip
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        make("webshop", **settings)
