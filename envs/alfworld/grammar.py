"""ALFWorld's grammar files (twl2): command templates and feedback rules, parsed into small trees.

A text is a list of parts: ``str`` (itself), :class:`Call` (``#rule#``), :class:`Value` (``{o.name}``), :class:`Each`
(``{part | query}``, once per answer) and :class:`Listed` (``[{part | query}]``, joined in words).
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...errors import GameError

Part: TypeAlias = "str | Call | Value | Each | Listed"
Query: TypeAlias = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Conjunction of (predicate, ((variable, type), …))."""

_ITEM = re.compile(
    r"""\s*(?:\#[^\n]*|(?P<word>action|grammar)\b|(?P<end>\})|(?P<field>template|feedback|pddl)\s*::
    |(?P<rest>\S))""",
    re.X,
)
_BLOCK = re.compile(r'\s*::\s*"""(?P<text>.*?)"""\s*;', re.S)
_STRING = re.compile(r'\s*"(?P<text>[^"]*)"\s*;', re.S)
_HEADER = re.compile(r"\s*(?P<name>[\w/-]+)\s*\{")
_LITERAL = re.compile(r'[^;|"<>\[\]#{}]*')
_CALL = re.compile(r"#([\w()/!<>\-\s,.]+)#")
_EACH = re.compile(
    r"\{\s*(?:#(?P<call>[\w()/!<>\-\s,.]+)#|(?P<value>[^|\[\]{}\n<>#]+))\s*(?:\|(?P<given>[^;|{}\n\[\]#]+))?\}"
)
_PREDICATE = re.compile(r"\s*([\w/@-]+)\s*\(([^()]*)\)\s*(&|$)")
# Where a line starts, the reference's parser takes white space and //-lines for comments.
_SKIPPED = re.compile(r"(?:[\t\s]+|//[^\n]*)*")
_TASK_RULE = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*")((?:[^"\\]|\\.)*)(")')
TASK_MARK = "\ufdd0"
_ATTRIBUTES = {"name", "id", "definite", "indefinite"}


@dataclass(frozen=True)
class Call:
    """The text of a rule."""

    rule: str


@dataclass(frozen=True)
class Value:
    """An expression over the entities' attributes."""

    source: str
    tree: ast.expr


@dataclass(frozen=True)
class Each:
    """A part once for every answer to a query."""

    part: Call | Value
    given: Query


@dataclass(frozen=True)
class Listed:
    """The answers to a query as a list in words."""

    each: Each


@dataclass(frozen=True)
class Rule:
    """One alternative of a rule: its text and the query that must have an answer."""

    parts: tuple[Part, ...]
    condition: Query


@dataclass(frozen=True)
class Grammar:
    """A parsed grammar; ``actions`` maps lower-case names to (template, feedback)."""

    actions: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]]
    rules: dict[str, tuple[Rule, ...]]


def split_task(text: str) -> tuple[str, str]:
    """Return (the grammar with a mark for the game's own task sentence, that sentence's text).

    All games share one grammar but for that sentence: so marked, it is parsed once.
    """
    found = _TASK_RULE.search(text)
    if found is None:
        return text, ""
    try:
        sentence = json.loads(f'"{found[2]}"', strict=False)
    except ValueError as error:
        raise GameError(f"The grammar's task sentence {found[2]!r:.80} is not readable: {error}.") from None
    parts = parse_parts(sentence)
    if not all(isinstance(part, str) for part in parts):
        return text, ""
    return text[: found.start(2)] + TASK_MARK + text[found.end(2) :], "".join(map(str, parts))


