"""Formulas compiled to Python functions: which actions apply, and whether the goal holds.

A compiled function is called as ``f(S, X, K)``: ``S`` holds the dynamic facts (a sorted tuple of tuples of entity
numbers for each predicate), ``X`` the game's indexes over its static facts (:class:`Needs` lists which), ``K`` the
entity numbers of the constants. The generated code contains numbers only, no text of the file it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import GameError
from .pddl import ROOT_TYPE, Action, Domain, Formula, Variables

Args: TypeAlias = tuple[int, ...]
Relation: TypeAlias = tuple[Args, ...]
Dynamic: TypeAlias = tuple[Relation, ...]
Finder: TypeAlias = Callable[[Dynamic, Sequence[Any], Sequence[int]], Any]


@dataclass
class Needs:
    """What compiled functions ask of a game: static indexes by (predicate, bound positions), types, constants."""

    dynamic: dict[str, int]
    indexes: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)

    def index(self, predicate: str, bound: tuple[int, ...]) -> int:
        """Return the place in ``X`` of an index; "type:…" and "is:…" name a type's entities as tuple and set."""
        return self.indexes.setdefault((predicate, bound), len(self.indexes))

    def constant(self, name: str) -> int:
        """Return the place in ``K`` of a constant."""
        return self.constants.setdefault(name, len(self.constants))


def compile_action(action: Action, domain: Domain, needs: Needs) -> Finder:
    """Return a function that lists the argument tuples with which ``action`` applies."""
    idle = _idle(action)
    condition = action.precondition if idle is None else ("and", action.precondition, ("not", idle))
    return _Search(domain, needs).finder(action.parameters, condition, f"action {action.name}")


def compile_test(condition: Formula, parameters: Variables, domain: Domain, needs: Needs) -> Finder:
    """Return a function that tells whether ``condition`` holds, called with ``parameters`` as further arguments."""
    return _Search(domain, needs).test(parameters, condition)


def _idle(action: Action) -> Formula | None:
    """Return when the action would change nothing, or None if that cannot be.

    The reference's translator drops an effect that a precondition states already, and actions without any effect
    left: one cannot go where one is.
    """
    given = list(_conjuncts(action.precondition))
    added = [effect for effect in action.effects if effect.positive]
    conditions: list[Formula] = []
    for effect in action.effects:
        if effect.positive:
            twins = [terms for kind, name, terms in given if kind == "atom" and name == effect.predicate]
        else:
            twins = [other.terms for other in added if other.predicate == effect.predicate]
        if not twins:
            return None
        same = (("and", *(("=", a, b) for a, b in zip(effect.terms, terms, strict=True) if a != b)) for terms in twins)
        conditions.append(("or", *same))
    return ("and", *conditions) if conditions else None


def _conjuncts(formula: Formula) -> Iterable[Any]:
    if formula[0] == "and":
        for part in formula[1:]:
            yield from _conjuncts(part)
    elif formula[0] == "atom":
        yield formula


def _free(formula: Formula) -> set[str]:
    if formula[0] == "atom":
        return {term for term in formula[2] if term.startswith("?")}
    if formula[0] == "=":
        return {term for term in formula[1:] if term.startswith("?")}
    if formula[0] in ("exists", "forall"):
        return _free(formula[2]) - {name for name, _ in formula[1]}
    return set().union(*(_free(part) for part in formula[1:])) if formula[1:] else set()


def _positive(formula: Formula, negate: bool = False) -> Formula:
    """Return ``formula`` with "not" only before atoms and equalities."""
    head = formula[0]
    if head == "not":
        return _positive(formula[1], not negate)
    if head in ("and", "or"):
        flipped = {"and": "or", "or": "and"}[head] if negate else head
        return (flipped, *(_positive(part, negate) for part in formula[1:]))
    if head in ("exists", "forall"):
        flipped = {"exists": "forall", "forall": "exists"}[head] if negate else head
        return (flipped, formula[1], _positive(formula[2], negate))
    return ("not", formula) if negate else formula


