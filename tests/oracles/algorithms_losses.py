"""Policy losses, KL estimators and the value loss, against the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import kl, parts, value_loss
from turngym.trainer_backends.algorithms.aggregate import Totals, aggregate
from turngym.trainer_backends.algorithms.diagnosis.turn_kl import turn_kl_entropy
from turngym.trainer_backends.algorithms.losses import default_aggregation
from turngym.trainer_backends.algorithms.losses.atpo import turn_log_ratio
from turngym.trainer_backends.algorithms.rows import Rows

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]


def tensor(values: Any) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def short(mask: torch.Tensor) -> float:
    """Return what the authors' masked means lose: they divide by the number of tokens plus 1e-8."""
    count = float(mask.sum())
    return count / (count + 1e-8)


def runs(mask: torch.Tensor) -> torch.Tensor:
    """Return the authors' idea of a turn: the number of the maximal run of trained tokens that a token is in, or -1."""
    starts = mask.bool() & ~torch.nn.functional.pad(mask.bool(), (1, 0))[:, :-1]
    return torch.where(mask.bool(), starts.long().cumsum(-1) - 1, -1)


def settings(params: Json) -> Json:
    """Return a part's settings as its file calls them."""
    names = {"clip_ratio_c": "dual_clip", "dual_clip_c": "dual_clip", "beta1": "beta_low", "beta2": "beta_high"}
    known = {"clip_low", "clip_high", *names}
    return {names.get(name, name): value for name, value in params.items() if name in known}


def loss(part_id: str) -> Any:
    """Return the check of a loss with the fields that most of the files share."""

    def check(inputs: Json, params: Json, outputs: Json) -> Compared:
        logprobs = tensor(inputs["log_prob"]).requires_grad_()
        mask = tensor(inputs["response_mask"])
        turns = runs(mask)
        rows = Rows(
            loss_mask_BT=mask, logprobs_BT=logprobs, old_logprobs_BT=tensor(inputs["old_log_prob"]), turn_ids_BT=turns
        )
        part = parts.load("losses", part_id, settings(params))
        tokens = part(rows, tensor(inputs["advantages"]))
        mode = params.get("loss_agg_mode", default_aggregation(part))
        # The authors' GMPO also counts rows without a trained token.
        totals = Totals(mask.sum(), float(len(mask)), mask.shape[1]) if part_id == "gmpo" else None
        value = aggregate(tokens.loss_BT, mask, mode, totals=totals)
        value.backward()
        yield "loss", value, outputs["loss"]
        yield "gradient", logprobs.grad, outputs["grad_log_prob"]
        if "clipfrac" in outputs:
            yield "clipfrac", tokens.metrics["clip_fraction"] * short(mask), outputs["clipfrac"]
        if "ppo_kl" in outputs:
            yield "ppo_kl", tokens.metrics["approx_kl"] * short(mask), outputs["ppo_kl"]
        if "turn_ratio" in outputs:
            ratio = turn_log_ratio(logprobs.detach() - rows.old_logprobs_BT, turns, mask).exp() * mask
            yield "turn_ratio", ratio, (tensor(outputs["turn_ratio"]) * mask).tolist()

    return check


def aepo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """AEPO's clip with the entropy advantage where a case has it, PPO's where it says so."""
    logprobs = tensor(inputs["logp_new"]).requires_grad_()
    mask, advantages = tensor(inputs["loss_mask"]), tensor(inputs["advantage"])
    if params["entropy_advantage"]:
        # Paper, eq. 10-11, over the trained tokens of the call.
        entropies = tensor(inputs["entropy"])
        chosen = entropies[mask.bool()]
        score = (entropies - chosen.mean()) / chosen.std()
        advantages = advantages * (1 + params["entropy_coef_a"] * score)
    rows = Rows(loss_mask_BT=mask, logprobs_BT=logprobs, old_logprobs_BT=tensor(inputs["logp_old"]))
    part_id = "aepo" if params["gradient_preserving_clip"] else "ppo"
    tokens = parts.load("losses", part_id, settings(params))(rows, advantages)
    value = aggregate(tokens.loss_BT, mask, params["loss_agg_mode"])
    value.backward()
    yield "loss", value * short(mask), outputs["loss"]
    yield "gradient", logprobs.grad * short(mask), outputs["grad_logp_new"]
    yield "clipfrac", tokens.metrics["clip_fraction"] * short(mask), outputs["clipfrac"]
    yield "clipfrac_lower", tokens.metrics["dual_clip_fraction"] * short(mask), outputs["clipfrac_lower"]
    yield "approx_kl", tokens.metrics["approx_kl"] * short(mask), outputs["approx_kl"]


def factor(part_id: str, ratio: torch.Tensor, advantages: torch.Tensor, given: Json) -> torch.Tensor:
    """Return the gradient factor F of a loss, dL = -A F dlogprob, by autograd; 0 where A is 0."""
    logprobs = ratio.log().requires_grad_()
    mask = torch.ones_like(ratio)
    rows = Rows(loss_mask_BT=mask, logprobs_BT=logprobs, old_logprobs_BT=torch.zeros_like(ratio))
    parts.load("losses", part_id, given)(rows, advantages).loss_BT.sum().backward()
    assert logprobs.grad is not None
    return torch.where(advantages == 0, 0.0, -logprobs.grad / advantages)


