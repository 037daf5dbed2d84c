"""Echo: a diagnostic environment that answers with the action, to measure what a hub and a network cost."""

from __future__ import annotations

from typing import Any

from .core import Effect, TextEnv, _positive


class Echo(TextEnv):
    """Answer with the action, filled up with dots to a fixed length.

    Args:
        length: characters of every observation.
    """

    default_max_steps = 2**31

    def __init__(self, *, length: int = 1024, **base: Any) -> None:
        super().__init__(**base)
        self.length = _positive("length", length)

    @property
    def instructions(self) -> str:
        """The rule."""
        return "Whatever you say is said back to you."

    def _begin(self, split: str, index: int) -> None:
        self._state = f"task {split}/{index}"

    def _apply(self, action: str) -> Effect:
        self._state = action[: self.length]
        return Effect()

    def _observe(self) -> str:
        return str(self._state)[: self.length].ljust(self.length, ".")

    def _admissible(self) -> list[str]:
        return ["echo"]

    def _copy_state(self, state: str) -> str:
        return state
