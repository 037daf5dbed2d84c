"""Uncertainty signals and the signal of a turn."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.uncertainty import Signal, Statistics, statistics, turn_signal

SIGNALS: list[tuple[str, dict[str, Any]]] = [
    ("released", {}),
    ("paper", {}),
    ("paper", {"normalisation": "range", "top_j": 3}),
    ("paper", {"sign": "literal", "alpha": 0.8}),
]


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def signal(part: str, **given: Any) -> Signal:
    made: Signal = parts.load("signals", part, given)()
    return made


def test_entropy_and_confidence_of_the_likeliest_tokens() -> None:
    p = double([0.5, 0.25, 0.125, 0.125])
    logits = (p.log() + 7).expand(2, 3, 4)
    entropy = 1.75 * math.log(2.0)
    for j, confidence in ((1, math.log(2.0)), (2, 1.5 * math.log(2.0)), (4, 2.25 * math.log(2.0))):
        found = statistics(logits, j)
        torch.testing.assert_close(found.entropy, torch.full((2, 3), entropy, dtype=torch.float64))
        torch.testing.assert_close(found.confidence, torch.full((2, 3), confidence, dtype=torch.float64))
        assert found.vocabulary == 4
    with pytest.raises(InvalidRequest, match="top_j"):
        statistics(logits, 5)


def test_the_released_score_is_a_certainty_of_raw_logits() -> None:
    logits = double([[[0.0, 0.0, 0.0, 0.0], [math.log(97.0), 0.0, 0.0, 0.0]]])
    entropy = -(0.97 * math.log(0.97) + 3 * 0.01 * math.log(0.01))
    found = signal("released").scores(statistics(logits))
    flat = 0.6 * -math.log(4.0)
    sharp = 0.6 * math.log(0.97) + 0.4 * (1 - entropy / math.log(4.0))
    torch.testing.assert_close(found, double([[flat, sharp]]))
    assert float(signal("released", alpha=1.0).scores(statistics(logits))[0, 1]) == pytest.approx(
        1 - entropy / math.log(4.0)
    )


ENTROPY, CONFIDENCE = double([[1.0, 3.0, 2.0, 5.0]]), double([[2.0, 2.0, 1.0, 3.0]])


def found(**given: Any) -> list[float]:
    scores = signal("paper", alpha=0.25, **given).scores(Statistics(ENTROPY, CONFIDENCE, 100))
    values: list[float] = scores[0].tolist()
    return values


def test_the_paper_signal_over_the_trajectory() -> None:
    # Entropies in [1, 5], confidences in [1, 3].
    confidence = (0.5, 0.5, 0.0, 1.0)
    pairs = list(zip((0.0, 0.5, 0.25, 1.0), confidence, strict=True))
    assert found(normalisation="trajectory") == pytest.approx([0.25 * h + 0.75 * c for h, c in pairs])
    literal = [0.25 * h + 0.75 * (1 - c) for h, c in pairs]
    assert found(normalisation="trajectory", sign="literal") == pytest.approx(literal)


def test_the_paper_signal_as_it_runs() -> None:
    # Ranges so far: none, [1, 3], [1, 3], [1, 5]; none, none, [1, 2], [1, 3].
    pairs = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (1.0, 1.0)]
    assert found() == pytest.approx([0.25 * h + 0.75 * c for h, c in pairs])


def test_the_paper_signal_on_a_fixed_range() -> None:
    top = math.log(100.0)
    pairs = [(1.0, 2.0), (3.0, 2.0), (2.0, 1.0), (top, 3.0)]
    assert found(normalisation="range") == pytest.approx([(0.25 * h + 0.75 * c) / top for h, c in pairs])


def test_the_fixed_sign_orders_distributions_by_doubt_and_the_literal_one_cancels() -> None:
    sharpness = double([8.0, 4.0, 2.0, 1.0, 0.0])
    logits = torch.stack([sharpness, torch.zeros(5, dtype=torch.float64)], -1)
    doubt = statistics(logits.unsqueeze(0))
    fixed = signal("paper", normalisation="trajectory").scores(doubt)[0]
    assert (fixed.diff() > 0).all() and fixed[0] == 0 and fixed[-1] == 1
    literal = signal("paper", normalisation="trajectory", sign="literal", alpha=0.5).scores(doubt)[0]
    assert float(literal.max() - literal.min()) < 0.25


@pytest.mark.parametrize(("part", "given_"), SIGNALS)
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_tokens_one_by_one_give_what_whole_replies_give(part: str, given_: dict[str, Any], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 6, 9, generator=draw, dtype=torch.float64) * 2
    made = signal(part, **given_)
    memory = {name: torch.full((3,), field.fill, dtype=torch.float64) for name, field in made.fields.items()}
    online = [made.online(made.statistics(logits[:, step]), memory) for step in range(6)]
    torch.testing.assert_close(torch.stack(online, -1), made.scores(made.statistics(logits)))


@pytest.mark.parametrize(("part", "given_"), [*SIGNALS, ("paper", {"normalisation": "trajectory"})])
def test_padding_and_other_rows_do_not_matter(part: str, given_: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 9, generator=draw, dtype=torch.float64)
    made = signal(part, **given_)
    alone = made.scores(made.statistics(logits[:1, :3]))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    together = made.scores(made.statistics(logits), mask)
    torch.testing.assert_close(together[:1, :3], alone)
    assert not together[0, 3:].any()


def test_a_step_of_nan_does_not_stay() -> None:
    made = signal("paper")
    memory = {name: torch.full((1,), field.fill) for name, field in made.fields.items()}
    rows = torch.tensor([[[0.0, 1.0]], [[0.0, 3.0]], [[math.nan, 1.0]], [[0.0, 2.0]]])
    scores = [float(made.online(made.statistics(row), memory)) for row in rows]
    assert math.isnan(scores[2]) and 0 < scores[3] < 1


def test_the_trajectory_cannot_be_known_while_it_is_generated() -> None:
    made = signal("paper", normalisation="trajectory")
    with pytest.raises(InvalidRequest, match="whole reply"):
        made.online(made.statistics(torch.zeros(1, 3)), {})


def test_constant_distributions_have_signal_zero() -> None:
    logits = torch.randn(1, 1, 7).expand(1, 4, 7)
    for normalisation in ("running", "trajectory"):
        made = signal("paper", normalisation=normalisation)
        assert not made.scores(made.statistics(logits)).any()


def test_phi_of_a_turn() -> None:
    scores = double([[0.25, 1.0, 0.5, math.nan], [0.0, 0.25, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])
    torch.testing.assert_close(turn_signal(scores, mask), double([0.5, 0.0005]))
    torch.testing.assert_close(turn_signal(scores, mask, floor=0.04), double([0.5, 0.1]))
    torch.testing.assert_close(turn_signal(scores, mask, mean="arithmetic"), double([0.625, 0.125]))
    torch.testing.assert_close(turn_signal(scores, mask, mean="arithmetic", skip=1), double([1.0, 0.25]))
    torch.testing.assert_close(turn_signal(scores, mask, skip=1), double([1.0, 0.25]))


def test_a_turn_without_tokens_has_phi_zero() -> None:
    for mean in ("geometric", "arithmetic"):
        assert turn_signal(double([[0.5]]), torch.tensor([[0]]), mean=mean).tolist() == [0.0]
    with pytest.raises(InvalidRequest, match="floor"):
        turn_signal(double([[0.5]]), torch.tensor([[1]]), floor=0.0)


def test_a_long_turn_does_not_underflow() -> None:
    scores = torch.full((1, 5000), 1e-4)
    assert float(turn_signal(scores, torch.ones(1, 5000))) == pytest.approx(1e-4, rel=1e-4)


@pytest.mark.parametrize("given_", [{"alpha": 1.5}, {"top_j": 0}, {"normalisation": "minmax"}, {"sign": "minus"}])
def test_settings_out_of_range_are_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="signals paper"):
        signal("paper", **given_)
