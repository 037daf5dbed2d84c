"""Simulations share machines, machines die: neither may show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from turngym.envs.registry import unmet
from turngym.envs.scienceworld.bridge import BridgeLost, array, forget
from turngym.envs.scienceworld.jvm import Jvm
from turngym.envs.scienceworld.simulation import Answer, Pool, Simulation, Start
from turngym.errors import EnvironmentFailed, InvalidRequest

MISSING = unmet("scienceworld")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"extra: {MISSING}")
SHORT = Start("find-animal", 226, "easy")
PLAYS = (
    (
        SHORT,
        ("look around", "teleport to outside", "look at door", "0", "wait1", "inventory"),
    ),
    (
        Start("lifespan-longest-lived", 93, ""),
        ("open door to kitchen", "look around", "go to kitchen", "xyzzy", "wait1"),
    ),
    (Start("power-component", 15, "openDoors"), ("look around", "go to hallway", "wait", "look around")),
    (
        Start("lifespan-shortest-lived", 93, "easy", valid=True, senses=True),
        ("teleport to greenhouse", "wait1", "look around"),
    ),
)
"""Starts of different tasks and simplifications, and actions for each."""


def played(simulation: Simulation, actions: tuple[str, ...]) -> list[Answer]:
    """Return all that a simulation says."""
    return [simulation.reset(), *(simulation.act(action) for action in actions)]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two machines with few places, so that they fill up."""
    made = Pool(machines=2, seats=3, limit=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(pool: Pool) -> list[list[Answer]]:
    """What each play gives in a machine of its own."""
    found = []
    for start, actions in PLAYS:
        own = Pool(machines=1, seats=1, limit=60)
        found.append(played(Simulation(start, own), actions))
        own.close()
    return found


def test_interleaved_as_alone(pool: Pool, alone: list[list[Answer]]) -> None:
    # More than there are places for, so that some are put aside and rebuilt.
    runs = [(Simulation(start, pool), actions, told) for start, actions in PLAYS * 2 for told in [[]]]  # type: ignore[var-annotated]
    for simulation, _, told in runs:
        told.append(simulation.reset())
    for number in range(max(len(actions) for _, actions in PLAYS)):
        for simulation, actions, told in runs:
            told += [simulation.act(action) for action in actions[number : number + 1]]
    assert [told for _, _, told in runs] == alone * 2
    assert all(jvm.seated <= 3 for jvm in pool.jvms) and len(pool.jvms) == 2


def test_what_is_made_ahead_does_not_disturb() -> None:
    own = Pool(machines=1, seats=2, limit=60)
    # Listing draws at random which of a thing's names is given, and here many things have the same.
    start = Start("mendelian-genetics-known-plant", 1, "selfWateringFlowerPots", valid=True)
    actions = ("open door to hallway", "go to hallway", "open door to greenhouse", "go to greenhouse", "look around")
    want = played(Simulation(start, own), actions)
    simulation, jvm = Simulation(start, own), own.jvms[0]
    told = [simulation.reset()]
    for action in actions:
        with jvm.lock:
            jvm._send(*map(forget, jvm._stock))
            jvm._stock.clear()
        jvm.restock()
        told.append(simulation.act(action))
    assert told == want and jvm.stocked
    jvm.kill()


def test_threads_as_alone(pool: Pool, alone: list[list[Answer]]) -> None:
    results: dict[int, list[Answer]] = {}

    def play(number: int) -> None:
        start, actions = PLAYS[number % len(PLAYS)]
        results[number] = played(Simulation(start, pool), actions)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number] for number in range(8)] == alone * 2


def test_a_used_place_leaves_no_trace(alone: list[list[Answer]]) -> None:
    own = Pool(machines=1, seats=1, limit=60)
    for (start, actions), want in zip(PLAYS, alone, strict=True):
        assert played(Simulation(start, own), actions) == want
    own.close()


def test_a_killed_machine_does_not_show(pool: Pool, alone: list[list[Answer]]) -> None:
    (start, actions), want = PLAYS[0], alone[0]
    simulation, other = Simulation(start, pool), Simulation(PLAYS[1][0], pool)
    told, others = [simulation.reset()], [other.reset()]
    for number, action in enumerate(actions):
        if number in (1, 4):
            for jvm in pool.jvms:
                os.kill(jvm.process.pid, signal.SIGKILL)
        told.append(simulation.act(action))
    others += [other.act(action) for action in PLAYS[1][1]]
    assert told == want and others == alone[1]


