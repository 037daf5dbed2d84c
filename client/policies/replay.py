"""Playing recorded episodes again."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...errors import PolicyFailed, ReplayDiverged
from ...records import Completion, Episode, read_episodes
from .base import BasePolicy, Context

_Key = tuple[str, str, int, int]


class ReplayPolicy(BasePolicy):
    """Gives the replies of recorded episodes again, and checks that the environment takes the same course.

    An episode is found by environment, task, noise seed and attempt.

    Args:
        episodes: a records file, or episodes. Failed ones are left out.
        name: name in records.
        player: only episodes of this policy; needed where the file holds several policies.
    """

    def __init__(
        self, episodes: str | os.PathLike[str] | Iterable[Episode], *, name: str = "replay", player: str | None = None
    ) -> None:
        self.name = name
        recorded = read_episodes(episodes) if isinstance(episodes, str | os.PathLike) else episodes
        self._episodes: dict[_Key, Episode] = {}
        for episode in recorded:
            if episode.status == "failed" or player not in (None, episode.policy):
                continue
            known = self._episodes.setdefault(_key(episode), episode)
            if known.policy != episode.policy:
                both = f"{known.policy!r} and {episode.policy!r}"
                raise PolicyFailed(
                    f"The recording holds {episode.env} {episode.task} of both {both}.",
                    hint="Name the one to replay with player=.",
                )

    async def act(self, context: Context) -> Completion:
        """Return the recorded reply of this turn.

        Raises:
            PolicyFailed: this episode or turn was not recorded.
            ReplayDiverged: the environment shows another state than it did then.
        """
        episode = self._episodes.get(_key(context))
        where = f"{context.env} {context.task} (seed {context.seed}, attempt {context.attempt})"
        if episode is None:
            raise PolicyFailed(
                f"{where} was not recorded.", hint="Use the tasks, seed and attempts that were recorded."
            )
        if context.turn >= len(episode.turns):
            raise PolicyFailed(f"{where} was recorded with {len(episode.turns)} turns only.")
        turn = episode.turns[context.turn]
        if turn.anchor != context.info.get("anchor"):
            raise ReplayDiverged(
                f"{where} shows another observation in turn {context.turn} than was recorded.",
                hint="Make the environment with the recorded settings and version.",
            )
        if context.level == episode.level:
            return turn.completion
        return Completion(text=context.reply(turn.action))


def _key(where: Episode | Context) -> _Key:
    return where.env, where.task, where.seed, where.attempt
