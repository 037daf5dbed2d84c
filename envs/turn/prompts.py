"""Prompt styles as data: how observations, history and rules become the next prompt.

The structure follows the papers (T2PO and GiGPO: think/action with admissible actions; RLVMR: four meta-reasoning
tags with the previous plan fed back; RAGEN: think/answer over a growing chat); the wording is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import InvalidRequest, nearest
from ...records import Message, Turn
from .grammar import Grammar, get_grammar


@dataclass(frozen=True)
class PromptStyle:
    """A way to prompt.

    Templates are ``str.format`` texts over: instructions, observation, admissible, step (1-based turn), played (turns
    so far), shown (turns in the history), history, plan, actions_left, max_actions, reward.

    Attributes:
        name: id.
        grammar: name of the tag grammar that replies must keep.
        mode: "window": every prompt is one user message rebuilt from the last turns; "chat": the conversation grows.
        memory: default number of past turns in a prompt; None for all.
        system: system message, "" for none.
        first: user message of the first turn.
        later: user message of later turns.
        entry: one past turn in ``history`` (fields n, observation, action).
        several: added to ``first`` where several actions may be joined (fields separator, max_actions).
        admissible_limit: at most this many admissible actions are listed.
    """

    name: str
    grammar: str
    mode: Literal["window", "chat"]
    memory: int | None
    first: str
    later: str
    entry: str = ""
    several: str = ""
    system: str = ""
    admissible_limit: int = 200

    @property
    def rules(self) -> Grammar:
        """The tag grammar."""
        return get_grammar(self.grammar)

    def wrap(self, action: str, thought: str = "", tag: str = "") -> str:
        """Return a well-formed reply that takes ``action``."""
        return self.rules.wrap(action, thought, tag)


_THINK_ACTION_ASK = (
    "It is your turn. First reason step by step about where you stand, inside <think> </think>. Then choose one "
    "action for this step and write it inside <action> </action>."
)
_META_ASK = (
    "It is your turn. First reason in one short sentence inside exactly one of these tag pairs:\n"
    "<planning> </planning>: break the whole task into numbered steps; at the start, or when the plan no longer fits.\n"
    "<explore> </explore>: when something is missing or unexpected, think of new places, objects or actions to try.\n"
    "<reflection> </reflection>: when an action failed or nothing moves on, say why and what to do differently.\n"
    "<monitor> </monitor>: when things go as expected, say which step of the plan you are at and what comes next.\n"
    "Then write one action for this step inside <action> </action>."
)

STYLES: Mapping[str, PromptStyle] = {
    "think-action": PromptStyle(
        name="think-action",
        grammar="think-action",
        mode="window",
        memory=2,
        first=(
            "You are an expert agent in a text environment.\n{instructions}\n\nYour current observation is:\n"
            "{observation}\n\nThe actions you may take now: [{admissible}]\n{several}\n" + _THINK_ACTION_ASK
        ),
        later=(
            "You are an expert agent in a text environment.\n{instructions}\n\nYou have taken {played} step(s) so "
            "far. The last {shown} observation(s) and the actions you took:\n{history}\n\nYou are now at step {step} "
            "and your current observation is:\n{observation}\n\nThe actions you may take now: [{admissible}]\n"
            "{several}\n" + _THINK_ACTION_ASK
        ),
        entry="[Observation {n}: '{observation}', Action {n}: '{action}']",
        several="You may join up to {max_actions} actions with {separator}.",
    ),
    "meta-tags": PromptStyle(
        name="meta-tags",
        grammar="meta-tags",
        mode="window",
        memory=2,
        first=(
            "You are an expert agent in a text environment.\n{instructions}\n\nYour current observation is:\n"
            "{observation}\n\nThe actions you may take now: [{admissible}]\n{several}\n" + _META_ASK
        ),
        later=(
            "You are an expert agent in a text environment.\n{instructions}\n\nYour plan so far: {plan}\nKeep to it "
            "unless it no longer fits.\n\nYou have taken {played} step(s) so far. The last {shown} observation(s) and "
            "the actions you took:\n{history}\n\nYou are now at step {step} and your current observation is:\n"
            "{observation}\n\nThe actions you may take now: [{admissible}]\n{several}\n" + _META_ASK
        ),
        entry="[Observation {n}: '{observation}', Action {n}: '{action}']",
        several="You may join up to {max_actions} actions with {separator}.",
    ),
    "think-answer": PromptStyle(
        name="think-answer",
        grammar="think-answer",
        mode="chat",
        memory=None,
        system=(
            "You solve tasks turn by turn. In every turn first write your thoughts inside <think> </think>, then your "
            "answer inside <answer> </answer>, and nothing else."
        ),
        first=(
            "{instructions}\n{several}\n\nTurn {step}\nState:\n{observation}\nYou have {actions_left} action(s) left. "
            "Reply in the form <think>…</think><answer>…</answer>."
        ),
        later=(
            "Reward: {reward:g}\n\nTurn {step}\nState:\n{observation}\nYou have {actions_left} action(s) left. "
            "Reply in the form <think>…</think><answer>…</answer>."
        ),
        several="You may give up to {max_actions} actions in one answer, joined by {separator}.",
    ),
}


def get_style(name: str) -> PromptStyle:
    """Return the style of that name, or raise :class:`InvalidRequest` naming the nearest."""
    if not isinstance(name, str) or name not in STYLES:
        raise InvalidRequest(f"No prompt style {name!r:.60}.", hint=nearest(str(name), STYLES))
    return STYLES[name]


def render_prompt(
    style: PromptStyle, turns: Sequence[Turn], memory: int | None, fields: Mapping[str, Any]
) -> list[Message]:
    """Build the next prompt.

    Args:
        style: the prompt style.
        turns: the turns played so far.
        memory: how many of them the prompt shows; None for all.
        fields: values of the template fields other than step, played, shown and history.
    """
    shown = list(turns if memory is None else turns[max(0, len(turns) - memory) :])
    values = {**fields, "step": len(turns) + 1, "played": len(turns), "shown": len(shown)}
    if style.mode == "chat":
        return _chat(style, shown, values)
    values["history"] = "\n".join(
        style.entry.format(n=turn.index + 1, observation=turn.observation, action=turn.action) for turn in shown
    )
    template = style.later if shown else style.first
    return [*_system(style), Message(role="user", content=template.format(**values))]


def _system(style: PromptStyle) -> list[Message]:
    return [Message(role="system", content=style.system)] if style.system else []


def _chat(style: PromptStyle, shown: Sequence[Turn], values: dict[str, Any]) -> list[Message]:
    messages = _system(style)
    for position, turn in enumerate(shown):
        content = turn.info["prompt"]["content"]
        if position == 0 and turn.index > 0:
            # Older turns fell out of the memory: the first message shown must carry the rules.
            past = {**values, **turn.info["prompt"], "observation": turn.observation, "step": turn.index + 1}
            content = style.first.format(**past)
        messages.append(Message(role="user", content=content))
        messages.append(Message(role="assistant", content=turn.completion.text))
    template = style.later if shown else style.first
    messages.append(Message(role="user", content=template.format(**values)))
    return messages
