"""Goals: what a customer wants, made from a catalogue exactly as the original makes them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .catalogue import Catalogue, Product

PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
GOALS_VERSION = 1
"""Raise it whenever the tables of goals come out other than before."""
NO_LIMIT = 1_000_000  # the price limit where the instruction names none
SHUFFLE_SEED = 233  # the original's
RAGEN_SEED = 42


class Goal(NamedTuple):
    """What a session's customer wants.

    Attributes:
        asin: the product that the goal was made from.
        category: its department.
        query: its search phrase.
        name: its title.
        product_category: path of its kind.
        instruction: the request in words.
        attributes: wanted attributes.
        options: wanted option values by name, or, in people's goals, values alone.
        price_upper: dollars that the price may not exceed.
        weight: how often the original would draw it.
    """

    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    price_upper: float
    weight: float = 1.0


class Goals(Sequence[Goal]):
    """The goals of a catalogue in the original's shuffled order, put together when looked at.

    Args:
        catalogue: the products.
        kind: "synthetic" or "human".
        seed: seed of the draws: first the prices of products with a range, in catalogue order, then two price limits
            for each goal product, of which the higher counts.
    """

    def __init__(self, catalogue: Catalogue, kind: str, seed: int) -> None:
        self.catalogue = catalogue
        self.kind = kind
        rows, prices = _tables(catalogue, kind, seed)
        self._rows = rows
        self.prices = prices

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Goal: ...
    @overload
    def __getitem__(self, index: slice) -> list[Goal]: ...
    def __getitem__(self, index: int | slice) -> Goal | list[Goal]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number, choice, upper, weight = self._rows[index].tolist()
        product = self.catalogue.product(number)
        limit = f", and price lower than {upper:.2f} dollars" if upper != NO_LIMIT else ""
        if self.kind == "human":
            human = product.humans[choice]
            text = human.instruction.strip(".") + limit
            return _goal(product, text, human.attributes, human.options, upper, weight)
        options = _combination(product, choice)
        named = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = f"{product.instruction}{' with ' + named if named else ''}{limit}"
        return _goal(product, text, product.instruction_attributes, options, upper, weight)


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: Mapping[str, str] | tuple[str, ...],
    upper: float,
    weight: float,
) -> Goal:
    kind = (product.category, product.query, product.name, product.product_category)
    return Goal(product.asin, *kind, text, attributes, options, upper, weight)


def _combination(product: Product, choice: int) -> dict[str, str]:
    """Return the ``choice``-th combination of option values; names sorted, the last one running fastest."""
    names = sorted(product.options)
    chosen = {}
    for name in reversed(names):
        choice, place = divmod(choice, len(product.options[name]))
        chosen[name] = product.options[name][place]
    return {name: chosen[name] for name in names}


def _tables(catalogue: Catalogue, kind: str, seed: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the goals as rows and the products' prices; made once and kept beside the catalogue."""
    stem = f"goals-v{GOALS_VERSION}-{kind}-{seed}"
    paths = [catalogue.folder / f"{stem}.npy", catalogue.folder / f"{stem}-prices.npy"]
    try:
        rows, prices = (np.load(path, mmap_mode="r") for path in paths)
        if len(prices) == len(catalogue):
            return np.asarray(rows), np.asarray(prices)
    except (OSError, ValueError):
        pass  # not made yet, or torn
    rows, prices = _made(catalogue, kind, seed)
    for path, table in zip(paths, (rows, prices), strict=True):
        _store(path, table)
    return rows, prices


def _store(path: Path, table: NDArray[Any]) -> None:
    """Write by rename, so that no reader sees half a table; without a place to write, each process makes its own."""
    draft = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        np.save(draft, table)
        draft.rename(path)
    except OSError:
        return


def _made(catalogue: Catalogue, kind: str, seed: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    draw = random.Random(seed)
    prices = np.empty(len(catalogue))
    for number, product in enumerate(catalogue):
        given = product.prices
        prices[number] = draw.uniform(*given) if len(given) > 1 else given[0]
    numbers, choices, uppers, weights = (_human if kind == "human" else _synthetic)(catalogue, prices, draw)
    rows = np.empty(len(numbers), dtype=[("product", "i4"), ("choice", "i4"), ("upper", "f8"), ("weight", "f8")])
    rows["product"], rows["choice"], rows["upper"], rows["weight"] = numbers, choices, uppers, weights
    return rows[_shuffled(len(rows), SHUFFLE_SEED)], prices


def _shuffled(size: int, seed: int) -> NDArray[np.int64]:
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return np.array(order, dtype=np.int64)


def reshuffled(goals: Goals) -> NDArray[np.int64]:
    """Return the numbers of the goals in RAGEN's order: shuffled once more, by a seed of its own."""
    path = goals.catalogue.folder / f"ragen-{RAGEN_SEED}-{len(goals)}.npy"
    try:
        kept: NDArray[np.int64] = np.asarray(np.load(path, mmap_mode="r"))
        if len(kept) == len(goals):
            return kept
    except (OSError, ValueError):
        pass  # not made yet, or torn
    order = _shuffled(len(goals), RAGEN_SEED)
    _store(path, order)
    return order


_Columns = tuple[Any, Any, Any, Any]


def _limit(price: float, draw: random.Random) -> float:
    offered = [step for step in PRICE_STEPS if step > price][:4]
    return max(draw.sample(offered, 2)) if len(offered) >= 2 else NO_LIMIT


def _human(catalogue: Catalogue, prices: NDArray[np.float64], draw: random.Random) -> _Columns:
    found = [
        (number, choice, _limit(float(prices[number]), draw))
        for number, product in enumerate(catalogue)
        for choice, human in enumerate(product.humans)
        if human.attributes  # the original leaves out those without attributes
    ]
    numbers, choices, uppers = zip(*found, strict=True) if found else ((), (), ())
    return numbers, choices, uppers, np.ones(len(found))


def _synthetic(catalogue: Catalogue, prices: NDArray[np.float64], draw: random.Random) -> _Columns:
    found: list[tuple[int, int, float, tuple[str, ...]]] = []
    uses: Counter[str] = Counter()
    for number, product in enumerate(catalogue):
        if product.instruction is None or not product.instruction_attributes:
            continue
        upper = _limit(float(prices[number]), draw)
        size = 1
        for values in product.options.values():
            size *= len(values)
        found.append((number, size, upper, product.instruction_attributes))
        for attribute in product.instruction_attributes:
            uses[attribute] += size
    sizes = np.array([size for _, size, *_ in found], dtype=np.int64)

    def spread(values: list[float]) -> NDArray[np.float64]:
        return np.repeat(np.array(values, dtype=np.float64), sizes)

    weights = [sum(1.0 / uses[name] for name in names) / len(names) if size else 0.0 for _, size, _, names in found]
    ends = np.cumsum(sizes)
    choices = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    return spread([row[0] for row in found]), choices, spread([row[2] for row in found]), spread(weights)
