"""Filters and the shaping of rewards and advantages, against the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.outcomes import Outcomes
from turngym.trainer_backends.algorithms.rewards import normalise as normalise_part
from turngym.trainer_backends.algorithms.rows import Rows, number
from turngym.trainer_backends.algorithms.shaping.entropy_advantage import entropy_scores
from turngym.trainer_backends.algorithms.tensors import masked_mean, spread

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]
BATCH = {"over": "batch", "min_factor": float("-inf")}
"""As the reference has it: statistics over all rows given, and no bound of the factor."""


def tensor(values: Any) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def grouped(rewards: list[list[float]]) -> Outcomes:
    """Return the outcomes of groups given as lists."""
    flat = [reward for group in rewards for reward in group]
    return Outcomes(rewards_N=tensor(flat), groups_N=number([i for i, group in enumerate(rewards) for _ in group]))


def starpo_s(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Kept groups; ties may fall as one of the sets allowed."""
    outcomes = grouped(inputs["group_returns"])
    settings = {"ratio": params["ratio"], "order": params["filter_type"].replace("_", "-")}
    keep = outcomes.of_groups(parts.load("filters", "starpo-s", settings)(outcomes))
    kept = keep.nonzero().flatten().tolist()
    sizes = [len(group) for group in inputs["group_returns"]]
    firsts = [sum(sizes[:place]) for place in range(len(sizes))]
    yield "group_std", spread(outcomes.rewards_N, outcomes.groups_N).std[firsts], outputs["group_std"]
    yield "k", len(kept), outputs["k"]
    allowed = [sorted(each) for each in outputs.get("note_sets_allowed", [outputs.get("kept_groups")])]
    yield "kept_groups", kept, kept if kept in allowed else allowed


def dapo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Groups whose rewards are not all equal."""
    outcomes = grouped(inputs["group_rewards"])
    yield "keep", outcomes.of_groups(parts.load("filters", "dapo")(outcomes)), outputs["keep"]


def normalisation(inputs: Json, params: Json, outputs: Json) -> Compared:
    """RAGEN's normalisation of returns and penalties."""
    scores, groups = tensor(inputs["returns"]) + tensor(inputs["penalty"]), number(inputs["group_index"])
    got = normalise_part.normalise(scores, groups, method=params["method"])
    yield "normalised", got, outputs["normalised"]
    rows = Rows(loss_mask_BT=torch.ones(len(scores), 1), token_rewards_BT=scores.unsqueeze(-1), group_B=groups)
    shaped = parts.load("rewards", "normalise", {"method": params["method"]})(rows)
    yield "rows", shaped.token_rewards_BT.squeeze(-1), outputs["normalised"]


def entropy_released(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The authors' lines, at trained tokens."""
    mask, entropies = tensor(inputs["loss_mask"]), tensor(inputs["entropy"])
    rows = Rows(loss_mask_BT=mask, entropies_BT=entropies)
    shaped = parts.load("shaping", "entropy-advantage", {"weight": params["a"], **BATCH})(
        rows, tensor(inputs["advantage"])
    )
    yield "advantage", shaped, outputs["advantage_shaped_on_mask"]
    yield "mean", masked_mean(entropies, mask), outputs["mean"]


def entropy_paper(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Eq. 10 and 11, with one group."""
    mask, entropies = tensor(inputs["response_mask"]), tensor(inputs["token_entropy"])
    rows = Rows(loss_mask_BT=mask, entropies_BT=entropies, group_B=torch.zeros(len(mask), dtype=torch.long))
    settings = {"weight": params["a"], "std": params["std"], **BATCH, "over": "group"}
    shaped = parts.load("shaping", "entropy-advantage", settings)(rows, tensor(inputs["acc_advantage"]))
    yield "advantage", shaped, outputs["advantage"]
    scores = entropy_scores(entropies, mask, unbiased=params["std"] == "unbiased")
    yield "entropy_advantage", scores, outputs["entropy_advantage"]


CHECKS = {
    "starpo_s_filter.json": starpo_s,
    "dapo_dynamic_sampling.json": dapo,
    "ragen_reward_normalisation.json": normalisation,
    "aepo_entropy_advantage.json": entropy_released,
    "aepo_entropy_advantage_eq10_11.json": entropy_paper,
}
