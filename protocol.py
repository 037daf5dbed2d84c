"""The native wire protocol between hub and client: operations on many sessions in one message.

HTTP: ``POST /v1/{op}`` with ``{"items": [...]}`` answers ``{"items": [...]}``. WebSocket: ``/v1/ws``, frames
``{"id": 7, "op": "step", "items": [...]}`` answered by ``{"id": 7, "items": [...]}``, in any order; a request that
fails as a whole is answered by ``{"id": 7, "error": {...}}``. The items of an answer stand in the order of the
request's, and an item that fails carries its own ``error`` (an RFC 9457 problem) and harms no other.

``docs/protocol.md`` describes every operation for people.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .records import Observation

VERSION = 1
PREFIX = "/v1"
MAX_ITEMS = 4096
MAX_GROUP = 1024

Level = Literal["text", "turn"]
LogEntry = str | int
"""One event of a session since its reset: an action (or completion), or a new noise seed (``reseed``)."""


class Create(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Make a session and its environment.

    Attributes:
        env: registry id.
        level: "text" (actions) or "turn" (prompts and completions).
        config: arguments of the environment.
        turn: arguments of ``TurnEnv`` (style, memory, hooks, …); turn level only.
        session: id chosen by the client, so that a repeated request finds its own session; else the hub chooses.
        reset: reset at once with ``seed``, ``split`` and ``task``.
    """

    env: str
    level: Level = "text"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)
    session: str | None = None
    reset: bool = False
    seed: int | None = None
    split: str | None = None
    task: str | int | None = None


class Reset(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Start an episode; arguments as for ``TextEnv.reset``."""

    session: str
    seed: int | None = None
    split: str | None = None
    task: str | int | None = None


class Step(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Act once.

    Attributes:
        session: session id.
        action: action, or completion at turn level.
        step_index: number of steps since the reset as the client counts them. Equal to the hub's: the step is
            executed. One less, with the same action: the stored reply is returned. Anything else: STEP_CONFLICT.
            Without it nothing is checked, and a repeated request acts twice.
    """

    session: str
    action: str
    step_index: int | None = None


class Fork(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Copy a session in its current state; ``seed`` gives the copy noise of its own, ``to`` its id."""

    session: str
    seed: int | None = None
    to: str | None = None


class Target(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Name a session (operations close, expert, state)."""

    session: str


class Render(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Ask for the state as text, and with ``picture`` as a PNG where the environment draws one."""

    session: str
    picture: bool = False


class Group(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Make ``n`` sessions on one task and reset them.

    Member i draws its noise from ``member_seed(seed, i)``; with ``shared_noise`` all draw from ``seed`` itself.
    Without a task, one is drawn from the split by the seed, the same for all members.
    """

    env: str
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUP)]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    level: Level = "text"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)
    split: str | None = None
    task: str | int | None = None
    shared_noise: bool = False
    sessions: list[str] | None = None


class Restore(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Rebuild a session by replay: create, reset with task and seed, then every entry of the log."""

    env: str
    task: str
    seed: int
    log: list[LogEntry]
    level: Level = "text"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)
    session: str | None = None


class Reply(msgspec.Struct, omit_defaults=True):
    """Answer to one item.

    Attributes:
        session: session id ("" where the item named none and failed).
        step_index: the index the next step must carry.
        observation: new observation (reset, step, group, restore, fork, state).
        reward: reward of the step.
        terminated: as in ``TextEnv.step``.
        truncated: as in ``TextEnv.step``.
        info: as in ``TextEnv.step``.
        action: the expert's action (expert).
        text: the state as text (render).
        png: the state as a base64 PNG (render).
        instructions: the rules as the player of this task must know them (render).
        splits: split sizes, where settings were sent (create).
        error: RFC 9457 problem; then the other fields have no meaning.
    """

    session: str = ""
    step_index: int = 0
    observation: Observation | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] | None = None
    action: str | None = None
    text: str | None = None
    png: str | None = None
    instructions: str | None = None
    splits: dict[str, int] | None = None
    error: dict[str, Any] | None = None


ITEMS: dict[str, type[msgspec.Struct]] = {
    "create": Create,
    "reset": Reset,
    "step": Step,
    "fork": Fork,
    "close": Target,
    "expert": Target,
    "state": Target,
    "render": Render,
    "group": Group,
    "restore": Restore,
}


class Frame(msgspec.Struct, omit_defaults=True):
    """One WebSocket request; ``items`` are decoded once ``op`` is known."""

    id: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    op: str
    items: msgspec.Raw = msgspec.Raw(b"[]")


class Answer(msgspec.Struct, omit_defaults=True):
    """One answer, over WebSocket (with ``id``) or HTTP (without)."""

    items: list[Reply] = msgspec.field(default_factory=list)
    id: int | None = None
    error: dict[str, Any] | None = None


class EnvCard(msgspec.Struct, omit_defaults=True):
    """What ``GET /v1/envs`` tells of one environment.

    Attributes:
        id: registry id.
        gymnasium_id: derived gymnasium id.
        summary: one line.
        doc: the class docstring.
        instructions: the rules as a player gets them ("" where they depend on the task).
        splits: split name -> number of tasks.
        settings: argument name -> default value, as JSON.
        separator: what joins several actions in one step, if anything does.
        styles: prompt styles at turn level.
        style: the default style.
        expert: whether there is an expert.
        pictures: whether there are pictures.
        needs: what is missing on the hub's machine and how to get it; "" where it can be played. Where it cannot,
            only the ids, the summary, the style and this are filled in.
    """

    id: str
    gymnasium_id: str
    summary: str
    doc: str
    instructions: str
    splits: dict[str, int]
    settings: dict[str, Any]
    separator: str | None
    styles: list[str]
    style: str
    expert: bool
    pictures: bool
    needs: str = ""


class TaskPage(msgspec.Struct):
    """What ``GET /v1/envs/{env}/tasks`` tells: the task ids from ``start`` on, of ``total`` in the split."""

    split: str
    start: int
    total: int
    tasks: list[str]


class SessionCard(msgspec.Struct, omit_defaults=True):
    """What ``GET /v1/sessions`` tells of one live session; seconds are counted from now."""

    session: str
    env: str
    level: Level
    task: str
    seed: int
    step_index: int
    done: bool
    age_s: float
    idle_s: float
