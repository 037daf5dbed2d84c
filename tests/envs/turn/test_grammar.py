"""Tag grammars: strict and relaxed rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.envs.turn.grammar import GRAMMARS, get_grammar
from turngym.errors import InvalidRequest

CASES = [
    ("think-action", "<think>a</think><action>go</action>", "go", True),
    ("think-action", "<think>a</think>\n\n<action>\n go \n</action>\n", "go", True),
    ("think-action", "<think>a</think><action>one</action><action>two</action>", "one", False),
    ("think-action", "<action>go</action><think>a</think>", "go", False),
    ("think-action", "I think <think>a</think><action>go</action>", "go", False),
    ("think-action", "<think>a</think><action>go", "", False),
    ("think-action", "<think>中</think><action>go</action>", "go", False),
    ("think-answer", "<think>中</think><answer>Up || Left</answer>", "Up || Left", True),
    ("think-answer", "<answer>Up</answer>", "Up", False),
    ("meta-tags", "Well. <monitor>fine</monitor> so <action>Look</action> end", "look", True),
    ("meta-tags", "<planning> </planning><action>look</action>", "look", False),
    ("meta-tags", "<monitor>a</monitor><monitor>b</monitor><action>look</action>", "look", False),
    ("meta-tags-loose", "<planning></planning><explore>x</explore><action>Look</action>", "Look", True),
    ("meta-tags-loose", "<planning>x</planning><ACTION>Look</ACTION>", "", False),
    ("meta-tags", "<action>look</action><monitor>fine</monitor>", "look", False),
    ("think-action", "<think>a</think>< action>go</action>", "go", False),
    ("meta-tags-loose", "<PLANNING>x</PLANNING><action>Look</action>", "Look", False),
    ("search-answer", "<answer>Paris</answer>", "<answer>Paris</answer>", True),
    ("search-answer", "<answer>a</answer><search>b</search>", "<search>b</search>", False),
    ("think-move", "<think>a</think><action>push it right then up</action>", "up", True),
    ("think-move", "<action>down</action>", "down", False),
    ("think-move", "<think>a</think><action>jump</action>", "", True),
]


@pytest.mark.parametrize(("grammar", "text", "action", "valid"), CASES)
def test_rules(grammar: str, text: str, action: str, valid: bool) -> None:
    reply = GRAMMARS[grammar].parse(text)
    assert (reply.action, reply.format_valid) == (action, valid)
    assert bool(reply.error) is not valid


def test_the_tail_is_executed_only_as_released() -> None:
    grammar, text = GRAMMARS["think-action"], "x" * 40
    assert grammar.parse(text).action == "" and grammar.parse(text).void
    assert grammar.parse(text, "released").action == "x" * 30


def test_thought_tag_and_plan() -> None:
    reply = GRAMMARS["meta-tags"].parse("<Planning>1. look 2. go</Planning><action>look</action>")
    assert (reply.tag, reply.plan, reply.thought) == ("planning", "1. look 2. go", "1. look 2. go")


@pytest.mark.parametrize("name", GRAMMARS)
@given(text=st.text(st.sampled_from("<>/ \nathinkcoswerplgmdux中"), max_size=80))
def test_any_text_parses(name: str, text: str) -> None:
    reply = GRAMMARS[name].parse(text)
    assert reply.void is (reply.error.startswith("no ") and "block" in reply.error and "closed" not in reply.error)


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name != "search-answer"])
def test_wrapped_replies_are_well_formed(name: str) -> None:
    reply = GRAMMARS[name].parse(GRAMMARS[name].wrap("up", "because"))
    assert (reply.action, reply.format_valid) == ("up", True)


def test_a_long_reply_is_read_in_linear_time() -> None:
    # Quadratic backtracking on unclosed tags would take minutes here.
    for name, grammar in GRAMMARS.items():
        reply = grammar.parse("<think>" * 20_000 + "<action>" * 20_000)
        assert not reply.format_valid, name


def test_unknown_grammar() -> None:
    with pytest.raises(InvalidRequest, match="think-action"):
        get_grammar("think-actions")
