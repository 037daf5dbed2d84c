"""The shop: sessions, pages, and what an action does.

A session's state is an immutable tuple; the shop itself is read-only and shared by all sessions.

Quirks of the original that are kept:

- An action is ``verb[argument]``, found by one greedy pattern: text behind the last "]" is ignored, the last "[" starts
  the argument, so that values with brackets cannot be clicked. The verb is case-sensitive, the argument is not.
- Searching is possible on every page. An unknown action changes nothing.
- "Next >" is always there; pages behind the last are empty.
- "< Prev" on a product's page searches again and forgets the chosen options.
- Where two options share a value, clicking it chooses the later one.
- The page that was shown last keeps the products seen since the last "Back to Search".

Only in ``variant="released"`` (plain bugs):

- Which page one is on is read off its address, which holds the query: after ``search[item_page]`` buttons of a
  product's description page lead elsewhere.
- ``<r>`` (fifty random products), ``<q> phrase`` and ``<c> department`` are queries of their own that list more than
  was searched for. (``<a>`` fails in the original: it is no action here.)
- A space before the action makes it unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from .catalogue import Catalogue, Product
from .goals import Goal
from .reward import Variant, rewarded

RESULTS = 50
PAGE = 10
BASE_URL = "http://127.0.0.1:3000"
INDEX, SEARCH, ITEM, SUB, DONE = "", "search_results", "item_page", "item_sub_page", "done"
SUB_PAGES = {name.lower(): name for name in ("Description", "Features", "Reviews", "Attributes")}

Sampler = Callable[[int, int], Sequence[int]]
"""Draws k of n product numbers without replacement, for ``<r>``."""


class Prices(Protocol):
    """The price of each product in dollars, by its number."""

    def __getitem__(self, number: int, /) -> Any:
        """Return one price."""


class State(NamedTuple):
    """Where a session stands; never changed, only replaced.

    Attributes:
        page: which page is shown, as the address names it.
        keywords: words of the last query, None before the first.
        number: number of the page of results, from 1.
        product: number of the product looked at.
        seen: ids of the products opened since the last "Back to Search".
        options: chosen options, name and value, in the order of the first choice.
        results: product numbers that the last query found.
        sub_page: "Description", "Features", "Reviews" or "Attributes".
        reward: reward of the purchase, None before it.
        parts: parts of that reward.
    """

    page: str = INDEX
    keywords: tuple[str, ...] | None = None
    number: int | None = None
    product: int | None = None
    seen: frozenset[str] = frozenset()
    options: tuple[tuple[str, str], ...] = ()
    results: tuple[int, ...] = ()
    sub_page: str = ""
    reward: float | None = None
    parts: dict[str, Any] | None = None


class Click(NamedTuple):
    """What can be clicked: kind is "button", "link" (to a product's number) or "option" (of a name)."""

    kind: str
    product: int = -1
    option: str = ""


BUTTON = Click("button")


class _Special(NamedTuple):
    """What a special query finds; None where the original fails."""

    results: tuple[int, ...] | None


def parse(action: str) -> tuple[str, str] | None:
    r"""Return verb and argument of an action, None if it has none.

    The same as matching ``(.+)\[(.+)\]`` at the start, which takes quadratic time on a row of brackets.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else None


class Shop:
    """A catalogue with prices and the rules of the site.

    Args:
        catalogue: the products.
        prices: price of each product in dollars.
        nouns: finds the nouns of a title.
        attributes_page: whether product pages link to the attributes.
        variant: "released" for the original's bugs.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        prices: Prices,
        nouns: Callable[[str], Sequence[str]],
        *,
        attributes_page: bool = False,
        variant: Variant = "default",
    ) -> None:
        self.catalogue = catalogue
        self.prices = prices
        self.nouns = nouns
        self.attributes_page = attributes_page
        self.variant = variant
        self._item_clicks = lru_cache(maxsize=4096)(self._item_clicks_of)
        self._item_actions = lru_cache(maxsize=4096)(self._item_actions_of)

    def product(self, state: State) -> Product:
        """Return the product that a session looks at."""
        assert state.product is not None, "product pages have a product"
        return self.catalogue.product(state.product)

    def clickables(self, state: State) -> Mapping[str, Click]:
        """Return what can be clicked on the page, by its text in lower case."""
        if state.page == SEARCH:
            assert state.number is not None, "result pages have a number"
            back = {"< prev": BUTTON} if state.number > 1 else {}
            shown = {self.catalogue.product(n).asin.lower(): Click("link", n) for n in self.shown(state)}
            return {"back to search": BUTTON, **back, "next >": BUTTON, **shown}
        if state.page == ITEM:
            assert state.product is not None, "product pages have a product"
            return self._item_clicks(state.product)
        if state.page == SUB:
            return {"back to search": BUTTON, "< prev": BUTTON}
        return {"search": BUTTON} if state.page == INDEX else {}

    def _item_clicks_of(self, product: int) -> Mapping[str, Click]:
        names = ["back to search", "< prev", "description", "features", "reviews"]
        names += ["attributes"] if self.attributes_page else []
        clicks = dict.fromkeys([*names, "buy now"], BUTTON)
        for option, values in self.catalogue.product(product).options.items():
            clicks.update(dict.fromkeys(values, Click("option", option=option)))
        return clicks

    def admissible(self, state: State) -> list[str]:
        """Return the actions that are accepted now, as the papers list them: searching only where its field is."""
        if state.page == ITEM:
            assert state.product is not None, "product pages have a product"
            return list(self._item_actions(state.product))
        if state.page == INDEX:
            return ["search[<your query>]"]
        return [f"click[{text}]" for text in self.clickables(state)]

    def _item_actions_of(self, product: int) -> tuple[str, ...]:
        # A value with brackets or a line break is shown, but the action pattern cannot name it.
        actions = ((f"click[{text}]", text) for text in self._item_clicks(product) if text not in ("", "search"))
        return tuple(action for action, text in actions if parse(action) == ("click", text.lower()))

    @staticmethod
    def shown(state: State) -> tuple[int, ...]:
        """Return the product numbers on the page of results."""
        assert state.number is not None, "result pages have a number"
        return state.results[(state.number - 1) * PAGE : state.number * PAGE]

    def act(self, state: State, goal: Goal, action: str, sample: Sampler) -> State | None:
        """Return the state after an action, None if there is no such action now."""
        parsed = parse(action)
        if parsed is None:
            return None
        verb, argument = parsed[0], parsed[1].lower()
        if verb == "search":
            return self._search(state, tuple(argument.split(" ")), 1, sample)
        if verb != "click" or argument == "search":
            return None
        click = self.clickables(state).get(argument)
        return None if click is None else self._click(state, goal, argument, click, sample)

    def _search(self, state: State, keywords: tuple[str, ...], number: int, sample: Sampler) -> State | None:
        special = self._special(keywords, sample) if self.variant == "released" else None
        results = self.catalogue.search(" ".join(keywords), RESULTS) if special is None else special.results
        return None if results is None else State(SEARCH, keywords, number, None, state.seen, (), results)

    def _special(self, keywords: tuple[str, ...], sample: Sampler) -> _Special | None:
        """Return what a query in the original's own language finds, None if it is an ordinary one."""
        kind, rest = keywords[0], " ".join(keywords[1:]).strip()
        if kind == "<r>":
            return _Special(tuple(sample(len(self.catalogue), min(RESULTS, len(self.catalogue)))))
        if kind == "<q>":
            return _Special(tuple(n for n, product in enumerate(self.catalogue) if product.query == rest))
        if kind == "<c>" and len(keywords) > 1:
            wanted = keywords[1].strip()
            return _Special(tuple(n for n, product in enumerate(self.catalogue) if product.category == wanted))
        return _Special(None) if kind in ("<a>", "<c>") else None

    def _click(self, state: State, goal: Goal, name: str, click: Click, sample: Sampler) -> State | None:
        page = self.page_name(state)
        if name == "buy now":
            return self._bought(state, goal)
        if name == "back to search":
            return State()
        if page == SEARCH and name in ("next >", "< prev"):
            assert state.keywords is not None, "result pages have a query"
            assert state.number is not None, "result pages have a number"
            return self._search(state, state.keywords, state.number + (1 if name == "next >" else -1), sample)
        if page == ITEM and name == "< prev":
            assert state.keywords is not None, "product pages follow a query"
            assert state.number is not None, "product pages follow a page of results"
            return self._search(state, state.keywords, state.number, sample)
        if name in SUB_PAGES and not (page == SUB and name == "< prev"):
            return state._replace(page=SUB, sub_page=SUB_PAGES[name])
        if click.kind == "link":
            asin = self.catalogue.product(click.product).asin
            return state._replace(page=ITEM, product=click.product, seen=state.seen | {asin}, sub_page="")
        if click.kind == "option":
            chosen = {**dict(state.options), click.option.lower(): name}
            return state._replace(page=ITEM, options=tuple(chosen.items()), sub_page="")
        return state._replace(page=ITEM, sub_page="")

    def _bought(self, state: State, goal: Goal) -> State:
        assert state.product is not None, "Buy Now stands on product pages"
        price = float(self.prices[state.product])
        reward, parts = rewarded(self.product(state), goal, price, dict(state.options), self.nouns, self.variant)
        return state._replace(page=DONE, reward=reward, parts=parts)

    def page_name(self, state: State) -> str:
        """Return which page a session is on; the released code looks for the names in the whole address."""
        if self.variant != "released":
            return state.page
        address = self.url(state, "")
        return next((name for name in (SEARCH, ITEM, SUB, DONE) if name in address), INDEX)

    def url(self, state: State, session: str) -> str:
        """Return the page's address, as the original writes it."""
        if state.page == INDEX:
            return f"{BASE_URL}/{session}"
        words = "+".join(state.keywords or ())
        if state.page == SEARCH:
            return f"{BASE_URL}/search_results/{session}/{words}/{state.number}"
        asin, options = self.product(state).asin, dict(state.options)
        if state.page == DONE:
            return f"{BASE_URL}/done/{session}/{asin}/{options}"
        if state.page == SUB:
            where = f"{asin}/{words}/{state.number}/{state.sub_page}"
            return f"{BASE_URL}/item_sub_page/{session}/{where}/{options}"
        return f"{BASE_URL}/item_page/{session}/{asin}/{words}/{state.number}/{json.dumps(options)}"
