"""Parts of a training method: found by file name, set up by the ``Config`` beside their function.

A kind of part is a folder of this package; every module in it whose name has no leading underscore is one part, with
the file name as its id (``reinforce_pp.py`` is "reinforce-pp"). A new part is a new file and nothing else. A part's
module holds:

- ``Config``: a subclass of :class:`PartConfig` with the hyper-parameters, their defaults and their sources;
- the function that its kind asks for (``ENTRY``), of (config, inputs);
- the same computation as a pure function of plain tensors, for those who need no recipe;
- where it does not fit every recipe, ``REQUIRES``: what it needs of the rest, in the words of ``recipes.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ...errors import InvalidRequest, nearest

ENTRY: Mapping[str, str] = {
    "signals": "make",
    "token_control": "make",
    "turn_control": "make",
    "rollout": "make",
    "filters": "keep",
    "rewards": "shape",
    "credit": "advantages",
    "shaping": "shape",
    "losses": "token_loss",
    "diagnosis": "indicate",
}
"""Kind -> name of the function (or class) that each of its parts has."""


class PartConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hyper-parameters of one part; check ranges in ``__post_init__`` with :func:`require`."""


@dataclass(frozen=True)
class Part:
    """One part, ready to be called.

    Attributes:
        kind: folder.
        id: file name with dashes.
        config: its hyper-parameters.
        module: the module, for the pure functions beside the entry.
    """

    kind: str
    id: str
    config: Any
    module: ModuleType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the part's entry with its config."""
        return getattr(self.module, ENTRY[self.kind])(self.config, *args, **kwargs)


def ids(kind: str) -> list[str]:
    """Return the ids of all parts of a kind.

    Raises:
        InvalidRequest: no such kind.
    """
    if kind not in ENTRY:
        raise InvalidRequest(f"No kind of part {kind!r:.60}.", hint=nearest(kind, ENTRY))
    folder = Path(__file__).with_name(kind)
    names = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def load(kind: str, part_id: str, settings: Mapping[str, Any] | None = None) -> Part:
    """Return a part with its hyper-parameters.

    Args:
        kind: folder, for example "credit".
        part_id: file name with dashes, for example "gigpo".
        settings: hyper-parameters that differ from the defaults.

    Raises:
        InvalidRequest: no such kind, part or setting, or a value out of range; names the nearest valid one.
    """
    known = ids(kind)
    if part_id not in known:
        raise InvalidRequest(f"No part {part_id!r:.60} of kind {kind}.", hint=nearest(str(part_id), known))
    module = importlib.import_module(f"{__package__}.{kind}.{part_id.replace('-', '_')}")
    return Part(kind, part_id, configure(module.Config, settings or {}, f"{kind} {part_id}"), module)


def configure(config: type[msgspec.Struct], settings: Mapping[str, Any], owner: str) -> Any:
    """Return ``config`` made from ``settings``.

    Raises:
        InvalidRequest: an unknown setting, a wrong type or a value out of range; the message starts with ``owner``.
    """
    fields = config.__struct_fields__
    for name in settings:
        if name not in fields:
            raise InvalidRequest(f"{owner} has no setting {name!r:.60}.", hint=nearest(str(name), fields))
    try:
        return msgspec.convert(dict(settings), config)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{owner}: {error}.", hint=f"Its settings: {', '.join(fields)}.") from None


def require(holds: bool, rule: str) -> None:
    """Raise ``ValueError(rule)`` unless ``holds``; :func:`configure` makes a clear error of it."""
    if not holds:
        raise ValueError(rule)
