"""State of many requests in tensors, one place ("slot") each, on the device of the logits.

Engines batch requests continuously: a request gets a slot, may be moved to another, and leaves it to the next. Nothing
is ever shared between slots, and a slot is cleared when a request enters and when it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Field(NamedTuple):
    """One number (or ``width`` numbers) that every slot remembers.

    Attributes:
        fill: its value in a cleared slot.
        dtype: None for the float type of the whole.
        width: 0 for a single number.
    """

    fill: float
    dtype: torch.dtype | None = None
    width: int = 0


class Slots:
    """The fields of all slots.

    Args:
        fields: name -> field.
        device: where the tensors live.
        dtype: type of the float fields.
    """

    def __init__(self, fields: Mapping[str, Field], *, device: torch.device | str, dtype: torch.dtype) -> None:
        self.fields = dict(fields)
        self.size = 0
        self.device, self.dtype = torch.device(device), dtype
        self._tensors = {name: self._cleared(name, 0) for name in self.fields}

    def _cleared(self, name: str, size: int) -> Tensor:
        field = self.fields[name]
        shape = (size, field.width) if field.width else (size,)
        return torch.full(shape, field.fill, dtype=field.dtype or self.dtype, device=self.device)

    def grow(self, size: int) -> None:
        """Have at least ``size`` slots."""
        if size > self.size:
            for name, tensor in self._tensors.items():
                self._tensors[name] = torch.cat([tensor, self._cleared(name, size - self.size)])
            self.size = size

    def widen(self, name: str, width: int) -> None:
        """Have at least ``width`` numbers in a field of every slot."""
        field = self.fields[name]
        if width > field.width:
            self.fields[name] = wider = field._replace(width=width - field.width)
            more = self._cleared(name, self.size)
            self.fields[name] = wider._replace(width=width)
            self._tensors[name] = torch.cat([self._tensors[name], more], -1)

    def clear(self, slot: int) -> None:
        """Forget what a slot remembers."""
        for name, tensor in self._tensors.items():
            tensor[slot] = self.fields[name].fill

    def move(self, source: int, target: int, *, swap: bool = False) -> None:
        """Put what ``source`` remembers into ``target``; ``source`` is cleared, or gets what was there."""
        for name, tensor in self._tensors.items():
            moved = tensor[source].clone()
            tensor[source] = tensor[target] if swap else self.fields[name].fill
            tensor[target] = moved

    def read(self, names: Iterable[str], which: Tensor | slice) -> dict[str, Tensor]:
        """Return fields of some slots; of a slice they are views, not to be changed in place."""
        return {name: self._tensors[name][which] for name in names}

    def write(self, values: Mapping[str, Tensor], which: Tensor | slice) -> None:
        """Set fields of some slots."""
        for name, each in values.items():
            self._tensors[name][which] = each

    def __getitem__(self, name: str) -> Tensor:
        """Return a field of all slots; not a copy."""
        return self._tensors[name]
