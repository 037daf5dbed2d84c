"""FrozenLake (RAGEN, app. C.1): random solvable maps on gymnasium's own engine.

Gymnasium builds the transition table of each map; the table is kept in a compact form that all sessions on that
map share, so that a session costs a few hundred bytes and a fork copies one integer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from numpy.typing import NDArray

from ..errors import InvalidRequest
from .core import Effect, TextEnv, _flag, shown, stable_rng
from .grid import grid_picture

MAX_SIZE = 16  # the expert's table grows with the fourth power of it
ACTIONS = ("Left", "Down", "Right", "Up")  # gymnasium's order: 0, 1, 2, 3
_INDEX = {name.lower(): number for number, name in enumerate(ACTIONS)}
_COLOURS = {"_": "ice", "O": "hole", "G": "goal", "P": "ice+player", "X": "hole+player", "√": "goal+player"}


class Lake(NamedTuple):
    """One map and its dynamics.

    Attributes:
        rows: map rows of the letters S, F, H, G.
        moves: for cell ``s`` and action ``a``, entry ``4 * s + a`` holds (cumulative probability, next cell) pairs.
        start: the start cell.
    """

    rows: tuple[str, ...]
    moves: tuple[tuple[tuple[float, int], ...], ...]
    start: int

    def letter(self, cell: int) -> str:
        """Return the map letter of a cell."""
        size = len(self.rows)
        return self.rows[cell // size][cell % size]


@lru_cache(maxsize=1024)
def lake_of(rows: tuple[str, ...], slippery: bool) -> Lake:
    """Return the dynamics that gymnasium's engine gives to a map (cached)."""
    engine = FrozenLakeEnv(desc=list(rows), is_slippery=slippery)
    moves = []
    for cell in range(len(rows) ** 2):
        for action in range(4):
            total, outcomes = 0.0, []
            for probability, target, _, _ in engine.P[cell][action]:
                total += probability
                outcomes.append((total, int(target)))
            moves.append(tuple(outcomes))
    return Lake(rows, tuple(moves), "".join(rows).index("S"))


def random_rows(rng: np.random.Generator, size: int, frozen: float) -> tuple[str, ...]:
    """Draw a map with random start and goal until a path joins them."""
    while True:
        cells = np.where(rng.random(size * size) < frozen, "F", "H")
        start, goal = rng.choice(size * size, size=2, replace=False)
        cells[start], cells[goal] = "S", "G"
        if _joined(cells, size, int(start), int(goal)):
            text = "".join(cells)
            return tuple(text[row * size : (row + 1) * size] for row in range(size))


def _joined(cells: NDArray[np.str_], size: int, start: int, goal: int) -> bool:
    seen, frontier = {start}, [start]
    while frontier:
        cell = frontier.pop()
        if cell == goal:
            return True
        row, column = divmod(cell, size)
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            near = r * size + c
            if 0 <= r < size and 0 <= c < size and near not in seen and cells[near] != "H":
                seen.add(near)
                frontier.append(near)
    return False


@lru_cache(maxsize=1024)
def best_actions(lake: Lake, horizon: int = 200) -> tuple[int, ...]:
    """Return the action per cell that maximises the chance of reaching the goal (value iteration)."""
    cells = len(lake.rows) ** 2
    goal = np.array([lake.letter(cell) == "G" for cell in range(cells)])
    final = np.array([lake.letter(cell) in "GH" for cell in range(cells)])
    chance = np.zeros((cells, 4, cells))
    for cell in range(cells):
        for action in range(4):
            before = 0.0
            for total, target in lake.moves[4 * cell + action]:
                chance[cell, action, target] += total - before
                before = total
    value = goal.astype(float)
    q = np.zeros((cells, 4))
    for _ in range(horizon):
        q = chance @ value * 0.999  # slightly impatient, so that a safe detour still moves on
        value = np.where(final, goal, q.max(axis=1))
    return tuple(int(action) for action in q.argmax(axis=1))


