"""Games of our own in ALFWorld's file format: rooms, objects and tasks drawn from seeds, each with its solution.

A scene (its number decides) fixes the receptacles of a room and where one stands before them; a game fills it with
objects and sets a task, which the objects that were laid out for it can always fulfil.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ..core import stable_rng
from .data import GameFile, Split
from .engine import display_names
from .household import PLACES, ROOMS, THINGS, Place, Thing
from .pddl import parse_nested

HELD_OUT_SCENES = 6
"""How many of each room's 30 scenes no training task uses."""
_SIZES = {"train": 100_000, "validation": 256, "test": 256, "L0": 256, "L1": 256, "L2": 256, "train_L2": 100_000}
_VERBS = {
    "pick_clean_then_place_in_recep": ("clean", "c", "SinkBasin", "cleanable", "isClean"),
    "pick_heat_then_place_in_recep": ("heat", "h", "Microwave", "heatable", "isHot"),
    "pick_cool_then_place_in_recep": ("cool", "k", "Fridge", "coolable", "isCool"),
}
_TRAITS = {
    "c": "cleanable",
    "h": "heatable",
    "k": "coolable",
    "s": "sliceable",
    "r": "isReceptacleObject",
    "t": "toggleable",
}
_ADJECTIVES = {"clean": "clean", "heat": "hot", "cool": "cool"}
_BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}


@dataclass(frozen=True)
class Receptacle:
    """A receptacle of a scene: its id, kind and the location one stands at before it."""

    id: str
    place: Place
    location: str


@dataclass
class Layout:
    """A game being made: objects by id, and where each lies."""

    receptacles: tuple[Receptacle, ...]
    start: str
    things: dict[str, Thing] = field(default_factory=dict)
    where: dict[str, Receptacle] = field(default_factory=dict)


def splits(domain: str, grammar: str, task_types: tuple[str, ...], held_out: tuple[str, ...]) -> dict[str, Split]:
    """Return the procedural splits.

    train, validation and L0 share scenes, test, L1 and L2 have others; train_L2 leaves out the types ``held_out``, of
    which L2 consists.
    """
    kept = tuple(kind for kind in task_types if kind not in held_out)
    held = tuple(kind for kind in task_types if kind in held_out)
    kinds = dict.fromkeys(_SIZES, task_types) | {"L2": held, "train_L2": kept}
    return {name: ProceduralSplit(domain, grammar, name, kinds[name]) for name in _SIZES if kinds[name]}


class ProceduralSplit:
    """One split of the procedural games; ``game(i)`` depends on the split's name, its task types and ``i`` alone."""

    def __init__(self, domain: str, grammar: str, name: str, task_types: tuple[str, ...]) -> None:
        self.domain, self.grammar, self.name, self.task_types = domain, grammar, name, task_types
        self._domain_name = parse_nested(domain)[1][1]

    def __len__(self) -> int:
        return _SIZES[self.name]

    def game(self, index: int) -> GameFile:
        """Make one game."""
        rng = stable_rng("alfworld", self.name, *self.task_types, index)
        kind = self.task_types[int(rng.integers(len(self.task_types)))]
        unseen = self.name in ("test", "L1", "L2")
        while True:  # a scene may lack what the task needs; most have it
            made = _attempt(kind, unseen, rng)
            if made is not None:
                break
        layout, target, goal, scene = made
        name = f"{kind}-{target.kind}-None-{goal}-{scene}/trial_{self.name}_{index:06d}"
        sentence = _sentence(kind, target.kind.lower(), goal.lower(), rng)
        problem = _problem(f"plan_{self.name}_{index}", str(self._domain_name), layout, _goal(kind, target.kind, goal))
        plan = tuple(_plan(kind, layout, target, goal))
        return GameFile(name, self.domain, self.grammar.replace("UNKNOWN GOAL", sentence), problem, plan)


@lru_cache(maxsize=128)
def scene_of(number: int) -> tuple[tuple[Receptacle, ...], str]:
    """Return (receptacles, the location where the player starts) of a scene."""
    room = next(letter for letter, numbers in ROOMS.items() if number in numbers)
    rng = stable_rng("alfworld-scene", number)
    taken: set[str] = set()
    receptacles: list[Receptacle] = []
    for place in PLACES.values():
        for letter, fewest, most in place.counts:
            location = ""
            for _ in range(int(rng.integers(fewest, most + 1)) if letter == room else 0):
                # Of cabinets and drawers often two are in reach from one spot.
                if not (location and place.openable and rng.random() < 0.3):
                    location = _location(rng, taken)
                receptacles.append(Receptacle(_entity(place.kind, rng, taken), place, location))
    return tuple(receptacles), _location(rng, taken)


