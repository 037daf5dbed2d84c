"""What a client knows of one session: enough to rebuild it on another hub by replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np

from ..envs.core import SEED_LIMIT, check_seed
from ..envs.vector import Start
from ..errors import (
    InvalidRequest,
    ReplayDiverged,
    SessionBusy,
    SessionNotFound,
    StepConflict,
    UnknownTask,
    from_problem,
    nearest,
)
from ..protocol import Create, Level, LogEntry, Reply, Restore
from ..records import Completion, Observation, StepResult, scrub


class Origin(msgspec.Struct, frozen=True):
    """What the environment of a session was made with (see ``protocol.Create``)."""

    env: str
    level: Level = "text"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)


class Session:
    """One session as its client knows it.

    Attributes:
        origin: what its environment was made with.
        id: session id, chosen here.
        task: current task, "" before the first reset.
        seed: seed of the current episode's noise.
        log: actions and noise seeds since the reset, in order.
        step_index: steps since the reset.
        task_type: kind of the current task.
        steps: environment actions since the reset.
        done: the episode is over.
        observation: the last observation.
        anchor: key of the state now.
        busy: a request of this session is under way.
        closed: its client closed it.
        splits: split sizes of its environment, None where they are those of the card.
    """

    __slots__ = (
        "__weakref__",
        "_chain",
        "anchor",
        "busy",
        "closed",
        "done",
        "id",
        "log",
        "observation",
        "origin",
        "seed",
        "splits",
        "step_index",
        "steps",
        "task",
        "task_type",
    )

    def __init__(self, origin: Origin, id: str | None = None) -> None:
        self.origin = origin
        self.id = new_id() if id is None else id
        self.task = ""
        self.task_type = ""
        self.seed = 0
        self.log: list[LogEntry] = []
        self.step_index = 0
        self.steps = 0
        self.done = False
        self.observation: Observation = ""
        self.anchor = ""
        self.busy = False
        self.closed = False
        self.splits: dict[str, int] | None = None
        self._chain: int | None = None

    def create_item(self) -> Create:
        """Return the request that makes this session, without an episode."""
        origin = self.origin
        return Create(origin.env, origin.level, origin.config, origin.turn, self.id)

    def restore_item(self) -> Restore:
        """Return the request that rebuilds this session in its current state."""
        origin = self.origin
        return Restore(
            origin.env, self.task, self.seed, list(self.log), origin.level, origin.config, origin.turn, self.id
        )

    def next_seed(self) -> int:
        """Return the seed of a reset for which the caller gave none.

        It is drawn here and not by the hub, so that a repeated reset request starts the same episode. It
        continues the seed of the current episode as an environment would whose steps draw no noise; the very first
        one is random.
        """
        rng = np.random.default_rng(self._chain)
        return int(rng.integers(SEED_LIMIT))

    def began(self, reply: Reply) -> StepResult:
        """Take in the reply to a reset."""
        info = reply.info or {}
        self.task, self.seed = str(info["task"]), int(info["seed"])
        self.task_type = str(info.get("task_type", ""))
        self._chain = self.seed
        self.log = []
        return self._saw(reply)

    def stepped(self, action: str, reply: Reply) -> StepResult:
        """Take in the reply to a step.

        Raises:
            StepConflict: the reply belongs to another step.
        """
        self.check_index(reply, self.step_index + 1)
        self.log.append(action)
        return self._saw(reply)

    def check_index(self, reply: Reply, expected: int) -> None:
        """Raise :class:`StepConflict` if the hub's session is not where this client believes it is."""
        if reply.step_index != expected:
            raise StepConflict(
                f"Session {self.id} is at step {reply.step_index} on the hub, and at {expected} here.",
                hint="A call that was cut off had been executed. Call reset, or fork a session that is not cut off.",
            )

    def check_rebuilt(self, reply: Reply) -> None:
        """Check that a replay led to where this session was.

        Raises:
            ReplayDiverged: it did not.
        """
        anchor = (reply.info or {}).get("anchor", "")
        here = (self.step_index, self.done, self.anchor, self.observation)
        if (reply.step_index, reply.terminated or reply.truncated, anchor, reply.observation) != here:
            raise ReplayDiverged(
                f"The replay of task {self.task} ({self.origin.env}, seed {self.seed}, {self.step_index} steps) "
                f"ended at another observation than recorded.",
                hint="Run the hub in the version it had before, with the same data; or reset.",
            )

    def reseeded(self, seed: int) -> None:
        """Note that the noise was restarted."""
        if self.task:
            self.log.append(seed)
        self._chain = seed

    def twin(self, seed: int | None) -> Session:
        """Return the record of a fork: the same history, with nothing shared that can change."""
        twin = Session(self.origin)
        twin.task, twin.task_type, twin.seed, twin.log = self.task, self.task_type, self.seed, list(self.log)
        twin.step_index, twin.steps, twin.done = self.step_index, self.steps, self.done
        twin.observation, twin.anchor, twin._chain = self.observation, self.anchor, self._chain
        twin.splits = self.splits
        if seed is not None:
            twin.reseeded(seed)
        return twin

    def occupy(self) -> None:
        """Mark the session as in use.

        Raises:
            SessionBusy: it is in use.
            SessionNotFound: it was closed.
        """
        if self.closed:
            raise SessionNotFound(f"Session {self.id} was closed by this client.", hint="Make another environment.")
        if self.busy:
            raise SessionBusy(
                f"Session {self.id} is being used by another call.", hint="Wait for it, or fork the environment."
            )
        self.busy = True

    def _saw(self, reply: Reply) -> StepResult:
        result = step_result(reply)
        self.step_index = reply.step_index
        self.steps = int(result.info.get("step", 0))
        self.done = result.done
        self.anchor = str(result.info.get("anchor", ""))
        seen = result.observation
        # The caller may append to the messages it gets; what a replay is compared with must not change.
        self.observation = seen if isinstance(seen, str) else [message.copy() for message in seen]
        return result


