"""AdamW for weights of any type: those of 16 bits are updated in float32.

A step of 1e-6 is far below the spacing of bfloat16 numbers: weights that are updated in place would round back to what
they were. Each 16-bit parameter therefore has a float32 original, which the optimizer moves; the parameter is its
rounded copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = dict[str, Any]


class Optimizer:
    """AdamW over groups of parameters.

    Args:
        groups: as torch's optimizers take them.
        betas: of AdamW.

    Attributes:
        params: all parameters, as the model has them.
    """

    def __init__(self, groups: Sequence[Group], betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._groups = [{"weight_decay": 0.0, **group, "params": list(group["params"])} for group in groups]
        self._betas = betas
        self.params: list[Tensor] = [parameter for group in self._groups for parameter in group["params"]]
        self._originals: dict[Tensor, Tensor] = {}
        self._adam: torch.optim.AdamW | None = None

    def _made(self) -> torch.optim.AdamW:
        """Return the optimizer of the originals, which are copied at first need: weights may be loaded before."""
        if self._adam is None:
            half = [parameter for parameter in self.params if parameter.element_size() < 4]
            self._originals = {parameter: parameter.detach().float() for parameter in half}
            moved = [
                {**group, "params": [self._originals.get(each, each) for each in group["params"]]}
                for group in self._groups
            ]
            self._adam = torch.optim.AdamW(moved, betas=self._betas)
        return self._adam

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in (*self.params, *self._originals.values()):
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradients to those of the passes before it."""
        self._made()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, original in self._originals.items():
            if parameter.grad is not None:
                added = parameter.grad.float()
                original.grad = added if original.grad is None else original.grad.add_(added)
                parameter.grad = None

    def clip(self, most: float) -> Tensor:
        """Scale the gradients down to a norm of ``most`` together; return the norm that they had."""
        return nn.utils.clip_grad_norm_([self._originals.get(each, each) for each in self.params], most)

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """Move every parameter by its gradient, at ``factor`` times its group's learning rate."""
        adam = self._made()
        for group, moved in zip(self._groups, adam.param_groups, strict=True):
            moved["lr"] = factor * group["lr"]
        adam.step()
        for parameter, original in self._originals.items():
            parameter.copy_(original)

    def state_dict(self) -> dict[str, Any]:
        """Return all state, for a checkpoint."""
        return {"adam": self._made().state_dict(), "originals": list(self._originals.values())}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._made().load_state_dict(state["adam"])
        for original, saved in zip(self._originals.values(), state["originals"], strict=True):
            original.copy_(saved)
