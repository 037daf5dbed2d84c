"""Credit assignment against the vectors; GRPO's own stand in ``algorithms_grpo.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.credit import gigpo as gigpo_part
from turngym.trainer_backends.algorithms.credit._anchors import cluster
from turngym.trainer_backends.algorithms.rows import Credit, Rows, number
from turngym.trainer_backends.algorithms.tensors import to_tokens

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]
NORMALISE = {"mean_norm": "mean", "mean_std_norm": "std"}


def tensor(values: Any) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def credit(part: str, settings: Json, **fields: Any) -> Credit:
    """Return what a credit part makes of rows."""
    result: Credit = parts.load("credit", part, settings)(Rows(**fields))
    return result


def inside(values: Any, mask: Any) -> list[float]:
    """Return the entries at which the mask is 1."""
    return [
        value for row, marks in zip(values, mask, strict=True) for value, mark in zip(row, marks, strict=True) if mark
    ]


def outcome(part: str, inputs: Json, **settings: Any) -> Credit:
    """Return the credit of a part that needs token rewards (and groups) only."""
    groups = inputs.get("group_index")
    return credit(
        part,
        settings,
        loss_mask_BT=tensor(inputs["response_mask"]),
        token_rewards_BT=tensor(inputs["token_level_rewards"]),
        group_B=None if groups is None else number(groups),
    )


def rloo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Leave-one-out baseline."""
    yield "advantages", outcome("rloo", inputs).advantages_BT, outputs["advantages"]


def reinforce_pp(inputs: Json, params: Json, outputs: Json) -> Compared:
    """verl's code in full; the default wherever no mask stands between trained tokens."""
    released = outcome("reinforce-pp", inputs, gamma=params["gamma"], variant="released")
    yield "advantages", released.advantages_BT, outputs["advantages"]
    assert released.details is not None
    yield "returns", released.details["return_BT"], outputs["returns"]
    if all(row == sorted(row, reverse=True) for row in inputs["response_mask"]):
        default = outcome("reinforce-pp", inputs, gamma=params["gamma"])
        yield "advantages (default)", default.advantages_BT, outputs["advantages"]