class FrozenLake(TextEnv):
    """Reach the goal of a frozen lake; +1 at the goal, 0 otherwise; a hole ends the episode.

    On slippery ice a move goes the intended way with probability 1/3 and to each side with probability 1/3.

    Args:
        size: rows and columns of the map, 2 to 16.
        frozen: probability that a cell is ice and not a hole, in (0, 1].
        slippery: whether moves slip.
        rows: a fixed map of the letters S, F, H, G for every task, instead of random ones.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    separator: ClassVar[str] = "||"
    expert_success: ClassVar[float] = 0.6

    def __init__(
        self,
        *,
        size: int = 4,
        frozen: float = 0.8,
        slippery: bool = True,
        rows: list[str] | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= MAX_SIZE:
            raise InvalidRequest(f"size is {size!r:.60}.", hint=f"Give an integer from 2 to {MAX_SIZE}.")
        if isinstance(frozen, bool) or not isinstance(frozen, int | float) or not 0 < frozen <= 1:
            raise InvalidRequest(f"frozen is {frozen!r:.60}.", hint="Give a probability in (0, 1].")
        self.size = size
        self.frozen = float(frozen)
        self.slippery = _flag("slippery", slippery)
        self.rows = _checked_rows(rows) if rows is not None else None
        self._lake: Lake

    @property
    def instructions(self) -> str:
        """The rules and the legend."""
        slip = (
            " The ice is slippery: a move goes where you mean it to with probability 1/3, and to either side of that "
            "with probability 1/3 each."
            if self.slippery
            else ""
        )
        return (
            "Walk over a frozen lake to the goal and stay out of the holes. Legend: P you, _ ice, O hole, G goal, X "
            f"you in a hole, √ you on the goal.{slip} Moves: Left, Down, Right, Up."
        )

    def _begin(self, split: str, index: int) -> None:
        rows = self.rows
        if rows is None:
            rng = stable_rng("frozen-lake", self.size, repr(self.frozen), split, index)
            rows = random_rows(rng, self.size, self.frozen)
        self._lake = lake_of(rows, self.slippery)
        self._state = self._lake.start

    def _apply(self, action: str) -> Effect:
        number = _INDEX.get(action.lower())
        if number is None:
            note = f"Unknown move {shown(action)!r}. Moves: {', '.join(ACTIONS)}."
            return Effect(valid=False, effective=False, note=note)
        before = self._state
        outcomes = self._lake.moves[4 * before + number]
        target = outcomes[0][1]
        if len(outcomes) > 1:
            # The same draw and comparison as gymnasium's categorical_sample.
            draw = self.np_random.random()
            target = next((cell for total, cell in outcomes if total > draw), target)
        self._state = target
        letter = self._lake.letter(target)
        return Effect(float(letter == "G"), terminated=letter in "GH", effective=target != before)

    def _observe(self) -> str:
        lake = self._lake
        size = len(lake.rows)
        text = "".join(lake.rows).translate(_LEGEND)
        player = {"G": "√", "H": "X"}.get(lake.letter(self._state), "P")
        text = text[: self._state] + player + text[self._state + 1 :]
        return "\n".join(text[row * size : (row + 1) * size] for row in range(size))

    def _admissible(self) -> list[str]:
        return list(ACTIONS)

    def _won(self) -> bool:
        return self._lake.letter(self._state) == "G"

    def _copy_state(self, state: int) -> int:
        return state

    def expert_action(self) -> str:
        """Return the move that maximises the chance of reaching the goal from here."""
        return ACTIONS[best_actions(self._lake)[self._state]]

    def picture(self) -> NDArray[np.uint8]:
        """Return the lake as an image, 32 pixels a cell."""
        return grid_picture([[_COLOURS[symbol] for symbol in row] for row in self._observe().split("\n")])


_LEGEND = str.maketrans({"S": "_", "F": "_", "H": "O"})


def _checked_rows(rows: Any) -> tuple[str, ...]:
    listed = isinstance(rows, list | tuple) and all(isinstance(row, str) for row in rows)
    square = listed and len(rows) <= MAX_SIZE and all(len(row) == len(rows) for row in rows)
    text = "".join(rows) if square else ""
    if text.count("S") != 1 or "G" not in text or set(text) - set("SFHG"):
        raise InvalidRequest(
            f"rows is no map: {rows!r:.80}.",
            hint=f"Give up to {MAX_SIZE} rows of as many of the letters S, F, H, G, with one S and at least one G.",
        )
    return tuple(rows)
