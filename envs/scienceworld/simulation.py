"""Simulations on a pool of Java machines, rebuilt by replay wherever their machine is lost or their place is needed."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import NamedTuple

from ...errors import EnvironmentFailed, InvalidRequest
from .bridge import BridgeLost, JavaError, call, forget
from .jvm import Jvm, Seat

CROWDED = 4
"""Simulations in a machine from which on another machine is started, as long as there may be more."""
_TRIES = 3
_SOLVER_SEATS, _PATIENCE = 64, 10
"""The solver's memory, in seats, and how much longer it may take than a step."""


class Start(NamedTuple):
    """What a simulation begins from.

    Attributes:
        task: name of the task.
        variation: number of its variation.
        simplifications: as the simulator takes them: "easy", "" or names joined by commas.
        valid: whether the valid actions are listed after every action, as the original's wrapper does. Listing draws
            from the simulator's random numbers, so that it is part of what happens.
        senses: whether to look around and into the inventory after every action.
    """

    task: str
    variation: int
    simplifications: str
    valid: bool = False
    senses: bool = False


class Answer(NamedTuple):
    """What the simulator said.

    Attributes:
        observation: its text.
        points: score in points, -100 to 100.
        completed: whether the task is at its end.
        moves: actions so far that took time.
        look: the room, with ``Start.senses``.
        inventory: what the agent carries, with ``Start.senses``.
        valid: the valid actions, with ``Start.valid``.
    """

    observation: str
    points: int
    completed: bool
    moves: int
    look: str = ""
    inventory: str = ""
    valid: tuple[str, ...] = ()


class Pool:
    """The Java machines of this process.

    Args:
        machines: most machines.
        seats: most simulations in one machine; beyond, the one that was idle longest is put aside until its next
            action, and then rebuilt.
        limit: seconds that a call may take.
    """

    def __init__(self, machines: int, seats: int, limit: float) -> None:
        self.machines, self.seats, self.limit = machines, seats, limit
        self.jvms: list[Jvm] = []
        self._solver: Jvm | None = None
        self._lock = threading.Lock()

    def choose(self) -> Jvm:
        """Return the machine with the fewest simulations, or a new one while all are crowded."""
        with self._lock:
            self.jvms = [jvm for jvm in self.jvms if jvm.usable]
            emptiest = min(self.jvms, key=lambda jvm: jvm.seated, default=None)
            crowded = emptiest is None or emptiest.seated >= min(CROWDED, self.seats)
            if emptiest is None or (crowded and len(self.jvms) < self.machines):
                emptiest = Jvm(self.seats, self.limit)
                self.jvms.append(emptiest)
            return emptiest

    def solver(self) -> Jvm:
        """Return the machine that finds solutions, which takes seconds, and minutes for the longest.

        It has no other use, so that nobody waits for it.
        """
        with self._lock:
            if self._solver is None or not self._solver.usable:
                self._solver = Jvm(_SOLVER_SEATS, _PATIENCE * self.limit)
            return self._solver

    def close(self) -> None:
        """End all machines; simulations that go on are rebuilt on new ones."""
        with self._lock:
            for jvm in (*self.jvms, self._solver):
                if jvm is not None:
                    jvm.kill()


_pools: dict[int, Pool] = {}


def pool() -> Pool:
    """Return this process's pool, made on first use from the environment variables.

    ``TURNGYM_SCIENCEWORLD_JVMS``: most Java machines (default: one a core, at most 4).
    ``TURNGYM_SCIENCEWORLD_SEATS``: most simulations in one machine (default 32; memory grows with it).
    ``TURNGYM_SCIENCEWORLD_TIMEOUT``: seconds that a call may take (default 60).

    Raises:
        InvalidRequest: a variable is no positive number.
    """
    # By process: a forked one cannot use its parent's machines.
    known = _pools.get(os.getpid())
    if known is None:
        cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
        made = Pool(_setting("JVMS", min(4, cores or 1)), _setting("SEATS", 32), float(_setting("TIMEOUT", 60)))
        known = _pools.setdefault(os.getpid(), made)
    return known


def _setting(name: str, default: int) -> int:
    text = os.environ.get(f"TURNGYM_SCIENCEWORLD_{name}", str(default))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidRequest(
            f"TURNGYM_SCIENCEWORLD_{name} is {text!r:.60}.", hint="Set it to a positive integer, or unset it."
        )
    return int(text)


