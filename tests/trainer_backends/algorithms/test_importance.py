"""Importance correction between the inference engine and the trainer."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms.importance import Config, correct
from turngym.trainer_backends.algorithms.parts import configure

# Ratios 0.5, 4 and, outside the mask, anything; in the second row 1 and 1.5.
RATIOS = torch.tensor([[0.5, 4.0, 1e9], [1.0, 1.5, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 1, 0]])
OLD = RATIOS.log() - 2
ROLLOUT = torch.full_like(OLD, -2.0)


def weights(**settings: object) -> list[list[float]]:
    return correct(OLD, ROLLOUT, MASK, configure(Config, settings, "importance")).weights_BT.tolist()


def test_truncation_of_tokens_rows_and_geometric_means() -> None:
    assert weights() == [pytest.approx([0.5, 2.0, 0.0]), pytest.approx([1.0, 1.5, 0.0])]
    assert weights(cap=3.0)[0] == pytest.approx([0.5, 3.0, 0.0])
    # Products 2 and 1.5; roots of them.
    assert weights(level="sequence", cap=1.75) == [pytest.approx([1.75, 1.75, 0]), pytest.approx([1.5, 1.5, 0])]
    root = math.sqrt(2.0)
    assert weights(level="geometric")[0] == pytest.approx([root, root, 0.0])


def test_masking_drops_what_is_out_of_bounds_and_leaves_the_rest() -> None:
    assert weights(mode="mask", cap=5.0, floor=0.75)[0] == pytest.approx([0.0, 4.0, 0.0])
    assert weights(mode="mask")[0] == pytest.approx([0.5, 0.0, 0.0])
    found = correct(OLD, ROLLOUT, MASK, Config(mode="mask", level="sequence", cap=1.75))
    assert found.kept_BT.tolist() == [[False] * 3, [True, True, False]]
    assert found.weights_BT.tolist() == [[0.0] * 3, pytest.approx([1.5, 1.5, 0.0])]


def test_a_veto_drops_the_whole_row() -> None:
    found = correct(OLD, ROLLOUT, MASK, Config(veto=0.75))
    assert found.kept_BT.tolist() == [[False] * 3, [True, True, False]]
    assert found.weights_BT[0].tolist() == [0.0] * 3


def test_metrics() -> None:
    metrics = {name: float(each) for name, each in correct(OLD, ROLLOUT, MASK).metrics.items()}
    assert metrics["importance_mean"] == pytest.approx(7 / 4)
    assert metrics["importance_max"] == pytest.approx(4.0)
    assert metrics["importance_bounded"] == pytest.approx(1 / 4)
    assert metrics["importance_ess"] == pytest.approx(5**2 / (4 * (0.25 + 4 + 1 + 2.25)))
    assert metrics["rollout_kl"] == pytest.approx(sum(r - math.log(r) - 1 for r in (0.5, 4, 1, 1.5)) / 4)


def test_equal_probabilities_change_nothing() -> None:
    found = correct(OLD, OLD, MASK)
    assert found.weights_BT.tolist() == MASK.double().tolist()
    assert float(found.metrics["importance_ess"]) == 1.0


def test_empty_masks_and_far_apart_rows_stay_finite() -> None:
    for config in (Config(), Config(level="sequence"), Config(level="geometric", mode="mask", floor=0.5)):
        empty = correct(OLD, ROLLOUT, torch.zeros_like(MASK), config)
        assert not empty.weights_BT.any() and all(torch.isfinite(each) for each in empty.metrics.values())
    far = correct(OLD + 1e4, ROLLOUT, MASK, Config(level="sequence", mode="mask"))
    assert not far.weights_BT.any() and torch.isfinite(far.metrics["importance_mean"])
    assert correct(OLD[:0], ROLLOUT[:0], MASK[:0]).weights_BT.shape == (0, 3)


def test_weights_carry_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    assert not correct(old, ROLLOUT, MASK).weights_BT.requires_grad


@pytest.mark.parametrize("settings", [{"cap": 0.5}, {"floor": 0.5}, {"mode": "mask", "floor": 2.0}, {"veto": 1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="importance"):
        configure(Config, settings, "importance")
