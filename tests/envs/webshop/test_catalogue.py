"""WebShop's catalogues, goals and reward."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from turngym.envs.webshop import official
from turngym.envs.webshop.catalogue import Product, opened
from turngym.envs.webshop.goals import NO_LIMIT, Goal, Goals, reshuffled
from turngym.envs.webshop.procedural import product_of
from turngym.envs.webshop.reward import rewarded, token_set_ratio
from turngym.envs.webshop.shop import Shop
from turngym.errors import InvalidRequest, Unavailable

SHOP = json.loads(Path(__file__).with_name("shop.json").read_text(encoding="utf-8"))
ITEMS, INSTRUCTIONS = SHOP["items"], SHOP["instructions"]
BASE = {name: value for name, value in ITEMS[0].items() if name not in ("asin", "name", "pricing")}


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
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1"}]), "lacks the field 'name'"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1", "name": "x", "images": []}]), "IndexError"),
        ("items_shuffle_5.json", json.dumps([{**BASE, "asin": "B1", "name": "x", "reviews": ["x"]}]), "AttributeError"),
        ("items_shuffle_5.json", '[{"asin": "B1", "name": ' + "[" * 100_000, "nested"),
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


def test_no_room_on_the_disk(own_cache: Path) -> None:
    code = (
        "import resource\nfrom turngym import make\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\nmake('webshop', products=500)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Unavailable" in done.stderr and "XDG_CACHE_HOME" in done.stderr
    assert [path.suffix for path in own_cache.iterdir()] == [".lock"], "a draft was left behind"


def test_no_room_in_memory(own_cache: Path) -> None:
    def products() -> list[Product]:
        raise MemoryError

    with pytest.raises(Unavailable, match="not enough memory"):
        opened({"key": 1}, products)


def test_no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    catalogue = opened({"key": 1}, lambda: [product_of(0, number) for number in range(3)])
    assert catalogue.product(2).asin == product_of(0, 2).asin and catalogue.search(catalogue.product(1).name)[0] == 1
    assert Goals(catalogue, "human", 0).prices.shape == (3,)


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


def test_ragen_shuffles_the_goals_once_more(data: Path) -> None:
    goals = Goals(official.official(str(data)), "synthetic", 0)
    want = list(range(7))
    random.Random(42).shuffle(want)
    assert [reshuffled(goals).tolist() for _ in range(2)] == [want, want]  # the second from the cache


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


def test_options_are_compared_as_pairs_only_in_the_released_variant(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
    wanted = goal._replace(options={"size": "small"}, attributes=("dishwasher safe",))
    product = shop.catalogue.product(2)
    nouns = str.split
    for variant, want in (("default", 2 / 3), ("released", 1.0)):
        # The value "size" is a word of the pair ("size", "small") alone.
        reward, parts = rewarded(product, wanted, 5.0, {"color": "size"}, nouns, variant)  # type: ignore[arg-type]
        assert reward == pytest.approx(want) and parts["r_option"] == (variant == "released")


def test_type_part(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
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
