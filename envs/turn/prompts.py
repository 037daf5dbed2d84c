"""Prompt styles as data: how observations, history and rules become the next prompt.

The structure follows the papers (T2PO and GiGPO: think/action with admissible actions; RLVMR: four meta-reasoning
tags with the previous plan fed back; RAGEN: think/answer over a growing chat); the wording is ours. What belongs to
one environment only (its action syntax, commands not worth listing) comes from its ``instructions`` or from a preset,
which changes fields of the style.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from string import Formatter
from typing import Any, Literal

import msgspec

from ...errors import InvalidRequest, nearest
from ...records import Message, Turn
from .grammar import Grammar, get_grammar


@dataclass(frozen=True)
class PromptStyle:
    """A way to prompt.

    ``first`` and ``later`` are ``str.format`` texts over: instructions, observation, start (the episode's first
    observation), listing, several, guide, notes, step (1-based turn), played (turns so far), shown (turns in the
    history), history, plan, actions_left, max_actions, reward. A paragraph of theirs that comes out empty is left out.

    Attributes:
        name: id.
        grammar: name of the tag grammar that replies must keep.
        mode: "window": every prompt is one user message rebuilt from the last turns; "chat": the conversation grows.
        memory: default number of past turns in a prompt; None for all.
        system: system message, "" for none.
        first: user message of the first turn, and of a later one without history.
        later: user message of later turns.
        entry: one past turn in ``history`` (fields n, observation, action).
        several: where several actions may be joined (fields separator, max_actions).
        listing: the admissible actions (field admissible); "" does not list them.
        hidden: admissible actions that are not listed.
        admissible_limit: at most this many admissible actions are listed.
        guide: what an environment's actions look like, put before the question.
        notes: the same, put after the question.
        max_chars: a window prompt of more characters is made anew without history; None for no limit.
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
    listing: str = ""
    hidden: tuple[str, ...] = ()
    admissible_limit: int = 200
    guide: str = ""
    notes: str = ""
    max_chars: int | None = None

    @property
    def rules(self) -> Grammar:
        """The tag grammar."""
        return get_grammar(self.grammar)

    def wrap(self, action: str, thought: str = "", tag: str = "") -> str:
        """Return a well-formed reply that takes ``action``."""
        return self.rules.wrap(action, thought, tag)

    def listed(self, admissible: Sequence[str]) -> str:
        """Return the paragraph about admissible actions, "" where they are not listed."""
        if not self.listing:
            return ""
        wanted = [action for action in admissible if action not in self.hidden] if self.hidden else admissible
        text = ", ".join(f"'{action}'" for action in wanted[: self.admissible_limit])
        more = len(wanted) - self.admissible_limit
        return self.listing.format(admissible=f"{text}, and {more} more" if more > 0 else text)


_ROLE = "You are an expert agent in a text environment.\n{instructions}"
_PAST = (
    "You have taken {played} step(s) so far. The last {shown} observation(s) and the actions you took:\n{history}\n\n"
    "You are now at step {step} and your current observation is:\n{observation}"
)
_ENTRY = "[Observation {n}: '{observation}', Action {n}: '{action}']"
_LISTING = "The actions you may take now: [{admissible}]"
_SEVERAL = "You may join up to {max_actions} actions with {separator}."
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
_PLAN = "Your plan so far: {plan}\nKeep to it unless it no longer fits."
_NOW = "Your current observation is:\n{observation}"
_STATE = (
    "Turn {step}\nState:\n{observation}\n\n{listing}\n\nYou have {actions_left} action(s) left. "
    "Reply in the form <think>…</think><answer>…</answer>.\n\n{notes}"
)


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(parts)


STYLES: Mapping[str, PromptStyle] = {
    "think-action": PromptStyle(
        name="think-action",
        grammar="think-action",
        mode="window",
        memory=2,
        first=_paragraphs(_ROLE, _NOW, "{listing}", "{several}", "{guide}", _THINK_ACTION_ASK, "{notes}"),
        later=_paragraphs(_ROLE, _PAST, "{listing}", "{several}", "{guide}", _THINK_ACTION_ASK, "{notes}"),
        entry=_ENTRY,
        several=_SEVERAL,
        listing=_LISTING,
    ),
    "meta-tags": PromptStyle(
        name="meta-tags",
        grammar="meta-tags",
        mode="window",
        memory=2,
        first=_paragraphs(_ROLE, _NOW, "{listing}", "{several}", "{guide}", _META_ASK, "{notes}"),
        later=_paragraphs(_ROLE, _PAST, "{listing}", "{several}", "{guide}", _PLAN, _META_ASK, "{notes}"),
        entry=_ENTRY,
        several=_SEVERAL,
        listing=_LISTING,
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
        first=_paragraphs("{instructions}", "{several}", "{guide}", _STATE),
        later=_paragraphs("Reward: {reward:g}", _STATE),
        several="You may give up to {max_actions} actions in one answer, joined by {separator}.",
    ),
}