def _attempt(kind: str, unseen: bool, rng: np.random.Generator) -> tuple[Layout, Thing, str, int] | None:
    verb = _VERBS.get(kind)
    rooms = {"c": "KT", "h": "K", "k": "K"}[verb[1]] if verb else "LB" if kind == "look_at_obj_in_light" else "KLBT"
    room = rooms[int(rng.integers(len(rooms)))]
    numbers = ROOMS[room][-HELD_OUT_SCENES:] if unseen else ROOMS[room][:-HELD_OUT_SCENES]
    scene = int(numbers[int(rng.integers(len(numbers)))])
    receptacles, start = scene_of(scene)
    layout = Layout(receptacles, start)
    here = {receptacle.place.kind for receptacle in receptacles}
    local = [thing for thing in THINGS.values() if room in thing.rooms]
    able = [thing for thing in local if "t" not in thing.traits and (verb is None or verb[1] in thing.traits)]
    target = able[int(rng.integers(len(able)))]
    if kind == "look_at_obj_in_light":
        lamps = [thing for thing in local if "t" in thing.traits and here & set(thing.places)]
        goals = [lamp.kind for lamp in lamps]
    else:
        goals = [name for name in target.places if name in here and (verb is None or name != verb[2])]
    if not goals:
        return None
    goal = goals[int(rng.integers(len(goals)))]
    count = 2 if kind == "pick_two_obj_and_place" else 1
    # The task must not be done, or half done, from the start.
    sources = [receptacle for receptacle in receptacles if receptacle.place.kind in target.places]
    sources = [receptacle for receptacle in sources if receptacle.place.kind != goal]
    if not sources or (verb is not None and verb[2] not in here):
        return None
    taken: set[str] = set()
    for _ in range(count + int(rng.integers(2))):
        _lay(layout, target, sources, rng, taken)
    if kind == "look_at_obj_in_light":
        _lay(layout, THINGS[goal], list(receptacles), rng, taken)
    _fill(layout, [thing for thing in local if thing.kind not in (target.kind, goal)], rng, taken)
    return layout, target, goal, scene


def _fill(layout: Layout, things: list[Thing], rng: np.random.Generator, taken: set[str]) -> None:
    """Lay out up to three of every other kind; receptacles crowd as they do in ALFRED's rooms, some stay empty."""
    for thing in things:
        lamp = "t" in thing.traits
        for _ in range(int(rng.integers(2 if lamp else 4))):
            if rng.random() < 0.6:
                _lay(layout, thing, list(layout.receptacles), rng, taken)


def _lay(
    layout: Layout, thing: Thing, receptacles: list[Receptacle], rng: np.random.Generator, taken: set[str]
) -> None:
    options = [receptacle for receptacle in receptacles if receptacle.place.kind in thing.places]
    if options:
        weights = np.array([1 / (1 + thing.places.index(receptacle.place.kind)) for receptacle in options])
        chosen = options[int(rng.choice(len(options), p=weights / weights.sum()))]
        name = _entity(thing.kind, rng, taken)
        layout.things[name], layout.where[name] = thing, chosen


def _entity(kind: str, rng: np.random.Generator, taken: set[str]) -> str:
    """Return a new id in ALFWorld's form: the kind and three coordinates."""
    while True:
        parts = []
        for _ in range(3):
            value = int(rng.integers(-299, 300))
            whole, cents = divmod(abs(value), 100)
            parts.append(f"_bar__{'minus' if value < 0 else 'plus'}_{whole:02d}_dot_{cents:02d}")
        # A basin's id ends in its own kind and begins with what it is part of.
        name = _BASINS.get(kind, kind) + "".join(parts) + (f"_bar_{kind}" if kind in _BASINS else "")
        if name not in taken:
            taken.add(name)
            return name


def _location(rng: np.random.Generator, taken: set[str]) -> str:
    while True:
        x, y = (int(value) for value in rng.integers(-12, 13, size=2))
        parts = [f"_minus_{-value}" if value < 0 else str(value) for value in (x, y)]
        name = (
            f"loc_bar_{parts[0]}_bar_{parts[1]}_bar_{int(rng.integers(4))}_bar_{int(rng.choice([0, 15, 30, 45, 60]))}"
        )
        if name not in taken:
            taken.add(name)
            return name


def _sentence(kind: str, target: str, goal: str, rng: np.random.Generator) -> str:
    first = bool(rng.integers(2))
    if kind in _VERBS:
        verb = _VERBS[kind][0]
        return (
            f"put a {_ADJECTIVES[verb]} {target} in {goal}" if first else f"{verb} some {target} and put it in {goal}"
        )
    if kind == "look_at_obj_in_light":
        return f"look at {target} under the {goal}" if first else f"examine the {target} with the {goal}"
    if kind == "pick_two_obj_and_place":
        return f"put two {target} in {goal}" if first else f"find two {target} and put them in {goal}"
    return f"put a {target} in {goal}" if first else f"put some {target} on {goal}"


