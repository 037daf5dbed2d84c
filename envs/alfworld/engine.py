"""The engine: rules compiled once for all games, a game's static tables, and states as immutable facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import GameError
from .compiler import Args, Dynamic, Finder, Needs, Relation, compile_action, compile_test
from .grammar import TASK_MARK, Each, Grammar, Listed, parse_grammar, split_task
from .pddl import ROOT_TYPE, Domain, Effect, Formula, atoms, parse_domain, parse_problem
from .texts import Texts, Writer, scope_of

NOTHING_HAPPENS = "Nothing happens."
# As the reference demangles ids: "cup_bar__minus_01_dot_00" begins with the name that is shown.
_PLAIN = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))


class CompiledEffect(NamedTuple):
    """One effect on the facts: the relation that gains the fact, the one that loses it, and when."""

    gains: int | None
    loses: int | None
    places: tuple[tuple[bool, int], ...]  # (is a parameter, its number or the constant's)
    condition: Callable[..., Any] | None


class Move(NamedTuple):
    """An action's compiled form."""

    name: str
    find: Finder
    effects: tuple[CompiledEffect, ...]
    command: Writer
    feedback: Writer


class Rules:
    """A domain with a grammar, compiled. ``watched`` predicates are kept although no rule reads them."""

    def __init__(self, domain: Domain, grammar: Grammar, watched: frozenset[str]) -> None:
        self.domain = domain
        changing = {effect.predicate for action in domain.actions.values() for effect in action.effects}
        self.dynamic = {name: i for i, name in enumerate(_tracked(domain, grammar, changing, watched))}
        # Facts that change but are never read are not tracked: reading none of them, nothing can differ.
        self.needs = Needs(self.dynamic)
        texts = Texts(grammar, domain, self.dynamic)
        self.moves = []
        for name, action in domain.actions.items():
            if name not in grammar.actions:
                raise GameError(f"The grammar has no action {name!r}, which the domain has.")
            template, feedback = grammar.actions[name]
            scope = scope_of(action.parameters)
            # What is both deleted and added stays: deletions come first.
            ordered = sorted(action.effects, key=lambda effect: effect.positive)
            effects = tuple(self._effect(effect, action.parameters) for effect in ordered)
            self.moves.append(
                Move(
                    name,
                    compile_action(action, domain, self.needs),
                    tuple(e for e in effects if e.gains is not None or e.loses is not None),
                    texts.writer(template, scope),
                    texts.writer(feedback, scope),
                )
            )
        self.intro = texts.rule("intro", scope_of(()))
        self.static = texts.static
        self._goals: dict[Formula, tuple[Finder, Needs]] = {}

    def _effect(self, effect: Effect, parameters: tuple[tuple[str, str], ...]) -> CompiledEffect:
        yes, no = self.dynamic.get(effect.predicate), self.dynamic.get("not_" + effect.predicate)
        order = {name: i for i, (name, _) in enumerate(parameters)}
        places = tuple(
            (True, order[term]) if term in order else (False, self.needs.constant(term)) for term in effect.terms
        )
        condition = None
        if effect.condition != ("and",):
            condition = compile_test(effect.condition, parameters, self.domain, self.needs)
        gains, loses = (yes, no) if effect.positive else (no, yes)
        return CompiledEffect(gains, loses, places, condition)

    def goal(self, goal: Formula) -> tuple[Finder, Needs, tuple[str, ...]]:
        """Return the test for a goal, what it needs, and its constants; goals of one shape share the test."""
        constants: list[str] = []
        shape = _shape(goal, constants)
        if shape not in self._goals:
            needs = Needs(self.dynamic)
            for i in range(len(constants)):
                needs.constant(f"#{i}")
            self._goals[shape] = (compile_test(shape, (), self.domain, needs), needs)
        return (*self._goals[shape], tuple(constants))


@lru_cache(maxsize=16)
def _parsed_domain(text: str) -> Domain:
    return parse_domain(text)


@lru_cache(maxsize=16)
def _parsed_grammar(text: str) -> Grammar:
    return parse_grammar(text)


