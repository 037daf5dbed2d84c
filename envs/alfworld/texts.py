"""Grammar trees compiled to functions that write a text about a state.

A query's answers come in the reference's order: the conjuncts as written, the facts of each sorted by their entities'
ids, and no two variables stand for the same entity.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...errors import GameError
from .compiler import Args, Dynamic
from .grammar import Call, Each, Grammar, Listed, Part, Query, Value
from .pddl import ROOT_TYPE, Domain

if TYPE_CHECKING:
    from .engine import Game

Writer: TypeAlias = Callable[["Game", Dynamic, Args], str]
"""(game, state, entities bound so far) -> text."""


@dataclass(frozen=True)
class Scope:
    """What is bound: slots by (variable, type) for queries, and by variable for expressions."""

    slots: Mapping[tuple[str, str], int]
    names: Mapping[str, int]

    def with_variable(self, name: str, kind: str) -> Scope:
        """Return a scope with one more slot."""
        slot = len(self.slots)
        return Scope({**self.slots, (name, kind): slot}, {**self.names, name: slot})


def scope_of(parameters: tuple[tuple[str, str], ...]) -> Scope:
    """Return the scope in which an action's parameters are bound."""
    scope = Scope({}, {})
    for name, kind in parameters:
        scope = scope.with_variable(name.strip("?"), kind)
    return scope


@dataclass(frozen=True)
class _Step:
    """One conjunct: where its facts are and which slot each argument has; ``new`` lists those it binds."""

    relation: int
    dynamic: bool
    slots: tuple[int, ...]
    kinds: tuple[str | None, ...]
    new: frozenset[int]
    bound: bool


class Texts:
    """Compiles the parts of one grammar; ``relations`` numbers the predicates that queries read."""

    def __init__(self, grammar: Grammar, domain: Domain, dynamic: Mapping[str, int]) -> None:
        self.grammar, self.domain, self.dynamic = grammar, domain, dynamic
        self.static: dict[str, int] = {}
        self._active: list[str] = []

    def writer(self, parts: tuple[Part, ...], scope: Scope) -> Writer:
        """Return a function that writes ``parts``."""
        writers = [self._part(part, scope) for part in parts]
        if len(writers) == 1:
            return writers[0]
        return lambda game, state, env: "".join([write(game, state, env) for write in writers])

    def _part(self, part: Part, scope: Scope) -> Writer:
        if isinstance(part, str):
            return lambda game, state, env: part
        if isinstance(part, Call):
            return self.rule(part.rule, scope)
        if isinstance(part, Value):
            return _value(part, scope)
        if isinstance(part, Listed):
            return self._listed(part, scope)
        each = self._each(part, scope)
        return lambda game, state, env: "".join(each(game, state, env))

    def rule(self, name: str, scope: Scope) -> Writer:
        """Return a function that writes the first alternative of a rule that fits the state."""
        if name in self._active:
            raise GameError(f"The grammar's rule {name!r} calls itself.")
        if name not in self.grammar.rules:
            raise GameError(f"The grammar has no rule {name!r}.")
        self._active.append(name)
        options = []
        for rule in self.grammar.rules[name]:
            options.append((self._query(rule.condition, scope)[0], self.writer(rule.parts, scope)))
            if not rule.condition:
                break  # what follows is never reached
        self._active.pop()
        if len(options) == 1 and not self.grammar.rules[name][0].condition:
            return options[0][1]

        def write(game: Game, state: Dynamic, env: Args) -> str:
            for answers, writer in options:
                if next(answers(game, state, env), None) is not None:
                    return writer(game, state, env)
            raise GameError(f"No alternative of the grammar's rule {name!r} fits the state.")

        return write

    def _each(self, part: Each, scope: Scope) -> Callable[[Game, Dynamic, Args], list[str]]:
        answers, inner = self._query(part.given, scope)
        write = self._part(part.part, inner)
        return lambda game, state, env: [write(game, state, answer) for answer in answers(game, state, env)]

    def _listed(self, part: Listed, scope: Scope) -> Writer:
        each = self._each(part.each, scope)
        empty, separator, last = (
            self.rule(name, scope) for name in ("list_empty", "list_separator", "list_last_separator")
        )

        def write(game: Game, state: Dynamic, env: Args) -> str:
            items = each(game, state, env)
            if len(items) == 1:
                return items[0]
            if not items:
                return empty(game, state, env)
            return separator(game, state, env).join(items[:-1]) + last(game, state, env) + items[-1]

        return write

    def _query(self, query: Query, scope: Scope) -> tuple[Callable[[Game, Dynamic, Args], Iterator[Args]], Scope]:
        steps = []
        for name, variables in query:
            step, scope = self._step(name, variables, scope)
            steps.append(step)
        if not steps:
            return lambda game, state, env: iter((env,)), scope
        if len(steps) == 1 and steps[0].bound and not steps[0].dynamic:
            # Every "go to" command asks such a question, thirty of them a step.
            relation, slots = steps[0].relation, steps[0].slots

            def known(game: Game, state: Dynamic, env: Args) -> Iterator[Args]:
                return iter((env,)) if tuple([env[slot] for slot in slots]) in game.known[relation] else iter(())

            return known, scope
        return lambda game, state, env: _answers(steps, 0, game, state, env), scope

    def _step(self, name: str, variables: tuple[tuple[str, str], ...], scope: Scope) -> tuple[_Step, Scope]:
        declared = self.domain.predicates.get(name.removeprefix("not_"))
        if declared is None or len(declared) != len(variables):
            raise GameError(f"The grammar asks for {name} of {len(variables)} entities, which is no predicate.")
        slots, kinds, new = [], [], set()
        for variable, kind in variables:
            if (variable, kind) not in scope.slots:
                scope = scope.with_variable(variable, kind)
                new.add(scope.slots[variable, kind])
            slots.append(scope.slots[variable, kind])
            kinds.append(None if kind == ROOT_TYPE else kind)
        dynamic = name in self.dynamic
        relation = self.dynamic[name] if dynamic else self.static.setdefault(name, len(self.static))
        return _Step(relation, dynamic, tuple(slots), tuple(kinds), frozenset(new), not new), scope


