"""Sokoban on bit masks: the rules, and shortest solutions counted in moves.

A cell is the index of its character in the room's text (rows joined by newlines), so that rows are ``stride`` =
width + 1 apart and the newline stands beside the border wall. A set of cells is an integer with one bit a cell. A
search layer maps each arrangement of the boxes to the set of player cells that belong to the layer: one shift moves
all players of an arrangement at once, which makes a breadth-first search several times faster than one over
(player, boxes) pairs.
"""

from __future__ import annotations

from typing import NamedTuple

DIRECTIONS = "UDLR"  # order of the actions: Up, Down, Left, Right
SOLVE_LIMIT = 300_000
"""Layer entries that :func:`solve` looks at before it gives up: about a second."""

Layer = dict[int, int]


class Board(NamedTuple):
    """What never changes in a room.

    Attributes:
        floor: all cells that are no wall; none of them lies on the border.
        targets: the target cells, as many as there are boxes.
        stride: distance between two cells of a column.
        cells: length of the room's text.
    """

    floor: int
    targets: int
    stride: int
    cells: int


class State(NamedTuple):
    """What changes in a room.

    Attributes:
        player: index of the player's cell.
        boxes: the cells with a box, as a mask.
    """

    player: int
    boxes: int


def shift_of(stride: int, direction: int) -> int:
    """Return by how much a cell index changes in a direction (an index into ``DIRECTIONS``)."""
    return (-stride, stride, -1, 1)[direction]


def moved(board: Board, state: State, direction: int) -> State | None:
    """Return the state after a move, or None if a wall or a stuck box blocks it."""
    shift = shift_of(board.stride, direction)
    player, boxes = state.player + shift, state.boxes
    cell = 1 << player
    if boxes & cell:
        beyond = 1 << (player + shift)
        if not beyond & board.floor & ~boxes:
            return None
        return State(player, boxes ^ cell ^ beyond)
    return State(player, boxes) if board.floor & cell else None


def cells_of(mask: int) -> list[int]:
    """Return the cells of a mask in ascending order."""
    cells = []
    while mask:
        low = mask & -mask
        cells.append(low.bit_length() - 1)
        mask ^= low
    return cells


def solved_layer(board: Board) -> Layer:
    """Return the layer of all solved states: where the player stands does not matter."""
    return {board.targets: board.floor & ~board.targets}


def pulled(board: Board, layer: Layer, seen: Layer) -> Layer:
    """Return the states one move before those of ``layer`` that are not in ``seen``, and add them to ``seen``."""
    floor, stride = board.floor, board.stride
    fresh: Layer = {}
    for boxes, players in layer.items():
        free = floor & ~boxes
        walked = (players << 1 | players >> 1 | players << stride | players >> stride) & free & ~seen[boxes]
        if walked:
            seen[boxes] |= walked
            fresh[boxes] = fresh.get(boxes, 0) | walked
        for shift in (1, stride):
            # The player steps off in a direction and takes the box at their back along, both ways along the axis.
            pullers = players & boxes << shift & free >> shift
            while pullers:
                cell = pullers & -pullers
                pullers ^= cell
                _add(fresh, seen, boxes ^ cell ^ cell >> shift, cell << shift)
            pullers = players & boxes >> shift & free << shift
            while pullers:
                cell = pullers & -pullers
                pullers ^= cell
                _add(fresh, seen, boxes ^ cell ^ cell << shift, cell >> shift)
    return fresh


def pushed(board: Board, layer: Layer, seen: Layer, alive: int) -> Layer:
    """Return the states one move after those of ``layer`` that are not in ``seen``, and add them to ``seen``.

    Args:
        board: the room.
        layer: states to move on from.
        seen: states known so far.
        alive: cells a box may be pushed to.
    """
    floor, stride = board.floor, board.stride
    fresh: Layer = {}
    for boxes, players in layer.items():
        free = floor & ~boxes
        walked = (players << 1 | players >> 1 | players << stride | players >> stride) & free & ~seen[boxes]
        if walked:
            seen[boxes] |= walked
            fresh[boxes] = fresh.get(boxes, 0) | walked
        room = free & alive
        for shift in (1, stride):
            cells = boxes & players << shift & room >> shift
            while cells:
                cell = cells & -cells
                cells ^= cell
                _add(fresh, seen, boxes ^ cell ^ cell << shift, cell)
            cells = boxes & players >> shift & room << shift
            while cells:
                cell = cells & -cells
                cells ^= cell
                _add(fresh, seen, boxes ^ cell ^ cell >> shift, cell)
    return fresh


