"""The environment's own expert."""

from __future__ import annotations

from ...errors import PolicyFailed
from ...records import Completion
from .base import BasePolicy, Context


class ExpertPolicy(BasePolicy):
    """Asks the environment for its expert's action: an upper bound, and a check of the whole road.

    Args:
        name: name in records.
    """

    def __init__(self, name: str = "expert") -> None:
        self.name = name

    async def act(self, context: Context) -> Completion:
        """Return the expert's action.

        Raises:
            PolicyFailed: the environment knows none here.
        """
        text = await context.handle.expert_action()
        if text is None:
            raise PolicyFailed(
                f"{context.env} knows no expert action here ({context.task}).", hint="Use another policy."
            )
        return Completion(text=text)