def new_id() -> str:
    """Return a new session id."""
    return uuid4().hex


def checked(reply: Reply) -> Reply:
    """Return ``reply``, or raise the error it carries as the class it had on the hub."""
    if reply.error is not None:
        raise from_problem(reply.error)
    return reply


def step_result(reply: Reply) -> StepResult:
    """Return the five-tuple of a reply as one value."""
    observation = "" if reply.observation is None else reply.observation
    return StepResult(observation, reply.reward, reply.terminated, reply.truncated, reply.info or {})


def action_text(action: str | Completion) -> str:
    """Return an action, or a completion's text, as it is sent and logged.

    Raises:
        InvalidRequest: it is no text.
    """
    if isinstance(action, Completion):
        action = action.text
    if not isinstance(action, str):
        raise InvalidRequest(f"The action is a {type(action).__name__}.", hint="Send the action as text.")
    return scrub(str(action))


def start_of(seed: int | None, options: Mapping[str, Any] | None) -> Start:
    """Return the checked arguments of ``TextEnv.reset``."""
    options = options or {}
    for name in options:
        if name not in ("split", "task"):
            raise InvalidRequest(f"Unknown reset option {name!r:.60}.", hint=nearest(str(name), ["split", "task"]))
    return check_start(Start(seed, options.get("split"), options.get("task")))


def check_start(start: Start) -> Start:
    """Return ``start`` in the types of the wire, or raise what ``TextEnv.reset`` raises for wrong types."""
    split, task = start.split, start.task
    if split is not None and not isinstance(split, str):
        raise UnknownTask(f"No split {split!r:.60}.", hint='A split is a name like "test".')
    if isinstance(task, bool) or not isinstance(task, str | int | np.integer | None):
        raise UnknownTask(f"Task {task!r:.60} is no index.", hint='Send an index, or an id like "test/7".')
    task = int(task) if isinstance(task, np.integer) else task
    if isinstance(task, int) and not 0 <= task < SEED_LIMIT:
        raise UnknownTask(f"No task {task!r:.60}.", hint="Tasks count from 0.")
    return Start(None if start.seed is None else check_seed(start.seed), split, task)
