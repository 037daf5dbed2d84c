"""The reward of a purchase (WebShop, eq. 9): type x (attributes + options + price) / their number.

Quirks of the original that are kept, because published numbers depend on them:

- A match of words is one of token sets: "large" matches "xx-large".
- A colour stands for every name that contains it, and the first one of ``COLOURS`` counts: "navy blue" is "blue".
- ``title_score`` divides by the goal's nouns with repetitions, so that the very same product may score below 1.
- A product without any common noun gets nothing, however well its query and category fit.

Only in ``variant="released"`` (a plain bug): a synthetic goal's options take part as pairs of name and value. A bought
value then also matches the words of the option's name; and as colours are cut out of the bought value ("black2626" is
"black", "rectangular" is "tan") but not out of the pair, such values miss their own pair: 4 % of the goals of the
original's 1,000 products cannot reach reward 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Literal

from .catalogue import Product
from .goals import Goal

Variant = Literal["default", "released"]
MATCH = 85  # token-set ratio above which two phrases match
_COLOUR_WORDS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel"
    " camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry"
    " cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green"
    " grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot"
    " midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple"
    " rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan"
    " taupe teal tiger turquoise violet walnut wheat white wine yellow"
)
COLOURS = tuple(_COLOUR_WORDS.split())
_NO_WORD = re.compile(r"\W")
_LATIN1 = dict.fromkeys(range(128, 256))  # dropped before words are compared, so that "café" equals "caf"


def rewarded(
    product: Product,
    goal: Goal,
    price: float,
    options: Mapping[str, str],
    nouns: Callable[[str], Sequence[str]],
    variant: Variant = "default",
) -> tuple[float, dict[str, Any]]:
    """Return the reward in [0, 1] of buying a product, and its parts.

    Args:
        product: what was bought.
        goal: what was wanted.
        price: the product's price in dollars.
        options: the options chosen, by name.
        nouns: finds the nouns of a title.
        variant: "released" compares options as the released code does.

    Returns:
        The reward, and ``r_type``, ``r_att``, ``r_option``, ``r_price`` with the weights ``w_att``, ``w_option`` and
        ``w_price``, and what decided on the type: ``query_match``, ``category_match``, ``title_score``.
    """
    parts = type_parts(product, goal, nouns)
    attributes = matched_attributes(product, goal.attributes)
    wanted: Sequence[Any] = list(goal.options)
    if isinstance(goal.options, Mapping):
        wanted = list(goal.options.items() if variant == "released" else goal.options.values())
    chosen = matched_options(list(options.values()), wanted)
    total = len(goal.attributes) + len(goal.options) + 1
    # The original fails where the limit is not positive; no goal of its makers has one.
    price_fits = price <= goal.price_upper if goal.price_upper > 0 else None
    parts["r_att"] = attributes / len(goal.attributes) if goal.attributes else 0.0
    parts["w_att"] = len(goal.attributes) / total
    if goal.options:
        parts["r_option"] = chosen / len(goal.options)
        parts["w_option"] = len(goal.options) / total
    if price_fits is not None:
        parts["r_price"] = price_fits
        parts["w_price"] = 1 / total
    reward = (attributes + chosen + bool(price_fits)) / total * parts["r_type"]
    return reward, parts


def type_parts(product: Product, goal: Goal, nouns: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    """Return ``r_type`` and what it rests on."""
    query_match = product.query == goal.query
    category_match = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    found, wanted = nouns(product.name), nouns(goal.name)
    title_score = len(set(found) & set(wanted)) / len(wanted) if wanted else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1 if title_score else 0.0
    return {
        "r_type": r_type,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def _levels(path: str) -> set[str]:
    return {level.strip() for level in path.split("\u203a")}


def matched_attributes(product: Product, wanted: Iterable[str]) -> int:
    """Return how many wanted attributes the product has, by its attributes or by its texts."""
    texts = (product.name.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(token_set_ratio(own, name) > MATCH for own in product.attributes) or any(name in text for text in texts)
        for name in wanted
    )


def matched_options(chosen: Sequence[str], wanted: Sequence[Any]) -> int:
    """Return how many wanted options are among the chosen ones; a wanted pair is compared as its text."""
    chosen = [colour(value) for value in chosen]
    return sum(any(token_set_ratio(own, str(value)) > MATCH for own in chosen) for value in map(colour, wanted))


def colour(value: Any) -> Any:
    """Return the first colour that a value contains (a pair: as one of its elements), else the value."""
    return next((name for name in COLOURS if name in value), value)


@lru_cache(maxsize=1 << 16)
def token_set_ratio(first: str, second: str) -> int:
    """Return how alike the word sets of two phrases are, 0 to 100, as thefuzz 0.19 computes it."""
    one, two = _tokens(first), _tokens(second)
    if not one or not two:
        return 0
    common = " ".join(sorted(one & two))
    left = f"{common} {' '.join(sorted(one - two))}".strip()
    right = f"{common} {' '.join(sorted(two - one))}".strip()
    return max(_ratio(common, left), _ratio(common, right), _ratio(left, right))


def _tokens(text: str) -> set[str]:
    return set(_NO_WORD.sub(" ", text.translate(_LATIN1)).lower().split())


def _ratio(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    matcher = SequenceMatcher(None, first, second)
    # Upper bounds first: most pairs are far apart, and the real ratio is slow.
    if min(matcher.real_quick_ratio(), matcher.quick_ratio()) * 100 <= MATCH - 1:
        return 0
    return round(100 * matcher.ratio())
