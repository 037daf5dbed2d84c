"""What stands on a page of the shop, as data: the observation ``"page"``, from which the website is drawn.

A page crosses process borders as JSON, so that whoever draws it needs neither the catalogue nor the environment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .catalogue import Product, Review
from .shop import DONE, INDEX, ITEM, SEARCH, Shop, State, parse


class Index(msgspec.Struct, tag=INDEX, tag_field="page"):
    """The page with the search field.

    Attributes:
        url: the page's address as the original writes it.
        instruction: what to buy.
    """

    url: str
    instruction: str


class Row(msgspec.Struct, array_like=True):
    """One product on a page of results; ``seen`` if it was opened since the last "Back to Search"."""

    asin: str
    name: str
    price: str
    seen: bool


class Results(msgspec.Struct, tag=SEARCH, tag_field="page"):
    """A page of results: its ``number`` from 1, of ``total`` products found."""

    url: str
    instruction: str
    number: int
    total: int
    rows: list[Row]


class Choice(msgspec.Struct, array_like=True):
    """One value of an option; not ``open`` if no action can name it."""

    value: str
    open: bool
    chosen: bool


class Item(msgspec.Struct, tag=ITEM, tag_field="page"):
    """A product's page; ``choices`` are the values of each option, ``sub_pages`` the pages behind its buttons."""

    url: str
    instruction: str
    name: str
    price: str
    rating: str
    choices: dict[str, list[Choice]]
    sub_pages: list[str]


class Detail(msgspec.Struct, tag="item_sub_page", tag_field="page"):
    """A page behind a product's page.

    Attributes:
        url: the page's address as the original writes it.
        instruction: what to buy.
        title: which page.
        name: the product's title.
        texts: its text, features or attributes.
        kinds: department, query and kind of the product, on the page of attributes.
        reviews: what customers say, on the page of reviews.
    """

    url: str
    instruction: str
    title: str
    name: str
    texts: list[str] = []
    kinds: list[str] = []
    reviews: list[Review] = []


class Done(msgspec.Struct, tag=DONE, tag_field="page"):
    """The page after the purchase: what was bought, the reward and its parts."""

    url: str
    instruction: str
    asin: str
    name: str
    options: dict[str, str]
    reward: float
    parts: dict[str, Any]


Page = Index | Results | Item | Detail | Done
_decoder = msgspec.json.Decoder(Page)
_encode = msgspec.json.Encoder().encode


def page_json(shop: Shop, state: State, instruction: str) -> str:
    """Return the page that a session sees as JSON."""
    return _encode(page_of(shop, state, instruction)).decode()


def page_from(text: str) -> Page:
    """Read what :func:`page_json` wrote.

    Raises:
        msgspec.DecodeError: it is something else.
    """
    page: Page = _decoder.decode(text)
    return page


def page_of(shop: Shop, state: State, instruction: str) -> Page:
    """Return the page that a session sees."""
    # Queries come from outside and may hold what UTF-8 cannot carry.
    url = shop.url(state, "").encode("utf-8", "replace").decode()
    if state.page == INDEX:
        return Index(url, instruction)
    if state.page == SEARCH:
        assert state.number is not None, "result pages have a number"
        rows = [_row(shop.catalogue.product(number), state) for number in shop.shown(state)]
        return Results(url, instruction, state.number, len(state.results), rows)
    product = shop.product(state)
    if state.page == ITEM:
        return _item(shop, state, product, url, instruction)
    if state.page == DONE:
        assert state.reward is not None, "a purchase has a reward"
        options = dict(state.options)
        return Done(url, instruction, product.asin, product.name, options, state.reward, dict(state.parts or {}))
    return Detail(url, instruction, state.sub_page, product.name, **_CONTENTS[state.sub_page](product))


def _row(product: Product, state: State) -> Row:
    return Row(product.asin, product.name, product.price_tag, product.asin in state.seen)


def _item(shop: Shop, state: State, product: Product, url: str, instruction: str) -> Item:
    chosen = dict(state.options)
    choices = {
        name: [Choice(value, nameable(value), chosen.get(name.lower()) == value) for value in values]
        for name, values in product.options.items()
    }
    pages = ["Description", "Features", "Reviews", *(["Attributes"] if shop.attributes_page else [])]
    return Item(url, instruction, product.name, product.price_tag, product.rating, choices, pages)


def nameable(value: str) -> bool:
    """Return whether an action can name a value: not one with brackets or line breaks, and not the word "search"."""
    return value not in ("", "search") and parse(f"click[{value}]") == ("click", value.lower())


def _attributes(product: Product) -> dict[str, Any]:
    return {
        "texts": [f" {text}" for text in product.attributes],
        "kinds": [product.category, product.query, product.product_category],
    }


_CONTENTS = {
    "Description": lambda product: {"texts": [product.description]},
    "Features": lambda product: {"texts": [f" {text}" for text in product.bullets]},
    "Reviews": lambda product: {"reviews": list(product.reviews)},
    "Attributes": _attributes,
}