def test_a_machine_out_of_memory_does_not_show(pool: Pool, alone: list[list[Answer]]) -> None:
    simulation = Simulation(PLAYS[0][0], pool)
    told = [simulation.reset()]
    jvm = next(jvm for jvm in pool.jvms if jvm.seated)
    with pytest.raises(BridgeLost), jvm.lock:
        jvm.run(jvm.seat(), array("java.lang.Object", 2**30))
    assert not jvm.usable
    assert told + [simulation.act(action) for action in PLAYS[0][1]] == alone[0]


def test_a_hanging_machine_is_killed(alone: list[list[Answer]]) -> None:
    own = Pool(machines=1, seats=2, limit=60)
    simulation = Simulation(PLAYS[0][0], own)
    told = [simulation.reset()]
    (first,) = own.jvms
    first._bridge._socket.settimeout(0.5)
    os.kill(first.process.pid, signal.SIGSTOP)
    told += [simulation.act(action) for action in PLAYS[0][1]]
    assert told == alone[0] and first.process.returncode == -signal.SIGKILL
    own.close()


def test_an_interrupted_call_does_not_mix_up_answers(pool: Pool, alone: list[list[Answer]]) -> None:
    simulation = Simulation(PLAYS[0][0], pool)
    told = [simulation.reset()]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def play() -> None:
        for _ in range(10_000):
            simulation.fork().act("wait")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        with pytest.raises(KeyboardInterrupt):
            play()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert told + [simulation.act(action) for action in PLAYS[0][1]] == alone[0]


class Doomed(Pool):
    """A pool whose machines all die before they are used."""

    def choose(self) -> Jvm:
        jvm = super().choose()
        os.kill(jvm.process.pid, signal.SIGKILL)
        return jvm


def test_what_fails_again_and_again_is_told(pool: Pool) -> None:
    with pytest.raises(EnvironmentFailed, match=r"Java was lost 3 times in find-animal, .*TIMEOUT"):
        Simulation(SHORT, Doomed(1, 2, 60)).reset()
    with pytest.raises(EnvironmentFailed, match="does not start"):
        Pool(1, 2, limit=0.001).choose()
    with pytest.raises(EnvironmentFailed, match="Unknown task"):
        Simulation(Start("nothing", 0, ""), pool).reset()


def test_another_course_is_told(pool: Pool) -> None:
    simulation = Simulation(SHORT, pool)
    simulation.reset()
    simulation.act("wait1")
    simulation._actions[1] = "wait"
    simulation.release()
    with pytest.raises(EnvironmentFailed, match="took another course"):
        simulation.act("look around")


def test_forks(pool: Pool) -> None:
    simulation = Simulation(SHORT, pool)
    simulation.reset()
    simulation.act("teleport to outside")
    twin = simulation.fork()
    assert simulation.act("look around") == twin.act("look around")
    assert simulation.act("inventory") != twin.act("wait")
    assert simulation.act("look around") != twin.act("look around")


def test_odd_actions(pool: Pool) -> None:
    simulation = Simulation(SHORT, pool)
    simulation.reset()
    for action in ("a\\nb\\", "\n", "\r\n", "é😀", "\x00", "\ud800", "\\", "e\n", "!ysx"):
        assert simulation.act(action).observation == "No known action matches that input."


ORPHAN = """
import sys, time
from turngym.envs.scienceworld.simulation import Pool, Simulation, Start
pool = Pool(1, 1, 60)
Simulation(Start("find-animal", 226, "easy"), pool).reset()
print(pool.jvms[0].process.pid, flush=True)
time.sleep(600)
"""


def test_machines_end_with_a_killed_process(pool: Pool) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        java = Path("/proc", parent.stdout.readline().strip())
        assert b"java" in (java / "cmdline").read_bytes()
        parent.kill()
    deadline = time.monotonic() + 60
    while java.exists() and b"java" in (java / "cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


FORKED = """
import os
from turngym.envs.scienceworld.simulation import Simulation, Start
simulation = Simulation(Start("find-animal", 226, "easy"))
simulation.reset()
before = simulation.act("look around")
child = os.fork()
same = simulation.act("look around") == before
if not child:
    os._exit(0 if same else 1)
assert same and os.waitpid(child, 0)[1] == 0
assert simulation.act("look around") == before
"""


def test_a_forked_process_has_machines_of_its_own(pool: Pool) -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_bad_settings(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from turngym.envs.scienceworld import simulation

    monkeypatch.setattr(simulation, "_pools", {})
    monkeypatch.setenv("TURNGYM_SCIENCEWORLD_JVMS", value)
    with pytest.raises(InvalidRequest, match="positive integer"):
        simulation.pool()
