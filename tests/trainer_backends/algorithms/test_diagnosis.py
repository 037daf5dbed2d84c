"""Diagnosis: verdicts and the evidence they rest on."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.errors import InvalidRequest, MissingInput
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.diagnosis.echo_trap import group_reward_std, repetition
from turngym.trainer_backends.algorithms.diagnosis.policy_shift import policy_shift
from turngym.trainer_backends.algorithms.diagnosis.staleness import staleness
from turngym.trainer_backends.algorithms.diagnosis.turn_kl import turn_kl_entropy
from turngym.trainer_backends.algorithms.rows import Rows
from turngym.trainer_backends.algorithms.verdict import Verdict


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- the Echo Trap ---

STEPS = 40
HEALTHY = {
    "reward": [0.1 + 0.02 * step for step in range(STEPS)],
    "grad_norm": [1.0 + 0.1 * (step % 3) for step in range(STEPS)],
    "reward_std": [0.4 - 0.002 * step for step in range(STEPS)],
    "entropy": [1.0 - 0.01 * step for step in range(STEPS)],
    "response_length": [200.0 - step for step in range(STEPS)],
    "repetition": [0.2] * STEPS,
}


def echo(**series: list[float]) -> Verdict:
    verdict: Verdict = parts.load("diagnosis", "echo-trap")(HEALTHY | series)
    return verdict


def fired(verdict: Verdict) -> set[str]:
    return {each.name for each in verdict.evidence if each.fired}


def late(before: float, after: float) -> list[float]:
    return [before] * 25 + [after] * 15


def test_a_healthy_run_is_fine() -> None:
    verdict = echo()
    assert verdict.level == "fine" and len(verdict.evidence) == 6
    assert not fired(verdict) and "entropy went from" in str(verdict)


@pytest.mark.parametrize(
    ("name", "bad", "well"),
    [
        ("reward_std", late(0.4, 0.19), late(0.4, 0.21)),
        ("entropy", late(1.0, 0.49), late(1.0, 0.51)),
        ("entropy", [1.0] * 30 + [2.1] * 10, [1.0] * 30 + [1.9] * 10),
        ("response_length", late(200, 99), late(200, 101)),
        ("repetition", late(0.4, 0.51), late(0.4, 0.49)),
        ("reward", late(2.0, 0.9), late(2.0, 1.1)),
        ("reward", late(-1.0, -1.6), late(-1.0, -1.4)),
        ("grad_norm", [1.0] * 30 + [5.1] + [1.0] * 9, [1.0] * 30 + [4.9] + [1.0] * 9),
        ("grad_norm", [1.0] * 30 + [math.nan] + [1.0] * 9, [1.0] * 40),
    ],
)
def test_one_sign_is_a_warning_with_its_evidence(name: str, bad: list[float], well: list[float]) -> None:
    verdict = echo(**{name: bad})
    assert verdict.level == "warning" and fired(verdict) == {name}
    assert str(verdict).startswith(f"warning: {name} ") and str(verdict).count("went from") <= 1
    assert echo(**{name: well}).level == "fine"


def test_a_direct_and_an_early_sign_are_a_collapse() -> None:
    spike = [1.0] * 30 + [9.0] * 10
    verdict = echo(grad_norm=spike, reward_std=late(0.4, 0.0))
    assert verdict.level == "collapse" and fired(verdict) == {"grad_norm", "reward_std"}
    assert "at step 30" in str(verdict)
    assert echo(reward=late(1.0, 0.0), repetition=late(0.1, 0.9)).level == "collapse"
    assert echo(reward=late(1.0, 0.0), grad_norm=spike).level == "warning"
    assert echo(entropy=late(1.0, 0.1), repetition=late(0.1, 0.9)).level == "warning"


def test_deviation_is_compared_with_its_height_and_entropy_with_its_start() -> None:
    rise_and_fall = [0.1] * 10 + [0.4] * 20 + [0.15] * 10
    assert fired(echo(reward_std=rise_and_fall)) == {"reward_std"}
    assert not fired(echo(response_length=rise_and_fall))


def test_a_height_between_two_windows_counts() -> None:
    # Counted from the newest step back, no whole window has more than half of the ten high steps.
    assert fired(echo(reward=[0.2] * 15 + [1.0] * 10 + [0.4] * 15)) == {"reward"}


def test_a_spike_is_forgotten_after_two_windows() -> None:
    assert fired(echo(grad_norm=[1.0] * 20 + [9.0] + [1.0] * 19)) == {"grad_norm"}
    assert not fired(echo(grad_norm=[1.0] * 19 + [9.0] + [1.0] * 20))


def test_single_outliers_move_nothing_but_the_gradient() -> None:
    outlier = [1.0] * 35 + [0.0] + [1.0] * 4
    assert not fired(echo(reward=outlier, reward_std=outlier, entropy=outlier, response_length=outlier))


def test_a_gradient_that_grows_steadily_has_no_spike() -> None:
    assert not fired(echo(grad_norm=[1.1**step for step in range(STEPS)]))


def test_short_runs_are_not_judged() -> None:
    judge = parts.load("diagnosis", "echo-trap")
    assert judge({}).level == "unknown"
    verdict = judge({"entropy": [1.0] * 19})
    assert verdict.level == "unknown" and "20 are needed" in str(verdict)
    verdict = judge({"entropy": [1.0] * 20})
    assert verdict.level == "fine" and [each.fired for each in verdict.evidence].count(None) == 5


def test_an_unknown_series_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"entropie.*Did you mean 'entropy'"):
        parts.load("diagnosis", "echo-trap")({"entropie": [1.0]})
    with pytest.raises(InvalidRequest, match="window"):
        parts.load("diagnosis", "echo-trap", {"window": 1})


def test_reward_deviation_counts_every_group_once() -> None:
    scores = double([0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 9.0])
    groups = torch.tensor([5, 5, 2, 2, 2, 2, 7])
    assert float(group_reward_std(scores, groups)) == pytest.approx(math.sqrt(2.0) / 2)
    assert float(group_reward_std(scores[:0], groups[:0])) == 0.0
    assert float(group_reward_std(scores[-1:], groups[-1:])) == 0.0


def test_repetition_within_and_across_replies() -> None:
    loop, fresh = [1, 2, 1, 2, 1, 2], [3, 4, 5, 6, 7, 8]
    # Two-grams of the loop: 12 21 12 21 12, two of them distinct.
    assert repetition([loop], 2) == pytest.approx(3 / 5)
    assert repetition([loop, fresh], 2) == pytest.approx(3 / 10)
    assert repetition([fresh, fresh], 2) == pytest.approx(1 / 2)
    assert repetition([fresh, fresh], 2, across=False) == 0.0
    assert repetition([loop, loop], 2, across=False) == pytest.approx(6 / 10)
    assert repetition([[1], []]) == 0.0
    with pytest.raises(InvalidRequest, match="n of at least 1"):
        repetition([loop], 0)


# --- staleness ---


def test_staleness_is_equation_14() -> None:
    found = staleness(rollout_batch=16, group_size=8, mean_turns=5, update_batch=128)
    assert found.lag == 5.0 and found.ratio == pytest.approx(5 / 6)
    assert staleness(rollout_batch=0, group_size=8, mean_turns=5, update_batch=1).ratio == 0.0
    sizes = {"rollout_batch": 16, "group_size": 8, "mean_turns": 5, "update_batch": 128}
    assert parts.load("diagnosis", "staleness")(**sizes).level == "fine"
    verdict = parts.load("diagnosis", "staleness", {"most": 0.8})(**sizes)
    assert verdict.level == "warning" and "0.8333 is above 0.8" in str(verdict)
    with pytest.raises(InvalidRequest, match="update_batch"):
        staleness(rollout_batch=1, group_size=1, mean_turns=1, update_batch=0)


# --- turn KL ---


def moved(changes: list[list[float]], turns: list[list[int]], mask: list[list[int]] | None = None) -> Rows:
    old = torch.full_like(double(changes), -1.0)
    where = torch.ones_like(old) if mask is None else torch.tensor(mask)
    return Rows(
        loss_mask_BT=where, logprobs_BT=old - double(changes), old_logprobs_BT=old, turn_ids_BT=torch.tensor(turns)
    )


def h_turn(rows: Rows, epsilon: float = 0.0) -> list[float]:
    assert rows.logprobs_BT is not None and rows.old_logprobs_BT is not None and rows.turn_ids_BT is not None
    found: list[float] = turn_kl_entropy(
        rows.logprobs_BT, rows.old_logprobs_BT, rows.loss_mask_BT, rows.turn_ids_BT, epsilon=epsilon
    ).tolist()
    return found


def test_turn_kl_entropy_by_hand() -> None:
    # Shares 3/4 and 1/4 of the change; three equal shares; one turn; no change; nothing trained.
    rows = moved(
        [[1.0, 2.0, 1.0], [0.5, 0.5, 0.5], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]],
        [[0, 0, 1], [0, 1, 4], [2, 2, 2], [0, 1, 2], [0, 1, 2]],
        [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]],
    )
    p = math.exp(0.75) / (math.exp(0.75) + math.exp(0.25))
    expected = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2.0)
    assert h_turn(rows) == pytest.approx([expected, 1.0, 0.0, 0.0, 0.0])
    # A turn that moved the other way has a negative share: 2 and -1 here.
    p = math.exp(2.0) / (math.exp(2.0) + math.exp(-1.0))
    expected = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2.0)
    assert h_turn(moved([[2.0, -0.5, -0.5]], [[0, 1, 1]])) == pytest.approx([expected])
    assert h_turn(rows, epsilon=1e-3)[1] == pytest.approx(-math.log(1 / 3 + 1e-3) / math.log(3.0))


def test_turn_kl_ignores_what_is_not_trained() -> None:
    rows = moved([[1.0, 9.0, 1.0, math.nan]], [[0, 0, 1, 1]], [[1, 0, 1, 0]])
    assert h_turn(rows) == pytest.approx([1.0])
    assert h_turn(moved([[1.0, 9.0, 1.0]], [[0, -1, 1]])) == pytest.approx([1.0])


def test_turn_kl_verdict() -> None:
    rows = moved([[5.0, 0.0, 0.0]], [[0, 1, 2]])
    verdict = parts.load("diagnosis", "turn-kl", {"least": 0.99})(rows)
    assert verdict.level == "warning" and "below 0.99" in str(verdict)
    assert parts.load("diagnosis", "turn-kl")(rows).level == "fine"
    none = Rows(**{name: each[:0] for name, each in vars(rows).items() if each is not None})
    assert parts.load("diagnosis", "turn-kl")(none).level == "unknown"
    with pytest.raises(MissingInput, match="turn_ids_BT"):
        parts.load("diagnosis", "turn-kl")(
            Rows(loss_mask_BT=rows.loss_mask_BT, logprobs_BT=rows.logprobs_BT, old_logprobs_BT=rows.old_logprobs_BT)
        )


# --- policy shift ---

RATIOS = double([[0.5, 1.0, 4.0, 99.0]])
TRAINED = torch.tensor([[1, 1, 1, 0]])


def test_policy_shift_by_hand() -> None:
    found = {name: float(each) for name, each in policy_shift(RATIOS.log(), torch.zeros(1, 4), TRAINED).items()}
    assert found["kl_k1"] == pytest.approx(-math.log(2.0) / 3)
    assert found["kl_k3"] == pytest.approx(sum(r - math.log(r) - 1 for r in (0.5, 1.0, 4.0)) / 3)
    assert (found["ratio_min"], found["ratio_max"]) == pytest.approx((0.5, 4.0))
    assert found["clipped_share"] == pytest.approx(2 / 3)
    assert found["effective_share"] == pytest.approx(5.5**2 / (3 * 17.25))


def test_policy_shift_without_trained_tokens_is_finite() -> None:
    found = policy_shift(RATIOS.log(), torch.zeros(1, 4), torch.zeros_like(TRAINED))
    assert (float(found["ratio_min"]), float(found["ratio_max"]), float(found["effective_share"])) == (1.0, 1.0, 1.0)
    assert all(torch.isfinite(each) for each in found.values())


def test_policy_shift_verdict() -> None:
    judge = parts.load("diagnosis", "policy-shift")
    rows = Rows(loss_mask_BT=TRAINED, logprobs_BT=RATIOS.log(), old_logprobs_BT=torch.zeros(1, 4))
    verdict = judge(rows)
    assert verdict.level == "warning" and fired(verdict) == {"kl_k3", "clipped_share"}
    same = Rows(loss_mask_BT=TRAINED, logprobs_BT=RATIOS.log(), old_logprobs_BT=RATIOS.log())
    assert judge(same).level == "fine"
    empty = Rows(loss_mask_BT=0 * TRAINED, logprobs_BT=RATIOS.log(), old_logprobs_BT=RATIOS.log())
    assert judge(empty).level == "unknown"
    with pytest.raises(MissingInput, match="old_logprobs_BT"):
        judge(Rows(loss_mask_BT=TRAINED, logprobs_BT=RATIOS.log()))
