"""What each operation of the protocol does.

An operation takes an item and gives a reply, or a task that will. Nothing raised here harms another item: errors
become the item's reply.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from ..envs.core import MAX_TEXT, check_seed, member_seed
from ..errors import InvalidRequest, StepConflict, TurngymError
from ..protocol import (
    MAX_ITEMS,
    Create,
    Fork,
    Group,
    Render,
    Reply,
    Reset,
    Restore,
    Step,
    Target,
)
from . import work
from .sessions import Account, Link, Session, missing

if TYPE_CHECKING:
    from .hub import Hub

Slot = Reply | asyncio.Future[Reply]
_encode = msgspec.json.Encoder(order="sorted").encode
LONG_ACTION = 32_768
"""Characters from which on an action is parsed in a thread, where the environment steps on the event loop."""


# Making sessions -----------------------------------------------------------------------------------


def create(hub: Hub, item: Create, account: Account, link: Link | None) -> Slot:
    """Make a session, reset if asked for."""
    try:
        seeding = (item.seed, item.split, item.task)
        if not item.reset and seeding != (None, None, None):
            raise InvalidRequest("seed, split or task was sent without reset.", hint='Add "reset": true.')
        origin = b"" if item.session is None else _digest("create", item)
        session, new = hub.admit(item.env, item.level, account, link, item.session, origin)
    except TurngymError as error:
        return hub.refused(item.session or "", item.env, error)
    if not new:
        return _again(hub, session)
    job = work.Make(item.env, item.level, item.config, item.turn, seeding if item.reset else None)
    return hub.start(session, job, partial(_adopt, session))


def _adopt(session: Session, made: work.Made, seconds: float) -> Reply:
    """Give a new session its environment."""
    session.env = made.env
    if made.outcome is not None:
        session.last = Reply(session.id, session.step_index, *made.outcome)
    if made.splits is not None:
        session.last = msgspec.structs.replace(session.last, splits=made.splits)
    return session.last


def _again(hub: Hub, session: Session) -> Slot:
    """Answer a repeated request for a session that exists, or is being made."""
    if not session.pending:
        return session.last
    return hub.start(session, None, _unused, check=lambda: session.last)


def _unused(result: Any, seconds: float) -> Reply:
    raise AssertionError("nothing was to be done")


def restore(hub: Hub, item: Restore, account: Account, link: Link | None) -> Slot:
    """Rebuild a session by replay."""
    try:
        origin = b"" if item.session is None else _digest("restore", item)
        session, new = hub.admit(item.env, item.level, account, link, item.session, origin)
    except TurngymError as error:
        return hub.refused(item.session or "", item.env, error)
    if not new:
        return _again(hub, session)
    actions = [entry for entry in item.log if isinstance(entry, str)]
    session.step_index = len(actions)
    session.last_action = actions[-1] if actions else None
    make = work.Make(item.env, item.level, item.config, item.turn)
    return hub.start(session, work.Replay(make, item.task, item.seed, item.log), partial(_adopt, session))


def groups(hub: Hub, items: Sequence[Group], account: Account, link: Link | None) -> list[Slot]:
    """Make several groups; the replies of all members stand in a row.

    Raises:
        InvalidRequest: the ids of a group do not fit, or there are too many members: its replies could not be
            counted off.
    """
    for item in items:
        if item.sessions is not None and len(set(item.sessions)) != item.n:
            raise InvalidRequest(
                f"A group of {item.n} with {len(set(item.sessions))} different session ids.",
                hint="Send one id a member.",
            )
    if sum(item.n for item in items) > MAX_ITEMS:
        raise InvalidRequest("The groups have too many members.", hint=f"Ask for at most {MAX_ITEMS} in one request.")
    return [slot for item in items for slot in _group(hub, item, account, link)]


def _group(hub: Hub, item: Group, account: Account, link: Link | None) -> list[Slot]:
    scout: asyncio.Future[str] | None = None
    slots: list[Slot] = []
    for member in range(item.n):
        name = None if item.sessions is None else item.sessions[member]
        try:
            origin = b"" if name is None else _digest(f"group {member}", item)
            session, new = hub.admit(item.env, item.level, account, link, name, origin)
        except TurngymError as error:
            slots.append(hub.refused(name or "", item.env, error))
            continue
        if not new:
            slots.append(_again(hub, session))
            continue
        seed = item.seed if item.shared_noise else member_seed(item.seed, member)
        make = partial(work.Make, item.env, item.level, item.config, item.turn)
        job: work.Job | Callable[[], Awaitable[work.Job]]
        if item.task is not None:
            job = make((seed, item.split, item.task))
        else:
            if scout is None:
                # One environment draws the task that all members then play.
                draw = work.Draw(item.env, item.config, item.seed, item.split)
                scout = asyncio.ensure_future(hub.places.ask(hub.spec(item.env), draw))
            job = partial(_member, make, seed, item.split, scout)
        slots.append(hub.start(session, job, partial(_adopt, session)))
    return slots


async def _member(
    make: Callable[[work.Seeding], work.Job], seed: int, split: str | None, scout: asyncio.Future[str]
) -> work.Job:
    return make((seed, split, await asyncio.shield(scout)))


def _digest(op: str, item: Any) -> bytes:
    return hashlib.blake2b(op.encode() + _encode(item), digest_size=16).digest()


def fork(hub: Hub, item: Fork, account: Account, link: Link | None) -> Slot:
    """Copy a session."""
    try:
        origin = b"" if item.to is None else _digest("fork", item)
        if item.to is not None and item.to in account.sessions:
            found, _ = hub.admit("", "text", account, link, item.to, origin)
            return _again(hub, found)
        parent = hub.find(item.session, account, link)
        seed = None if item.seed is None else check_seed(item.seed)
        copy, _ = hub.admit(parent.env_id, parent.level, account, link, item.to, origin)
    except TurngymError as error:
        return hub.refused(item.session, "", error)

    def finish(made: work.Made, seconds: float) -> Reply:
        copy.env = made.env
        copy.step_index = parent.step_index
        copy.last_action = parent.last_action
        copy.last = msgspec.structs.replace(parent.last, session=copy.id)
        return copy.last

    job = work.Branch(seed)
    if parent.pending or not parent.inline:
        return hub.start(copy, job, finish, parent=parent)
    env: Any = parent.env
    return hub.inline(copy, partial(job.run, env), finish)


# Playing -------------------------------------------------------------------------------------------


def step(hub: Hub, item: Step, account: Account, link: Link | None) -> Slot:
    """Act once. The one path where every microsecond counts: no closures for inline environments."""
    session = account.sessions.get(item.session)
    if session is None:
        return hub.refused(item.session, "", missing(item.session))
    session.touched = monotonic()
    if link is not None:
        session.link = link
    if session.pending or not session.inline or len(item.action) > LONG_ACTION:
        return hub.start(
            session,
            work.Act(item.action),
            partial(_stepped, session, item.action),
            check=partial(_stored, session, item),
        )
    try:
        stored = _stored(session, item)
        if stored is not None:
            return stored
        started = perf_counter()
        result = session.env.step(item.action)  # type: ignore[union-attr]  # an idle inline session has one
        return _stepped(session, item.action, work.checked(result), perf_counter() - started)
    except (Exception, SystemExit) as error:
        return hub.failed(session, error)


def _stored(session: Session, item: Step) -> Reply | None:
    """Return the stored reply if ``item`` repeats the last step, None if it is the next one."""
    index = item.step_index
    if index is not None and index != session.step_index:
        if index == session.step_index - 1 and item.action == session.last_action:
            return session.last
        raise StepConflict(
            f"step_index {index} was sent; the next step of session {session.id} has step_index {session.step_index}.",
            hint="Only the last step may be repeated, with the same action. Ask for the state to see where it stands.",
            step_index=session.step_index,
        )
    if len(item.action) > MAX_TEXT:
        raise InvalidRequest(f"The action has {len(item.action)} characters.", hint=f"Send at most {MAX_TEXT}.")
    return None


def _stepped(session: Session, action: str, outcome: work.Outcome, seconds: float) -> Reply:
    session.step_index += 1
    session.last_action = action
    session.last = reply = Reply(session.id, session.step_index, *outcome)
    session.stats.stepped(seconds)
    return reply


def reset(hub: Hub, item: Reset, account: Account, link: Link | None) -> Slot:
    """Start an episode."""

    def finish(outcome: work.Outcome, seconds: float) -> Reply:
        session.last = Reply(session.id, 0, *outcome)
        session.step_index = 0
        session.last_action = None
        return session.last

    try:
        session = hub.find(item.session, account, link)
    except TurngymError as error:
        return hub.refused(item.session, "", error)
    return hub.start(session, work.Begin(item.seed, item.split, item.task), finish)


def expert(hub: Hub, item: Target, account: Account, link: Link | None) -> Slot:
    """Ask the expert for the next action."""
    try:
        session = hub.find(item.session, account, link)
    except TurngymError as error:
        return hub.refused(item.session, "", error)
    return hub.start(
        session,
        work.Advise(),
        lambda action, _: Reply(session.id, session.step_index, action=action),
    )


def render(hub: Hub, item: Render, account: Account, link: Link | None) -> Slot:
    """Show the state."""
    try:
        session = hub.find(item.session, account, link)
    except TurngymError as error:
        return hub.refused(item.session, "", error)
    return hub.start(
        session,
        work.Show(item.picture),
        lambda shown, _: _shown(session, *shown),
    )


def _shown(session: Session, text: str, png: str | None, instructions: str) -> Reply:
    return Reply(session.id, session.step_index, text=text, png=png, instructions=instructions)


def state(hub: Hub, item: Target, account: Account, link: Link | None) -> Slot:
    """Give the last reply again."""
    try:
        session = hub.find(item.session, account, link)
    except TurngymError as error:
        return hub.refused(item.session, "", error)
    return _again(hub, session)


def close(hub: Hub, item: Target, account: Account, link: Link | None) -> Slot:
    """End a session."""
    try:
        session = hub.find(item.session, account, link)
    except TurngymError as error:
        return hub.refused(item.session, "", error)
    reply = Reply(session.id)

    def drop() -> Reply:
        hub.drop(session)
        return reply

    # What was asked for before is done before.
    return hub.start(session, None, _unused, check=drop) if session.pending else drop()


OPERATIONS: Mapping[str, Callable[[Hub, Any, Account, Link | None], Slot]] = {
    "create": create,
    "reset": reset,
    "step": step,
    "fork": fork,
    "close": close,
    "expert": expert,
    "state": state,
    "render": render,
    "restore": restore,
}
"""Every operation but ``group``, which gives several replies for one item."""