class Simulation:
    """One run of a task from its start; only one thread at a time may use it.

    Args:
        start: the task.
        home: the pool it runs on; this process's by default.
    """

    def __init__(self, start: Start, home: Pool | None = None) -> None:
        self.start = start
        self._home = home
        self._seat: Seat | None = None
        self._actions: list[str] = []
        self._digest = b""
        self.description = ""
        """The task in the simulator's words, from ``reset`` on."""

    def reset(self) -> Answer:
        """Load the task and look around, as the original's wrapper does.

        Raises:
            EnvironmentFailed: Java fails again and again, or the simulator refuses the task.
        """
        self._actions, self._digest, self._seat = [], b"", None
        return self._do("look around")

    def act(self, action: str) -> Answer:
        """Do one action.

        Raises:
            EnvironmentFailed: Java fails again and again, or a rebuilt run took another course.
        """
        return self._do(action)

    def fork(self) -> Simulation:
        """Return a copy in the same state; it is built by replay when it is first used."""
        twin = Simulation(self.start, self._home)
        twin._actions, twin._digest, twin.description = list(self._actions), self._digest, self.description
        return twin

    def release(self) -> None:
        """Give the place in the machine back; the next action rebuilds the simulation."""
        self._seat = None

    def _do(self, action: str) -> Answer:
        failures = []
        for _ in range(_TRIES):
            seat = self._seat
            jvm = seat.jvm if seat is not None and seat.jvm.usable else (self._home or pool()).choose()
            try:
                with jvm.lock:
                    if seat is None or seat.taken or seat.jvm is not jvm:
                        seat = self._seat = self._rebuilt(jvm)
                    answer = self._answer(seat, action)
            except BridgeLost as error:
                failures.append(str(error))
            except JavaError as error:
                self._seat = None  # what it left behind is unknown
                raise EnvironmentFailed(f"The simulator failed in {self._where()}: {error!s:.300}.") from error
            else:
                self._actions.append(action)
                self._digest = _digest(self._digest, answer)
                return answer
        raise EnvironmentFailed(
            f"Java was lost {len(failures)} times in {self._where()}: {'; '.join(failures):.300}.",
            hint="Free memory, or give calls more time with TURNGYM_SCIENCEWORLD_TIMEOUT.",
        )

    def _where(self) -> str:
        return f"{self.start.task}, variation {self.start.variation}, after {len(self._actions)} actions"

    def _rebuilt(self, jvm: Jvm) -> Seat:
        """Return a new seat in the state after the actions so far."""
        seat, start = jvm.seat(), self.start
        if not jvm.stocked:
            threading.Thread(target=jvm.restock, daemon=True).start()
        said, self.description, _ = jvm.run(
            seat,
            call(seat.interface, "load", start.task, start.variation, start.simplifications, False),
            call(seat.interface, "getTaskDescription"),
            # Every variation of every task, ten times the memory of the run itself, and needed to load only.
            call(seat.interface, "taskMaker_$eq", None),
        )
        if said:
            raise JavaError(said)
        digest = b""
        for action in self._actions:
            digest = _digest(digest, self._answer(seat, action))
        if digest != self._digest:
            raise EnvironmentFailed(
                f"Rebuilding {self._where()} took another course.",
                hint="Actions that Java cannot repeat are a fault of the simulator; reset starts anew.",
            )
        return seat

    def _answer(self, seat: Seat, action: str) -> Answer:
        jvm, interface = seat.jvm, seat.interface
        names = ["getScore", "getCompleted", "getNumMoves"]
        if self.start.senses:
            names += ["freeActionLook", "freeActionInventory"]
        if self.start.valid:
            names.append("getValidActionObjectCombinations")
        observation, score, completed, moves, *more = jvm.run(
            seat, call(interface, "step", action), *(call(interface, name) for name in names)
        )
        valid: tuple[str, ...] = ()
        if self.start.valid:
            listed = more.pop()
            # One text: a list would be fetched word by word.
            text, _ = jvm.run(seat, call("java.lang.String", "join", "\n", listed), forget(listed))
            valid = tuple(text.split("\n")) if text else ()
        look, inventory = more or ("", "")
        return Answer(observation, round(100 * score), completed, moves, look, inventory, valid)


def _digest(before: bytes, answer: Answer) -> bytes:
    return hashlib.blake2b(before + repr(answer).encode("utf-8", "replace"), digest_size=16).digest()


def gold_path(start: Start, home: Pool | None = None) -> tuple[str, ...]:
    """Return the actions that the simulator itself gives as a solution; () where it has none.

    Raises:
        EnvironmentFailed: Java fails, or the simulator refuses the task.
    """
    for _ in range(_TRIES):
        jvm = (home or pool()).solver()
        try:
            with jvm.lock:
                seat = jvm.seat()
                said, listed = jvm.run(
                    seat,
                    call(seat.interface, "load", start.task, start.variation, start.simplifications, True),
                    call(seat.interface, "getGoldActionSequence"),
                )
                text, _ = jvm.run(seat, call("java.lang.String", "join", "\n", listed), forget(listed))
        except BridgeLost:
            continue
        except JavaError as error:
            raise EnvironmentFailed(f"The simulator failed to solve {start.task}: {error!s:.300}.") from error
        if said:
            raise EnvironmentFailed(f"No solution of {start.task}, variation {start.variation}: {said:.300}.")
        return tuple(text.split("\n")) if text else ()
    raise EnvironmentFailed(
        f"Java was lost {_TRIES} times while it solved {start.task}, variation {start.variation}.",
        hint="Free memory, or give calls more time with TURNGYM_SCIENCEWORLD_TIMEOUT.",
    )
