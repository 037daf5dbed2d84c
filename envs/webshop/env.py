"""WebShop (Yao et al., 2022): find and buy the product that an instruction asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol

from ...errors import InvalidRequest, UnknownTask, nearest
from ..core import Effect, TextEnv
from . import procedural
from .catalogue import Catalogue
from .expert import Plan, next_action, planned
from .goals import Goal, Goals, reshuffled
from .html import html_of
from .lucene import LuceneCatalogue
from .nouns import Nouns, tagger
from .official import files_of, folder_of, official
from .pages import nodes_of, quoted_text_of, rich_text_of, text_of
from .shop import Prices, Shop, State
from .site_page import page_json

OBSERVATIONS = ("text", "text_rich", "html", "quoted", "page")
SEARCHES = ("bm25", "lucene")
VARIANTS = ("default", "released")
SPLIT_RULES: dict[str, dict[str, tuple[int, int | None]]] = {
    "t2po": {"train": (500, None), "validation": (0, 500), "test": (0, 500)},
    "webshop": {"train": (1500, None), "validation": (500, 1500), "test": (0, 500)},
    "ragen": {"train": (1500, None), "validation": (500, 1500), "test": (0, 500)},
    "all": {"train": (0, None), "validation": (0, None), "test": (0, None)},
}
"""First and last goal of each split, in the original's shuffled order; RAGEN shuffles it once more."""
DEFAULT_PRODUCTS = 1000


class _GoalSource(Protocol):
    def __call__(self, split: str, index: int) -> Goal: ...


@dataclass(frozen=True, eq=False)
class _Supply:
    """What all sessions of one configuration share."""

    catalogue: Catalogue
    prices: Prices
    nouns: Nouns
    goal: _GoalSource
    splits: Mapping[str, int]


@cache
def _procedural(products: int, seed: int, search: str) -> _Supply:
    catalogue = _searched(procedural.procedural(products, seed), search)
    goals = procedural.ProceduralGoals(catalogue, seed)
    return _Supply(catalogue, goals.prices, procedural.nouns, goals.goal, procedural.SPLITS)


@cache
def _official(data: str, limit: int | None, kind: str, seed: int, rule: str, tagger_name: str, search: str) -> _Supply:
    files_of(data)  # a wrong folder is told before a missing tagger, and that before a long build
    nouns = tagger(tagger_name)
    catalogue = _searched(official(data, limit), search)
    goals = Goals(catalogue, kind, seed)
    order = reshuffled(goals) if rule == "ragen" else range(len(goals))
    spans = {split: order[first:last] for split, (first, last) in SPLIT_RULES[rule].items()}
    empty = [split for split, span in spans.items() if not len(span)]
    if empty:
        raise InvalidRequest(
            f"{len(goals)} {kind} goals leave none for {', '.join(empty)} by the rule {rule!r}.",
            hint='Make the environment with split_rule="all", or with more products.',
        )

    def goal(split: str, index: int) -> Goal:
        return goals[int(spans[split][index])]

    sizes = {split: len(span) for split, span in spans.items()}
    return _Supply(catalogue, goals.prices, nouns, goal, sizes)


def _searched(catalogue: Catalogue, search: str) -> Catalogue:
    return LuceneCatalogue(catalogue.folder) if search == "lucene" else catalogue


@cache
def _shop(supply: _Supply, attributes_page: bool, variant: Any) -> Shop:
    return Shop(supply.catalogue, supply.prices, supply.nouns, attributes_page=attributes_page, variant=variant)


