"""One Java machine that runs many simulations, one call at a time.

The simulator keeps its random numbers, object numbers, simplifications and paths in global objects, so that two
simulations in one machine would disturb each other. Each :class:`Seat` therefore has these objects for itself, and they
are put in place before its calls; ``GLOBALS`` lists them all, and a test looks through the simulator's classes for any
other. (A class loader per simulation isolates too, but then each loads, compiles and holds all classes again: 60 to
140 MB a simulation instead of a few, and no code ever gets hot.)
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import selectors
import subprocess
import tempfile
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ...errors import EnvironmentFailed, MissingExtra
from ..java import find_java
from .bridge import Bridge, BridgeLost, JavaError, Ref, array, call, construct, forget

INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"
GLOBALS = (
    "scala.util.Random$",
    "util.UniqueIdentifier$",
    "main.scala.scienceworld.runtime.SimplifierProcessor$",
    "scienceworld.goldagent.PathFinder$",
)
LEAST_JAVA = 11  # OutputStream.nullOutputStream
_FLAGS = (
    # The simulator walks through sets in the order of their members' hashes. Without this they are random, and
    # with them the order of what a room holds, what "apple" means, and who wins.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    # Only the port and the password may come on standard output.
    "-XX:+DisplayVMOutputToStderr",
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
    "-Xmn32m",
)
_MEMORY = (160, 6)  # MB of heap for the machine itself, and for each simulation


def check_installed() -> None:
    """Check that the simulator and a Java are there.

    Raises:
        MissingExtra: one is missing, or Java is too old.
    """
    for package in ("scienceworld", "py4j"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"The simulator's package {package} is not installed.", hint='pip install "turngym[scienceworld]"'
            )
    find_java(LEAST_JAVA)


def _jars() -> tuple[Path, Path]:
    """Return py4j's and the simulator's."""
    spec = importlib.util.find_spec("scienceworld")
    assert spec is not None
    py4j = importlib.import_module("py4j.java_gateway").find_jar_path()
    return Path(py4j), Path(str(spec.origin)).with_name("scienceworld.jar")


class Seat:
    """One simulation's place in a machine: the simulator's interface and the global objects it sees."""

    def __init__(self, jvm: Jvm, interface: Ref, world: Sequence[Ref]) -> None:
        self.jvm = jvm
        self.interface = interface
        self.world = tuple(world)
        self.taken = False
        """Whether it was taken away; the simulation must be rebuilt on another."""
        # A session may be dropped anywhere, in the middle of another's call too; so it is only noted down.
        self._drop = weakref.finalize(self, jvm.dropped.append, (interface, self.world))
        self._drop.atexit = False

    def take(self) -> None:
        """Take it away from its simulation and give back what it holds."""
        self.taken = True
        self._drop()


class Jvm:
    """A Java machine with up to ``seats`` simulations; hold ``lock`` around every use of it.

    Args:
        seats: most simulations at a time; the one that was idle longest makes room for another.
        limit: seconds that a call may take before the machine is held to hang, and killed.

    Raises:
        MissingExtra: the simulator or Java is missing.
        EnvironmentFailed: the machine does not start.
    """

    def __init__(self, seats: int, limit: float) -> None:
        check_installed()
        self.lock = threading.Lock()
        self.dropped: deque[tuple[Ref, tuple[Ref, ...]]] = deque()
        self._limit, self._most = limit, seats
        self._seats: OrderedDict[weakref.ref[Seat], None] = OrderedDict()
        self._present: tuple[Ref, ...] = ()
        self._stock: list[Ref] = []
        self._owner, self._lost = os.getpid(), False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the machine
        self.process = self._launched()
        atexit.register(self.kill)
        try:
            self._bridge = self._connected()
            self._fields, self._makers, self._nothing = self._globals()
        except (BridgeLost, JavaError) as error:
            self.kill()
            raise EnvironmentFailed(f"The simulator does not start: {error}.") from error

    # Start and end ---------------------------------------------------------------------------------

    def _launched(self) -> subprocess.Popen[bytes]:
        py4j, simulator = _jars()
        command = [
            str(find_java(LEAST_JAVA).java),
            *_FLAGS,
            f"-Xmx{_MEMORY[0] + _MEMORY[1] * self._most}m",
            f"-XX:ErrorFile={Path(tempfile.gettempdir(), 'turngym-scienceworld-%p.log')}",
            *("-cp", os.pathsep.join(map(str, (py4j, simulator)))),
            # It ends when its standard input does: with this process, however that ends.
            *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
        ]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=simulator.parent
        )

    def _connected(self) -> Bridge:
        """Return a connection by the port and the password that the machine prints."""
        assert self.process.stdout is not None
        said, deadline = b"", time.monotonic() + self._limit
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while said.count(b"\n") < 2:
                chunk = b""
                if selector.select(max(0.0, deadline - time.monotonic())):
                    chunk = os.read(self.process.stdout.fileno(), 4096)
                if not chunk:
                    self._log.seek(0)
                    complaint = (said + self._log.read())[-600:].decode(errors="replace").strip()
                    raise BridgeLost(f"Java says {complaint or 'nothing'!r}")
                said += chunk
        port, token = said.split()[:2]
        bridge = Bridge(int(port), token.decode(), self._limit)
        self._silence(bridge)
        return bridge

    def _silence(self, bridge: Bridge) -> None:
        """Drop what the simulator prints for its developers, and let answers leave at once."""
        (nowhere,) = bridge.send(call("java.io.OutputStream", "nullOutputStream"))
        (stream,) = bridge.send(construct("java.io.PrintStream", nowhere))
        # Without TCP_NODELAY an answer over 8 KB waits 40 ms for the acknowledgement of its first part.
        _, gateway = bridge.send(
            call("java.lang.System", "setOut", stream), call("java.lang.Class", "forName", "py4j.GatewayServer")
        )
        (field,) = bridge.send(call(gateway, "getDeclaredField", "connections"))
        _, connections = bridge.send(call(field, "setAccessible", True), call(field, "get", Ref("GATEWAY_SERVER")))
        (connection,) = bridge.send(call(connections, "get", 0))
        (server,) = bridge.send(call(connection, "getSocket"))
        bridge.send(call(server, "setTcpNoDelay", True))

    def _globals(self) -> tuple[list[Ref], list[Ref], Ref]:
        """Return the fields that hold the global objects, what makes new ones, and an empty list of arguments."""
        no_classes, nothing = self._bridge.send(array("java.lang.Class", 0), array("java.lang.Object", 0))
        classes = self._bridge.send(*(call("java.lang.Class", "forName", name) for name in GLOBALS))
        fields = self._bridge.send(*(call(each, "getField", "MODULE$") for each in classes))
        makers = self._bridge.send(*(call(each, "getDeclaredConstructor", no_classes) for each in classes))
        self._bridge.send(*(call(maker, "setAccessible", True) for maker in makers))
        return fields, makers, nothing

    @property
    def usable(self) -> bool:
        """Whether it runs, and belongs to this process (a forked one has no use for its parent's connection)."""
        return not self._lost and self._owner == os.getpid()

    def kill(self) -> None:
        """End the machine; its simulations must be rebuilt on others."""
        if not self.usable:
            return
        self._lost = True
        atexit.unregister(self.kill)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                pipe.close()
        if hasattr(self, "_bridge"):
            self._bridge.close()

    # Use -------------------------------------------------------------------------------------------

    @property
    def seated(self) -> int:
        """Number of simulations in it."""
        return sum(ref() is not None for ref in list(self._seats))

    def seat(self) -> Seat:
        """Return a place for a simulation that is about to be loaded, and make room for it."""
        self._clear()
        while len(self._seats) >= self._most:
            oldest = self._seats.popitem(last=False)[0]()
            if oldest is not None:
                oldest.take()
                self._clear()
        # Loading resets an interface entirely; the global objects are new, so that they cannot leave a trace.
        interface = self._stock.pop() if self._stock else self._interface()
        world = self._world()
        seat = Seat(self, interface, world)
        self._seats[weakref.ref(seat)] = None
        return seat

    @property
    def stocked(self) -> bool:
        """Whether the next seat is ready at once."""
        return bool(self._stock or self.dropped)

    def restock(self) -> None:
        """Make an interface ahead of the next simulation, whose start it would make twice as long."""
        with self.lock, contextlib.suppress(BridgeLost, JavaError):
            if not self.stocked:
                self._stock.append(self._interface())

    def _world(self) -> tuple[Ref, ...]:
        """Make new global objects, which puts them in place."""
        self._present = ()
        self._present = tuple(self._send(*(call(maker, "newInstance", self._nothing) for maker in self._makers)))
        return self._present

    def _interface(self) -> Ref:
        # It numbers things and draws already while it is made, which must not disturb whose turn it is.
        world = self._world()
        (interface,) = self._send(construct(INTERFACE))
        self._present = ()
        self._send(*map(forget, world))
        return cast(Ref, interface)

    def _clear(self) -> None:
        """Take back what was dropped."""
        for ref in [ref for ref in self._seats if ref() is None]:
            del self._seats[ref]
        while self.dropped:
            interface, world = self.dropped.popleft()
            self._stock.append(interface)
            self._send(*map(forget, world))

    def run(self, seat: Seat, *messages: str) -> list[Any]:
        """Send calls for one simulation, all in one message, and return what they gave.

        Raises:
            BridgeLost: the machine crashed, or took too long and was killed.
            JavaError: the simulator threw.
        """
        self._seats.move_to_end(weakref.ref(seat))
        moves = []
        if seat.world != self._present:
            moves = [call(field, "set", None, own) for field, own in zip(self._fields, seat.world, strict=True)]
            self._present = seat.world
        return self._send(*moves, *messages)[len(moves) :]

    def _send(self, *messages: str) -> list[Any]:
        if not self.usable:
            raise BridgeLost("the machine has ended")
        try:
            return self._bridge.send(*messages)
        except JavaError:
            raise
        except BaseException:
            # Interrupted in between, answers would be taken for those of the next calls.
            self.kill()
            raise
