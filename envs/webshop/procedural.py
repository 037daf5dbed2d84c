"""The procedural catalogue: products and goals of any number, drawn by a seed, with nothing to download.

Every product belongs to one kind of goods (``stock``) and has some of its kind's attributes, a few of its option values
and a price. Only one or two attributes stand in the title, some in the description, the rest on the features page,
which the search engine does not see: so the best hit for a goal's words is often not the product that fits. A goal is a
request in words for some attributes, for option values and for a price, made from one product; its brand and its title
are never told. Products are dealt out to the splits, so that no product of a test goal is that of a training goal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import TypeVar

from .catalogue import Catalogue, Product, Review, opened
from .goals import NO_LIMIT, PRICE_STEPS, Goal
from .stock import BRAND_ENDS, BRAND_STARTS, KINDS, POOLS, SERIES, Kind

GENERATOR_VERSION = 1
"""Raise it whenever products or goals come out other than before."""
LEAST_PRODUCTS = 200
SPLITS = {"train": 100_000, "validation": 500, "test": 500}
_HELD_OUT = ("validation", "test")
_IDS = 36**8
_STEP = 1_442_695_040_873  # has no factor in common with 36: walks through all ids
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORD = re.compile(r"[a-z]+")
T = TypeVar("T")


class Draw:
    """Random choices that depend on the key alone; made of plain doubles, which Python keeps stable."""

    def __init__(self, *key: str | int) -> None:
        digest = blake2b(repr(key).encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(digest, "little")).random

    def below(self, limit: int) -> int:
        """Return an integer from 0 to ``limit`` - 1."""
        return int(self._random() * limit)

    def between(self, low: float, high: float) -> float:
        """Return a number in a range."""
        return low + (high - low) * self._random()

    def chance(self, share: float) -> bool:
        """Return True in that share of the calls."""
        return self._random() < share

    def one(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[self.below(len(choices))]

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """Return ``count`` different choices, in random order."""
        left = list(choices)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]


def procedural(products: int, seed: int) -> Catalogue:
    """Return the catalogue of this size and seed, from the cache where it was made before."""
    key = {"procedural": GENERATOR_VERSION, "products": products, "seed": seed}
    return opened(key, partial(_products, products, seed))


def _products(count: int, seed: int) -> Iterator[Product]:
    return (product_of(seed, number) for number in range(count))


def product_of(seed: int, number: int) -> Product:
    """Make one product."""
    draw = Draw("webshop product", GENERATOR_VERSION, seed, number)
    kind = draw.one(KINDS)
    attributes = draw.some(kind.attributes, 4 + draw.below(3))
    brand = draw.one(BRAND_STARTS) + draw.one(BRAND_ENDS)
    series = f"{draw.one(SERIES)} {draw.below(900) + 100}"
    options = {
        name: tuple(sorted(draw.some(POOLS[pool], 3 + draw.below(5)), key=POOLS[pool].index))
        for name, pool in kind.options.items()
    }
    in_title, described = 1 + draw.below(2), draw.below(2) + 1
    title = _title(draw, kind, brand, series, attributes[:in_title])
    low = round(draw.between(*kind.prices), 2)
    prices = (low, round(low * draw.between(1.1, 1.6), 2)) if draw.chance(0.3) else (low,)
    bullets = [f"{draw.one(_BULLETS)} {attribute}" for attribute in draw.some(attributes, len(attributes))]
    uses = draw.some(kind.uses, 2)
    bullets.insert(0, f"{brand} {series}: {draw.one(_PROMISES)}, made for {uses[0]}")
    description = " ".join(
        [
            f"{draw.one(_OPENINGS)} the {series} line of {kind.query} by {brand}.",
            *(f"{draw.one(_REMARKS)} {attribute}." for attribute in attributes[in_title : in_title + described]),
            f"People take it for {uses[0]} and {uses[1]}.",
        ]
    )
    reviews = tuple(_review(draw) for _ in range(draw.below(4)))
    rating = str(round(sum(review.score for review in reviews) / len(reviews), 1)) if reviews else "N.A."
    return Product(
        asin=_id(seed, number),
        name=title,
        description=description,
        bullets=tuple(bullets),
        price_tag=" to ".join(f"${price}" for price in prices),
        prices=prices,
        options=options,
        images={},
        image="",
        attributes=tuple(attributes),
        category=kind.category,
        query=kind.query,
        product_category=" \u203a ".join(kind.path),
        rating=rating,
        reviews=reviews,
    )


_BULLETS = ("Feature:", "What counts:", "Comes with this:", "You get:", "By design:", "Good to know:", "Checked:")
_PROMISES = (
    "built to last",
    "loved by families",
    "a small upgrade for every day",
    "tested in daily use",
    "simply good",
)
_OPENINGS = ("Meet", "This is", "Say hello to", "Here comes", "Discover")
_REMARKS = ("Buyers praise it for", "It is known for", "Designed with care:", "A plus:", "Reasons to like it:")
_JOINS = ("with", "featuring", "and")
_PRAISE = ("Just right", "Would buy again", "Good value", "As described", "Not for me", "Better than expected", "Fine")
_BODIES = (
    "Arrived on time and looks like the pictures.",
    "I have used it for a month and have no complaints.",
    "The quality is fine for the price.",
    "My sister has the same one and we both like it.",
    "I expected something else, but it does its job.",
)


def _title(draw: Draw, kind: Kind, brand: str, series: str, attributes: list[str]) -> str:
    whose = kind.query.partition("'s ")[0].title() + "'s " if "'s " in kind.query else ""
    first, *more = (attribute.title() for attribute in attributes)
    tail = "".join(f" {draw.one(_JOINS)} {attribute}" for attribute in more)
    return f"{brand} {whose}{first} {kind.noun}{tail}, {series}"


def _review(draw: Draw) -> Review:
    return Review(draw.one(_PRAISE), float(1 + draw.below(5)), draw.one(_BODIES))


def _id(seed: int, number: int) -> str:
    value, digits = (number * _STEP + seed) % _IDS, ""
    for _ in range(8):
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return f"B0{digits}"


class Prices(Sequence[float]):
    """What each product costs: its price, or a point of its range that depends on the product's id."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __len__(self) -> int:
        return len(self._catalogue)

    def __getitem__(self, number: int) -> float:  # type: ignore[override]
        product = self._catalogue.product(number)
        if len(product.prices) == 1:
            return product.prices[0]
        return round(Draw("webshop price", product.asin).between(*product.prices), 2)