class WebShop(TextEnv):
    """Search a shop, open products, choose options, buy; the purchase ends the episode.

    The reward of the purchase is WebShop's eq. 9 in [0, 1]: type x (attributes + options + price) / their number, with
    its parts in ``info["reward_parts"]``; everything else gives 0. ``info["score"]`` is that reward and
    ``info["task_score"]`` a hundred times it, as the papers print it; an episode is won at reward 1.

    By default the shop is procedural: made from a seed, nothing to download. With ``data`` it is the original's.

    Splits: procedural goals are drawn from different products for train, validation and test. The original's goals
    are split by their number in its shuffled order, by ``split_rule``.

    Args:
        data: folder with WebShop's files (items_shuffle*.json, items_ins_v2*.json, items_human_ins*.json), or
            "official" for the one that ``turngym data`` knows.
        products: number of products: of the procedural shop (1,000 by default), or how many of the files' first.
        catalogue_seed: seed of the procedural shop, or of the original's draws of prices and price limits.
        goals: "synthetic" or "human", of the original's data.
        split_rule: "t2po" (validation and test are goals 0 to 499, train the rest), "webshop" (test 0 to 499,
            validation 500 to 1,499, train the rest), "ragen" (the same on RAGEN's order of the goals) or "all" (each
            split is all goals), of the original's data.
        tagger: "spacy" or "words", how nouns are found in the original's titles.
        search: "bm25" (embedded) or "lucene" (Lucene through pyserini, with equal rankings; the extra ``lucene``).
        observation: "text" (texts joined by [SEP]), "text_rich" (a line each, buttons marked), "html", "quoted"
            (as "text", each part in quotes and without the task, which the instructions state; T2PO's prompts), or
            "page" (JSON of ``site_page``, from which the website is drawn).
        attributes_page: whether product pages link to the list of attributes that the reward compares.
        success_reward: if given, the reward is this for a purchase at reward 1 and 0 for any other (T2PO trains
            with 10).
        variant: "released" for the original's plain bugs too, named in ``shop`` and ``reward``.
    """

    default_max_steps: ClassVar[int] = 15
    splits: ClassVar[Mapping[str, int]] = procedural.SPLITS
    expert_success: ClassVar[float] = 0.98

    def __init__(
        self,
        *,
        data: str | None = None,
        products: int | None = None,
        catalogue_seed: int = 0,
        goals: str = "synthetic",
        split_rule: str = "t2po",
        tagger: str = "spacy",
        search: str = "bm25",
        observation: str = "text",
        attributes_page: bool = False,
        success_reward: float | None = None,
        variant: str = "default",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        _one_of("observation", observation, OBSERVATIONS)
        _one_of("search", search, SEARCHES)
        _one_of("variant", variant, VARIANTS)
        _one_of("goals", goals, ("synthetic", "human"))
        _one_of("split_rule", split_rule, SPLIT_RULES)
        _check_sizes(data, products, catalogue_seed)
        if data is None:
            supply = _procedural(DEFAULT_PRODUCTS if products is None else products, catalogue_seed, search)
        else:
            supply = _official(folder_of(data), products, goals, catalogue_seed, split_rule, tagger, search)
        if success_reward is not None and not isinstance(success_reward, int | float):
            raise InvalidRequest(f"success_reward is {success_reward!r:.60}.", hint="Give a number.")
        self.observation = observation
        self.success_reward = success_reward
        self.variant = variant
        self.splits = supply.splits  # type: ignore[misc]
        self._supply = supply
        self._shop = _shop(supply, bool(attributes_page), variant)
        self._state: State
        self._goal: Goal
        self._index = 0

    @classmethod
    def check_needs(cls, **config: Any) -> None:
        """Check that the original's data is there where it is asked for."""
        if config.get("data") is not None:
            folder_of(str(config["data"]))

    @property
    def instructions(self) -> str:
        """The rules, and the task where the observations do not state it."""
        rules = (
            "WebShop: buy the product that the instruction asks for, with the options it names, below its price limit. "
            "Actions: search[words] looks for products and works on every page; click[text] presses the button, "
            "product id or option of that text, in lower case. The purchase, click[buy now], ends the episode; its "
            "score counts the kind of product, the wanted attributes and options, and the price."
        )
        stated = self.observation == "quoted" and self.task
        return f"{rules} Your task is to: {self._goal.instruction}" if stated else rules

    def _begin(self, split: str, index: int) -> None:
        if index >= self.splits[split]:
            raise UnknownTask(f"No task {index} in split {split!r}.")
        self._goal = self._supply.goal(split, index)
        self._index = index
        self._state = State()
        # The expert's plan is found on first use; forks share it with the goal.
        self._plan: Plan | None = None

    def _split(self, action: str) -> list[str]:
        # The released code knows no action with a space in front.
        return [action] if self.variant == "released" else super()._split(action)

    def _apply(self, action: str) -> Effect:
        before = self._state
        after = self._shop.act(before, self._goal, action, self._sample)
        if after is None:
            return Effect(valid=False, effective=False)
        self._state = after
        return self._paid(after.reward, after != before)

    def _paid(self, reward: float | None, effective: bool) -> Effect:
        """Return the effect of an accepted action that led to this reward of eq. 9, None if nothing was bought."""
        if reward is None:
            return Effect(effective=effective)
        if self.success_reward is None:
            return Effect(reward, terminated=True)
        return Effect(float(self.success_reward) if reward == 1 else 0.0, terminated=True)

    def _sample(self, size: int, count: int) -> list[int]:
        return self.np_random.choice(size, count, replace=False).tolist()  # type: ignore[no-any-return]

    def _observe(self) -> str:
        if self.observation == "html":
            return html_of(self._shop, self._state, self._goal.instruction, str(self._index))
        if self.observation == "page":
            return page_json(self._shop, self._state, self._goal.instruction)
        nodes = nodes_of(self._shop, self._state, self._goal.instruction)
        if self.observation == "text":
            return text_of(nodes)
        if self.observation == "quoted":
            return quoted_text_of(nodes, self._goal.instruction)
        return rich_text_of(nodes, self._state, self._shop.url(self._state, str(self._index)))

    def _admissible(self) -> list[str]:
        return self._shop.admissible(self._state)

    def _won(self) -> bool:
        return self._state.reward == 1

    def _score(self) -> float:
        """Return the purchase's reward of eq. 9, 0 before it."""
        return self._state.reward or 0.0

    def _copy_state(self, state: State) -> State:
        return state

    def _extra_info(self) -> dict[str, Any]:
        state = self._state
        if state.reward is None:
            return {}
        purchased = self._shop.product(state).asin
        return {"reward_parts": dict(state.parts or {}), "purchased": purchased, "task_score": 100 * state.reward}

    def task_type(self) -> str:
        """Return the department of the goal's product."""
        return self._goal.category

    def expert_action(self) -> str | None:
        """Return the next action of a customer who knows which product the goal was made from.

        Returns:
            The action, or None after the purchase and where no query lists the product.
        """
        if self.done:
            return None
        if self._plan is None:
            self._plan = planned(self._supply.catalogue, self._goal)
        return None if self._plan is None else next_action(self._shop, self._state, self._plan)


def _one_of(name: str, value: Any, choices: Any) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"Unknown {name} {value!r:.60}.", hint=nearest(str(value), choices))


def _check_sizes(data: Any, products: Any, seed: Any) -> None:
    least = procedural.LEAST_PRODUCTS if data is None else 1
    whole = isinstance(products, int) and not isinstance(products, bool)
    if products is not None and not (whole and least <= products):
        raise InvalidRequest(f"products is {products!r:.60}.", hint=f"Give an integer from {least} on.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidRequest(f"catalogue_seed is {seed!r:.60}.", hint="Give an integer from 0 on.")
    if data is not None and not isinstance(data, str):
        raise InvalidRequest(f"data is {data!r:.60}.", hint="Give the folder of WebShop's files as text.")