_MESSAGE_FIELDS = (
    "instructions", "observation", "start", "listing", "several", "guide", "notes", "step", "played", "shown",
    "history", "plan", "actions_left", "max_actions", "reward",
)  # fmt: skip
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "first": _MESSAGE_FIELDS,
    "later": _MESSAGE_FIELDS,
    "entry": ("n", "observation", "action"),
    "several": ("separator", "max_actions"),
    "listing": ("admissible",),
}
_FIXED = ("name", "grammar", "mode", "memory")


def get_style(name: str) -> PromptStyle:
    """Return the style of that name, or raise :class:`InvalidRequest` naming the nearest."""
    if not isinstance(name, str) or name not in STYLES:
        raise InvalidRequest(f"No prompt style {name!r:.60}.", hint=nearest(str(name), STYLES))
    return STYLES[name]


def change_style(style: PromptStyle, changes: Mapping[str, Any]) -> PromptStyle:
    """Return ``style`` with fields changed, as presets do.

    Args:
        style: the style.
        changes: field -> value; all fields but name, grammar, mode and memory.

    Raises:
        InvalidRequest: an unknown field, a value of the wrong type, or a template that names an unknown field.
    """
    if not isinstance(changes, Mapping):
        raise InvalidRequest(f"prompt is {changes!r:.80}.", hint='Send {"hidden": ["help"]}.')
    known = [field.name for field in fields(PromptStyle) if field.name not in _FIXED]
    for name in changes:
        if name not in known:
            raise InvalidRequest(f"A prompt style has no setting {name!r:.60}.", hint=nearest(str(name), known))
    try:
        changed = msgspec.convert({**asdict(style), **changes}, PromptStyle)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"prompt: {error}.", hint="Correct the setting.") from error
    for name in changes:
        if name in _TEMPLATES:
            _check_template(name, getattr(changed, name))
    if changed.max_chars is not None and changed.mode == "chat":
        raise InvalidRequest(
            f"max_chars is set for {style.name}, whose prompts are whole conversations.", hint="Use memory there."
        )
    return changed


def _check_template(name: str, text: str) -> None:
    """Check that a template names its fields and nothing inside them: it may come from another machine."""
    known = _TEMPLATES[name]
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidRequest(f"prompt.{name}: {error}.", hint="Write {{ and }} for braces.") from error
    for _, field, form, conversion in parts:
        if field is not None and (field not in known or form not in ("", "g") or conversion):
            raise InvalidRequest(
                f"prompt.{name} has no field {{{field}}} of this form.", hint=f"Its fields: {', '.join(known)}."
            )
        if form == "g" and field != "reward":
            raise InvalidRequest(f"prompt.{name}: {{{field}:g}} is no number.", hint=f"Write {{{field}}}.")


def render_prompt(
    style: PromptStyle, turns: Sequence[Turn], memory: int | None, values: Mapping[str, Any]
) -> list[Message]:
    """Build the next prompt.

    Args:
        style: the prompt style.
        turns: the turns played so far.
        memory: how many of them the prompt shows; None for all.
        values: values of the template fields other than step, played, shown, history, guide and notes.
    """
    shown = list(turns if memory is None else turns[max(0, len(turns) - memory) :])
    values = {
        **values,
        "step": len(turns) + 1,
        "played": len(turns),
        "shown": len(shown),
        "guide": style.guide,
        "notes": style.notes,
    }
    if style.mode == "chat":
        return _chat(style, shown, values)
    values["history"] = "\n".join(
        style.entry.format(n=turn.index + 1, observation=turn.observation, action=turn.action) for turn in shown
    )
    content = _fill(style.later if shown else style.first, values)
    if style.max_chars is not None and len(content) > style.max_chars:
        content = _fill(style.first, values)
    return [*_system(style), Message(role="user", content=content)]


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template, leaving out the paragraphs that come out empty; what is filled in is not touched."""
    filled = (paragraph.format(**values) for paragraph in template.split("\n\n"))
    return "\n\n".join(paragraph for paragraph in filled if paragraph)


def _system(style: PromptStyle) -> list[Message]:
    return [Message(role="system", content=style.system)] if style.system else []


def _chat(style: PromptStyle, shown: Sequence[Turn], values: dict[str, Any]) -> list[Message]:
    messages = _system(style)
    for position, turn in enumerate(shown):
        content = turn.info["prompt"]["content"]
        if position == 0 and turn.index > 0:
            # Older turns fell out of the memory: the first message shown must carry the rules.
            past = {**values, **turn.info["prompt"], "observation": turn.observation, "step": turn.index + 1}
            content = _fill(style.first, past)
        messages.append(Message(role="user", content=content))
        messages.append(Message(role="assistant", content=turn.completion.text))
    messages.append(Message(role="user", content=_fill(style.later if shown else style.first, values)))
    return messages


def with_grammar(style: PromptStyle, name: str) -> PromptStyle:
    """Return ``style`` with another grammar over the same tags.

    Raises:
        InvalidRequest: no such grammar, or one that reads other tags than the prompt asks for.
    """
    own, other = style.rules, get_grammar(name)
    if (own.thoughts, own.actions, own.keep_tags) != (other.thoughts, other.actions, other.keep_tags):
        raise InvalidRequest(
            f"The grammar {name} reads other tags than {style.name} asks for.", hint=f"Leave it at {style.grammar}."
        )
    return replace(style, grammar=name)
