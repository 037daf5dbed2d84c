"""A person at the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from ...errors import PolicyFailed
from ...records import Completion
from .base import BasePolicy, Context

if TYPE_CHECKING:
    from rich.console import Console

QUIT = ("q", "quit", "exit")
QUIT_TEXT = "The player quit."
SHOWN_ACTIONS = 40


class Lines:
    """Reads lines from a terminal, pipe or file without blocking the event loop or holding up an interrupt.

    Args:
        fd: file descriptor; standard input by default.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._buffer = b""

    async def next(self) -> str | None:
        """Return the next line without its end, None at the end of the input."""
        while b"\n" not in self._buffer:
            await self._ready()
            data = os.read(self._fd, 4096)
            if not data:
                break
            self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        if not line and not rest and not self._buffer:
            return None
        self._buffer = rest
        return line.decode("utf-8", "replace")

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:
            return  # a regular file is always ready
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)


class HumanPolicy(BasePolicy):
    """Shows the observation and the admissible actions, and reads the next action.

    A number chooses from the list; anything else is the action itself. "q" or the end of the input ends the
    episode as failed.

    Args:
        name: name in records.
        console: where to show; the terminal by default.
        lines: where lines come from; standard input by default.
    """

    def __init__(self, name: str = "human", *, console: Console | None = None, lines: Lines | None = None) -> None:
        from rich.console import Console

        self.name = name
        self.console = console or Console()
        self._lines = lines

    async def act(self, context: Context) -> Completion:
        """Return what the person typed.

        Raises:
            PolicyFailed: the person quit.
        """
        self._show(context)
        self._lines = self._lines or Lines()
        line = await self._lines.next()
        line = None if line is None else line.strip()
        if line is None or line.lower() in QUIT:
            raise PolicyFailed(QUIT_TEXT)
        admissible = context.admissible
        if line.isascii() and line.isdigit() and line not in admissible and 1 <= int(line) <= len(admissible):
            line = admissible[int(line) - 1]
        return Completion(text=context.reply(line))

    def _show(self, context: Context) -> None:
        from rich.panel import Panel
        from rich.text import Text

        title = f"{context.env} {context.task} · turn {context.turn + 1}"
        self.console.print(Panel(Text(context.text), title=title, title_align="left", border_style="cyan"))
        admissible = context.admissible
        listed = "   ".join(f"{number}) {action}" for number, action in enumerate(admissible[:SHOWN_ACTIONS], start=1))
        more = len(admissible) - SHOWN_ACTIONS
        if listed:
            self.console.print(Text(listed + (f"   … and {more} more" if more > 0 else ""), style="dim"))
        self.console.print("> ", end="")
