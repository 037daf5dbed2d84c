"""One importance ratio for many tokens, as GSPO (whole rows) and ATPO (turns) need it."""

from __future__ import annotations

from torch import Tensor

MAX_LOG_RATIO = 10.0
"""Upper bound of a shared log ratio in verl and AT2PO; beyond it a token has no gradient."""


def shared_ratio(log_ratio_BT: Tensor, mean_log_ratio_BT: Tensor) -> Tensor:
    """Return exp(mean log ratio) for every token, with the gradient of that token's own log-probability.

    In the value the token's own log ratio cancels: sg(s) r / sg(r), with sg for "no gradient".
    """
    own = log_ratio_BT - log_ratio_BT.detach()
    return (mean_log_ratio_BT.detach() + own).clamp(max=MAX_LOG_RATIO).exp()
