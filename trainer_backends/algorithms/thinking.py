"""The state machine under every token control: one slot per request, in tensors on the logits' device.

Every decoding step goes through :meth:`Control.step`, which looks at the logits and the tokens sampled last, and says
which rows are forced to which token. All of it is tensor work on the device; nothing waits for the host. Requests enter
(:meth:`Control.add`), move and leave (:meth:`Control.remove`) as an engine batches them; no two ever share state.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidRequest, MissingInput
from .markers import Markers
from .parts import PartConfig
from .slots import Field, Slots
from .uncertainty import Signal

Cause = Literal["stagnation", "budget"]
STAGNATION, BUDGET, _GOES_ON = 1, 2, 3
"""Records of forced tokens: the first of a forced queue says why, the others go on; 0 is a sampled token."""
_CAUSES: dict[int, Cause] = {STAGNATION: "stagnation", BUDGET: "budget"}
_NO_TOKEN, _ANY_TOKEN = -2, -1


class ThinkingConfig(PartConfig, frozen=True):
    r"""Settings that every control of thinking shares.

    Attributes:
        opening: tag that opens thinking.
        closing: tag that closes it.
        then: what is forced after the closing tag; None for what the control's source forces, "\n<action>" unless it
            says otherwise.
        train_forced_tokens: whether forced tokens are trained. False (default): their loss mask is 0. Where True, old
            log-probabilities must be those of the unforced policy (the trainer's own pass over the tokens).
    """

    opening: str = "<think>"
    closing: str = "</think>"
    then: str | None = None
    train_forced_tokens: bool = False

    def markers(self, tokenizer: Any) -> Markers:
        """Return the tags as token ids of a transformers tokenizer; see :meth:`Markers.of` for errors."""
        then = self.after if self.then is None else self.then
        return Markers.of(tokenizer, opening=self.opening, closing=self.closing, then=then)

    @property
    def after(self) -> str:
        """What the control's source forces after the closing tag."""
        return "\n<action>"


class Step(NamedTuple):
    """What a rule decides from, each of shape (B,).

    Attributes:
        t: place of the token about to be sampled in the reply, from 1.
        inside: whether thinking is open.
        since: tokens of the thinking so far, its tag not counted.
        scores: signal of the token about to be sampled; None where the control has no signal.
        interventions: how often this request was forced before.
    """

    t: Tensor
    inside: Tensor
    since: Tensor
    scores: Tensor | None
    interventions: Tensor


class Decision(NamedTuple):
    """What a rule decided, each of shape (B,); it only counts while thinking is open and nothing is being forced.

    Attributes:
        now: force from this token on.
        next: force from the next token on, unless this one ends the thinking.
        cause: STAGNATION or BUDGET.
    """

    now: Tensor
    next: Tensor
    cause: Tensor


class Rule(abc.ABC):
    """When to end the thinking of a request.

    Attributes:
        fields: what the rule remembers of each request.
        forces: whether it ever does.
    """

    fields: Mapping[str, Field] = {}
    forces: bool = True

    @abc.abstractmethod
    def decide(self, step: Step, memory: dict[str, Tensor]) -> Decision:
        """Return the decision for B requests, and bring ``memory`` up to date."""


class Forced(NamedTuple):
    """Outcome of a step.

    Attributes:
        mask_B: bool; rows that are forced.
        tokens_B: int; to which token, where the mask is set.
    """

    mask_B: Tensor
    tokens_B: Tensor


@dataclass(frozen=True)
class Trace:
    """What is known of a request's T tokens when it leaves; all lie on the device of the logits.

    Attributes:
        codes_T: int8; 0 where the token was sampled, else how it was forced.
        scores_T: the signal of every token; None where the control has no signal.
        entropies_T: entropy of every distribution in nats, before temperature; None without a signal.
    """

    codes_T: Tensor
    scores_T: Tensor | None = None
    entropies_T: Tensor | None = None

    @property
    def forced_T(self) -> Tensor:
        """Bool; tokens that were forced."""
        return self.codes_T > 0

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why tokens were forced, in order; waits for the device."""
        return tuple(_CAUSES[code] for code in self.codes_T.tolist() if code in _CAUSES)

    def loss_mask_T(self, train_forced_tokens: bool = False) -> Tensor:
        """Return 1 for every token that is trained, as int64: all but the forced ones, unless those are wanted too."""
        return torch.ones_like(self.codes_T, dtype=torch.long) if train_forced_tokens else (~self.forced_T).long()

    def cut(self, length: int) -> Trace:
        """Return the first ``length`` tokens."""
        scores, entropies = (None if each is None else each[:length] for each in (self.scores_T, self.entropies_T))
        return Trace(self.codes_T[:length], scores, entropies)


_CORE = {
    "active": Field(False, torch.bool),
    "steps": Field(0, torch.long),
    "inside": Field(False, torch.bool),
    "since": Field(0, torch.long),
    "position": Field(-1, torch.long),
    "pending": Field(0, torch.long),
    "interventions": Field(0, torch.long),
}
_SPARE = 64
"""Tokens by which the records are lengthened at least."""


class Control:
    """Token control of a batch of requests.

    Args:
        rule: when to force.
        markers: thinking tags and what is forced.
        signal: what the rule looks at; its values are recorded for turn control.
        device: device of the logits.
        dtype: float type of the state; that of the logits, float32 for half precision.

    Raises:
        MissingInput: the rule forces, and the markers have no closing tag or nothing to force.
    """

    def __init__(
        self,
        rule: Rule,
        markers: Markers,
        signal: Signal | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if rule.forces and not (markers.closing and markers.queue):
            raise MissingInput("There are no tags to end thinking with.", hint="Give the config's markers(tokenizer).")
        self.rule, self.markers, self.signal = rule, markers, signal
        self.device = torch.device(device)
        width = max(map(len, (*markers.opening, *markers.closing)), default=1)
        records = {"codes": Field(0, torch.int8, _SPARE)}
        if signal is not None:
            records |= {"scores": Field(0.0, None, _SPARE), "entropies": Field(0.0, None, _SPARE)}
        fields = _CORE | {"recent": Field(_NO_TOKEN, torch.long, width)} | dict(rule.fields)
        fields |= {} if signal is None else dict(signal.fields)
        self.slots = Slots(fields | records, device=device, dtype=dtype)
        self._records = tuple(records)
        self._opening, self._closing = (_patterns(each, width, device) for each in (markers.opening, markers.closing))
        self._queue = torch.tensor(markers.queue or (0,), dtype=torch.long, device=device)
        self._calls = 0
        self._since_call: dict[int, int] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._since_call

    def __len__(self) -> int:
        return len(self._since_call)

    def add(self, slot: int, prompt_ids: Sequence[int] = (), *, thinking: bool | None = None) -> None:
        """Let a request into a slot.

        Args:
            slot: which; its row in the batch, unless ``step`` is told otherwise.
            prompt_ids: its prompt; thinking is open from the start where the prompt ends with the opening tag.
            thinking: whether it is open, where the caller knows better.

        Raises:
            InvalidRequest: the slot is taken.
        """
        if slot in self._since_call:
            raise InvalidRequest(f"Slot {slot} holds a request.", hint="Remove that one first.")
        self.slots.grow(slot + 1)
        self.slots.clear(slot)
        self._since_call[slot] = self._calls
        self.slots["active"][slot] = True
        self.slots["inside"][slot] = self.markers.opened_by(prompt_ids) if thinking is None else thinking

    def remove(self, slot: int) -> Trace:
        """Let a request out and clear its slot; this waits for the device once.

        Raises:
            InvalidRequest: the slot is free.
        """
        self._taken(slot)
        length = int(self.slots["steps"][slot])
        kept = {name: self.slots[name][slot, :length].clone() for name in self._records}
        self.slots.clear(slot)
        del self._since_call[slot]
        return Trace(kept["codes"], kept.get("scores"), kept.get("entropies"))

    def move(self, source: int, target: int, *, swap: bool = False) -> None:
        """Move a request to another slot, or swap two.

        Raises:
            InvalidRequest: there is no request to move, or the target holds one and ``swap`` is not set.
        """
        self._taken(source)
        if swap:
            self._taken(target)
        elif target in self._since_call:
            raise InvalidRequest(f"Slot {target} holds a request.", hint="Remove that one first, or swap.")
        self.slots.grow(target + 1)
        self.slots.move(source, target, swap=swap)
        moved = self._since_call.pop(source)
        if swap:
            self._since_call[source] = self._since_call[target]
        self._since_call[target] = moved

    def _taken(self, slot: int) -> None:
        if slot not in self._since_call:
            raise InvalidRequest(f"Slot {slot} holds no request.", hint="Add one first.")

    @torch.no_grad()
    def step(self, logits_BV: Tensor, last_tokens_B: Tensor, slots_B: Tensor | None = None) -> Forced:
        """Look at one decoding step of B requests; call it once for every token that is sampled.

        Args:
            logits_BV: float; logits before temperature and top-p. They are not changed; see :func:`overwrite`.
            last_tokens_B: int; the token before: the one sampled last, or, at a request's first step, any.
            slots_B: int; slot of each row; None for 0 … B-1. Rows of free slots are never forced.

        Returns:
            Which rows to force, and to what.
        """
        rows = len(logits_BV)
        self._lengthen()
        if slots_B is None:
            self.slots.grow(rows)
        which = slice(0, rows) if slots_B is None else slots_B
        state = self.slots.read((*_CORE, "recent"), which)
        active, pending, position = state["active"], state["pending"], state["position"]
        self._follow(state, last_tokens_B)
        starting = (pending > 0) & state["inside"]
        idle = position < 0
        step = Step(state["steps"] + 1, state["inside"], state["since"], None, state["interventions"])
        decision, records = self._decide(step, logits_BV, which)
        free = active & idle & ~starting & state["inside"]
        now = decision.now & free
        begins = (starting | now) & active
        position = torch.where(begins, 0, position)
        force = active & (position >= 0)
        reason = torch.where(starting, pending, decision.cause)
        records["codes"] = torch.where(begins, reason, torch.where(force, _GOES_ON, 0)).to(torch.int8)
        place = (torch.arange(rows, device=self.device) if slots_B is None else slots_B, state["steps"])
        for name, values in records.items():
            self.slots[name].index_put_(place, values)
        tokens = self._queue[position.clamp_min(0)]
        state["pending"] = torch.where(decision.next & free & ~now, decision.cause, 0)
        state["position"] = torch.where(force & (position + 1 < len(self._queue)), position + 1, -1)
        state["interventions"] = state["interventions"] + begins
        state["steps"] = state["steps"] + active
        self.slots.write(state, which)
        return Forced(force, tokens)

    def _lengthen(self) -> None:
        """Have room in the records for one more token of the oldest request."""
        self._calls += 1
        oldest = min(self._since_call.values(), default=self._calls)
        needed = self._calls - oldest
        for name in self._records:
            if needed > self.slots.fields[name].width:
                self.slots.widen(name, max(needed + _SPARE, 2 * self.slots.fields[name].width))

    def _follow(self, state: dict[str, Tensor], last_tokens_B: Tensor) -> None:
        """Note the token sampled last and whether it opened or closed the thinking."""
        first = state["steps"] == 0
        token = torch.where(first, _NO_TOKEN, last_tokens_B)
        state["recent"] = recent = torch.cat([state["recent"][:, 1:], token.unsqueeze(-1)], -1)
        opened, closed = _matches(recent, self._opening), _matches(recent, self._closing)
        state["inside"] = (state["inside"] | opened) & ~closed
        state["since"] = torch.where(first | opened, 0, state["since"] + 1)

    def _decide(self, step: Step, logits_BV: Tensor, which: Tensor | slice) -> tuple[Decision, dict[str, Tensor]]:
        """Ask the signal and the rule; return the decision and what to record of this token."""
        records: dict[str, Tensor] = {}
        if self.signal is not None:
            statistics = self.signal.statistics(logits_BV)
            statistics = statistics._replace(
                entropy=statistics.entropy.to(self.slots.dtype), confidence=statistics.confidence.to(self.slots.dtype)
            )
            memory = self.slots.read(self.signal.fields, which)
            scores = self.signal.online(statistics, memory)
            self.slots.write(memory, which)
            step = step._replace(scores=scores)
            records = {"scores": scores, "entropies": statistics.entropy}
        memory = self.slots.read(self.rule.fields, which)
        decision = self.rule.decide(step, memory)
        self.slots.write(memory, which)
        return decision, records


def overwrite(logits_BV: Tensor, forced: Forced, *, inplace: bool = False) -> Tensor:
    """Return the logits with every forced row at -inf but for its token, which has 0.

    Args:
        logits_BV: float.
        forced: outcome of :meth:`Control.step` for the same rows.
        inplace: change ``logits_BV`` itself, as vLLM wants it.
    """
    mask_B, tokens_B = forced
    # A look at the mask is free on the CPU and saves a pass over the logits; on other devices it would wait for them.
    if mask_B.device.type == "cpu" and not bool(mask_B.any()):
        return logits_BV
    out = logits_BV if inplace else logits_BV.clone()
    out.masked_fill_(mask_B.unsqueeze(-1), -torch.inf)
    column = tokens_B.unsqueeze(-1)
    return out.scatter_(-1, column, torch.where(mask_B.unsqueeze(-1), 0.0, out.gather(-1, column)))


def _patterns(sequences: tuple[tuple[int, ...], ...], width: int, device: torch.device | str) -> Tensor:
    """Return the sequences as rows that end on the right, filled up with "any token"."""
    rows = [(_ANY_TOKEN,) * (width - len(each)) + each for each in sequences]
    return torch.tensor(rows, dtype=torch.long, device=device).view(-1, width)


def _matches(recent_BL: Tensor, patterns_PL: Tensor) -> Tensor:
    """Return for every row whether its last tokens are one of the sequences."""
    same = (recent_BL.unsqueeze(1) == patterns_PL) | (patterns_PL == _ANY_TOKEN)
    return same.all(-1).any(-1)
