"""ALFWorld as a :class:`TextEnv`: the official games where the user has them, or procedural ones of ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ...errors import InvalidRequest, NotReset, nearest
from ..core import Effect, TextEnv
from ..datasets.store import needed
from .compiler import Args, Dynamic
from .data import TASK_TYPES, FileSplit, GameFile, Split, data_folder, open_splits, task_type_of, texts_of
from .engine import NOTHING_HAPPENS, Game, Move
from .expert import Memory, next_action

HELD_OUT = ("pick_cool_then_place_in_recep", "pick_two_obj_and_place")
"""The task types that RLVMR's L2 holds out."""
_INVALID = Effect(valid=False, effective=False)
_EFFECTS = {
    (won, changed): Effect(float(won), won, effective=changed) for won in (False, True) for changed in (False, True)
}


class History(NamedTuple):
    """What the player did and saw, newest first; "" is the action before the first observation."""

    before: History | None
    action: str
    observation: str


class Situation(NamedTuple):
    """A state of play; never changed, so that forks share it."""

    facts: Dynamic
    commands: dict[str, tuple[Move, Args]]
    won: bool
    history: History


class ALFWorld(TextEnv):
    """A household task in text: find objects, clean, heat, cool or light them, put them where they belong.

    Reward 1 for reaching the goal, which ends the episode, else 0. An action that is not admissible is answered with
    "Nothing happens.".

    The domain and grammar texts belong to ALFWorld: they come from the user's copy of its games or from the data set
    ``alfworld-texts`` (see ``turngym data``), and without them the class cannot be made.

    Args:
        games: "procedural" (made from seeds, any number) or "official" (the user's copy of ALFWorld's games).
        data: folder of the user's copy; by default ``$TURNGYM_DATA/alfworld``, the one that ``turngym data`` knows,
            ``$ALFWORLD_DATA`` or ``~/.cache/alfworld``.
        task_types: play these of the six task types only; all by default.

    Raises:
        DataMissing: the files needed are not there; the hint says what to install or name.
    """

    deterministic: ClassVar[bool] = True
    expert_success: ClassVar[float] = 0.98
    default_max_steps: ClassVar[int] = 50

    def __init__(
        self,
        *,
        games: str = "procedural",
        data: str | None = None,
        task_types: Sequence[str] | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if games not in ("procedural", "official"):
            raise InvalidRequest(f"Unknown games {games!r:.60}.", hint=nearest(str(games), ["official", "procedural"]))
        self.games, self.data = games, data
        self.task_types = _task_types(task_types)
        self._source = _source(games, data_folder(data), self.task_types)
        self.splits = {name: len(split) for name, split in self._source.items()}  # type: ignore[misc]
        self._game: Game
        self._id = ""
        self._walkthrough: tuple[str, ...] = ()
        self._state: Situation

    @classmethod
    def check_needs(cls, **config: Any) -> None:
        """Check that the texts, or the official games where they are asked for, are there."""
        folder = data_folder(config.get("data"))
        if config.get("games") == "official" and folder is None:
            needed("alfworld")
        texts_of(folder)

    @property
    def instructions(self) -> str:
        """What the player must know, and the task, which the first observation alone would state."""
        rules = (
            "You are in a house and have a task. Walk to receptacles, open them, take "
            "and move objects, use lamps, clean objects at a sink, heat them with a microwave, cool them with a "
            "fridge. You carry one object at a time. Only the admissible actions, written exactly so, do anything."
        )
        # A prompt that keeps the last turns only would lose it.
        return f"{rules} {self._game.task}".strip() if self.task else rules

    def _begin(self, split: str, index: int) -> None:
        self._game, self._id, self._walkthrough = _loaded(self._source[split], index)
        game = self._game
        history = History(None, "", game.intro())
        self._state = Situation(game.start, game.commands(game.start), game.won(game.start), history)

    def _apply(self, action: str) -> Effect:
        state = self._state
        found = state.commands.get(action)
        if found is None:
            self._state = state._replace(history=History(state.history, action, NOTHING_HAPPENS))
            return _INVALID
        game = self._game
        facts = game.after(state.facts, *found)
        changed = facts is not state.facts
        won = game.won(facts) if changed else state.won
        history = History(state.history, action, game.feedback(facts, *found))
        self._state = Situation(facts, game.commands(facts) if changed else state.commands, won, history)
        return _EFFECTS[won, changed]

    def _observe(self) -> str:
        return self._state.history.observation

    def _admissible(self) -> list[str]:
        return list(self._state.commands)

    def _won(self) -> bool:
        return self._state.won

    def _copy_state(self, state: Situation) -> Situation:
        return state

    def _extra_info(self) -> dict[str, Any]:
        return {"game": self._id}

    def task_type(self) -> str:
        """Return which of the six task types this is."""
        return task_type_of(self._id)

    @property
    def walkthrough(self) -> tuple[str, ...]:
        """The actions that the game's file gives as a solution from its start; empty before ``reset``."""
        return self._walkthrough

    def game_file(self) -> GameFile:
        """Return the current game's texts, for example to write them with ``data.save_game``.

        Raises:
            NotReset: there was no ``reset``.
        """
        if not self.task:
            raise NotReset("There is no game before reset.", hint="Call reset first.")
        split, _, index = self.task.partition("/")
        return self._source[split].game(int(index))

    def expert_action(self) -> str | None:
        """Return the next action of an expert that knows what a player has seen so far, and nothing else."""
        if self.done or self._state.won:
            return None
        memory = Memory()
        node: History | None = self._state.history
        past = []
        while node is not None:
            past.append(node)
            node = node.before
        for node in reversed(past):
            memory.saw(node.action, node.observation)
        return next_action(memory, self._state.commands)


class _Filtered:
    """Some of a split's games."""

    def __init__(self, split: FileSplit, task_types: tuple[str, ...]) -> None:
        self._split = split
        self._indices = [i for i, name in enumerate(split.ids) if name.partition("-")[0] in task_types]

    def __len__(self) -> int:
        return len(self._indices)

    def game(self, index: int) -> GameFile:
        return self._split.game(self._indices[index])


@lru_cache(maxsize=16)
def _source(games: str, folder: Path | None, task_types: tuple[str, ...]) -> dict[str, Split]:
    if games == "procedural":
        from .procedural import splits

        return splits(*texts_of(folder), task_types, HELD_OUT)
    return _official(open_splits(needed("alfworld") if folder is None else folder), task_types)


def _official(found: dict[str, FileSplit], task_types: tuple[str, ...]) -> dict[str, Split]:
    """Return the original's splits and their other names: test, validation and RLVMR's L0, L1, L2."""
    kept = tuple(kind for kind in task_types if kind not in HELD_OUT)
    held = tuple(kind for kind in task_types if kind in HELD_OUT)
    splits: dict[str, Split] = dict(found)
    aliases = [("validation", "valid_seen", task_types), ("test", "valid_unseen", task_types)]
    aliases += [("L0", "valid_seen", task_types), ("L1", "valid_unseen", task_types), ("L2", "valid_unseen", held)]
    aliases += [("train_L2", "train", kept)]
    for name, original, kinds in aliases:
        if original in found:
            splits[name] = found[original] if kinds == TASK_TYPES else _Filtered(found[original], kinds)
    for name in found:
        if task_types != TASK_TYPES:
            splits[name] = _Filtered(found[name], task_types)
    return {name: split for name, split in splits.items() if len(split)}


@lru_cache(maxsize=64)
def _loaded(split: Split, index: int) -> tuple[Game, str, tuple[str, ...]]:
    """Return a game's tables, which all its sessions share, its id and its solution; its texts are let go."""
    file = split.game(index)
    return Game(file.domain, file.grammar, file.problem), file.id, file.walkthrough


def _task_types(named: Any) -> tuple[str, ...]:
    if named is None:
        return TASK_TYPES
    if isinstance(named, str) or not isinstance(named, Sequence) or not named:
        raise InvalidRequest(f"task_types is {named!r:.60}.", hint=f"Give a list of some of {', '.join(TASK_TYPES)}.")
    for kind in named:
        if kind not in TASK_TYPES:
            raise InvalidRequest(f"Unknown task type {kind!r:.60}.", hint=nearest(str(kind), TASK_TYPES))
    return tuple(kind for kind in TASK_TYPES if kind in named)
