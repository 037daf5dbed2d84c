"""The teacher of a supervised start: a hosted model that writes experts' thoughts, or plays itself.

RLVMR's cold start lets a strong model annotate successful trajectories of observations and actions: it infers the step
of thinking that most likely came before each action, and marks it with one of four tags (section 3, "Cold Start").
Every answer is written to a file before it is used, so that a run that was cut off does not ask for it again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...client.policies.base import Context
from ...client.policies.hosted import OVERFLOW, HostedPolicy
from ...envs.turn.grammar import Grammar
from ...envs.turn.prompts import get_style, with_grammar
from ...errors import InvalidRequest, PolicyFailed, RecordError
from ...records import Completion, Message, scrub_tree
from ..recipes import TeacherTable
from .lines import keep_lines

Writer = Callable[[str, Context], Awaitable[str]]
"""(well-formed reply, its turn) -> the reply with a thought, and with the same action."""

FILE = "teacher.jsonl"
COUNTS = ("calls", "recalled", "prompt_tokens", "tokens")


class _Line(msgspec.Struct, omit_defaults=True):
    """One answer in the file; task and turn are for readers, the key alone finds it."""

    key: str
    task: str
    turn: int
    completion: Completion


class Teacher:
    """A hosted model whose answers are kept in a file, and taken from there when the same is asked again.

    Args:
        table: who is asked, and how.
        file: where answers are kept.

    Attributes:
        name: the model's.
        counts: "calls" to the server and answers "recalled" from the file, with their tokens.
        failure: why nothing more is asked; None while the server answers.

    Raises:
        InvalidRequest: the API key is missing.
        RecordError: the file is damaged.
    """

    def __init__(self, table: TeacherTable, file: Path) -> None:
        try:
            self._hosted = HostedPolicy(
                table.model,
                base_url=table.base_url,
                api_key_env=table.api_key_env,
                sampling=table.sampling,
                concurrency=table.concurrency,
                retries=table.retries,
            )
        except InvalidRequest as error:
            hint = "Set the variable that start.teacher.api_key_env names, or leave that setting out."
            raise InvalidRequest(error.detail, hint=hint) from error
        self.name = table.model
        self.counts: Counter[str] = Counter()
        self.failure: PolicyFailed | None = None
        self._slots = asyncio.Semaphore(table.concurrency)
        self._file = file
        keep_lines(file, lambda line: True)  # the last one may be torn
        self._known = {each.key: each.completion for each in _lines(file)}

    async def act(self, context: Context) -> Completion:
        """Return the model's reply to the prompt, from the file where it is there.

        Raises:
            PolicyFailed: the server gave no reply, now or earlier, or refused this prompt.
        """
        key = self._key(context)
        if key in self._known:
            self.counts["recalled"] += 1
        else:
            self._keep(key, context, await self._call(context))
            self.counts["calls"] += 1
        answer = self._known[key]
        self.counts["prompt_tokens"] += answer.prompt_tokens or 0
        self.counts["tokens"] += answer.completion_tokens or 0
        return answer

    async def _call(self, context: Context) -> Completion:
        async with self._slots:
            if self.failure is not None:
                raise self.failure
            try:
                return await self._hosted.act(context)
            except PolicyFailed as error:
                # A server that has answered before refuses this prompt alone.
                if self._known and error.extra.get("upstream_status") in (400, 422):
                    raise
                self.failure = PolicyFailed(
                    f"The teacher gives no answer: {error.detail}",
                    hint=f"Check [start.teacher]. Its answers so far lie in {self._file}: "
                    "the same command goes on from there.",
                )
                raise self.failure from error

    def _keep(self, key: str, context: Context, completion: Completion) -> None:
        self._known[key] = completion
        with open(self._file, "ab") as file:
            file.write(msgspec.json.encode(_Line(key, context.task, context.turn, completion)) + b"\n")

    @property
    def metrics(self) -> dict[str, float]:
        """What was asked, and what the answers in use took, those from the file included."""
        return {f"teacher_{name}": float(self.counts[name]) for name in COUNTS}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._hosted.aclose()

    def _key(self, context: Context) -> str:
        """Return what stands for one question of one turn; the address of the server is no part of it."""
        turn = (context.env, context.task, context.seed, context.attempt, context.turn)
        asked = (self.name, self._hosted.sampling, turn, scrub_tree(context.messages))
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def _lines(file: Path) -> Iterator[_Line]:
    for number, line in enumerate(file.read_bytes().splitlines() if file.is_file() else [], start=1):
        try:
            yield msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError as error:
            raise RecordError(
                f"Line {number} of {file} is damaged: {error}.", hint="Delete it; what it held is asked for again."
            ) from error


class Annotator:
    """Writes thoughts for actions that were taken: asks the teacher, and where it fails follows the rules.

    An answer must hold one thought with a tag of the style, and the very action that was taken. What does not is
    sent back with the reason; after ``attempts`` answers the rules stand in.

    Args:
        teacher: who is asked.
        attempts: answers that are asked for in one turn at most.
        rules: writes by rules.
        turn: turn options of the environment; its grammar decides what a well-formed reply is.

    Attributes:
        counts: "turns", answers "refused" and turns in which rules wrote ("stand_ins").
        complaint: what was wrong with the answer that was refused last.
    """

    def __init__(self, teacher: Teacher, attempts: int, rules: Writer, turn: Mapping[str, Any]) -> None:
        self.teacher = teacher
        self.attempts = attempts
        self.rules = rules
        self.turn = turn
        self.counts: Counter[str] = Counter()
        self.complaint = ""

    async def __call__(self, reply: str, context: Context) -> str:
        """Return a reply with a thought for its action.

        Args:
            reply: a well-formed reply whose thought says nothing.
            context: the turn; ``memory`` keeps what the teacher was told about the episode.

        Raises:
            PolicyFailed: the teacher cannot be reached, or refuses to work.
        """
        grammar = self._grammar(context)
        action = _reading(grammar).parse(reply).action
        story: list[str] = context.memory.setdefault("story", [])
        story.append(_seen(context))
        self.counts["turns"] += 1
        written = await self._asked(grammar, action, context, story)
        if written is None:
            self.counts["stand_ins"] += 1
            written = await self.rules(reply, context)
        story.append(f"The agent's reply:\n{written}")
        return written

    def _grammar(self, context: Context) -> Grammar:
        style, language_rule = get_style(context.style), self.turn.get("language_rule")
        if self.turn.get("grammar") is not None:
            style = with_grammar(style, self.turn["grammar"])
        rules = style.rules
        return rules if language_rule is None else dataclasses.replace(rules, ban_cjk=language_rule)

    async def _asked(self, rules: Grammar, action: str, context: Context, story: list[str]) -> str | None:
        messages = question(rules, action, story)
        for _ in range(self.attempts):
            try:
                answer = await self.teacher.act(dataclasses.replace(context, observation=messages))
            except PolicyFailed as error:
                if self.teacher.failure is not None:
                    raise
                self.complaint = error.detail
                break
            if answer.finish_reason == OVERFLOW:
                self.complaint = "the episode does not fit the model's context"
                break
            written, self.complaint = usable(rules, action, answer.text)
            if written is not None:
                return written
            if answer.finish_reason == "length":
                self.complaint += ", for it was cut off at sampling.max_tokens"
            self.counts["refused"] += 1
            messages = [*messages, *_sent_back(answer.text, self.complaint)]
        return None

    def check(self) -> None:
        """Raise unless the teacher wrote something.

        Raises:
            PolicyFailed: every single turn was left to the rules.
        """
        if self.counts["turns"] and self.counts["stand_ins"] == self.counts["turns"]:
            raise PolicyFailed(
                f"In {self.counts['turns']} turns {self.teacher.name} wrote no thought that can be used "
                f"(at last: {self.complaint}).",
                hint='Name a model that follows directions, or set start.tags = "rules".',
            )

    @property
    def metrics(self) -> dict[str, float]:
        """What was refused, and what rules wrote."""
        return {f"teacher_{name}": float(self.counts[name]) for name in ("turns", "refused", "stand_ins")}


def _reading(rules: Grammar) -> Grammar:
    """Return how answers are read: one thought, then one action, whatever surrounds them; the action as written."""
    return dataclasses.replace(rules, rule="one", lower=False, choices=(), case_sensitive=False)


def usable(rules: Grammar, action: str, answer: str) -> tuple[str | None, str]:
    """Read a teacher's answer.

    Args:
        rules: grammar of the replies.
        action: the action that was taken.
        answer: what the teacher wrote; reasoning of its own before it is dropped.

    Returns:
        The well-formed reply with its thought and the action, and ""; or None and what is wrong with the answer.
    """
    reading, complaint = _reading(rules), ""
    # A model that reasons does so in <think>, which may be the tag that is asked for: the end is tried first.
    for part in (answer.partition("</think>")[2], answer):
        found = reading.parse(part)
        complaint = found.error
        if not complaint and _plain(found.action) != _plain(action):
            complaint = f"the action is {found.action!r:.80}"
        if not complaint:
            written = rules.wrap(action, found.thought, found.tag)
            complaint = rules.parse(written).error
            if not complaint:
                return written, ""
    return None, complaint


def _plain(action: str) -> str:
    return " ".join(action.lower().split())


# What the teacher is told ------------------------------------------------------------------------------

KINDS: Mapping[str, str] = {
    "planning": "takes the whole task apart into a few steps, as a strategy. It belongs to the start of a task, and to "
    "the moment when an old plan has to be replaced by a new one.",
    "explore": "puts forward possibilities where the agent is uncertain or stuck: places not yet visited, objects or "
    "ways of acting not yet tried.",
    "reflection": "looks back for what went wrong and says how to do better. It mostly follows an action that was "
    "refused or did not bring what was hoped for.",
    "monitor": "checks the progress against the plan and names the step that is being worked on. It belongs to "
    "everything that goes as expected.",
}
"""The four tags as RLVMR defines them (section 3.1)."""

TASK = (
    "You write down the thoughts of an agent. It acts in a text environment, turn by turn, and it did well; "
    "its actions were recorded, its thoughts were not. You see what the agent was told, what happened so far and the "
    "action that it took next. Write the thought that led to this action: in the agent's own voice, in English, in one "
    "or two short sentences, from nothing but what the agent could know at that moment. Do not judge the action and do "
    "not choose another one."
)
CHOICE = "Every thought is of one of these kinds; choose the one that fits the situation best:"


def question(rules: Grammar, action: str, story: list[str]) -> list[Message]:
    """Return what the teacher is asked about one turn.

    Args:
        rules: grammar of the replies.
        action: the action that was taken.
        story: the episode so far: by turns what the agent saw and what it replied, with what it sees now at the end.
    """
    end = rules.actions[0]
    told = [TASK]
    if len(rules.thoughts) > 1:
        told.append("\n".join([CHOICE, *(f"- <{tag}>: {KINDS[tag]}" for tag in rules.thoughts)]))
        tag, kind = "TAG", f", with {', '.join(rules.thoughts[:-1])} or {rules.thoughts[-1]} for TAG"
    else:
        tag, kind = rules.thoughts[0], ""
    asked = (
        f"The action that the agent took now:\n{action}\n\nAnswer in exactly this form{kind}:\n"
        f"<{tag}>the thought</{tag}>\n<{end}>{action}</{end}>"
    )
    return [
        Message(role="system", content="\n\n".join(told)),
        Message(role="user", content="\n\n".join([*story, asked])),
    ]


def _seen(context: Context) -> str:
    if context.turn == 0:
        told = "\n\n".join(message["content"] for message in context.messages)
        return f"What the agent was told (directions about the form of replies are for the agent):\n{told}"
    refused = "" if context.info.get("action_valid", True) else "The environment did not accept the action.\n"
    return f"{refused}What the agent saw then:\n{context.text}"


def _sent_back(answer: str, complaint: str) -> list[Message]:
    shown = answer.rpartition("</think>")[2].strip() or "(nothing)"
    again = f"This cannot be used: {complaint}. Answer again, in exactly the form that was asked for."
    return [Message(role="assistant", content=shown), Message(role="user", content=again)]
