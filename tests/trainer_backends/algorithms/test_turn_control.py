"""TDS: which turns are sampled again."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.turn_control.tds import TurnControl


def tds(**given: Any) -> TurnControl:
    made: TurnControl = parts.load("turn_control", "tds", given)()
    made.begin("a")
    return made


def decisions(made: TurnControl, phis: list[float], environment: str = "a", tokens: int = 50) -> list[bool]:
    return [made.decide(environment, phi, tokens) for phi in phis]


def test_the_first_turn_is_kept_and_later_ones_that_do_not_move_are_sampled_again() -> None:
    made = tds(eta=0.1)
    # 0.5 kept; 0.55 and 0.45 too near, 0.7 kept; 0.65 too near to 0.7, 0.5 kept.
    assert decisions(made, [0.5, 0.55, 0.45, 0.7, 0.65, 0.5]) == [False, True, True, False, True, False]
    assert made.previous("a") == 0.5
    assert (made.counters.kept, made.counters.discarded, made.counters.exhausted) == (3, 3, 0)
    assert made.counters.discarded_share == 0.5


def test_the_last_sample_is_kept_when_the_generations_are_used_up() -> None:
    made = tds(eta=0.1, max_generations=2)
    assert decisions(made, [0.5, 0.51, 0.52]) == [False, True, False]
    assert made.previous("a") == 0.52 and made.counters.exhausted == 1
    # The next turn has its own generations, and is compared with the sample that was kept.
    assert decisions(made, [0.615, 0.63]) == [True, False]


def test_b_max_counts_all_generations() -> None:
    assert decisions(tds(eta=0.1, max_generations=1), [0.5, 0.5, 0.5]) == [False] * 3
    assert decisions(tds(eta=0.1, max_generations=4), [0.5] + [0.5] * 4) == [False, True, True, True, False]


def test_a_gamma_of_eta_is_enough() -> None:
    assert decisions(tds(eta=0.25), [0.5, 0.75]) == [False, False]
    assert decisions(tds(), [0.5, 0.5009, 0.5011]) == [False, True, False]  # 1e-3


def test_the_released_rule_has_its_own_threshold_and_lets_equal_signals_pass() -> None:
    made = tds(variant="released")
    assert decisions(made, [0.5, 0.79, 0.5]) == [False, True, False]
    assert decisions(made, [0.81]) == [False]
    assert decisions(tds(), [0.5, 0.5]) == [False, True]


def test_environments_have_their_own_state() -> None:
    made = tds(eta=0.1)
    made.begin("b")
    assert decisions(made, [0.5]) == [False] and decisions(made, [0.51], "b") == [False]
    assert decisions(made, [0.52]) == [True] and decisions(made, [0.8], "b") == [False]
    assert (made.previous("a"), made.previous("b")) == (0.5, 0.8)
    made.begin("a")
    assert made.previous("a") is None


def test_a_finished_environment_is_not_asked_for() -> None:
    made = tds()
    made.decide("a", 0.5, 10)
    made.end("a")
    for call in (lambda: made.decide("a", 0.5, 10), lambda: made.end("a"), lambda: made.decide("b", 0.5, 10)):
        with pytest.raises(InvalidRequest, match="No episode is going on"):
            call()


def test_tds_scores_at_every_turn() -> None:
    """The released recorder has scores for the first call only, so that its rule is dead after turn 2."""
    control = parts.load("token_control", "none")(None, parts.load("signals", "paper")())
    made = tds(eta=0.05, max_generations=2)
    config = made.config
    draw = torch.Generator().manual_seed(0)
    again = []
    for turn in range(12):
        # Every other turn repeats the one before it.
        if turn % 2 == 0:
            rows = 3 * torch.randn(20, 30, generator=draw)
        for generation in range(2):
            control.add(0)
            for row in rows:
                control.step(row.unsqueeze(0), torch.tensor([0]))
            trace = control.remove(0)
            scores, mask = trace.scores_T.unsqueeze(0), trace.loss_mask_T().unsqueeze(0)
            phi = float(config.phi(scores, mask)[0])
            assert phi > 0
            repeat = made.decide("a", phi, int(mask.sum()))
            if generation == 0:
                again.append(repeat)
            if not repeat:
                break
    assert all(again[1::2]) and made.counters.discarded >= 6


def test_a_turn_without_a_signal_is_refused() -> None:
    made = tds()
    with pytest.raises(MissingInput, match="no signal"):
        made.decide("a", None, 10)
    for phi in (math.nan, math.inf):
        with pytest.raises(InvalidRequest, match="signal of a turn"):
            made.decide("a", phi, 10)


def test_short_turns_are_kept_and_not_compared_with() -> None:
    made = tds(eta=0.1, min_tokens=5)
    assert decisions(made, [0.5]) == [False]
    assert decisions(made, [0.5], tokens=4) == [False]
    assert made.decide("a", None, 0) is False
    assert made.previous("a") == 0.5 and made.counters.kept == 3
    assert decisions(made, [0.5], tokens=5) == [True]


def test_phi_is_that_of_the_variant() -> None:
    scores = torch.tensor([[0.25] * 32 + [0.25, 1.0]], dtype=torch.float64)
    mask = torch.ones(1, 34)
    geometric = math.exp(33 * math.log(0.25) / 34)
    assert float(tds().config.phi(scores, mask)) == pytest.approx(geometric)
    assert float(tds(variant="released").config.phi(scores, mask)) == pytest.approx(0.625)
    assert float(tds(mean="arithmetic", skip=33).config.phi(scores, mask)) == 1.0


def test_none_keeps_everything_and_counts() -> None:
    made = parts.load("turn_control", "none")()
    made.begin("a")
    assert [made.decide("a", None, 0) for _ in range(3)] == [False] * 3
    made.end("a")
    assert made.counters.kept == 3
    assert made.config.phi(torch.tensor([[0.25, 0.75]]), torch.ones(1, 2)).tolist() == [0.5]


@pytest.mark.parametrize("given", [{"eta": -1.0}, {"max_generations": 0}, {"floor": 0.0}, {"skip": -1}, {"B_max": 2}])
def test_settings_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="turn_control tds"):
        tds(**given)
