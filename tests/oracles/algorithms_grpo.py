"""GRPO's advantages and the losses of the PPO family, against the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.aggregate import aggregate
from turngym.trainer_backends.algorithms.rows import Rows, number

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]


def tensor(values: Any) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def grpo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Rows of whole trajectories, and turn rows."""
    settings = {"normalise": "std" if params["norm_by_std"] else "mean", "epsilon": params["epsilon"]}
    if not params.get("cross_steps", True):
        settings["over"] = "trajectories"
    rows = Rows(
        loss_mask_BT=tensor(inputs["response_mask"]),
        token_rewards_BT=tensor(inputs["token_level_rewards"]),
        group_B=number(inputs["group_index"]),
        trajectory_B=number(inputs["traj_index"]) if "traj_index" in inputs else None,
    )
    credit = parts.load("credit", "grpo", settings)(rows)
    yield "advantages", credit.advantages_BT, outputs["advantages"]
    yield "scalar_advantage", credit.details["row_B"], outputs["scalar_advantage"]


def ppo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """PPO clip, clip-higher and dual clip, with every aggregation and the gradient."""
    settings = {"clip_low": params["clip_low"], "clip_high": params["clip_high"], "dual_clip": params["clip_ratio_c"]}
    logprobs = tensor(inputs["log_prob"]).requires_grad_()
    mask = tensor(inputs["response_mask"])
    rows = Rows(loss_mask_BT=mask, logprobs_BT=logprobs, old_logprobs_BT=tensor(inputs["old_log_prob"]))
    tokens = parts.load("losses", "ppo", settings)(rows, tensor(inputs["advantages"]))
    loss = aggregate(tokens.loss_BT, mask, params["loss_agg_mode"])
    loss.backward()
    yield "loss", loss, outputs["loss"]
    yield "gradient", logprobs.grad, outputs["grad_log_prob"]
    yield "clipfrac", tokens.metrics["clip_fraction"], outputs["clipfrac"]
    yield "clipfrac_lower", tokens.metrics["dual_clip_fraction"], outputs["clipfrac_lower"]
    yield "ppo_kl", tokens.metrics["approx_kl"], outputs["ppo_kl"]


def aggregation(inputs: Json, params: Json, outputs: Json) -> Compared:
    """One number from a matrix of losses."""
    loss = aggregate(tensor(inputs["loss_mat"]), tensor(inputs["loss_mask"]), params["loss_agg_mode"])
    yield "loss", loss, outputs["loss"]


CHECKS = {
    "grpo_advantage.json": grpo,
    "grpo_advantage_turn_rows.json": grpo,
    "ppo_clip_loss.json": ppo,
    "clip_higher_loss.json": ppo,
    "dual_clip_loss.json": ppo,
    "loss_aggregation.json": aggregation,
}