def parse_grammar(text: str) -> Grammar:
    """Parse a grammar file.

    Raises:
        GameError: names what is not understood and its line.
    """
    position = 0
    actions: dict[str, tuple[str, str]] = {}
    rules: dict[str, Any] = {}
    action = ""
    fields: dict[str, str] = {}
    while (found := _ITEM.match(text, position)) is not None:
        position = found.end()
        word = found["word"] or found["field"]
        if word == "action" and not action:
            header = _expect(_HEADER, text, position, "an action's name and '{'")
            action, fields, position = header["name"], {}, header.end()
        elif word == "grammar":
            block = _expect(_BLOCK, text, position, 'a block in """')
            rules.update(_rules(block["text"], _line(text, position)))
            position = block.end()
        elif word in ("template", "feedback") and action:
            string = _expect(_STRING, text, position, "a string")
            fields[word], position = string["text"], string.end()
        elif found["end"] and action:
            if set(fields) != {"template", "feedback"}:
                raise GameError(f"Action {action!r} of the grammar lacks its template or feedback.")
            actions[action.lower()] = (fields["template"], fields["feedback"])
            action = ""
        elif found["word"] or found["field"] or found["end"] or found["rest"]:
            raise GameError(f"The grammar's line {_line(text, position)} is not understood near {found[0].strip()!r}.")
    if action:
        raise GameError(f"The grammar ends inside action {action!r}; it may be cut off.")
    return Grammar(
        {name: (parse_parts(template), parse_parts(feedback)) for name, (template, feedback) in actions.items()},
        {name: tuple(_rule(name, rule) for rule in alternatives) for name, alternatives in rules.items()},
    )


def parse_parts(text: str) -> tuple[Part, ...]:
    """Return the parts of a text; like the reference, stop without complaint at a stray bracket or quote."""
    found_start = _SKIPPED.match(text)
    position = found_start.end() if found_start else 0
    parts: list[Part] = []
    while position < len(text):
        character = text[position]
        if character == "[":
            each = _EACH.match(text, position + 1)
            if each is None or text[each.end() : each.end() + 1] != "]":
                break
            parts.append(Listed(_each(each)))
            position = each.end() + 1
        elif character == "{":
            each = _EACH.match(text, position)
            if each is None:
                break
            parts.append(_each(each))
            position = each.end()
        elif character == "#":
            call = _CALL.match(text, position)
            if call is None:
                break
            parts.append(Call(call[1]))
            position = call.end()
        else:
            literal = _LITERAL.match(text, position)
            if literal is None or not literal[0]:
                break
            parts.append(literal[0])
            position = literal.end()
    return tuple(parts)


def parse_query(text: str) -> Query:
    """Return the conjunction that a condition stands for."""
    position, query = 0, []
    while position < len(text):
        found = _PREDICATE.match(text, position)
        if found is None:
            raise GameError(f"The grammar's condition {text!r} is not understood near {text[position:]!r}.")
        variables = []
        for item in filter(None, map(str.strip, found[2].split(","))):
            name, _, kind = (word.strip() for word in item.partition(":"))
            variables.append((name, kind or name.rstrip("'")))
        query.append((found[1], tuple(variables)))
        position = found.end()
    return tuple(query)


def _each(found: re.Match[str]) -> Each:
    part = Call(found["call"]) if found["call"] else _value(found["value"])
    return Each(part, parse_query(found["given"].strip()) if found["given"] else ())


def _value(source: str) -> Value:
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        raise GameError(f"The grammar's expression {source!r} is not understood.") from None
    for node in ast.walk(tree):
        attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _ATTRIBUTES
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        shape = isinstance(node, ast.BinOp | ast.BoolOp | ast.Add | ast.Or | ast.Name | ast.Load)
        if not (attribute or text or shape):
            raise GameError(f"The grammar's expression {source!r} uses more than names, 'text', + and or.")
    return Value(source, tree)


def _rules(text: str, line: int) -> dict[str, Any]:
    lines = [row for row in text.split("\n") if not row.lstrip().startswith("#")]
    try:
        data = json.loads("\n".join(lines))
    except ValueError as error:
        raise GameError(f"The grammar's block at line {line} is no JSON: {error}.") from None
    if not isinstance(data, dict):
        raise GameError(f"The grammar's block at line {line} is no JSON object.")
    return data


def _rule(name: str, data: Any) -> Rule:
    if not isinstance(data, dict) or not isinstance(data.get("rhs"), str):
        raise GameError(f'The grammar\'s rule {name!r} has an alternative without "rhs".')
    if unknown := set(data) - {"rhs", "condition", "weight"}:
        raise GameError(f"The grammar's rule {name!r} has {sorted(unknown)}, which the engine does not know.")
    return Rule(parse_parts(data["rhs"]), parse_query(data.get("condition") or ""))


def _expect(pattern: re.Pattern[str], text: str, position: int, what: str) -> re.Match[str]:
    found = pattern.match(text, position)
    if found is None:
        raise GameError(f"The grammar's line {_line(text, position)} lacks {what}.")
    return found


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
