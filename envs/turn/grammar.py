"""Tag grammars: what a well-formed reply looks like, and how an action is taken out of a malformed one.

A grammar is data. Its strict rule decides ``format_valid``; its relaxed rule finds an action in a reply that breaks
the strict one. Where a paper's released code executes the last characters of a tagless reply as an action,
``variant="released"`` does so too; the default gives the empty action, which every environment answers as invalid.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...errors import InvalidRequest, nearest

Rule = Literal["exact", "one", "some", "none"]
Variant = Literal["default", "released"]
META_TAGS = ("planning", "explore", "reflection", "monitor")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_ANY_TAG = re.compile(r"<[^<>]*>")


class Reply(NamedTuple):
    """What a grammar found in a reply.

    Attributes:
        action: the action text; "" where none could be found.
        format_valid: the strict rule holds.
        error: the first broken part of the rule, "" if none.
        void: the reply holds no action block at all.
        thought: text of the first thought block.
        tag: where several thought tags are allowed, the first of them (in the grammar's order) that occurs.
        plan: text of the planning block, "" for none.
    """

    action: str
    format_valid: bool
    error: str = ""
    void: bool = False
    thought: str = ""
    tag: str = ""
    plan: str = ""


class _Mark(NamedTuple):
    """One tag in a text."""

    tag: str
    closing: bool
    spaced: bool
    start: int
    end: int


class _Block(NamedTuple):
    """One closed pair of tags: it starts at ``start``, its inside spans ``first`` to ``last``."""

    tag: str
    start: int
    first: int
    last: int

    def inner(self, text: str) -> str:
        return text[self.first : self.last].strip()


def _blocks(marks: list[_Mark], tags: tuple[str, ...], spaced: bool) -> list[_Block]:
    """Pair each opening tag with the next closing one of its kind; blocks do not overlap."""
    kept = [mark for mark in marks if mark.tag in tags and (spaced or not mark.spaced)]
    closings = {tag: [mark for mark in kept if mark.tag == tag and mark.closing] for tag in tags}
    found: list[_Block] = []
    end = 0
    for mark in kept:
        if mark.closing or mark.start < end:
            continue
        after = closings[mark.tag]
        position = bisect_left(after, mark.end, key=lambda closing: closing.start)
        if position < len(after):
            found.append(_Block(mark.tag, mark.start, mark.end, after[position].start))
            end = after[position].end
    return found


@dataclass(frozen=True)
class Grammar:
    """A tag grammar.

    Attributes:
        thoughts: tags that may hold the reasoning.
        actions: tags that may hold the action; the first that occurs wins.
        rule: "exact": one thought block, then one action block, nothing else, each tag once. "one": one action block
            and before it exactly one thought block that is not empty; other text is allowed. "some": an action block
            and at least one thought tag opened and closed anywhere. "none": exactly one action block, no thought.
        relaxed: which action a malformed reply yields: the "first" block, or only a "single" one.
        lower: the action is put into lower case.
        keep_tags: the action keeps its tags, for environments that tell kinds of action apart by them.
        ban_cjk: Chinese characters break the rule (the papers' language rule).
        fallback: characters at the end of a reply without an action that the released code executes.
        choices: the action is the first of these names that occurs in the block, else "".
        case_sensitive: tags must be written in lower case.
    """

    thoughts: tuple[str, ...] = ("think",)
    actions: tuple[str, ...] = ("action",)
    rule: Rule = "exact"
    relaxed: Literal["first", "single"] = "first"
    lower: bool = True
    keep_tags: bool = False
    ban_cjk: bool = True
    fallback: int = 0
    choices: tuple[str, ...] = ()
    case_sensitive: bool = False

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        names = "|".join(self.thoughts + self.actions)
        return re.compile(rf"<(/?)(\s*)({names})(\s*)>", 0 if self.case_sensitive else re.IGNORECASE)

    def parse(self, text: str, variant: Variant = "default") -> Reply:
        """Read a reply, in time linear in its length.

        Args:
            text: the raw completion.
            variant: "released" executes the tail of a reply that has no action block, as the papers' code does.
        """
        marks = [
            _Mark(match.group(3).lower(), bool(match.group(1)), bool(match.group(2) or match.group(4)), *match.span())
            for match in self._tags.finditer(text)
        ]
        thoughts = _blocks(marks, self.thoughts, spaced=False)
        # The exact rule's relaxed side reads "< action >" too, as the papers' code does.
        actions = self._slice(text) if self.rule == "some" else _blocks(marks, self.actions, self.rule == "exact")
        thought = tag = plan = ""
        if thoughts:
            thought = thoughts[0].inner(text)
            if len(self.thoughts) > 1:
                tag = next(name for name in self.thoughts if any(block.tag == name for block in thoughts))
            plan = next((block.inner(text) for block in thoughts if block.tag == "planning"), "")
        error = self._broken(text, marks, thoughts, actions)
        if not error and self.ban_cjk and _CJK.search(text):
            error = "Chinese characters"
        action = self._action(text, actions)
        if not actions and self.fallback and variant == "released":
            action = text[-self.fallback :]
        return Reply(action, not error, error, not actions, thought, tag, plan)

    def _slice(self, text: str) -> list[_Block]:
        """Return the span from the first opening to the first closing action tag, as the loose rule reads it."""
        tag = self.actions[0]
        flags = 0 if self.case_sensitive else re.IGNORECASE
        opening, closing = re.search(f"<{tag}>", text, flags), re.search(f"</{tag}>", text, flags)
        return [_Block(tag, opening.start(), opening.end(), closing.start())] if opening and closing else []

    def _action(self, text: str, actions: list[_Block]) -> str:
        if not actions or (self.relaxed == "single" and len(actions) > 1):
            return ""
        block = next(block for tag in self.actions for block in actions if block.tag == tag)
        action = block.inner(text)
        if self.lower:
            action = action.lower()
        if self.choices:
            action = next((choice for choice in self.choices if choice in action), "")
        return f"<{block.tag}>{action}</{block.tag}>" if self.keep_tags else action

    def _broken(self, text: str, marks: list[_Mark], thoughts: list[_Block], actions: list[_Block]) -> str:
        """Return what is wrong with the reply, "" if nothing."""
        names = " or ".join(f"<{tag}>" for tag in self.actions)
        if not actions:
            return f"no {names} block"
        if self.rule == "some":
            closed = any(f"<{tag}>" in text and f"</{tag}>" in text for tag in self.thoughts)
            return "" if closed else "no closed thought block"
        if self.rule == "exact":
            thought, action = self.thoughts[0], self.actions[0]
            expected = [(thought, False), (thought, True), (action, False), (action, True)]
            if [(mark.tag, mark.closing) for mark in marks] != expected or any(mark.spaced for mark in marks):
                return f"not exactly one <{thought}> block and then one {names} block"
            outside = text[: marks[0].start] + text[marks[1].end : marks[2].start] + text[marks[3].end :]
            return "text outside the tags" if outside.strip() else ""
        if len(actions) != 1:
            return f"more than one {names} block"
        if self.rule == "one":
            if len(thoughts) != 1:
                return f"{len(thoughts)} thought blocks instead of one"
            if not _ANY_TAG.sub("", thoughts[0].inner(text)).strip():
                return "the thought block is empty"
            if thoughts[0].start > actions[0].start:
                return "the thought comes after the action"
        return ""

    def wrap(self, action: str, thought: str = "", tag: str = "") -> str:
        """Return a well-formed reply that takes ``action``."""
        body = action if self.keep_tags else f"<{self.actions[0]}>{action}</{self.actions[0]}>"
        if not self.thoughts:
            return body
        tag = tag if tag in self.thoughts else self.thoughts[-1]
        return f"<{tag}>{thought or 'Next step.'}</{tag}>{body}"


GRAMMARS: Mapping[str, Grammar] = {
    # T2PO and GiGPO: WebShop, ALFWorld (eq. 12's strict rule).
    "think-action": Grammar(fallback=30),
    # RLVMR on ALFWorld: one of four meta-reasoning tags.
    "meta-tags": Grammar(thoughts=META_TAGS, rule="one", relaxed="single"),
    # RLVMR on ScienceWorld: looser, and case matters.
    "meta-tags-loose": Grammar(thoughts=META_TAGS, rule="some", lower=False, fallback=20, case_sensitive=True),
    # RAGEN: several actions may stand in one answer, joined by "||".
    "think-answer": Grammar(actions=("answer",), lower=False, ban_cjk=False),
    # T2PO's search agent: no thought needed; the action keeps its tag.
    "search-answer": Grammar(
        thoughts=(), actions=("search", "answer"), rule="none", lower=False, keep_tags=True, ban_cjk=False
    ),
    # T2PO on Sokoban: the first move named in the block.
    "think-move": Grammar(rule="some", choices=("up", "down", "left", "right", "still"), ban_cjk=False),
}


def get_grammar(name: str) -> Grammar:
    """Return the grammar of that name, or raise :class:`InvalidRequest` naming the nearest."""
    if not isinstance(name, str) or name not in GRAMMARS:
        raise InvalidRequest(f"No tag grammar {name!r:.60}.", hint=nearest(str(name), GRAMMARS))
    return GRAMMARS[name]