def reinforce_pp_baseline(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Group mean, then whitening."""
    yield "advantages", outcome("reinforce-pp-baseline", inputs).advantages_BT, outputs["advantages"]


def gae(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Token-level GAE, compared where the mask is 1."""
    mask = inputs["response_mask"]
    fields = {
        "loss_mask_BT": tensor(mask),
        "token_rewards_BT": tensor(inputs["token_level_rewards"]),
        "values_BT": tensor(inputs["values"]),
    }
    yield from critic("gae", {"gamma": params["gamma"], "lam": params["lam"]}, fields, mask, outputs)


def bilevel_gae(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Turn-level then token-level GAE, compared where the mask is 1."""
    mask, ends = inputs["loss_mask"], torch.tensor(inputs["turn_end_mask"]).long()
    fields = {
        "loss_mask_BT": tensor(mask),
        "token_rewards_BT": tensor(inputs["token_level_rewards"]),
        "values_BT": tensor(inputs["values"]),
        # A token's turn is the number of ends before it.
        "turn_ids_BT": ends.cumsum(-1) - ends,
    }
    settings = {"gamma": params["gamma"], "lam": params["lam"], "gamma_turn": params["high_level_gamma"]}
    yield from critic("bilevel-gae", settings, fields, mask, outputs)


def critic(part: str, settings: Json, fields: Json, mask: Any, outputs: Json) -> Compared:
    """Compare raw and whitened advantages and returns at trained tokens."""
    raw, white = credit(part, {**settings, "whiten": False}, **fields), credit(part, settings, **fields)
    yield "advantages_raw", inside(raw.advantages_BT.tolist(), mask), inside(outputs["advantages_raw"], mask)
    whitened = inside(white.advantages_BT.tolist(), mask)
    yield "advantages_whitened", whitened, inside(outputs["advantages_whitened"], mask)
    assert white.returns_BT is not None
    yield "returns", inside(white.returns_BT.tolist(), mask), inside(outputs["returns"], mask)


def similarity(params: Json) -> Json:
    """Return the settings of the anchors."""
    return {
        "anchors": "similar" if params["enable_similarity"] else "exact",
        "threshold": params["similarity_thresh"],
    }


def gigpo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The vectors give step returns: each row is made a trajectory of its own, so that its reward is its return."""
    count = len(inputs["step_returns"])
    settings = {
        **similarity(params),
        "omega": params["omega"],
        "normalise": NORMALISE[params["mode"]],
        "epsilon": params["epsilon"],
        "over": "rows",
    }
    got = credit(
        "gigpo",
        settings,
        loss_mask_BT=tensor(inputs["response_mask"]),
        token_rewards_BT=tensor(inputs["token_level_rewards"]),
        group_B=number(inputs["group_index"]),
        trajectory_B=torch.arange(count),
        turn_B=torch.zeros(count, dtype=torch.long),
        step_reward_B=tensor(inputs["step_returns"]),
        anchors=inputs["anchor_obs"],
    )
    assert got.details is not None
    yield "advantages", got.advantages_BT, outputs["advantages"]
    yield "episode_advantage", got.details["episode_B"], outputs["episode_advantage"]
    yield "step_advantage", got.details["step_B"], outputs["step_advantage"]
    yield "step_group", got.details["step_group_B"], outputs["step_group"]


def anchor_grouping(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Clusters of anchors."""
    groups = number(inputs["group_index"]).tolist()
    threshold = params["similarity_thresh"] if params["enable_similarity"] else None
    yield "step_group", cluster(inputs["anchor_obs"], groups, threshold), outputs["step_group"]


def step_returns(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Rows of a trajectory stand in time order: a row's turn is how many came before it."""
    seen: Counter[str] = Counter()
    turns = []
    for name in inputs["traj_index"]:
        turns.append(seen[name])
        seen[name] += 1
    trajectories = number(inputs["traj_index"])
    rewards = tensor(inputs["rewards"])
    got = gigpo_part.step_returns(rewards, trajectories, torch.tensor(turns), gamma=params["gamma"])
    yield "returns", got, outputs["returns"]


def grpo_mr(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The released function, and the paper's equation."""
    singleton = "raw" if params["singleton"] == "mean 0, std 1" else "zero"
    settings = {
        "normalise": NORMALISE[params.get("mode", "mean_std_norm")],
        "std": params["std"],
        "over": "rows",
        "singleton": singleton,
        "tag_singleton": singleton,
        "epsilon": params["epsilon"],
    }
    settings |= {"alpha": params["alpha"]} if "alpha" in params else {"combine": "sum", "weight": params["lambda_meta"]}
    got = credit(
        "grpo-mr",
        settings,
        loss_mask_BT=tensor(inputs["response_mask"]),
        token_rewards_BT=tensor(inputs["token_level_rewards"]),
        group_B=number(inputs["env_index"]),
        meta_reward_B=tensor(inputs["meta_rewards"]),
        tags=inputs["tags"],
    )
    assert got.details is not None
    yield "outcome_advantage", got.details["outcome_B"], outputs["outcome_advantage"]
    yield "meta_advantage", got.details["meta_B"], outputs["meta_advantage"]
    if "scalar_advantage" in outputs:
        yield "scalar_advantage", got.details["row_B"], outputs["scalar_advantage"]
    if "advantages" in outputs:
        yield "advantages", got.advantages_BT, outputs["advantages"]


def arpo(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The authors' form, and the paper's hard one where segments are given."""
    mask = tensor(inputs["loss_mask"])
    fields = {
        "loss_mask_BT": mask,
        "token_rewards_BT": to_tokens(tensor(inputs["reward"]), torch.arange(mask.shape[1]) == 0),
        "group_B": number(inputs["group"]),
    }
    yield "soft", credit("arpo", {}, **fields).advantages_BT, outputs["soft_authors_code"]
    if inputs.get("segment_id") is not None:
        fields["segment_ids_BT"] = torch.tensor(inputs["segment_id"])
        yield "hard", credit("arpo", {"share": "hard"}, **fields).advantages_BT, outputs["hard_paper_formula"]


CHECKS = {
    "rloo_advantage.json": rloo,
    "reinforce_pp_advantage.json": reinforce_pp,
    "reinforce_pp_baseline_advantage.json": reinforce_pp_baseline,
    "gae.json": gae,
    "bilevel_gae.json": bilevel_gae,
    "gigpo_advantage.json": gigpo,
    "gigpo_anchor_grouping.json": anchor_grouping,
    "step_discounted_returns.json": step_returns,
    "rlvmr_grpo_mr_advantage.json": grpo_mr,
    "arpo_advantage.json": arpo,
}