def _answers(steps: list[_Step], depth: int, game: Game, state: Dynamic, env: Args) -> Iterator[Args]:
    if depth == len(steps):
        yield env
        return
    step = steps[depth]
    facts = state[step.relation] if step.dynamic else game.facts[step.relation]
    if step.bound:
        if tuple([env[slot] for slot in step.slots]) in facts:
            yield from _answers(steps, depth + 1, game, state, env)
        return
    size = len(env)
    for fact in facts:
        longer = env
        for slot, kind, entity in zip(step.slots, step.kinds, fact, strict=True):
            if slot < len(longer):
                if longer[slot] != entity:
                    break
            elif entity in longer or (kind is not None and not game.is_a(entity, kind)):
                break
            else:
                longer = (*longer, entity)
        else:
            if len(longer) == size + len(step.new):
                yield from _answers(steps, depth + 1, game, state, longer)


def _value(part: Value, scope: Scope) -> Writer:
    """Compile an expression over entities: names, attributes, text, + and or."""

    def build(node: ast.expr) -> Writer:
        if isinstance(node, ast.Constant):
            text = str(node.value)
            return lambda game, state, env: text
        if isinstance(node, ast.Name):
            return attribute(node.id, "name")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return attribute(node.value.id, node.attr)
        if isinstance(node, ast.BinOp):
            left, right = build(node.left), build(node.right)
            return lambda game, state, env: left(game, state, env) + right(game, state, env)
        assert isinstance(node, ast.BoolOp), "the grammar's parser lets nothing else pass"
        options = [build(value) for value in node.values]

        def first(game: Game, state: Dynamic, env: Args) -> str:
            text = ""
            for option in options:
                text = option(game, state, env)
                if text:
                    break
            return text

        return first

    def attribute(variable: str, name: str) -> Writer:
        if variable not in scope.names:
            raise GameError(f"The grammar's expression {part.source!r} uses {variable!r}, which is not bound there.")
        slot = scope.names[variable]
        if name == "name":
            return lambda game, state, env: game.names[env[slot]]
        if name == "id":
            return lambda game, state, env: game.ids[env[slot]]
        # The reference gives every entity the same two articles.
        article = {"definite": "the", "indefinite": "a"}[name]
        return lambda game, state, env: article

    return build(part.tree)
