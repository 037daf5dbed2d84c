"""A person at the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import PolicyFailed
from ...records import Completion
from .base import BasePolicy, Context

if TYPE_CHECKING:
    from rich.console import Console

QUIT = ("q", "quit", "exit")
SHOWN_ACTIONS = 40


class HumanPolicy(BasePolicy):
    """Shows the observation and the admissible actions, and reads the next action.

    A number chooses from the list; anything else is the action itself. "q" or the end of the input ends the
    episode as failed.

    Args:
        name: name in records.
        console: where to show; the terminal by default.
        ask: reads one line, given a prompt; ``input`` by default.
    """

    def __init__(
        self, name: str = "human", *, console: Console | None = None, ask: Callable[[str], str] | None = None
    ) -> None:
        from rich.console import Console

        self.name = name
        self.console = console or Console()
        self._ask = ask or input

    async def act(self, context: Context) -> Completion:
        """Return what the person typed.

        Raises:
            PolicyFailed: the person quit.
        """
        self._show(context)
        # Reading blocks: in a thread, so that a live connection to the hub is kept up meanwhile.
        line = await asyncio.to_thread(self._read)
        if line is None or line.lower() in QUIT:
            raise PolicyFailed("The player quit.")
        admissible = context.admissible
        if line.isascii() and line.isdigit() and line not in admissible and 1 <= int(line) <= len(admissible):
            line = admissible[int(line) - 1]
        return Completion(text=context.reply(line))

    def _read(self) -> str | None:
        try:
            return self._ask("> ").strip()
        except EOFError:
            return None

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