@lru_cache(maxsize=1)
def _nouns() -> frozenset[str]:
    brands = {start.lower() + end for start in BRAND_STARTS for end in BRAND_ENDS}
    goods = {word for kind in KINDS for word in _WORD.findall(f"{kind.noun} {kind.query}".lower()) if len(word) > 1}
    return frozenset(brands | goods | {name.lower() for name in SERIES})


@lru_cache(maxsize=1 << 16)
def nouns(title: str) -> tuple[str, ...]:
    """Return the nouns of a procedural title: the words for brands, series and goods."""
    return tuple(word for word in _WORD.findall(title.lower()) if word in _nouns())


# Goals ---------------------------------------------------------------------------------------------------------------


def split_of(seed: int, number: int) -> str:
    """Return the split whose goals a product serves."""
    share = blake2b(f"{seed}/{number}".encode(), digest_size=1).digest()[0] % 8
    return _HELD_OUT[share] if share < 2 else "train"


class ProceduralGoals:
    """The goals of a procedural catalogue, made when looked at."""

    def __init__(self, catalogue: Catalogue, seed: int) -> None:
        self.catalogue = catalogue
        self.seed = seed
        self.prices = Prices(catalogue)

    def goal(self, split: str, index: int) -> Goal:
        """Return a goal of a split."""
        size = len(self.catalogue)
        draw = Draw("webshop goal", GENERATOR_VERSION, self.seed, size, split, index)
        number = draw.below(size)
        while split_of(self.seed, number) != split:
            number = draw.below(size)
        product = self.catalogue.product(number)
        wanted = tuple(draw.some(product.attributes, 2 + draw.below(2)))
        named = draw.some(list(product.options), 1 + draw.below(len(product.options)))
        options = {name: draw.one(product.options[name]) for name in sorted(named)}
        steps = [step for step in PRICE_STEPS if step > self.prices[number]][:4]
        upper = draw.one(steps) if steps else NO_LIMIT
        return Goal(
            product.asin,
            product.category,
            product.query,
            product.name,
            product.product_category,
            _request(draw, product, wanted, options, upper),
            wanted,
            options,
            upper,
        )


_ASKS = ("I am looking for", "I need", "Please find me", "I want to buy", "Help me find", "Show me", "Can you get me")
_LINKS = ("that are", "which should be", "described as", "with", "and it matters to me:", "known for")
_LIMITS = (
    ", and price lower than {0:.2f} dollars", ", for less than {0:.2f} dollars", ", under {0:.2f} dollars please",
    ". My budget is {0:.2f} dollars",
)  # fmt: skip
_OPTIONS = {
    "color": ("in {}", "the colour should be {}", "in the color {}"),
    "size": ("in size {}", "size {}", "and I take the size {}"),
    "flavor": ("in the flavor {}", "{} flavored"),
    "scent": ("with the scent {}", "scented {}"),
    "capacity": ("with {}", "with a capacity of {}"),
    "fits": ("for my {}", "that fits an {}"),
    "roast": ("as {}", "in a {}"),
}


def _request(draw: Draw, product: Product, wanted: Sequence[str], options: dict[str, str], upper: float) -> str:
    traits = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
    chosen = [draw.one(_OPTIONS[name]).format(value) for name, value in options.items()]
    limit = draw.one(_LIMITS).format(upper) if upper != NO_LIMIT else ""
    if draw.chance(0.3):
        head = f"{draw.one(_ASKS)} {traits} {product.query}"
    else:
        head = f"{draw.one(_ASKS)} {product.query} {draw.one(_LINKS)} {traits}"
    return f"{head}, {', '.join(chosen)}{limit}"
