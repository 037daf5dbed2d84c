"""Sokoban (RAGEN, app. C.1 and J.2): push the boxes of a small room onto its targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidRequest, nearest
from ..core import Effect, TextEnv, shown
from ..grid import grid_picture
from .rooms import SYMBOLS, Room, Settings, blank, drawn, fixed_room, parsed, room_of
from .solver import DIRECTIONS, State, moved, solve

ACTIONS = ("Up", "Down", "Left", "Right")  # the order of DIRECTIONS
CELLS = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
"""What a symbol can stand for, in the order of ``SYMBOLS``."""
VOCABULARIES: dict[str, tuple[str, ...]] = {
    "default": SYMBOLS,
    "letters": tuple("W.GCBA@"),  # RAGEN's test of another vocabulary
    "spaced": tuple(f" {symbol} \t" for symbol in SYMBOLS),  # T2PO's layout
}
LONGEST = 60
"""Most moves of a shortest solution unless asked for otherwise; leaves 40 of 100 steps for detours."""

_INDEX = {name.lower(): number for number, name in enumerate(ACTIONS)}
_PICTURE = ("wall", "floor", "target", "target+placed", "floor+box", "floor+player", "floor+player+target")
_BLOCKED = Effect(-0.1, effective=False)
_MOVED = {change: Effect(-0.1 + change) for change in (-1, 0, 1)}
_SOLVED = Effect(-0.1 + 1 + 10, terminated=True)


class Sokoban(TextEnv):
    """Push every box onto a target.

    Every action costs 0.1, one that is blocked or unknown too; +1 for a box that comes onto a target, -1 for one
    that leaves it, +10 for the last one, which ends the episode.

    Rooms can always be solved. A task's shortest solution is known (``info["shortest"]``, in moves) and its length
    is drawn evenly from those that the carved room offers between ``min_solution`` and ``max_solution``.

    Args:
        size: rows and columns, the border walls included, 5 to 12.
        boxes: number of boxes, 1 to 4 (to 3 in 5x5 rooms).
        min_solution: fewest moves of a shortest solution; by default 4 per box, so that no room is trivial (4 in
            5x5 rooms), or ``max_solution`` if that is less.
        max_solution: most moves of a shortest solution; by default 60, or ``min_solution`` if that is more.
        vocab: "default" (``# _ O √ X P S``), "letters" (``W . G C B A @``), "spaced" (the default symbols, each in
            a cell of four characters), or seven symbols of equal length by the names in ``CELLS``.
        room: a fixed room in the default symbols for every task, as text or rows; the four arguments before
            ``vocab`` do not apply then.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    separator: ClassVar[str] = "||"
    deterministic: ClassVar[bool] = True
    expert_success: ClassVar[float] = 1.0
    # Five joined actions that each push a box off its target; four that each place one of four boxes and the last.
    reward_range: ClassVar[tuple[float, float]] = (-5.5, 14.5)

    def __init__(
        self,
        *,
        size: int = 6,
        boxes: int = 1,
        min_solution: int | None = None,
        max_solution: int | None = None,
        vocab: str | Mapping[str, str] = "default",
        room: str | list[str] | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.settings = _settings(size, boxes, min_solution, max_solution)
        self.symbols = _symbols(vocab)
        self.room = _room_text(room) if room is not None else None
        if self.room is None and self.settings.min_solution > self.max_steps:
            raise InvalidRequest(
                f"min_solution {self.settings.min_solution} is over max_steps {self.max_steps}: no task could be won.",
                hint="Raise max_steps or lower min_solution.",
            )
        self._room: Room
        self._state: State
        self._ground: list[str]
        # The expert's plan: its move in every state on the way. Never changed, only replaced, so forks may share it.
        self._plan: dict[State, str | None]

    @property
    def instructions(self) -> str:
        """The rules and the legend."""
        names = (*CELLS[:3], "box on a target", "box", "you", "you on a target")
        legend = ", ".join(f"{symbol.strip()} {name}" for symbol, name in zip(self.symbols, names, strict=True))
        return (
            "Sokoban: push every box onto a target. You move one cell at a time. Walk into a box to push it one cell "
            "on; that works if the cell behind the box holds neither a wall nor another box. You cannot pull a box or "
            f"walk through walls. Legend: {legend}. Moves: {', '.join(ACTIONS)}."
        )

    def _begin(self, split: str, index: int) -> None:
        self._room = room_of(self.settings, split, index) if self.room is None else fixed_room(self.room)
        self._state = self._room.start
        self._ground = blank(self._room.board, self.symbols)
        self._plan = {}

    def _apply(self, action: str) -> Effect:
        number = _INDEX.get(action.lower())
        if number is None:
            note = f"Unknown move {shown(action)!r}. Moves: {', '.join(ACTIONS)}."
            return Effect(-0.1, valid=False, effective=False, note=note)
        board, before = self._room.board, self._state.boxes
        after = moved(board, self._state, number)
        if after is None:
            return _BLOCKED
        self._state = after
        boxes = after.boxes
        if boxes == before:
            return _MOVED[0]
        if boxes == board.targets:
            return _SOLVED
        return _MOVED[(boxes & board.targets).bit_count() - (before & board.targets).bit_count()]

    def _observe(self) -> str:
        return drawn(self._room.board, self._state, self._ground, self.symbols)

    def _admissible(self) -> list[str]:
        return list(ACTIONS)

    def _won(self) -> bool:
        return self._state.boxes == self._room.board.targets

    def _score(self) -> float:
        """Return the share of boxes that are on a target."""
        targets = self._room.board.targets
        return (self._state.boxes & targets).bit_count() / targets.bit_count()

    def _copy_state(self, state: State) -> State:
        return state

    def _extra_info(self) -> dict[str, Any]:
        solution = self._room.solution
        return {"shortest": None if solution is None else len(solution)}

    def task_type(self) -> str:
        """Return the length of the shortest solution as a band that doubles: "04-07 moves", "08-15 moves", …."""
        if not self._room.solution:
            return "unknown"
        low = 1 << (len(self._room.solution).bit_length() - 1)
        return f"{low:02}-{2 * low - 1:02} moves"

    def expert_action(self) -> str | None:
        """Return the first move of a shortest solution from here.

        Returns:
            The move, or None if the room cannot be solved any more, is solved, or is too large to find out.
        """
        if self._state not in self._plan:
            self._plan = self._planned()
        return self._plan[self._state]

    def _planned(self) -> dict[State, str | None]:
        board, state, start, solution = self._room.board, self._state, self._room.start, self._room.solution
        moves = solution if state == start else solve(board, state)
        plan: dict[State, str | None] = {}
        for letter in moves or "":
            number = DIRECTIONS.index(letter)
            plan[state] = ACTIONS[number]
            following = moved(board, state, number)
            assert following is not None, "a solution never walks into a wall"
            state = following
        plan[state] = None
        return plan

    def picture(self) -> NDArray[np.uint8]:
        """Return the room as an image, 32 pixels a cell."""
        board = self._room.board
        names = dict(zip(SYMBOLS, _PICTURE, strict=True))
        text = drawn(board, self._state, blank(board, SYMBOLS), SYMBOLS)
        return grid_picture([[names[symbol] for symbol in row] for row in text.split("\n")])


def _settings(size: Any, boxes: Any, least: Any, most: Any) -> Settings:
    size = _whole("size", size, 5, 12)
    # Nine inner cells: four boxes that are all off target leave no room to push, and three little.
    boxes = _whole("boxes in a 5x5 room" if size == 5 else "boxes", boxes, 1, 3 if size == 5 else 4)
    usual = 4 if size == 5 else 4 * boxes
    if least is not None:
        least = _whole("min_solution", least, 1, 1000)
    if most is not None:
        most = _whole("max_solution", most, 1, 1000)
    if least is None:
        least = min(usual, most or usual)
    if most is None:
        most = max(LONGEST, least)
    if most < least:
        raise InvalidRequest(
            f"max_solution {most} is under min_solution {least}.", hint="Give a range with at least one length."
        )
    return Settings(size, boxes, least, most)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value!r:.60}.", hint=f"Give an integer from {low} to {high}.")
    return value