@lru_cache(maxsize=32)
def compiled_rules(domain: str, grammar: str, watched: frozenset[str] = frozenset()) -> Rules:
    """Return the rules of a domain's and a grammar's text; each pair is parsed and compiled once."""
    return Rules(_parsed_domain(domain), _parsed_grammar(grammar), watched)


class Game:
    """One game's static tables, shared by all its states.

    Args:
        domain: text of the domain.
        grammar: text of the grammar, the task sentence in it.
        problem: text of the problem.

    Attributes:
        ids: the entities' ids, sorted; an entity is its number in this list.
        names: what the texts call them.
        start: the first state.
        task: the task sentence as the grammar has it.

    Raises:
        GameError: a text is damaged, or uses something that is not understood.
    """

    def __init__(self, domain: str, grammar: str, problem: str) -> None:
        grammar, self.task = split_task(grammar)
        parsed_domain = _parsed_domain(domain)
        parsed = parse_problem(problem, parsed_domain)
        read = {name for _, name, _ in atoms(parsed.goal)}
        plain = compiled_rules(domain, grammar)
        changing = {effect.predicate for a in parsed_domain.actions.values() for effect in a.effects}
        untracked = frozenset(read & changing - set(plain.dynamic))
        self.rules = compiled_rules(domain, grammar, untracked) if untracked else plain
        # Entities without facts have no name in the reference, and no action can reach them.
        self.ids = sorted({term for _, *terms in parsed.init for term in terms})
        self.types = [parsed.objects[name] for name in self.ids]
        self.names = list(display_names(self.ids).values())
        numbers = {name: i for i, name in enumerate(self.ids)}
        relations: dict[str, set[Args]] = {}
        for name, *terms in parsed.init:
            relations.setdefault(name, set()).add(tuple([numbers[term] for term in terms]))
        empty: set[Args] = set()
        self.start: Dynamic = tuple(tuple(sorted(relations.get(name, empty))) for name in self.rules.dynamic)
        self.facts: Dynamic = tuple(tuple(sorted(relations.get(name, empty))) for name in self.rules.static)
        self.known = tuple(frozenset(facts) for facts in self.facts)
        self.indexes = self._indexed(self.rules.needs, relations)
        self.constants = tuple(numbers.get(name, -1) for name in self.rules.needs.constants)
        self._goal, needs, constants = self.rules.goal(parsed.goal)
        self._goal_indexes = self._indexed(needs, relations)
        self._goal_constants = tuple(numbers.get(name, -1) for name in constants)

    def _indexed(self, needs: Needs, relations: dict[str, set[Args]]) -> tuple[Any, ...]:
        indexes: list[Any] = []
        for name, bound in needs.indexes:
            form, colon, kind = name.partition(":")
            if colon:
                entities = [i for i in range(len(self.ids)) if self.is_a(i, kind)]
                indexes.append(frozenset(entities) if form == "is" else tuple(entities))
                continue
            facts = relations.get(name, set())
            if len(bound) == len(self.rules.domain.predicates[name]) and bound:
                indexes.append(frozenset(facts))
                continue
            groups: dict[Args, list[Args]] = {}
            for fact in sorted(facts):
                groups.setdefault(tuple([fact[i] for i in bound]), []).append(fact)
            indexes.append({key: tuple(group) for key, group in groups.items()})
        return tuple(indexes)

    def is_a(self, entity: int, kind: str) -> bool:
        """Return whether an entity is of a type."""
        return kind in (ROOT_TYPE, self.types[entity]) or self.rules.domain.is_a(self.types[entity], kind)

    def intro(self) -> str:
        """Return the first observation."""
        return self.rules.intro(self, self.start, ()).replace(TASK_MARK, self.task)

    def commands(self, state: Dynamic) -> dict[str, tuple[Move, Args]]:
        """Return what each admissible command does, in the order in which the commands are listed."""
        found: dict[str, tuple[Move, Args]] = {}
        for move in self.rules.moves:
            write = move.command
            for args in move.find(state, self.indexes, self.constants):
                command = write(self, state, args)
                if command not in found:
                    found[command] = (move, args)
        return dict(sorted(found.items()))

    def after(self, state: Dynamic, move: Move, args: Args) -> Dynamic:
        """Return the state after an action; ``state`` itself where no fact changes that is ever read."""
        gained: dict[int, set[Args]] = {}
        lost: dict[int, set[Args]] = {}
        for effect in move.effects:
            if effect.condition is not None and not effect.condition(state, self.indexes, self.constants, *args):
                continue
            fact = tuple([args[i] if own else self.constants[i] for own, i in effect.places])
            for relation, add, drop in ((effect.gains, gained, lost), (effect.loses, lost, gained)):
                if relation is not None:
                    add.setdefault(relation, set()).add(fact)
                    drop.get(relation, set()).discard(fact)
        relations = list(state)
        for relation in gained.keys() | lost.keys():
            relations[relation] = _changed(state[relation], gained.get(relation, set()), lost.get(relation, set()))
        return tuple(relations) if any(a is not b for a, b in zip(relations, state, strict=True)) else state

    def feedback(self, state: Dynamic, move: Move, args: Args) -> str:
        """Return the text that follows an action; ``state`` is the one after it."""
        return move.feedback(self, state, args)

    def won(self, state: Dynamic) -> bool:
        """Return whether the goal holds."""
        return bool(self._goal(state, self._goal_indexes, self._goal_constants))


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return what the texts call entities, by id (lower case), in the ids' order.

    Kinds are numbered against that order: the last id of a kind gets number 1. Ids without a place have no number,
    and by the reference's format a space at the end.
    """
    kinds = {name: _kind(name) for name in sorted(ids)}
    left = Counter(kind for kind, numbered in kinds.values() if numbered)
    names = {}
    for name, (kind, numbered) in kinds.items():
        names[name] = f"{kind} {left[kind] if numbered else ''}"
        left[kind] -= numbered
    return names


def _changed(facts: Relation, gained: set[Args], lost: set[Args]) -> Relation:
    new = gained.difference(facts)
    old = lost.intersection(facts)
    if not new and not old:
        return facts
    kept = [fact for fact in facts if fact not in old] if old else list(facts)
    return tuple(sorted([*kept, *new])) if new else tuple(kept)


def _kind(entity: str) -> tuple[str, bool]:
    """Return the shown kind of an id and whether it is numbered."""
    text = entity
    for mangled, plain in _PLAIN:
        text = text.replace(mangled, plain)
    kind, bar, _ = text.partition("|")
    return (kind + "basin" if bar and "basin" in entity else kind), bool(bar)


def _tracked(domain: Domain, grammar: Grammar, changing: set[str], watched: frozenset[str]) -> list[str]:
    """Return the changing predicates that are read somewhere; "not_p" ones hold what was made false."""
    read = set(watched)
    for action in domain.actions.values():
        read.update(name for _, name, _ in atoms(action.precondition))
    for condition in _conditions(grammar):
        read.update(name for name, _ in condition)
    while True:
        more = {
            name
            for action in domain.actions.values()
            for effect in action.effects
            if effect.predicate in read or "not_" + effect.predicate in read
            for _, name, _ in atoms(effect.condition)
        }
        if more <= read:
            break
        read |= more
    return sorted(name for name in read if name in changing or name.removeprefix("not_") in changing)


def _conditions(grammar: Grammar) -> Iterable[Any]:
    texts = [parts for pair in grammar.actions.values() for parts in pair]
    for rules in grammar.rules.values():
        for rule in rules:
            yield rule.condition
            texts.append(rule.parts)
    for parts in texts:
        for part in parts:
            each = part.each if isinstance(part, Listed) else part
            if isinstance(each, Each):
                yield each.given


def _shape(goal: Formula, constants: list[str]) -> Formula:
    """Return ``goal`` with its constants numbered, so that goals that differ in them alone are equal."""

    def term(name: str) -> str:
        if name.startswith("?"):
            return name
        if name not in constants:
            constants.append(name)
        return f"#{constants.index(name)}"

    head = goal[0]
    if head == "atom":
        return (head, goal[1], tuple(term(name) for name in goal[2]))
    if head == "=":
        return (head, *(term(name) for name in goal[1:]))
    if head in ("exists", "forall"):
        return (head, goal[1], _shape(goal[2], constants))
    return (head, *(_shape(part, constants) for part in goal[1:]))
