"""Tag grammars: what a well-formed reply looks like, and how an action is taken out of a malformed one.

A grammar is data. Its strict rule decides ``format_valid``; its relaxed rule finds an action in a reply that breaks
the strict one. Where a paper's released code executes the last characters of a tagless reply as an action,
``variant="released"`` does so too; the default gives the empty action, which every environment answers as invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...errors import InvalidRequest, nearest

Rule = Literal["exact", "one", "some", "none"]
Variant = Literal["default", "released"]
META_TAGS = ("planning", "explore", "reflection", "monitor")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_ANY_TAG = re.compile(r"<.*?>")


class Reply(NamedTuple):
    """What a grammar found in a reply.

    Attributes:
        action: the action text; "" where none could be found.
        format_valid: the strict rule holds.
        error: the first broken part of the rule, "" if none.
        void: the reply holds no action block at all.
        thought: text of the first thought block.
        tag: name of the first thought tag among several allowed ones, "" where only one is.
        plan: text of the planning block, "" for none.
    """

    action: str
    format_valid: bool
    error: str = ""
    void: bool = False
    thought: str = ""
    tag: str = ""
    plan: str = ""


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
    def _flags(self) -> int:
        return re.DOTALL if self.case_sensitive else re.DOTALL | re.IGNORECASE

    @cached_property
    def _exact(self) -> re.Pattern[str]:
        thought, action = self.thoughts[0], self.actions[0]
        return re.compile(rf"\s*<{thought}>(.*?)</{thought}>\s*<{action}>(.*?)</{action}>\s*\Z", self._flags)

    @cached_property
    def _count(self) -> re.Pattern[str]:
        names = "|".join(self.thoughts + self.actions)
        return re.compile(rf"<(/?)\s*({names})\s*>", self._flags)

    @cached_property
    def _thought(self) -> re.Pattern[str]:
        return re.compile("|".join(rf"<{tag}>(.*?)</{tag}>" for tag in self.thoughts), self._flags)

    @cached_property
    def _blocks(self) -> dict[str, re.Pattern[str]]:
        space = r"\s*" if self.rule == "exact" else ""
        return {
            tag: re.compile(rf"<{space}{tag}{space}>(.*?)</{space}{tag}{space}>", self._flags) for tag in self.actions
        }

    def parse(self, text: str, variant: Variant = "default") -> Reply:
        """Read a reply.

        Args:
            text: the raw completion.
            variant: "released" executes the tail of a reply that has no action block, as the papers' code does.
        """
        thoughts = list(self._thought.finditer(text)) if self.thoughts else []
        thought = tag = plan = ""
        if thoughts:
            thought = _inner(thoughts[0])
            tag = thoughts[0].group()[1:].partition(">")[0].lower() if len(self.thoughts) > 1 else ""
            plan = next((_inner(block) for block in thoughts if block.group().lower().startswith("<planning>")), "")
        action, blocks = self._find_action(text)
        error = self._broken(text, thoughts, blocks)
        if not error and self.ban_cjk and _CJK.search(text):
            error = "Chinese characters"
        if blocks == 0 and self.fallback and variant == "released":
            action = text[-self.fallback :]
        return Reply(action, not error, error, blocks == 0, thought, tag, plan)

    def _find_action(self, text: str) -> tuple[str, int]:
        """Return the action and the number of complete action blocks."""
        if self.rule == "some":
            return self._first_slice(text)
        found = {tag: list(pattern.finditer(text)) for tag, pattern in self._blocks.items()}
        count = sum(len(matches) for matches in found.values())
        if count == 0 or (self.relaxed == "single" and count > 1):
            return "", count
        tag = next(tag for tag in self.actions if found[tag])
        return self._clean(found[tag][0].group(1), tag), count

    def _first_slice(self, text: str) -> tuple[str, int]:
        tag = self.actions[0]
        searched = text if self.case_sensitive else text.lower()
        start, end = searched.find(f"<{tag}>"), searched.find(f"</{tag}>")
        if start < 0 or end < 0:
            return "", 0
        return self._clean(text[start + len(tag) + 2 : end], tag), 1

    def _clean(self, body: str, tag: str) -> str:
        action = body.strip().lower() if self.lower else body.strip()
        if self.choices:
            action = next((choice for choice in self.choices if choice in action), "")
        return f"<{tag}>{action}</{tag}>" if self.keep_tags else action

    def _broken(self, text: str, thoughts: list[re.Match[str]], blocks: int) -> str:
        """Return what is wrong with the reply, "" if nothing."""
        names = " or ".join(f"<{tag}>" for tag in self.actions)
        if blocks == 0:
            return f"no {names} block"
        if self.rule == "some":
            closed = any(f"<{tag}>" in text and f"</{tag}>" in text for tag in self.thoughts)
            return "" if closed else "no closed thought block"
        if self.rule == "exact":
            counts: dict[str, int] = {}
            for slash, tag in self._count.findall(text):
                counts[slash + tag.lower()] = counts.get(slash + tag.lower(), 0) + 1
            repeated = next((tag for tag, n in counts.items() if n > 1), "")
            if repeated:
                return f"<{repeated}> occurs more than once"
            return "" if self._exact.match(text) else f"not exactly <{self.thoughts[0]}>…</> then {names}"
        if blocks != 1:
            return f"more than one {names} block"
        if self.rule == "one":
            if len(thoughts) != 1:
                return f"{len(thoughts)} thought blocks instead of one"
            if not _ANY_TAG.sub("", thoughts[0].group()).strip():
                return "the thought block is empty"
            if thoughts[0].start() > re.search(self._blocks[self.actions[0]], text).start():  # type: ignore[union-attr]
                return "the thought comes after the action"
        return ""

    def wrap(self, action: str, thought: str = "", tag: str = "") -> str:
        """Return a well-formed reply that takes ``action``."""
        body = action if self.keep_tags else f"<{self.actions[0]}>{action}</{self.actions[0]}>"
        if not self.thoughts:
            return body
        tag = tag if tag in self.thoughts else self.thoughts[-1]
        return f"<{tag}>{thought or 'Next step.'}</{tag}>{body}"


def _inner(block: re.Match[str]) -> str:
    """Return the text of a thought block: its only group that took part in the match."""
    return str(block.group(block.lastindex or 0)).strip()


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
    "think-move": Grammar(
        rule="some", choices=("up", "down", "left", "right", "still"), ban_cjk=False
    ),
}


def get_grammar(name: str) -> Grammar:
    """Return the grammar of that name, or raise :class:`InvalidRequest` naming the nearest."""
    if name not in GRAMMARS:
        raise InvalidRequest(f"No tag grammar {name!r:.60}.", hint=nearest(str(name), GRAMMARS))
    return GRAMMARS[name]
