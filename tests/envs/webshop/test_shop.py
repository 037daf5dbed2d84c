"""WebShop's pages and what actions do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from turngym.envs.webshop.goals import Goal
from turngym.envs.webshop.pages import nodes_of, rich_text_of, text_of
from turngym.envs.webshop.shop import DONE, ITEM, SEARCH, Shop, State, parse


def played(shop: Shop, goal: Goal, *actions: str) -> State:
    state = State()
    for action in actions:
        after = shop.act(state, goal, action, lambda size, count: list(range(count)))
        assert after is not None, action
        state = after
    return state


def test_pages_and_buttons(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
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


def test_actions_that_are_none(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
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


def test_clicked_options_show_by_the_address(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
    item = played(shop, goal, "search[mug]", "click[b000000003]", 'click[tall 5"]', "click[red | blue]")
    text = rich_text_of(nodes_of(shop, item, "Buy"), item, shop.url(item, "7"))
    assert text.startswith("You have clicked red | blue.\nInstruction:\nBuy\n[button] Back to Search [button_]\n")
    assert '  [button] tall 5" [button_]' in text, "JSON escapes the quotation mark"
    quoted = played(shop, goal, 'search["small" mug]', "click[b000000003]")
    assert "You have clicked small" in rich_text_of(nodes_of(shop, quoted, ""), quoted, shop.url(quoted, "7"))


def test_special_queries_are_released_code_only(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
    released, _ = shop_of(variant="released")
    assert played(shop, goal, "search[<q> coffee mugs]").results == shop.catalogue.search("<q> coffee mugs")
    assert played(released, goal, "search[<q> coffee mugs]").results == (0, 1, 2)
    assert played(released, goal, "search[<c> garden]").results == (0, 1, 2)
    assert played(released, goal, "search[<r>]").results == (0, 1, 2)
    for query in ("<a> light weight", "<c>"):
        assert released.act(State(), goal, f"search[{query}]", lambda size, count: []) is None


def test_the_released_code_reads_the_page_off_the_address(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    actions = ("search[search_results mug]", "click[b000000003]", "click[description]", "click[< prev]")
    shop, goal = shop_of()
    released, _ = shop_of(variant="released")
    assert played(shop, goal, *actions).page == ITEM
    assert played(released, goal, *actions).page == SEARCH


def test_a_purchase(shop_of: Callable[..., tuple[Shop, Goal]]) -> None:
    shop, goal = shop_of()
    wanted = goal._replace(options={"size": 'tall 5"', "color": "red | blue"})
    state = played(
        shop, wanted, "search[mug]", "click[b000000003]", 'click[tall 5"]', "click[red | blue]", "click[buy now]"
    )
    assert (state.page, state.reward) == (DONE, 1.0) and shop.clickables(state) == {}
    assert "[SEP] 1.0 [SEP] Reward Details" in text_of(nodes_of(shop, state, ""))
