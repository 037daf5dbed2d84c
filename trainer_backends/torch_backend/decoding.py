"""What the engine needs of a decoder, and which one a model gets."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from .decoder import Decoder, Prompts, supported
from .generic_decoder import GenericDecoder


class Decoding(Protocol):
    """The forward pass of one model over rows of tokens, each in a place of its own.

    Attributes:
        places: number of rows.
        limit: tokens a row can hold.
        lengths: tokens of each row, shape (places,); lowering one forgets the row's last tokens.
    """

    places: int
    limit: int
    lengths: Tensor

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def swap(self, first: int, second: int) -> None:
        """Exchange two places."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` tokens of ``source``."""
        ...

    def step(self, ids_B: Tensor, prompts: Prompts | None = None) -> Tensor:
        """Append one token to each of the first B places, and prompts to others.

        Returns:
            The logits after the last token of each, those of the prompts at the end, shape (B + R, V), float32.
        """
        ...


def make_decoder(model: Any, places: int) -> Decoding:
    """Return the fast decoder where it knows the model's family, the generic one elsewhere."""
    return Decoder(model, places) if supported(model) else GenericDecoder(model, places)