class _Search:
    """Writes the code of one function."""

    def __init__(self, domain: Domain, needs: Needs) -> None:
        self.domain, self.needs = domain, needs
        self.names: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.lines: list[str] = []

    def finder(self, parameters: Variables, condition: Formula, where: str) -> Finder:
        result = "".join(f"{self._declare(name, kind)}," for name, kind in parameters)
        self.lines += ["def found(S, X, K):", " out = {}"]
        for branch in self._branches(_positive(condition), {name for name, _ in parameters}):
            self._loops(branch, [name for name, _ in parameters], set(), f"out[({result})] = None", where)
        return self._compiled(" return list(out)")

    def test(self, parameters: Variables, condition: Formula) -> Finder:
        arguments = "".join(f", {self._declare(name, kind)}" for name, kind in parameters)
        self.lines += [f"def found(S, X, K{arguments}):"]
        known = {name for name, _ in parameters}
        for branch in self._branches(_positive(condition), known):
            self._loops(branch, [], set(known), "return True", "the goal")
        return self._compiled(" return False")

    def _compiled(self, last: str) -> Finder:
        namespace: dict[str, Any] = {}
        exec(compile("\n".join([*self.lines, last]), "<game rules>", "exec"), namespace)
        return namespace["found"]  # type: ignore[no-any-return]

    def _declare(self, name: str, kind: str) -> str:
        self.names[name] = f"v{len(self.names)}"
        self.types[name] = kind
        return self.names[name]

    def _branches(self, condition: Formula, known: set[str]) -> list[list[Formula]]:
        """Return lists of conjuncts, one of which must hold; what is "exists" becomes a variable to find."""
        parts: list[list[Formula]] = [[]]
        waiting: list[Formula] = []
        for part in self._flat(condition):
            if part[0] == "or":
                waiting.append(part)
            else:
                parts[0].append(part)
        findable = set().union(*(_free(part) for part in parts[0] if part[0] == "atom"))
        for part in waiting:
            if _free(part) <= findable:  # a plain test once its variables are found
                for branch in parts:
                    branch.append(part)
            else:
                parts = [[*b, *c] for b in parts for option in part[1:] for c in self._branches(option, known)]
        return parts

    def _flat(self, condition: Formula) -> Iterable[Formula]:
        if condition[0] == "and":
            for part in condition[1:]:
                yield from self._flat(part)
        elif condition[0] == "exists":
            fresh = {}
            for name, kind in condition[1]:
                fresh[name] = f"{name}#{len(self.names)}"
                self._declare(fresh[name], kind)
            yield from self._flat(_renamed(condition[2], fresh))
        else:
            yield condition

    def _loops(self, conjuncts: list[Formula], wanted: list[str], bound: set[str], result: str, where: str) -> None:
        rest, depth = list(conjuncts), 1
        targets = set(wanted).union(*(_free(part) for part in rest))
        while rest or targets - bound:
            tests = [part for part in rest if _free(part) <= bound]
            for part in tests:
                rest.remove(part)
                self._line(depth, f"if {self._expression(part)}:")
                depth += 1
            options = [part for part in rest if part[0] == "atom"]
            if options:
                best = min(options, key=lambda part: self._cost(part, bound))
                rest.remove(best)
                depth = self._loop(best, bound, depth)
            elif missing := sorted(targets - bound):
                name = missing[0]
                self._line(depth, f"for {self._name(name, where)} in {self._entities(self.types[name])}:")
                bound.add(name)
                depth += 1
        self._line(depth, result)

    def _line(self, depth: int, text: str) -> None:
        self.lines.append(" " * depth + text)

    def _cost(self, part: Formula, bound: set[str]) -> tuple[int, ...]:
        known = sum(not term.startswith("?") or term in bound for term in part[2])
        return (known == 0, part[1] not in self.needs.dynamic, len(part[2]) - known)

    def _loop(self, part: Formula, bound: set[str], depth: int) -> int:
        """Write the loop over the facts that fit ``part``; return the depth inside it."""
        _, predicate, terms = part
        known = tuple(i for i, term in enumerate(terms) if not term.startswith("?") or term in bound)
        fact = f"f{depth}"
        checks = []
        if predicate in self.needs.dynamic:
            self._line(depth, f"for {fact} in S[{self.needs.dynamic[predicate]}]:")
            checks = [f"{fact}[{i}] == {self._term(terms[i])}" for i in known]
        else:
            key = self._tuple(terms[i] for i in known)
            place = self.needs.index(predicate, known)
            self._line(depth, f"for {fact} in X[{place}].get({key}, ()):")
        depth += 1
        for i, term in enumerate(terms):
            if i in known:
                continue
            if term in bound:  # the second time in the same atom
                checks.append(f"{fact}[{i}] == {self._term(term)}")
                continue
            bound.add(term)
            self._line(depth, f"{self._name(term, predicate)} = {fact}[{i}]")
            # What a predicate declares says nothing: the files hold facts of other types, and nothing checks them.
            if self.types[term] != ROOT_TYPE:
                checks.append(f"{self._name(term, predicate)} in X[{self.needs.index('is:' + self.types[term], ())}]")
        if checks:
            self._line(depth, f"if {' and '.join(checks)}:")
            depth += 1
        return depth

    def _expression(self, part: Formula) -> str:
        head = part[0]
        if head == "atom":
            _, predicate, terms = part
            fact = self._tuple(terms)
            if predicate in self.needs.dynamic:
                return f"{fact} in S[{self.needs.dynamic[predicate]}]"
            return f"{fact} in X[{self.needs.index(predicate, tuple(range(len(terms))))}]"
        if head == "=":
            return f"{self._term(part[1])} == {self._term(part[2])}"
        if head == "not":
            return f"not ({self._expression(part[1])})"
        if head in ("and", "or"):
            inner = f" {head} ".join(f"({self._expression(inner)})" for inner in part[1:])
            return inner or str(head == "and")
        fresh = {name: f"{name}#{len(self.names) + i}" for i, (name, _) in enumerate(part[1])}
        loops = ""
        for name, kind in part[1]:
            loops += f" for {self._declare(fresh[name], kind)} in {self._entities(kind)}"
        inner = self._expression(_renamed(part[2], fresh))
        return f"{'any' if head == 'exists' else 'all'}(({inner}){loops})"

    def _tuple(self, terms: Iterable[str]) -> str:
        return "(" + "".join(f"{self._term(term)}," for term in terms) + ")"

    def _term(self, term: str) -> str:
        return self._name(term, "a condition") if term.startswith("?") else f"K[{self.needs.constant(term)}]"

    def _name(self, variable: str, where: str) -> str:
        if variable not in self.names:
            raise GameError(f"Variable {variable.partition('#')[0]!r} in {where} is not declared.")
        return self.names[variable]

    def _entities(self, kind: str) -> str:
        # A type that is not declared has no entities, as in the reference: ALFWorld's own domain writes "location,"
        # in one quantifier, and so objects can be examined only while they are held.
        return f"X[{self.needs.index('type:' + kind, ())}]"


def _renamed(formula: Formula, names: dict[str, str]) -> Formula:
    head = formula[0]
    if head == "atom":
        return (head, formula[1], tuple(names.get(term, term) for term in formula[2]))
    if head == "=":
        return (head, *(names.get(term, term) for term in formula[1:]))
    if head in ("exists", "forall"):
        inner = {old: new for old, new in names.items() if old not in {name for name, _ in formula[1]}}
        return (head, formula[1], _renamed(formula[2], inner))
    return (head, *(_renamed(part, names) for part in formula[1:]))
