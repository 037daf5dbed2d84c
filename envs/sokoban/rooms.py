"""Rooms: text form, generator and caches.

The generator carves a floor by a random walk, puts down targets and searches back from the solved states by pulling
the boxes (:func:`.solver.pulled`). The search tells the exact distance of every state that can be solved, so a start
of the wanted length is drawn from it and its shortest solution is known without a further search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from ...errors import InvalidRequest
from ..core import shown, stable_rng
from . import store
from .solver import Board, Layer, State, cells_of, pulled, solve, solved_layer, way_home

GENERATOR_VERSION = 1
"""Raise it whenever the generator gives other rooms than before: stored rooms of other versions are not read."""
SYMBOLS = tuple("#_O√XPS")
"""Default symbols of: wall, floor, target, box on a target, box, player, player on a target."""
MAX_SIDE = 32  # rows and columns of a room given as text
ROOM_LIMIT = 100_000  # layer entries looked at in one room, some 0.3 s; lengths found up to there are exact
TASK_LIMIT = 1_000_000  # layer entries looked at for one task
ATTEMPTS = 20_000  # floors carved for one task
PICKS = 16  # starts tried in one room until one belongs to the split


class Settings(NamedTuple):
    """What the generator is asked for.

    Attributes:
        size: rows and columns, the border walls included.
        boxes: number of boxes and of targets.
        min_solution: fewest moves of a shortest solution.
        max_solution: most moves of a shortest solution.
    """

    size: int
    boxes: int
    min_solution: int
    max_solution: int


class Room(NamedTuple):
    """One task.

    Attributes:
        board: walls and targets.
        start: the first state.
        solution: a shortest solution as letters of ``DIRECTIONS``; None if there is none or none was found.
    """

    board: Board
    start: State
    solution: str | None


def blank(board: Board, symbols: Sequence[str]) -> list[str]:
    """Return the symbol of every cell of the room without boxes and player; rows end with a newline."""
    cells = [symbols[(board.floor >> cell & 1) + (board.targets >> cell & 1)] for cell in range(board.cells)]
    cells[board.stride - 1 :: board.stride] = "\n" * len(cells[board.stride - 1 :: board.stride])
    return cells


def drawn(board: Board, state: State, ground: list[str], symbols: Sequence[str]) -> str:
    """Return the room as text.

    Args:
        board: walls and targets.
        state: boxes and player.
        ground: ``blank(board, symbols)``, which a caller keeps, as it never changes.
        symbols: seven symbols in the order of ``SYMBOLS``.
    """
    cells = ground.copy()
    targets, boxes = board.targets, state.boxes
    while boxes:
        low = boxes & -boxes
        cells[low.bit_length() - 1] = symbols[3] if targets & low else symbols[4]
        boxes ^= low
    cells[state.player] = symbols[6] if targets >> state.player & 1 else symbols[5]
    return "".join(cells)


def text_of(board: Board, state: State) -> str:
    """Return the room as text in the default symbols."""
    return drawn(board, state, blank(board, SYMBOLS), SYMBOLS)


def parsed(text: str) -> tuple[Board, State]:
    """Read a room in the default symbols, rows joined by newlines.

    Raises:
        InvalidRequest: it is no closed room with one player and as many boxes as targets, or it is solved already.
    """
    rows = text.split("\n")
    width = len(rows[0])
    masks = dict.fromkeys(SYMBOLS, 0)
    if not (3 <= width <= MAX_SIDE and 3 <= len(rows) <= MAX_SIDE) or any(len(row) != width for row in rows):
        raise _no_room(text, f"Give a rectangle with sides from 3 to {MAX_SIDE}.")
    if set(text) - {*SYMBOLS, "\n"}:
        raise _no_room(text, f"Give only the symbols {' '.join(SYMBOLS)}.")
    if set(rows[0] + rows[-1]) != {"#"} or any(row[0] + row[-1] != "##" for row in rows):
        raise _no_room(text, "Close the border with walls (#).")
    for cell, symbol in enumerate(text):
        if symbol != "\n":
            masks[symbol] |= 1 << cell
    _, floor, target, placed, box, player, on_target = masks.values()
    boxes, targets, players = placed | box, target | placed | on_target, player | on_target
    if players.bit_count() != 1:
        raise _no_room(text, "Give one player (P, or S on a target).")
    if boxes.bit_count() != targets.bit_count():
        raise _no_room(text, "Give as many boxes (X, √) as targets (O, √, S).")
    if boxes == targets:
        raise _no_room(text, "Put at least one box (X) beside its target.")
    board = Board(floor | boxes | targets | players, targets, width + 1, len(text))
    return board, State(players.bit_length() - 1, boxes)


def _no_room(text: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"This is no Sokoban room: {shown(text)!r}.", hint=hint)


@lru_cache(maxsize=1024)
def fixed_room(text: str) -> Room:
    """Return the room that ``text`` shows, with its solution where one is found.

    Raises:
        InvalidRequest: see :func:`parsed`.
    """
    board, start = parsed(text)
    return Room(board, start, solve(board, start))


@lru_cache(maxsize=4096)
def room_of(settings: Settings, split: str, index: int) -> Room:
    """Return the room of a task, the same in every process.

    The last 4,096 rooms are kept in memory. Rooms of the small fixed splits (all but "train") are kept on disk too.

    Raises:
        InvalidRequest: rooms as asked for do not exist, or are too rare to be found.
    """
    if split == "train":
        return generate(settings, split, index)
    name = "-".join(map(str, (f"v{GENERATOR_VERSION}", *settings, split)))
    known = store.load(name).get(index)
    if known is not None:
        text, solution = known
        return Room(*parsed(text), solution)
    room = generate(settings, split, index)
    store.add(name, index, text_of(room.board, room.start), room.solution or "")
    return room


def generate(settings: Settings, split: str, index: int) -> Room:
    """Make the room of a task; the lengths that a carved room offers within the settings are equally likely.

    No box starts on a target. Each room belongs to one split by a hash of its text, so that no test room can turn
    up in training.

    Raises:
        InvalidRequest: rooms as asked for do not exist, or are too rare to be found.
    """
    draws = _draws(stable_rng("sokoban", GENERATOR_VERSION, *settings, split, index))
    work = 0
    for _ in range(ATTEMPTS):
        board = _carved(draws, settings)
        layers = _layers(board, settings.max_solution)
        for start, length in _starts(draws, board, layers, settings.min_solution):
            if _split_of(text_of(board, start)) == (split if split in _HELD_OUT else "train"):
                return Room(board, start, way_home(board, start, layers[: length + 1]))
        work += sum(map(len, layers))
        if work > TASK_LIMIT:
            break
    size, boxes, least, most = settings
    raise InvalidRequest(
        f"No {size}x{size} room with {boxes} box(es) and a shortest solution of {least} to {most} moves was found.",
        hint="Lower min_solution, raise max_solution, or change size or boxes.",
    )


_HELD_OUT = ("validation", "test")


def _split_of(text: str) -> str:
    share = blake2b(text.encode(), digest_size=1).digest()[0] % 8
    return _HELD_OUT[share] if share < 2 else "train"


def _draws(rng: np.random.Generator) -> Iterator[float]:
    # Plain doubles in blocks: much faster than scalar draws, and the part of the stream that NumPy keeps stable.
    while True:
        yield from rng.random(256).tolist()


def _carved(draws: Iterator[float], settings: Settings) -> Board:
    """Carve a connected floor by a random walk that keeps its heading for a while, and put targets on it."""
    size, boxes, *_ = settings
    stride, inner = size + 1, size - 2
    row = ((1 << inner) - 1) << 1
    inside = sum(row << stride * number for number in range(1, size - 1))
    # Small rooms need more floor, for a box to have room to move; in large ones more floor makes searches long.
    share = 0.3 + 1 / inner + 0.3 * next(draws)
    wanted = min(inner * inner, max(2 * boxes + 3, int(inner * inner * share)))
    sides = (-stride, 1, stride, -1)
    cell = (1 + int(next(draws) * inner)) * stride + 1 + int(next(draws) * inner)
    heading = int(next(draws) * 4)
    floor = 1 << cell
    while floor.bit_count() < wanted:
        turn = next(draws) * 10
        if turn < 4:
            heading = int(turn)
        if not inside >> (cell + sides[heading]) & 1:
            heading = int(next(draws) * 4)
            continue
        cell += sides[heading]
        floor |= 1 << cell
        if next(draws) < 0.3:  # widen the corridor, so that there is room to walk around a box
            floor |= 1 << (cell + sides[heading - 1]) & inside
    cells = cells_of(floor)
    targets = 0
    for _ in range(boxes):
        targets |= 1 << cells.pop(int(next(draws) * len(cells)))
    return Board(floor, targets, stride, size * stride - 1)


def _layers(board: Board, depth: int) -> list[Layer]:
    """Return the states by distance, up to ``depth`` or until ``ROOM_LIMIT`` entries were looked at."""
    layers = [solved_layer(board)]
    seen = dict(layers[0])
    work = 0
    while len(layers) <= depth and work <= ROOM_LIMIT:
        layer = pulled(board, layers[-1], seen)
        if not layer:
            break
        layers.append(layer)
        work += len(layer)
    return layers


def _starts(draws: Iterator[float], board: Board, layers: list[Layer], least: int) -> Iterator[tuple[State, int]]:
    """Draw starts with all boxes off target, and their distances: the distance first, evenly."""
    offers = []
    for length in range(least, len(layers)):
        states = [(boxes, players) for boxes, players in layers[length].items() if not boxes & board.targets]
        if states:
            offers.append((length, states))
    if not offers:
        return
    for _ in range(PICKS):
        length, states = offers[int(next(draws) * len(offers))]
        number = int(next(draws) * sum(players.bit_count() for _, players in states))
        for boxes, players in states:
            if number < players.bit_count():
                yield State(cells_of(players)[number], boxes), length
                break
            number -= players.bit_count()
