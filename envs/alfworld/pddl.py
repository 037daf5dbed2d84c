"""The part of PDDL that ALFWorld's files use: domains with quantified, conditional actions, and problems.

What is not understood raises :class:`GameError` and is named; nothing is skipped silently, but for action costs,
which have no part in play. Names are lower-cased, as PDDL is case-insensitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...errors import GameError

Formula: TypeAlias = tuple[Any, ...]
"""("and", f…), ("or", f…), ("not", f), ("exists"|"forall", variables, f), ("=", a, b), ("atom", predicate, terms)."""
Variables: TypeAlias = tuple[tuple[str, str], ...]
"""(name with its "?", type) pairs."""
Fact: TypeAlias = tuple[str, ...]
Nested: TypeAlias = "str | list[Nested]"

ROOT_TYPE = "object"
TRUE: Formula = ("and",)
_REQUIREMENTS = {
    ":adl",
    ":strips",
    ":typing",
    ":equality",
    ":negative-preconditions",
    ":disjunctive-preconditions",
    ":existential-preconditions",
    ":universal-preconditions",
    ":quantified-preconditions",
    ":conditional-effects",
    ":action-costs",
}
_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")


@dataclass(frozen=True)
class Effect:
    """``when condition: fact becomes positive``."""

    condition: Formula
    positive: bool
    predicate: str
    terms: tuple[str, ...]


@dataclass(frozen=True)
class Action:
    """An action's schema."""

    name: str
    parameters: Variables
    precondition: Formula
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """A parsed domain; ``types`` maps each type to its parent, ``predicates`` each name to its argument types."""

    name: str
    types: dict[str, str]
    constants: dict[str, str]
    predicates: dict[str, tuple[str, ...]]
    actions: dict[str, Action]

    def is_a(self, kind: str, ancestor: str) -> bool:
        """Return whether type ``kind`` is ``ancestor`` or below it."""
        while kind != ancestor:
            if kind == ROOT_TYPE:
                return False
            kind = self.types.get(kind, ROOT_TYPE)
        return True


@dataclass(frozen=True)
class Problem:
    """A parsed problem; ``objects`` maps names to types."""

    name: str
    domain: str
    objects: dict[str, str]
    init: list[Fact]
    goal: Formula


