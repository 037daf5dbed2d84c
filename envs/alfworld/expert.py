"""An expert that knows what a player has read so far: the observations and its own actions, no hidden state.

It searches the likeliest receptacles first, opens what is closed, takes, cleans, heats, cools, lights and puts; an
action that did nothing is not tried again, and what others moved meanwhile is taken from the texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .household import LIKELY

_TASKS = [
    (re.compile(pattern), verb, count)
    for pattern, verb, count in (
        (r"(?:examine the|look at) (?P<what>\w+) (?:with|under) the (?P<where>\w+)", "use", 1),
        (r"(?:put|find) two (?P<what>\w+)(?: and put them)? (?:in|on) (?P<where>\w+)", "", 2),
        (r"put an? clean (?P<what>\w+) (?:in|on) (?P<where>\w+)", "clean", 1),
        (r"put an? hot (?P<what>\w+) (?:in|on) (?P<where>\w+)", "heat", 1),
        (r"put an? cool (?P<what>\w+) (?:in|on) (?P<where>\w+)", "cool", 1),
        (r"(?P<verb>clean|heat|cool) some (?P<what>\w+) and put it (?:in|on) (?P<where>\w+)", "", 1),
        (r"put (?:an?|some) (?P<what>\w+) (?:in|on) (?P<where>\w+)", "", 1),
    )
]
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_SEEN = re.compile(r"(?:On the|The) ([a-z]+ \d+)(?:, you see| is open\. In it, you see) ([^.]*)\.")
_CLOSED = re.compile(r"(?:The|You close the) ([a-z]+ \d+)(?: is closed)?\.")
_ITEM = re.compile(r"\ba ([a-z]+ \d+)")
_COMMAND = re.compile(r"(go to|open|close|take|move|use|clean|heat|cool|slice) ([a-z]+ \d+)(?: (?:from|to|with) (.+))?")
_NOTHING = "Nothing happens."
_OPENS = ("cabinet", "drawer", "fridge", "microwave", "safe")
# Most places are likelier than one that must be opened first, but these often hold what the task is about.
_WORTH_OPENING = ("fridge", "microwave", "safe")


@dataclass
class Memory:
    """What the texts have told.

    Attributes:
        places: the receptacles, as the first text lists them.
        contents: what was last seen in a receptacle.
        closed: receptacles last seen closed.
        at: where the player went last.
        holding: what it carries.
        treated: (verb, object) pairs done so far.
        failed: commands that did nothing since something changed last.
        carried: (object, receptacle) pairs: what was carried past, so that it could have been put there.
    """

    what: str = ""
    where: str = ""
    verb: str = ""
    count: int = 1
    places: list[str] = field(default_factory=list)
    contents: dict[str, list[str]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    at: str = ""
    holding: str = ""
    treated: set[tuple[str, str]] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    carried: set[tuple[str, str]] = field(default_factory=set)

    def saw(self, action: str, observation: str) -> None:
        """Take in one action and the text that followed; the first text follows the action ""."""
        if not self.places and not action:
            self._start(observation)
            return
        if observation == _NOTHING:
            self.failed.add(action)
            return
        if action not in ("look", "inventory", "help") and not action.startswith("examine"):
            self.failed.clear()
        if (command := _COMMAND.fullmatch(action)) is not None:
            self._did(command[1], command[2], command[3] or "")
        for place, items in _SEEN.findall(observation):
            self.contents[place] = _ITEM.findall(items)
            self.closed.discard(place)
        for place in _CLOSED.findall(observation):
            self.closed.add(place)
        if self.holding and self.at not in self.closed:
            self.carried.add((self.holding, self.at))

    def _start(self, text: str) -> None:
        room, _, task = text.partition("Your task is to: ")
        self.places = _ITEM.findall(room)
        for pattern, verb, count in _TASKS:
            if (found := pattern.match(task.strip())) is not None:
                self.what, self.where, self.count = found["what"], found["where"], count
                self.verb = found.groupdict().get("verb") or verb
                return

    def _did(self, verb: str, thing: str, place: str) -> None:
        if verb == "go to":
            self.at = thing
        elif verb == "take":
            self.holding = thing
            for items in self.contents.values():
                if thing in items:
                    items.remove(thing)
        elif verb == "move":
            self.holding = ""
            self.contents.setdefault(place, []).append(thing)
        elif verb in _TOOLS or verb == "use":
            self.treated.add((verb, thing))

    def known(self, kind: str) -> list[tuple[str, str]]:
        """Return (object, receptacle) of every known object of a kind."""
        return [(item, place) for place, items in self.contents.items() for item in items if _kind(item) == kind]


def next_action(memory: Memory, admissible: Collection[str]) -> str | None:
    """Return the next action, one of those that the player is told are admissible.

    Returns:
        The action, or None where the task's sentence is not one of the original's.
    """
    if not memory.what:
        return None
    for action in _wishes(memory):
        if action in admissible and action not in memory.failed:
            return action
    return None


def _wishes(memory: Memory) -> Iterable[str]:
    """Yield actions in order of preference; the first that is admissible is done."""
    if memory.holding and _kind(memory.holding) == memory.what:
        yield from _use(memory) if memory.verb == "use" else _bring(memory)
    elif memory.holding:
        yield from _put_down(memory)
    else:
        yield from _fetch(memory)
    yield from _search(memory, memory.what)
    # Everything was looked at: look again, others may have moved things.
    for place in memory.places:
        yield f"open {place}" if place in memory.closed and place == memory.at else f"go to {place}"
    yield "look"


def _fetch(memory: Memory) -> Iterable[str]:
    goal = _best_goal(memory)
    for item, place in memory.known(memory.what):
        done = memory.verb in ("", "use") or (memory.verb, item) in memory.treated
        if done and memory.verb != "use" and (place == goal if memory.count > 1 else _kind(place) == memory.where):
            continue  # it lies where it belongs
        yield f"take {item} from {place}"
        yield from _reach(memory, place)


def _bring(memory: Memory) -> Iterable[str]:
    item = memory.holding
    if memory.verb and (memory.verb, item) not in memory.treated:
        tools = [place for place in memory.places if _kind(place) == _TOOLS[memory.verb]]
        for tool in sorted(tools, key=lambda place: place != memory.at):
            yield f"{memory.verb} {item} with {tool}"
            if tool == memory.at and f"{memory.verb} {item} with {tool}" not in memory.failed:
                continue  # this one cannot do it: try the next
            yield f"go to {tool}"
        return
    goal = _best_goal(memory)
    for place in sorted(_of_kind(memory, memory.where), key=lambda place: (place != goal, place != memory.at)):
        yield f"move {item} to {place}"
        yield from _reach(memory, place)


def _use(memory: Memory) -> Iterable[str]:
    lamps = memory.known(memory.where)
    for lamp, place in sorted(lamps, key=lambda pair: pair[1] != memory.at):
        if memory.at == place:
            yield f"use {lamp}"
        yield from _reach(memory, place)
    yield from _search(memory, memory.where)


def _put_down(memory: Memory) -> Iterable[str]:
    """The hands hold something that the task is not about."""
    order = sorted(memory.places, key=lambda place: (place != memory.at, _kind(place) in _OPENS))
    for place in order:
        yield f"move {memory.holding} to {place}"
    likely = LIKELY.get(_kind(memory.holding), ())

    def rank(place: str) -> tuple[bool, int]:
        known = (memory.holding, place) in memory.carried
        return known, likely.index(_kind(place)) if _kind(place) in likely else 99

    for place in sorted(order, key=rank):
        yield from _reach(memory, place)


def _search(memory: Memory, kind: str) -> Iterable[str]:
    likely = LIKELY.get(kind, ())

    def cost(place: str) -> tuple[bool, int, str]:
        own = _kind(place)
        rank = likely.index(own) if own in likely else 50
        hidden = own in _OPENS and own not in _WORTH_OPENING
        return place != memory.at, rank + 20 * hidden, ""

    for place in sorted((p for p in memory.places if p not in memory.contents), key=cost):
        yield from _reach(memory, place)


def _reach(memory: Memory, place: str) -> Iterable[str]:
    """Go to a receptacle, or open it where one stands before it."""
    if place == memory.at:
        yield f"open {place}"
    else:
        yield f"go to {place}"


def _best_goal(memory: Memory) -> str:
    """Return the receptacle to fill: the one that holds most of what is wanted, else the first that was seen."""

    def filled(place: str) -> int:
        return sum(_kind(item) == memory.what for item in memory.contents.get(place, ()))

    places = _of_kind(memory, memory.where)
    return max(places, key=lambda place: (filled(place), place in memory.contents), default="")


def _of_kind(memory: Memory, kind: str) -> list[str]:
    return [place for place in memory.places if _kind(place) == kind]


def _kind(name: str) -> str:
    return name.partition(" ")[0]