def aepo_factor(inputs: Json, params: Json, outputs: Json) -> Compared:
    """AEPO's eq. 14 and the value that it belongs to."""
    ratio, advantages = tensor(inputs["ratio"]), tensor(inputs["advantages"])
    given = {**settings(params), "dual_clip": float("inf")}
    where = advantages != 0
    expected = torch.where(where, tensor(outputs["gradient_scaler"]), 0.0)
    yield "gradient_scaler", factor("aepo", ratio, advantages, given), expected
    rows = Rows(loss_mask_BT=torch.ones_like(ratio), logprobs_BT=ratio.log(), old_logprobs_BT=torch.zeros_like(ratio))
    value = -parts.load("losses", "aepo", given)(rows, advantages).loss_BT
    yield "surrogate_per_token", value, outputs["surrogate_per_token"]


def other_factors(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The factors of PPO, CISPO (eq. 18) and GPPO (eq. 22)."""
    ratio, advantages = tensor(inputs["ratio"]), tensor(inputs["advantages"])
    for part_id, expected in outputs.items():
        given = settings(params) | ({} if part_id == "cispo" else {"dual_clip": float("inf")})
        kept = torch.where(advantages != 0, tensor(expected), 0.0)
        yield part_id, factor(part_id, ratio, advantages, given), kept


def atpo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """ATPO with explicit turns, and the authors' metrics."""
    logprobs, old = tensor(inputs["logp_new"]).requires_grad_(), tensor(inputs["logp_old"])
    mask, turns = tensor(inputs["loss_mask"]), torch.tensor(inputs["turn_id"])
    rows = Rows(loss_mask_BT=mask, logprobs_BT=logprobs, old_logprobs_BT=old, turn_ids_BT=turns)
    part = parts.load("losses", "atpo", settings(params))
    tokens = part(rows, tensor(inputs["advantage"]))
    value = aggregate(tokens.loss_BT, mask, default_aggregation(part))
    value.backward()
    yield "loss", value, outputs["loss"]
    yield "gradient", logprobs.grad, outputs["grad_logp_new"]
    yield "clipfrac", tokens.metrics["clip_fraction"] * short(mask), outputs["clipfrac"]
    yield "approx_kl", tokens.metrics["approx_kl"] * short(mask), outputs["approx_kl"]
    if "turn_kl_entropy" in outputs:
        # The authors add 1e-10 inside the logarithm and divide by a logarithm rounded to single precision.
        entropy_B = turn_kl_entropy(logprobs.detach(), old, mask, turns, epsilon=1e-10)
        count_B = torch.tensor([len(set(row[row >= 0].tolist())) for row in turns]).clamp_min(2)
        entropy_B = entropy_B * count_B.double().log() / count_B.float().log().double()
        yield "turn_kl_entropy", entropy_B.mean(), outputs["turn_kl_entropy"]
    if "turn_ratio" in outputs:
        ratio = turn_log_ratio(logprobs.detach() - old, turns, mask).exp()
        got = [
            [float(ratio[row][(turns[row] == turn) & mask[row].bool()][0]) for turn in range(len(of_row))]
            for row, of_row in enumerate(outputs["turn_ratio"])
        ]
        yield "turn_ratio", got, outputs["turn_ratio"]


def value(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The clipped value loss."""
    values = tensor(inputs["vpreds"]).requires_grad_()
    mask = tensor(inputs["response_mask"])
    tokens = value_loss.value_loss(
        values, tensor(inputs["values"]), tensor(inputs["returns"]), mask, clip=params["cliprange_value"]
    )
    total = aggregate(tokens.loss_BT, mask)
    total.backward()
    yield "loss", total, outputs["loss"]
    yield "gradient", values.grad, outputs["grad_vpreds"]
    yield "clipfrac", tokens.metrics["value_clip_fraction"] * short(mask), outputs["clipfrac"]


def estimators(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The KL estimators and their gradients."""
    for name in ("k1", "k2", "k3", "abs"):
        logprobs = tensor(inputs["log_prob"]).requires_grad_()
        estimate = kl.kl(logprobs, tensor(inputs["ref_log_prob"]), name)
        estimate.sum().backward()
        yield name, estimate, outputs[name]
        yield f"{name}_grad", logprobs.grad, outputs[f"{name}_grad"]


CHECKS = {
    "gspo_loss.json": loss("gspo"),
    "gmpo_loss.json": loss("gmpo"),
    "cispo_loss.json": loss("cispo"),
    "gppo_loss.json": loss("gppo"),
    "aepo_clip_loss.json": loss("aepo"),
    "aepo_loss.json": aepo,
    "aepo_gradient_scaler.json": aepo_factor,
    "gradient_scalers_other.json": other_factors,
    "atpo_loss.json": atpo,
    "atpo_turn_loss.json": loss("atpo"),
    "value_loss.json": value,
    "kl_estimators.json": estimators,
}