def parse_nested(text: str) -> list[Nested]:
    """Return the one parenthesised list that ``text`` holds, comments left out, everything in lower case."""
    stack: list[list[Nested]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise GameError("The PDDL text closes a parenthesis that was never opened.")
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise GameError(f"The PDDL text ends inside {len(stack) - 1} open parentheses; it may be cut off.")
    if len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise GameError("The PDDL text is not one (define …) list.")
    return stack[0][0]


def parse_domain(text: str) -> Domain:
    """Parse a domain.

    Raises:
        GameError: names the section or construct that is not understood.
    """
    name, sections = _sections(parse_nested(text), "domain")
    types: dict[str, str] = {}
    constants: dict[str, str] = {}
    predicates: dict[str, tuple[str, ...]] = {}
    actions: dict[str, Action] = {}
    for keyword, body in sections:
        if keyword == ":requirements":
            if unknown := [shown(item) for item in body if item not in _REQUIREMENTS]:
                raise GameError(f"The domain requires {', '.join(unknown)}, which the engine does not know.")
        elif keyword == ":types":
            types.update((child, parent) for child, parent in typed(body) if child != ROOT_TYPE)
        elif keyword == ":constants":
            constants.update(typed(body))
        elif keyword == ":predicates":
            for item in body:
                head = _head(item, "predicate")
                predicates[head] = tuple(kind for _, kind in typed(item[1:]))
        elif keyword == ":action":
            action = _action(body, predicates)
            actions[action.name] = action
        elif keyword != ":functions":  # functions only carry costs
            raise GameError(f"The domain has a section {keyword!r}, which the engine does not know.")
    for child, parent in types.items():
        if parent != ROOT_TYPE and parent not in types:
            raise GameError(f"Type {child!r} has the unknown parent {parent!r}.")
    domain = Domain(name, types, constants, predicates, actions)
    for action in actions.values():
        for _, kind in action.parameters:
            check_type(kind, domain, f"action {action.name}")
    return domain


def parse_problem(text: str, domain: Domain) -> Problem:
    """Parse a problem of ``domain``.

    Raises:
        GameError: as for :func:`parse_domain`; also for facts over undeclared predicates or objects.
    """
    name, sections = _sections(parse_nested(text), "problem")
    named, init, goal = "", [], None
    objects = dict(domain.constants)
    for keyword, body in sections:
        if keyword == ":domain":
            named = shown(body[0]) if body else ""
        elif keyword == ":objects":
            objects.update(typed(body))
        elif keyword == ":init":
            init = [fact for item in body if (fact := _fact(item, domain, objects)) is not None]
        elif keyword == ":goal":
            goal = formula(body[0] if len(body) == 1 else ["and", *body], domain.predicates, "the goal")
        elif keyword != ":metric":
            raise GameError(f"The problem has a section {keyword!r}, which the engine does not know.")
    if named != domain.name:
        raise GameError(f"The problem is of domain {named!r}, not {domain.name!r}.")
    if goal is None:
        raise GameError("The problem has no goal.")
    return Problem(name, named, objects, init, goal)


def check_type(kind: str, domain: Domain, where: str) -> None:
    """Raise :class:`GameError` if ``kind`` is no type of ``domain``."""
    if kind != ROOT_TYPE and kind not in domain.types:
        raise GameError(f"Unknown type {kind!r} in {where}.")


def formula(item: Nested, predicates: dict[str, tuple[str, ...]], where: str) -> Formula:
    """Return the formula that ``item`` stands for; ``where`` names its place in messages."""
    if item == []:
        return TRUE
    head = _head(item, f"formula in {where}")
    rest = item[1:]
    if head in ("and", "or"):
        return (head, *(formula(part, predicates, where) for part in rest))
    if head == "not" and len(rest) == 1:
        return ("not", formula(rest[0], predicates, where))
    if head == "imply" and len(rest) == 2:
        left, right = (formula(part, predicates, where) for part in rest)
        return ("or", ("not", left), right)
    if head in ("exists", "forall") and len(rest) == 2 and isinstance(rest[0], list):
        return (head, tuple(typed(rest[0])), formula(rest[1], predicates, where))
    if head == "=" and len(rest) == 2:
        return ("=", *_words(rest, where))
    if head not in predicates:
        raise GameError(f"{shown(item)} in {where} uses {head!r}, which is no predicate of the domain.")
    if len(rest) != len(predicates[head]):
        raise GameError(f"{shown(item)} in {where} has {len(rest)} arguments; {head!r} takes {len(predicates[head])}.")
    return ("atom", head, _words(rest, where))


def atoms(item: Formula) -> Iterator[Formula]:
    """Yield the atoms in a formula."""
    if item[0] == "atom":
        yield item
    elif item[0] in ("exists", "forall"):
        yield from atoms(item[2])
    elif item[0] != "=":
        for part in item[1:]:
            yield from atoms(part)


def typed(items: Sequence[Nested]) -> list[tuple[str, str]]:
    """Return the (name, type) pairs of a PDDL typed list; names without a type are of the root type."""
    pairs: list[tuple[str, str]] = []
    waiting: list[str] = []
    stream = iter(items)
    for item in stream:
        if item == "-":
            kind = next(stream, None)
            if not isinstance(kind, str):
                raise GameError(f"{shown(list(items)[:8])} names no plain type after '-'.")
            pairs += [(name, kind) for name in waiting]
            waiting = []
        elif isinstance(item, str):
            waiting.append(item)
        else:
            raise GameError(f"{shown(item)} stands where a name is expected.")
    return pairs + [(name, ROOT_TYPE) for name in waiting]


def shown(item: Nested | Sequence[Nested]) -> str:
    """Return nested lists as PDDL text, cut to quote in a message."""

    def text(part: Any) -> str:
        return part if isinstance(part, str) else "(" + " ".join(text(inner) for inner in part) + ")"

    whole = text(item)
    return whole if len(whole) <= 80 else whole[:79] + "…"


def _sections(tree: list[Nested], kind: str) -> tuple[str, list[tuple[str, list[Nested]]]]:
    if len(tree) < 2 or tree[0] != "define" or not isinstance(tree[1], list) or tree[1][:1] != [kind]:
        raise GameError(f"The PDDL text does not begin with (define ({kind} …).")
    return shown(tree[1][1:])[1:-1], [(_head(part, "section"), part[1:]) for part in tree[2:]]  # type: ignore[misc]


def _head(item: Nested, what: str) -> str:
    if not isinstance(item, list) or not item or not isinstance(item[0], str):
        raise GameError(f"{shown(item)} is no {what}.")
    return item[0]


def _words(items: Sequence[Nested], where: str) -> tuple[str, ...]:
    for item in items:
        if not isinstance(item, str):
            raise GameError(f"{shown(item)} in {where} stands where a name is expected.")
    return tuple(items)  # type: ignore[arg-type]


def _fact(item: Nested, domain: Domain, objects: dict[str, str]) -> Fact | None:
    head = _head(item, "fact of the initial state")
    if head == "=" and len(item) == 3 and isinstance(item[1], list):
        return None  # a distance or the total cost
    if head not in domain.predicates:
        raise GameError(f"The initial state uses {head!r}, which is no predicate of the domain.")
    if len(item) - 1 != len(domain.predicates[head]):
        raise GameError(f"Fact {shown(item)} has the wrong number of arguments.")
    for name in item[1:]:
        if not isinstance(name, str) or name not in objects:
            raise GameError(f"Fact {shown(item)} names {shown(name)}, which is not among the objects.")
    return tuple(item)  # type: ignore[arg-type]


def _action(body: list[Nested], predicates: dict[str, tuple[str, ...]]) -> Action:
    if not body or not isinstance(body[0], str) or len(body) % 2 == 0:
        raise GameError(f"{shown(body)} is no action.")
    name = body[0]
    where = f"action {name}"
    parameters: Variables = ()
    precondition: Formula = TRUE
    effects: tuple[Effect, ...] = ()
    for keyword, item in zip(body[1::2], body[2::2], strict=True):
        if keyword == ":parameters" and isinstance(item, list):
            parameters = tuple(typed(item))
        elif keyword == ":precondition":
            precondition = formula(item, predicates, where)
        elif keyword == ":effect":
            effects = tuple(_effects(item, TRUE, predicates, where))
        else:
            raise GameError(f"{where} has {shown(keyword)}, which the engine does not know.")
    return Action(name, parameters, precondition, effects)


def _effects(item: Nested, condition: Formula, predicates: dict[str, tuple[str, ...]], where: str) -> Iterator[Effect]:
    head = _head(item, f"effect in {where}")
    assert isinstance(item, list)
    if head == "and":
        for part in item[1:]:
            yield from _effects(part, condition, predicates, where)
    elif head == "when" and len(item) == 3:
        given = formula(item[1], predicates, where)
        yield from _effects(item[2], given if condition == TRUE else ("and", condition, given), predicates, where)
    elif head == "forall":
        raise GameError(f"{where} has an effect with forall, which the engine does not know.")
    elif head == "not" and len(item) == 2:
        _, predicate, terms = _atom(item[1], predicates, where)
        yield Effect(condition, False, predicate, terms)
    elif head != "increase":  # costs steer planners only
        _, predicate, terms = _atom(item, predicates, where)
        yield Effect(condition, True, predicate, terms)


def _atom(item: Nested, predicates: dict[str, tuple[str, ...]], where: str) -> Formula:
    found = formula(item, predicates, where)
    if found[0] != "atom":
        raise GameError(f"{shown(item)} in {where} is no effect.")
    return found
