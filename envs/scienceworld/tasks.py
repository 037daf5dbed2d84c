"""The thirty tasks, their variations and splits, as version 1.2.3 of the simulator has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import InvalidRequest, nearest


class Task(NamedTuple):
    """One of the thirty tasks.

    Attributes:
        id: topic and number, "4-2".
        name: the simulator's name.
        variations: how many there are.
    """

    id: str
    name: str
    variations: int

    @property
    def electrical(self) -> bool:
        """Whether it takes connecting and disconnecting electrical parts."""
        return self.id.startswith("3-")

    def span(self, part: str) -> range:
        """Return the variations of "train" (the first half), "dev" (a quarter) or "test" (the rest)."""
        quarter = self.variations // 4
        first, last = {"train": (0, 2), "dev": (2, 3), "test": (3, 0)}[part]
        return range(first * quarter, last * quarter or self.variations)


TASKS = tuple(
    Task(*row)
    for row in (
        ("1-1", "boil", 30),
        ("1-2", "melt", 30),
        ("1-3", "freeze", 30),
        ("1-4", "change-the-state-of-matter-of", 30),
        ("2-1", "use-thermometer", 540),
        ("2-2", "measure-melting-point-known-substance", 436),
        ("2-3", "measure-melting-point-unknown-substance", 300),
        ("3-1", "power-component", 20),
        ("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
        ("3-3", "test-conductivity", 900),
        ("3-4", "test-conductivity-of-unknown-substances", 600),
        ("4-1", "find-living-thing", 300),
        ("4-2", "find-non-living-thing", 300),
        ("4-3", "find-plant", 300),
        ("4-4", "find-animal", 300),
        ("5-1", "grow-plant", 126),
        ("5-2", "grow-fruit", 126),
        ("6-1", "chemistry-mix", 32),
        ("6-2", "chemistry-mix-paint-secondary-color", 36),
        ("6-3", "chemistry-mix-paint-tertiary-color", 36),
        ("7-1", "lifespan-longest-lived", 125),
        ("7-2", "lifespan-shortest-lived", 125),
        ("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
        ("8-1", "identify-life-stages-1", 14),
        ("8-2", "identify-life-stages-2", 10),
        ("9-1", "inclined-plane-determine-angle", 168),
        ("9-2", "inclined-plane-friction-named-surfaces", 1386),
        ("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
        ("10-1", "mendelian-genetics-known-plant", 120),
        ("10-2", "mendelian-genetics-unknown-plant", 480),
    )
)
BY_NUMBER = tuple(sorted(TASKS, key=lambda task: task.name))
"""The tasks as the simulator and RLVMR number them: 0 to 29 in the order of their names."""
HELD_OUT = frozenset(BY_NUMBER[number].name for number in (1, 4, 8, 11, 13, 16, 18, 21, 24, 28))
"""RLVMR's L2: one task of each topic, the last in the order of names."""
SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")
_PARTS = {"train": "train", "validation": "dev", "test": "test", "L0": "dev", "L1": "test"}


def named(tasks: Any) -> tuple[Task, ...]:
    """Return the tasks named by name, id ("4-2") or number (0 to 29 in the order of names); None names all.

    Raises:
        InvalidRequest: no such task.
    """
    if tasks is None:
        return BY_NUMBER
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not tasks:
        raise InvalidRequest(f"tasks is {tasks!r:.60}.", hint='Give a list of tasks, such as ["boil", "4-2", 13].')
    chosen = set()
    for each in tasks:
        number = isinstance(each, int) and not isinstance(each, bool) and 0 <= each < len(BY_NUMBER)
        found = BY_NUMBER[each] if number else next((task for task in TASKS if each in (task.id, task.name)), None)
        if found is None:
            raise InvalidRequest(f"Unknown task {each!r:.60}.", hint=nearest(str(each), [task.name for task in TASKS]))
        chosen.add(found)
    return tuple(task for task in BY_NUMBER if task in chosen)


def simplified(simplifications: Any, tasks: Sequence[Task]) -> str:
    """Return simplifications as the simulator takes them: "easy", "" or names joined by commas.

    Raises:
        InvalidRequest: an unknown one, or one that makes a task impossible.
    """
    names = [simplifications] if isinstance(simplifications, str) else simplifications
    if not isinstance(names, Sequence):
        raise InvalidRequest(f"simplifications is {names!r:.60}.", hint='Give "easy", or a list of names.')
    names = [name for each in names for name in str(each).split(",") if name]
    for name in names:
        if name not in ("easy", *SIMPLIFICATIONS):
            raise InvalidRequest(
                f"Unknown simplification {name!r:.60}.", hint=nearest(name, ("easy", *SIMPLIFICATIONS))
            )
    if "noElectricalAction" in names:
        for task in tasks:
            if task.electrical:
                raise InvalidRequest(
                    f"{task.name} cannot be done with noElectricalAction.",
                    hint='Leave one of them out, or use "easy", which keeps these actions where a task needs them.',
                )
    return "easy" if "easy" in names else ",".join(dict.fromkeys(names))


@lru_cache(maxsize=32)
def splits(tasks: tuple[Task, ...]) -> Mapping[str, tuple[tuple[Task, int], ...]]:
    """Return each split's tasks with their variations.

    The first of every task come first, then the second of every task, and so on, so that any first few are of all
    kinds; which variations a split has is as in the original.
    """
    parts = {name: (tasks, part) for name, part in _PARTS.items()}
    parts["L2"] = tuple(task for task in tasks if task.name in HELD_OUT), "test"
    parts["train_L2"] = tuple(task for task in tasks if task.name not in HELD_OUT), "train"
    table = {}
    for name, (chosen, part) in parts.items():
        spans = [(task, task.span(part)) for task in chosen]
        longest = max((len(span) for _, span in spans), default=0)
        table[name] = tuple((task, span[rank]) for rank in range(longest) for task, span in spans if rank < len(span))
    return {name: listed for name, listed in table.items() if listed}
