"""A customer who knows the goal's product: searches for its title, opens it, chooses the options and buys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .catalogue import Catalogue, Product
from .goals import Goal
from .reward import matched_options
from .shop import ITEM, PAGE, SEARCH, SUB, Shop, State

_BRACKETS = str.maketrans("[]\n\r", "    ")
WORDS = 8  # of a title in a short query


class Plan(NamedTuple):
    """What to buy and how to find it.

    Attributes:
        product: number of the goal's product.
        query: a query that lists it.
        options: option values to click, by option name.
    """

    product: int
    query: str
    options: tuple[tuple[str, str], ...]


def planned(catalogue: Catalogue, goal: Goal) -> Plan | None:
    """Return the plan for a goal, None where no query lists its product."""
    number = catalogue.find(goal.asin)
    if number is None:
        return None
    product = catalogue.product(number)
    ranked: list[tuple[int, str]] = []
    for query in _queries(product, goal):
        results = catalogue.search(query)
        if number in results:
            ranked.append((results.index(number) // PAGE, query))
            if ranked[-1][0] == 0:
                break
    if not ranked:
        return None
    return Plan(number, min(ranked, key=lambda item: item[0])[1], tuple(_options(product, goal)))


def _queries(product: Product, goal: Goal) -> Iterator[str]:
    options = list(goal.options.values() if isinstance(goal.options, Mapping) else goal.options)
    words = product.name.split()
    first = product.bullets[0] if product.bullets else ""
    parts = [words[:WORDS], words, words + options, words + first.split(), product.contents().split(), [product.query]]
    for part in parts:
        query = " ".join(" ".join(part).translate(_BRACKETS).lower().split())
        if query:
            yield query


def _options(product: Product, goal: Goal) -> Iterator[tuple[str, str]]:
    if isinstance(goal.options, Mapping):
        yield from goal.options.items()
        return
    for wanted in goal.options:  # people's goals name values only
        offers = [(name, value) for name, values in product.options.items() for value in values]
        exact = [offer for offer in offers if offer[1] == wanted]
        like = [offer for offer in offers if matched_options([offer[1]], [wanted])]
        yield from (exact or like)[:1]


def next_action(shop: Shop, state: State, plan: Plan) -> str:
    """Return what the customer does in this state."""
    here = state.product == plan.product
    if state.page == ITEM and here:
        chosen, clicks = dict(state.options), shop.clickables(state)
        actions = set(shop.admissible(state))
        for name, value in plan.options:
            click = clicks.get(value)
            # A value that another option shares, or that the action pattern cannot name, cannot be chosen.
            if (
                click is not None
                and click.option == name
                and chosen.get(name) != value
                and f"click[{value}]" in actions
            ):
                return f"click[{value}]"
        return "click[buy now]"
    if state.page == SUB and here:
        return "click[< prev]"
    if state.page == SEARCH and plan.product in state.results:
        assert state.number is not None, "result pages have a number"
        wanted = state.results.index(plan.product) // PAGE + 1
        if wanted == state.number:
            return f"click[{shop.catalogue.product(plan.product).asin.lower()}]"
        return "click[next >]" if wanted > state.number else "click[< prev]"
    return f"search[{plan.query}]"