def _add(fresh: Layer, seen: Layer, boxes: int, player: int) -> None:
    known = seen.get(boxes, 0)
    if not known & player:
        seen[boxes] = known | player
        fresh[boxes] = fresh.get(boxes, 0) | player


def alive_cells(board: Board) -> int:
    """Return the cells from which a lone box can be pushed to a target; on all others it is lost."""
    floor, stride = board.floor, board.stride
    alive = frontier = board.targets
    while frontier:
        reached = 0
        for shift in (1, stride):
            # A box is pulled to a cell if the player finds room behind that cell.
            reached |= frontier << shift & floor & floor >> shift
            reached |= frontier >> shift & floor & floor << shift
        frontier = reached & ~alive
        alive |= frontier
    return alive


def solve(board: Board, state: State, limit: int = SOLVE_LIMIT) -> str | None:
    """Return a shortest solution as letters of ``DIRECTIONS``, from any state.

    Two breadth-first searches, one from the state and one back from the solved states, take turns (the smaller
    frontier first) until they meet.

    Returns:
        The moves ("" if solved already), or None if there is no solution or ``limit`` layer entries did not show one.
    """
    alive = alive_cells(board)
    if state.boxes & ~alive:
        return None
    ahead: list[Layer] = [{state.boxes: 1 << state.player}]
    behind: list[Layer] = [solved_layer(board)]
    seen_ahead, seen_behind = dict(ahead[0]), dict(behind[0])
    meeting = _meeting(ahead[0], seen_behind)
    work = 0
    while meeting is None:
        if not ahead[-1] or not behind[-1] or work > limit:
            return None
        if len(ahead[-1]) <= len(behind[-1]):
            ahead.append(pushed(board, ahead[-1], seen_ahead, alive))
            meeting = _meeting(ahead[-1], seen_behind)
            work += len(ahead[-1])
        else:
            behind.append(pulled(board, behind[-1], seen_behind))
            meeting = _meeting(behind[-1], seen_ahead)
            work += len(behind[-1])
    return _way_to(board, meeting, ahead) + way_home(board, meeting, behind)


def _meeting(layer: Layer, others: Layer) -> State | None:
    for boxes, players in layer.items():
        both = players & others.get(boxes, 0)
        if both:
            return State(cells_of(both)[0], boxes)
    return None


def way_home(board: Board, state: State, layers: list[Layer]) -> str:
    """Return the moves from ``state``, which is in the last of ``layers``, down to the solved states in the first."""
    moves = ""
    for layer in layers[-2::-1]:
        for direction, letter in enumerate(DIRECTIONS):
            after = moved(board, state, direction)
            if after is not None and layer.get(after.boxes, 0) >> after.player & 1:
                state, moves = after, moves + letter
                break
    return moves


def _way_to(board: Board, state: State, layers: list[Layer]) -> str:
    """Return the moves from the state in the first of ``layers`` to ``state`` in the last."""
    moves = ""
    for layer in layers[-2::-1]:
        for direction, letter in enumerate(DIRECTIONS):
            before = _came_from(board, state, direction, layer)
            if before is not None:
                state, moves = before, letter + moves
                break
    return moves


def _came_from(board: Board, state: State, direction: int, layer: Layer) -> State | None:
    shift = shift_of(board.stride, direction)
    player = state.player - shift
    here, ahead = 1 << state.player, 1 << (state.player + shift)
    candidates = [state.boxes]
    if state.boxes & ahead:
        candidates.append(state.boxes ^ ahead ^ here)
    for boxes in candidates:
        before = State(player, boxes)
        if layer.get(boxes, 0) >> player & 1 and moved(board, before, direction) == state:
            return before
    return None
