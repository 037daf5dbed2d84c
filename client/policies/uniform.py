"""Uniformly random play."""

from __future__ import annotations

from ...errors import PolicyFailed
from ...records import Completion
from .base import BasePolicy, Context


class RandomPolicy(BasePolicy):
    """Draws one of the admissible actions, all equally likely.

    Args:
        name: name in records.
        seed: two random policies with different seeds play differently.
    """

    def __init__(self, name: str = "random", *, seed: int = 0) -> None:
        self.name = name
        self.seed = seed

    async def act(self, context: Context) -> Completion:
        """Return a random admissible action.

        Raises:
            PolicyFailed: the environment lists no admissible actions.
        """
        admissible = context.admissible
        if not admissible:
            raise PolicyFailed(
                f"{context.env} lists no admissible actions to choose from.", hint="Use another policy here."
            )
        action = admissible[int(context.rng(self.seed).integers(len(admissible)))]
        return Completion(text=context.reply(action, "I choose at random."))
