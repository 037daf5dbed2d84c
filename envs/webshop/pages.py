"""Pages as text: the ``[SEP]`` form and the rich form, without going through HTML.

A page is a list of nodes in the order of the original's HTML. Texts made only of white space become what its HTML
parser makes of them: one newline, which is then left out, or one space, which is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from .catalogue import Product
from .shop import DONE, INDEX, ITEM, SEARCH, Shop, State

TEXT, BUTTON, OPTION, LINK = range(4)
Node = tuple[int, str]

SPACES = " \n\t\f\r"
_HEAD: list[Node] = [(TEXT, "Instruction:")]
_BACK: Node = (BUTTON, "Back to Search")
_PREV: Node = (BUTTON, "< Prev")
_NEXT: Node = (BUTTON, "Next >")


def text_of(nodes: Iterable[Node]) -> str:
    """Return the page in the ``text`` form."""
    return " [SEP] ".join([text.strip() for _, text in nodes])


def quoted_text_of(nodes: Iterable[Node], instruction: str) -> str:
    """Return the page in the ``text`` form without its instruction, every part in quotes, as T2PO prompts with it."""
    parts = [text.strip() for _, text in nodes]
    if instruction.strip() not in parts:
        return " [SEP] ".join(parts)
    return " [SEP] ".join(f"'{part}'" for part in parts[parts.index(instruction.strip()) + 1 :])


def rich_text_of(nodes: Iterable[Node], state: State, url: str) -> str:
    """Return the page in the ``text_rich`` form.

    An option counts as clicked if its value stands in the address in quotation marks. So values with characters that
    JSON escapes never show as clicked, and a query such as ``"small"`` makes one look clicked (the original's quirk).
    """
    lines: list[str] = []
    clicked: list[str] = []
    for kind, text in nodes:
        if kind == BUTTON:
            lines.append(f"[button] {text} [button_]")
        elif kind == OPTION and f'"{text}"' in url:
            lines.append(f"  [clicked button] {text} [clicked button_]")
            clicked.append(f"You have clicked {text}.")
        elif kind == OPTION:
            lines.append(f"  [button] {text} [button_]")
        elif kind == LINK:
            word = "clicked button" if text in state.seen else "button"
            lines.append(f"\n[{word}] {text} [{word}_]")
        else:
            lines.append(text)
    # The original puts each note in front of all before it.
    lines[:0] = reversed(clicked)
    return "\n".join(lines) + "\n"


def nodes_of(shop: Shop, state: State, instruction: str) -> list[Node]:
    """Return the nodes of the page that a session sees."""
    if state.page == INDEX:
        return [(TEXT, "WebShop"), (TEXT, "Instruction: "), *_texts(instruction), (BUTTON, "Search")]
    if state.page == DONE:
        return _done(shop, state)
    head = [*_HEAD, *_texts(instruction), _BACK]
    if state.page == SEARCH:
        return head + _results(shop, state)
    head.append(_PREV)
    product = shop.product(state)
    if state.page == ITEM:
        return head + _item(product, shop.attributes_page)
    return head + list(_SUB_PAGES[state.sub_page](product))


def _texts(*texts: str) -> Iterator[Node]:
    for text in texts:
        if text.strip(SPACES):
            yield TEXT, text
        elif text and "\n" not in text:
            yield TEXT, " "


def _results(shop: Shop, state: State) -> list[Node]:
    assert state.number is not None, "result pages have a number"
    nodes: list[Node] = [(TEXT, f"Page {state.number} (Total results: {len(state.results)})")]
    nodes += [_PREV, _NEXT] if state.number > 1 else [_NEXT]
    for number in shop.shown(state):
        product = shop.catalogue.product(number)
        nodes.append((LINK, product.asin))
        nodes += _texts(product.name, product.price_tag)
    return nodes


def _item(product: Product, attributes_page: bool) -> list[Node]:
    return _item_nodes(_Key(product, attributes_page))


class _Key:
    """A cache key that knows a product by identity, so that products of different catalogues do not mix."""

    __slots__ = ("attributes_page", "product")

    def __init__(self, product: Product, attributes_page: bool) -> None:
        self.product = product
        self.attributes_page = attributes_page

    def __hash__(self) -> int:
        return hash((self.product.asin, self.attributes_page))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Key) and self.product is other.product and self.attributes_page == other.attributes_page
        )


@lru_cache(maxsize=4096)
def _item_nodes(key: _Key) -> list[Node]:
    product = key.product
    nodes: list[Node] = []
    for name, values in product.options.items():
        nodes += _texts(name)
        nodes += [(OPTION, text) for value in values for _, text in _texts(value)]
    nodes += _texts(product.name)
    nodes += [(TEXT, f"Price: {product.price_tag}"), (TEXT, f"Rating: {product.rating}")]
    names = ["Description", "Features", "Reviews", *(["Attributes"] if key.attributes_page else []), "Buy Now"]
    return nodes + [(BUTTON, name) for name in names]


def _description(product: Product) -> Iterable[Node]:
    return _texts(product.description)


def _features(product: Product) -> Iterable[Node]:
    return _texts(*(f" {bullet}" for bullet in product.bullets))


def _reviews(product: Product) -> Iterable[Node]:
    for review in product.reviews:
        yield TEXT, f'"{review.title}"'
        yield TEXT, str(review.score)
        yield from _texts(review.body)


def _attributes(product: Product) -> Iterable[Node]:
    yield from _texts(*(f" {attribute}" for attribute in product.attributes))
    yield from _texts(product.category, product.query, product.product_category)


_SUB_PAGES = {
    "Description": _description,
    "Features": _features,
    "Reviews": _reviews,
    "Attributes": _attributes,
}


def json_in_html(value: Any) -> str:
    """Return JSON as the original's templates write it: keys sorted, safe inside HTML."""
    text = json.dumps(value, sort_keys=True)
    for mark in "<>&'":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _done(shop: Shop, state: State) -> list[Node]:
    asin, options = shop.product(state).asin, json_in_html(dict(state.options))
    bought = ["Purchased", "asin", asin, "options", options]
    bought += ["attrs", "None", "category", "None", "query", "None", "product category", "None"]
    # The goal's fields are empty: the original's text environment does not hand the goal to this page.
    target = ["Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"]
    texts = ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"]
    texts += [*bought, *target, "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"]
    return [(TEXT, text) for text in [*texts, str(state.reward), "Reward Details ", "None"]]
