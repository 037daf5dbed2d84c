"""turngym: multi-turn text environments, served, evaluated and trained on.

The face of the package is lazy: importing ``turngym`` loads nothing but this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client.connect import connect
    from .envs.registry import make
    from .envs.turn.env import TurnEnv
    from .envs.vector import make_vec

_HOMES = {
    "make": ".envs.registry",
    "make_vec": ".envs.vector",
    "TurnEnv": ".envs.turn.env",
    "connect": ".client.connect",
}
__all__ = ["TurnEnv", "__version__", "connect", "make", "make_vec"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'turngym' has no attribute {name!r}; it has: {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