def _goal(kind: str, target: str, goal: str) -> str:
    if kind == "look_at_obj_in_light":
        return f"""(and
    (exists (?lamp - object ?r - receptacle ?a - agent ?l - location)
      (and (objectType ?lamp {goal}Type) (toggleable ?lamp) (isToggled ?lamp) (receptacleAtLocation ?r ?l)
           (atLocation ?a ?l) (inReceptacle ?lamp ?r)))
    (exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o))))"""
    inner = f"(objectType ?o {target}Type) (receptacleType ?r {goal}Type) (inReceptacle ?o ?r)"
    if kind in _VERBS:
        inner += f" ({_VERBS[kind][3]} ?o) ({_VERBS[kind][4]} ?o)"
    elif kind == "pick_two_obj_and_place":
        inner += f"""
        (exists (?other - object)
          (and (not (= ?o ?other)) (objectType ?other {target}Type) (inReceptacle ?other ?r)))"""
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {inner}))))"


def _problem(name: str, domain: str, layout: Layout, goal: str) -> str:
    kinds = {thing.kind for thing in layout.things.values()}
    places = {receptacle.place.kind for receptacle in layout.receptacles}
    locations = {receptacle.location for receptacle in layout.receptacles} | {layout.start}
    objects = ["agent1 - agent"]
    objects += [f"{kind}Type - otype" for kind in sorted(kinds)] + [f"{kind}Type - rtype" for kind in sorted(places)]
    objects += [f"{item} - object" for item in layout.things]
    objects += [f"{receptacle.id} - receptacle" for receptacle in layout.receptacles]
    objects += [f"{location} - location" for location in sorted(locations)]
    facts = "\n    ".join(_facts(layout, kinds, places))
    listed = "\n    ".join(objects)
    return (
        f"(define (problem {name})\n  (:domain {domain})\n  (:objects\n    {listed})\n"
        f"  (:init\n    {facts})\n  (:goal {goal}))\n"
    )


def _facts(layout: Layout, kinds: set[str], places: set[str]) -> Iterator[str]:
    yield f"(atLocation agent1 {layout.start})"
    for receptacle in layout.receptacles:
        yield f"(receptacleType {receptacle.id} {receptacle.place.kind}Type)"
        yield f"(receptacleAtLocation {receptacle.id} {receptacle.location})"
        if receptacle.place.openable:
            yield f"(openable {receptacle.id})"
    for kind in sorted(kinds):
        for place in THINGS[kind].places:
            if place in places:
                yield f"(canContain {place}Type {kind}Type)"
    for item, thing in layout.things.items():
        yield f"(objectType {item} {thing.kind}Type)"
        yield f"(inReceptacle {item} {layout.where[item].id})"
        yield f"(objectAtLocation {item} {layout.where[item].location})"
        if "t" not in thing.traits:
            yield f"(pickupable {item})"
        for letter in thing.traits.strip("-"):
            yield f"({_TRAITS[letter]} {item})"


def _plan(kind: str, layout: Layout, target: Thing, goal: str) -> Iterator[str]:
    """Yield commands that solve the game from its start."""
    entities = [*layout.things, *(receptacle.id for receptacle in layout.receptacles)]
    names = display_names([entity.lower() for entity in entities])
    walk = _Walk(layout.start, names)
    items = [item for item, thing in layout.things.items() if thing is target]
    verb = _VERBS.get(kind)
    by_kind = {receptacle.place.kind: receptacle for receptacle in layout.receptacles}
    for item in items[: 2 if kind == "pick_two_obj_and_place" else 1]:
        source, shown = layout.where[item], names[item.lower()]
        yield from walk.reach(source)
        yield f"take {shown} from {names[source.id.lower()]}"
        if kind == "look_at_obj_in_light":
            lamp = next(lamp for lamp, thing in layout.things.items() if thing.kind == goal)
            yield from walk.reach(layout.where[lamp], opening=False)
            yield f"use {names[lamp.lower()]}"
            return
        if verb is not None:
            tool = by_kind[verb[2]]
            yield from walk.reach(tool, opening=False)
            yield f"{verb[0]} {shown} with {names[tool.id.lower()]}"
        yield from walk.reach(by_kind[goal])
        yield f"move {shown} to {names[by_kind[goal].id.lower()]}"


class _Walk:
    """Where the plan's player stands and what it has opened."""

    def __init__(self, start: str, names: dict[str, str]) -> None:
        self.location, self.names = start, names
        self.opened: set[str] = set()

    def reach(self, receptacle: Receptacle, opening: bool = True) -> Iterator[str]:
        name = self.names[receptacle.id.lower()]
        if receptacle.location != self.location:  # one cannot go where one is
            self.location = receptacle.location
            yield f"go to {name}"
        if opening and receptacle.place.openable and receptacle.id not in self.opened:
            self.opened.add(receptacle.id)
            yield f"open {name}"
