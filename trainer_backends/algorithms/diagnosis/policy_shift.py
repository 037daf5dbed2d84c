"""How far an update has moved the policy: the numbers PPO runs are watched by, and whether they are within limits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kl import kl
from ..parts import PartConfig, require
from ..rows import Rows
from ..tensors import masked, masked_mean, masked_sum
from ..verdict import Evidence, Verdict, limit


class Config(PartConfig, frozen=True):
    """Limits; beyond any of them the verdict is a warning.

    Attributes:
        most_kl: of the k3 estimate of KL(old || new), in nats per token.
        most_clipped: of the share of tokens whose ratio left [1 - clip_low, 1 + clip_high].
        clip_low: the band's lower width; that of the loss.
        clip_high: and its upper width.
    """

    most_kl: float = 0.1
    most_clipped: float = 0.3
    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        require(self.most_kl > 0, "most_kl must be positive")
        require(0 < self.most_clipped <= 1, "most_clipped must lie in (0, 1]")
        require(0 <= self.clip_low < 1 and self.clip_high >= 0, "the band must hold 1")


def policy_shift(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> dict[str, Tensor]:
    """Return detached scalars over the trained tokens of a batch; arguments of shape (rows, tokens).

    - ``kl_k1``, ``kl_k3``: estimates of KL(old || new) from the tokens that the old policy sampled, in nats;
    - ``ratio_min``, ``ratio_max``: smallest and largest new/old probability, 1 where nothing is trained;
    - ``clipped_share``: tokens whose ratio is outside the band, whatever the sign of their advantage;
    - ``effective_share``: effective sample size (sum r)² / (n sum r²), 1 on policy.
    """
    inside = loss_mask_BT.bool()
    new, old = masked(logprobs_BT.detach(), inside), masked(old_logprobs_BT.detach(), inside)
    ratio = (new - old).clamp(-20, 20).exp()
    count = inside.sum().clamp_min(1).to(ratio.dtype)
    squares = masked_sum(ratio.square(), inside)
    outside = (ratio < 1 - clip_low) | (ratio > 1 + clip_high)
    # Outside the mask the ratio is 1.
    flat = torch.cat([ratio.flatten(), ratio.new_ones(1)])
    trained = torch.cat([inside.flatten(), ~inside.any().view(1)])
    return {
        "kl_k1": masked_mean(kl(old, new, "k1"), inside),
        "kl_k3": masked_mean(kl(old, new, "k3"), inside),
        "ratio_min": torch.where(trained, flat, torch.inf).min(),
        "ratio_max": torch.where(trained, flat, 0.0).max(),
        "clipped_share": masked_mean(outside.to(ratio.dtype), inside),
        "effective_share": torch.where(squares > 0, masked_sum(ratio, inside).square() / (count * squares), 1.0),
    }


def indicate(config: Config, rows: Rows) -> Verdict:
    """Judge a batch after an update; needs logprobs_BT and old_logprobs_BT."""
    new, old = rows.need("logprobs_BT", "policy-shift"), rows.need("old_logprobs_BT", "policy-shift")
    if not bool(rows.loss_mask_BT.bool().any()):
        return Verdict("unknown", (Evidence("kl_k3", None, None, config.most_kl, "No token is trained."),))
    found = policy_shift(new, old, rows.loss_mask_BT, clip_low=config.clip_low, clip_high=config.clip_high)
    evidence = (
        limit("kl_k3", float(found["kl_k3"]), config.most_kl),
        limit("clipped_share", float(found["clipped_share"]), config.most_clipped),
    )
    return Verdict("warning" if any(each.fired for each in evidence) else "fine", evidence)