def _symbols(vocab: Any) -> tuple[str, ...]:
    if isinstance(vocab, str):
        if vocab not in VOCABULARIES:
            raise InvalidRequest(f"Unknown vocab {vocab!r:.60}.", hint=nearest(vocab, VOCABULARIES))
        return VOCABULARIES[vocab]
    if not isinstance(vocab, Mapping) or set(vocab) != set(CELLS):
        raise InvalidRequest(f"vocab is {vocab!r:.60}.", hint=f"Give its name, or a symbol for each of {CELLS}.")
    symbols = tuple(vocab[name] for name in CELLS)
    plain = all(isinstance(symbol, str) and symbol.strip() and "\n" not in symbol for symbol in symbols)
    if not plain or len({len(symbol) for symbol in symbols}) > 1 or len({s.strip() for s in symbols}) < len(symbols):
        raise InvalidRequest(
            f"vocab is {vocab!r:.200}.", hint="Give seven different visible symbols of equal length without newlines."
        )
    return symbols


def _room_text(room: Any) -> str:
    text = "\n".join(room) if isinstance(room, list) and all(isinstance(row, str) for row in room) else room
    if not isinstance(text, str):
        raise InvalidRequest(f"room is {room!r:.60}.", hint="Give the room as text or as a list of rows.")
    parsed(text.strip("\n"))
    return text.strip("\n")
