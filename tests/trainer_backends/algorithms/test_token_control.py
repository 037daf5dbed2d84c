"""Token control: when thinking is ended, what is forced, and that requests never share anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.markers import Markers
from turngym.trainer_backends.algorithms.thinking import Control, Forced, Trace, overwrite

OPEN, CLOSE, NEWLINE, ACT, WORD, SPACE = 6, 7, 8, 9, 3, 5
VOCABULARY = 10
MARKERS = Markers(opening=((OPEN,),), closing=((CLOSE,),), queue=(CLOSE, NEWLINE, ACT), blank=frozenset({SPACE}))
Json = dict[str, Any]


def control(
    part: str = "tti", given: Json | None = None, markers: Markers = MARKERS, signal: str = "released"
) -> Control:
    made: Control = parts.load("token_control", part, given or {})(markers, parts.load("signals", signal)())
    return made


def frozen(token: int = WORD, level: float = 2.0) -> torch.Tensor:
    row = torch.zeros(VOCABULARY)
    row[token] = level
    return row


def reply(made: Control, rows: list[torch.Tensor], *, slot: int = 0, **entry: Any) -> tuple[list[int], Trace]:
    """Generate alone: the likeliest token of every row of logits, unless one is forced."""
    made.add(slot, **entry)
    tokens = [0]
    for row in rows:
        tokens.append(step(made, row.expand(slot + 1, -1), [tokens[-1]] * (slot + 1))[slot])
    return tokens[1:], made.remove(slot)


def step(made: Control, logits: torch.Tensor, last: list[int], slots: torch.Tensor | None = None) -> list[int]:
    forced = made.step(logits, torch.tensor(last), slots)
    chosen: list[int] = overwrite(logits, forced).argmax(-1).tolist()
    return chosen


SMALL: Json = {"window": 3, "min_tokens": 0, "budget": 1000}


# --- the paper's rule ---


def test_still_thinking_is_ended_once_by_the_whole_queue() -> None:
    tokens, trace = reply(control(given=SMALL), [frozen()] * 12, thinking=True)
    # Deltas exist from token 2, four of them at token 5; the queue is tokens 6 to 8.
    assert tokens == [WORD] * 5 + [CLOSE, NEWLINE, ACT] + [WORD] * 4
    assert trace.forced_T.tolist() == [False] * 5 + [True] * 3 + [False] * 4
    assert trace.causes == ("stagnation",)


def test_it_is_not_ended_a_second_time_even_if_thinking_opens_again() -> None:
    rows = [frozen()] * 9 + [frozen(OPEN)] + [frozen()] * 20
    tokens, trace = reply(control(given=SMALL), rows, thinking=True)
    assert tokens.count(CLOSE) == 1 and trace.causes == ("stagnation",)


def test_min_tokens_hold_stagnation_back() -> None:
    tokens, _ = reply(control(given=SMALL | {"min_tokens": 7}), [frozen()] * 12, thinking=True)
    assert tokens.index(CLOSE) == 8  # t* = 8 > 7, forced as token 9


def test_the_budget_ends_moving_thoughts() -> None:
    rows = [frozen(level=1.0 + step % 5) for step in range(12)]
    tokens, trace = reply(control(given=SMALL | {"budget": 6}), rows, thinking=True)
    assert tokens[:9] == [WORD] * 6 + [CLOSE, NEWLINE, ACT] and trace.causes == ("budget",)


def test_the_mean_forgives_a_spike_that_the_released_rule_does_not() -> None:
    # One Delta of about 0.02 among zeros: its mean over 4 stays below 0.01.
    rows = [frozen(level=2.0)] * 3 + [frozen(level=2.05)] * 9
    settings = SMALL | {"epsilon": 0.01}
    spike = 0.6 * abs(float(rows[0].log_softmax(-1).max() - rows[3].log_softmax(-1).max()))
    assert 0.01 < spike < 0.03
    tokens, _ = reply(control(given=settings), rows, thinking=True)
    assert tokens.index(CLOSE) == 5
    tokens, _ = reply(control(given=settings | {"variant": "released"}), rows, thinking=True)
    # Steps 5, 6, 7 are the first three small ones after the spike at step 4; forced in place of token 7.
    assert tokens.index(CLOSE) == 6


def test_the_window_forgets_what_is_older() -> None:
    rows = [frozen(level=1.0), frozen(level=5.0)] + [frozen(level=5.0)] * 12
    tokens, _ = reply(control(given=SMALL), rows, thinking=True)
    # The large Delta is that of token 2: it has left the window of 4 at token 6.
    assert tokens.index(CLOSE) == 6


def test_outside_the_thinking_nothing_is_forced() -> None:
    tokens, trace = reply(control(given=SMALL | {"budget": 5}), [frozen()] * 20)
    assert tokens == [WORD] * 20 and not trace.forced_T.any()
    closed = [frozen()] * 3 + [frozen(CLOSE)] + [frozen()] * 20
    tokens, _ = reply(control(given=SMALL | {"budget": 5}), closed, thinking=True)
    assert tokens.count(CLOSE) == 1


def test_thinking_that_ends_by_itself_at_the_last_moment_is_not_ended_twice() -> None:
    rows = [frozen()] * 4 + [frozen(CLOSE)] + [frozen()] * 8
    tokens, trace = reply(control(given=SMALL), rows, thinking=True)
    assert tokens == [WORD] * 4 + [CLOSE] + [WORD] * 8 and trace.causes == ()


# --- the released rule and the budget ---


def test_released_forces_at_once_and_again() -> None:
    markers = Markers(opening=((OPEN,),), closing=((CLOSE,),), queue=(CLOSE,))
    made = control(given=SMALL | {"variant": "released"}, markers=markers)
    rows = [frozen(OPEN)] + [frozen()] * 6 + [frozen(OPEN)] + [frozen()] * 5
    tokens, trace = reply(made, rows)
    # The tag is token 1; its successor starts a new level, then three small Deltas.
    assert tokens[:5] == [OPEN, WORD, WORD, CLOSE, WORD]
    assert tokens.count(CLOSE) == 2 and trace.causes == ("stagnation", "stagnation")


def test_released_counts_a_delta_of_exactly_the_tolerance_and_the_paper_does_not() -> None:
    settings = SMALL | {"epsilon": 0.0}
    tokens, _ = reply(control(given=settings | {"variant": "released"}), [frozen()] * 12, thinking=True)
    assert CLOSE in tokens
    tokens, _ = reply(control(given=settings), [frozen()] * 12, thinking=True)
    assert CLOSE not in tokens


def test_released_counts_its_budget_from_the_opening_tag_and_tests_it_first() -> None:
    made = control(given=SMALL | {"variant": "released", "window": 4, "budget": 3})
    rows = [frozen(), frozen(), frozen(OPEN)] + [frozen()] * 8
    tokens, trace = reply(made, rows)
    # Token 7 is the fourth small step too.
    assert tokens[:7] == [WORD, WORD, OPEN] + [WORD] * 3 + [CLOSE]
    assert trace.causes[0] == "budget"


def test_a_hard_budget_alone() -> None:
    tokens, trace = reply(control("budget", {"budget": 3}), [frozen(OPEN)] + [frozen()] * 9)
    assert tokens == [OPEN, WORD, WORD, WORD, CLOSE, NEWLINE, ACT, WORD, WORD, WORD]
    assert trace.causes == ("budget",)
    again = [frozen(OPEN)] + [frozen()] * 7 + [frozen(OPEN)] + [frozen()] * 9
    tokens, _ = reply(control("budget", {"budget": 3}), again)
    assert tokens.count(CLOSE) == 2
    tokens, _ = reply(control("budget", {"budget": 0}), [frozen()] * 4, thinking=True)
    assert tokens == [CLOSE, NEWLINE, ACT, WORD]


def test_no_control_records_and_forces_nothing() -> None:
    assert parts.load("token_control", "none").config.markers(None) == Markers()
    tokens, trace = reply(control("none"), [frozen()] * 30, thinking=True)
    assert tokens == [WORD] * 30 and not trace.forced_T.any()
    assert trace.scores_T is not None and trace.scores_T.shape == (30,)


# --- tags ---


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [([1, OPEN], True), ([OPEN, SPACE], True), ([OPEN, 1], False), ([OPEN, CLOSE], False), ([], False)],
)
def test_thinking_is_open_where_the_prompt_ends_with_the_tag(prompt: list[int], inside: bool) -> None:
    tokens, _ = reply(control("budget", {"budget": 2}), [frozen()] * 6, prompt_ids=prompt)
    assert (CLOSE in tokens) == inside


def test_tags_of_several_tokens() -> None:
    markers = Markers(opening=((1, 2), (1, 4, 2)), closing=((2, 1),), queue=(2, 1, ACT))
    rows = [frozen(token) for token in (1, 4, 2, WORD, WORD, WORD, WORD, 1, 2, 2, 1, WORD, WORD, WORD)]
    tokens, trace = reply(control("budget", {"budget": 2}, markers), rows)
    # Opened by 1 4 2; two tokens; closed by force; opened again by 1 2, closed by its own 2 1.
    assert tokens == [1, 4, 2, WORD, WORD, 2, 1, ACT, 2, 2, 1, WORD, WORD, WORD]
    assert trace.causes == ("budget",)


# --- forced tokens ---


def test_forced_tokens_masked() -> None:
    _, trace = reply(control(given=SMALL), [frozen()] * 12, thinking=True)
    assert trace.loss_mask_T().tolist() == [1] * 5 + [0] * 3 + [1] * 4
    assert trace.loss_mask_T(train_forced_tokens=True).tolist() == [1] * 12
    assert not parts.load("token_control", "tti").config.train_forced_tokens


def test_a_forced_row_leaves_one_token_and_the_others_alone() -> None:
    logits = torch.randn(3, 5)
    logits[1, 2] = -math.inf
    forced = Forced(torch.tensor([False, True, False]), torch.tensor([0, 2, 4]))
    kept = logits.clone()
    out = overwrite(logits, forced)
    assert out[1].tolist() == [-math.inf, -math.inf, 0.0, -math.inf, -math.inf]
    assert torch.equal(out[[0, 2]], kept[[0, 2]]) and torch.equal(logits, kept)
    assert overwrite(logits, forced, inplace=True) is logits and torch.equal(logits, out)


def test_a_trace_is_cut_to_the_tokens_that_count() -> None:
    _, trace = reply(control(given=SMALL), [frozen()] * 12, thinking=True)
    short = trace.cut(6)
    assert short.forced_T.tolist() == [False] * 5 + [True] and short.scores_T is not None
    assert short.scores_T.shape == short.forced_T.shape and trace.cut(5).causes == ()


def test_what_is_recorded_is_the_unforced_distribution() -> None:
    rows = [frozen(level=1.0 + step) for step in range(9)]
    _, trace = reply(control("budget", {"budget": 4}), rows, thinking=True)
    logp = torch.stack(rows).log_softmax(-1)
    entropies = -(logp.exp() * logp).sum(-1)
    assert trace.entropies_T is not None and trace.scores_T is not None
    torch.testing.assert_close(trace.entropies_T, entropies)
    certainty = 0.6 * logp.amax(-1) + 0.4 * (1 - entropies / math.log(VOCABULARY))
    torch.testing.assert_close(trace.scores_T, certainty)


# --- many requests ---


def test_tti_state_isolation_between_sequences() -> None:
    """The released processor compares scores of different sequences, and cuts the 20th of 32 equal ones at once."""
    for variant in ("paper", "released"):
        made = control(given=SMALL | {"variant": variant, "window": 20})
        for slot in range(32):
            made.add(slot, thinking=True)
        logits = torch.stack([frozen(level=1.0 + slot % 2) for slot in range(32)])
        last = [0] * 32
        for number in range(1, 30):
            last = step(made, logits, last)
            # Paper: 21 Deltas at token 22, forced from 23 on; released: 20 small ones, in place of token 21.
            expected = CLOSE if number == (23 if variant == "paper" else 21) else None
            if expected is not None:
                assert last == [CLOSE] * 32
                break
            assert last == [WORD] * 32


@dataclass
class Player:
    """A request with its own logits, generated token by token."""

    rows: list[torch.Tensor]
    prompt: list[int]
    tokens: list[int] = field(default_factory=lambda: [0])

    @property
    def done(self) -> bool:
        return len(self.tokens) > len(self.rows)


def players(seed: int) -> list[Player]:
    draw = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(6):
        length = int(torch.randint(4, 16, (1,), generator=draw))
        rows = []
        while len(rows) < length:
            row = 3 * torch.randn(VOCABULARY, generator=draw)
            rows += [row] * int(torch.randint(1, 8, (1,), generator=draw))
        made.append(Player(rows[:length], [OPEN] if torch.rand(1, generator=draw) < 0.7 else [WORD]))
    return made


CONTROLS = [
    ("tti", SMALL | {"window": 2}, "paper"),
    ("tti", SMALL | {"window": 2, "variant": "released", "budget": 6}, "released"),
    ("budget", {"budget": 3}, "paper"),
]


@pytest.mark.parametrize(("part", "given_", "signal"), CONTROLS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_a_request_in_any_batch_is_as_it_is_alone(part: str, given_: Json, signal: str, seed: int) -> None:
    alone = [reply(control(part, given_, signal=signal), each.rows, prompt_ids=each.prompt) for each in players(seed)]
    made = control(part, given_, signal=signal)
    draw = torch.Generator().manual_seed(seed)
    everyone = players(seed)
    waiting, placed, traces = list(range(len(everyone))), dict[int, int](), dict[int, Trace]()

    def chance(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=draw))

    while waiting or placed:
        free = [slot for slot in range(4) if slot not in placed]
        if waiting and free and chance(3):
            slot = free[chance(len(free))]
            placed[slot] = waiting.pop(0)
            made.add(slot, everyone[placed[slot]].prompt)
        taken = sorted(placed)
        if len(taken) > 1 and not chance(3):
            made.move(taken[0], taken[1], swap=True)
            placed[taken[0]], placed[taken[1]] = placed[taken[1]], placed[taken[0]]
        free = [slot for slot in range(4) if slot not in placed]
        if taken and free and not chance(3):
            made.move(taken[0], free[0])
            placed[free[0]] = placed.pop(taken[0])
        # The rows of some slots in any order, or of all, taken or not.
        order = [slot for slot in placed if chance(4)]
        if chance(2):
            order = list(range(max(placed, default=0) + 1))
        if not order:
            continue
        now = [everyone[placed[slot]] if slot in placed else None for slot in order]
        logits = torch.stack([torch.zeros(VOCABULARY) if p is None else p.rows[len(p.tokens) - 1] for p in now])
        dense = order == list(range(len(order)))
        chosen = step(
            made, logits, [0 if p is None else p.tokens[-1] for p in now], None if dense else torch.tensor(order)
        )
        for slot, player, token in zip(order, now, chosen, strict=True):
            if player is not None:
                player.tokens.append(token)
                if player.done:
                    number = placed.pop(slot)
                    traces[number] = made.remove(slot)
    for number, (tokens, trace) in enumerate(alone):
        assert everyone[number].tokens[1:] == tokens
        assert traces[number].codes_T.tolist() == trace.codes_T.tolist()
        assert trace.scores_T is not None
        torch.testing.assert_close(traces[number].scores_T, trace.scores_T)


def test_a_slot_is_cleared_for_the_next_request() -> None:
    made = control(given=SMALL)
    first = reply(made, [frozen()] * 7, thinking=True)
    assert first[0][5:] == [CLOSE, NEWLINE]  # it leaves in the middle of the queue
    assert reply(made, [frozen()] * 12, thinking=True)[0] == [WORD] * 5 + [CLOSE, NEWLINE, ACT] + [WORD] * 4


def test_recorder_memory_bounded() -> None:
    made = control("none")

    def held() -> int:
        return sum(made.slots[name].numel() for name in made.slots.fields)

    reply(made, [frozen()] * 100)
    first = held()
    for _ in range(5):
        _, trace = reply(made, [frozen()] * 100)
        assert len(trace.forced_T) == 100
    assert held() == first and len(made) == 0


def test_long_replies_are_recorded_whole() -> None:
    rows = [frozen(level=1.0 + step / 100) for step in range(300)]
    _, trace = reply(control("none"), rows)
    assert trace.entropies_T is not None
    assert (trace.entropies_T.diff() < 0).all() and len(trace.entropies_T) == 300


def test_a_step_never_waits_for_the_device() -> None:
    """On the meta device whatever asks for a value raises."""
    for part, given_, signal in CONTROLS:
        made: Control = parts.load("token_control", part, given_)(
            MARKERS, parts.load("signals", signal)(), device="meta"
        )
        for slot in range(3):
            made.add(slot, [OPEN])
        for slots in (None, torch.arange(3, device="meta")):
            for _ in range(3):
                logits = torch.zeros(3, VOCABULARY, device="meta")
                overwrite(logits, made.step(logits, torch.zeros(3, dtype=torch.long, device="meta"), slots))


def test_half_precision_logits() -> None:
    made = control(given=SMALL)
    made.add(0, thinking=True)
    for _ in range(5):
        made.step(frozen().to(torch.bfloat16).unsqueeze(0), torch.tensor([WORD]))
    out = made.step(frozen().to(torch.bfloat16).unsqueeze(0), torch.tensor([WORD]))
    assert out.mask_B.tolist() == [True] and out.tokens_B.tolist() == [CLOSE]


def test_misuse_is_refused() -> None:
    made = control(given=SMALL)
    made.add(1)
    assert 1 in made and 0 not in made
    with pytest.raises(InvalidRequest, match="Slot 1 holds a request"):
        made.add(1)
    with pytest.raises(InvalidRequest, match="Slot 0 holds no request"):
        made.remove(0)
    with pytest.raises(InvalidRequest, match="Slot 0 holds no request"):
        made.move(1, 0, swap=True)
    made.add(0)
    with pytest.raises(InvalidRequest, match="Slot 1 holds a request"):
        made.move(0, 1)
    with pytest.raises(MissingInput, match="signal"):
        parts.load("token_control", "tti")(MARKERS)
    for markers in (Markers(queue=(CLOSE,)), Markers(closing=((CLOSE,),))):
        with pytest.raises(MissingInput, match="no tags"):
            control("budget", markers=markers)


@pytest.mark.parametrize("given_", [{"epsilon": -1.0}, {"window": 0}, {"min_tokens": -1}, {"budget": 0}, {"N": 20}])
def test_settings_out_of_range_are_refused(given_: Json) -> None:
    with pytest.raises(InvalidRequest, match="token_control tti"):
        parts.load("token_control", "tti", given_)
    if "budget" in given_:
        with pytest.raises(InvalidRequest, match="token_control budget"):
            parts.load("token_control", "budget", {"budget": -1})
