"""The event loop behind the synchronous clients: one private daemon thread per process.

The synchronous clients drive the asynchronous ones on this loop, so that there is one implementation of sending,
retrying and replaying. A thread, rather than running the loop inside each call, keeps the connection alive
(answers to pings) while the caller computes for minutes, and works where the caller has a running loop of its own
(notebooks).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ..errors import InvalidRequest, ServerUnavailable

CLOSE_S = 4.0  # the process ends: what cannot be closed in this time is evicted by the hub
T = TypeVar("T")


class Closable(Protocol):
    """Something that is closed when the process ends."""

    async def aclose(self) -> None:
        """Close it."""


class LoopThread:
    """An event loop that runs in a daemon thread of its own."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turngym-client", daemon=True)
        self._thread.start()
        self.pid = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt (Ctrl-C) cancels it."""
        if self.pid != os.getpid() or threading.current_thread() is self._thread:
            work.close()
            if self.pid != os.getpid():
                raise ServerUnavailable(
                    "This client was made before the process forked.", hint="Connect in the process that uses it."
                )
            raise InvalidRequest(
                "A synchronous client was called from its own event loop.", hint="Use connect_async there."
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close_at_exit(self, what: Closable) -> None:
        """Close ``what`` when the process ends, if it is still in use then."""
        self._open.add(what)

    def stop(self) -> None:
        """Close what is open, within seconds, and end the thread."""
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        try:
            self.run(_close_all(list(self._open)))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2.0)
            if not self._thread.is_alive():
                self._loop.close()


async def _close_all(open_things: list[Closable]) -> None:
    closing = [asyncio.ensure_future(thing.aclose()) for thing in open_things]
    # Among the others are connections whose last user was collected a moment ago: they are closing, too.
    others = asyncio.all_tasks() - {asyncio.current_task(), *closing}
    for group in (closing, others):
        if group:
            await asyncio.wait(group, timeout=CLOSE_S)
    for task in (*closing, *others):
        task.cancel()
    await asyncio.gather(*closing, *others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


_lock = threading.Lock()
_thread: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Return this process's loop thread, started on first use."""
    global _thread
    with _lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = LoopThread()
            atexit.register(_thread.stop)
        return _thread
