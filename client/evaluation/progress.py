"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from ...records import Episode

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Hears of every finished episode."""

    def start(self, total: int, kept: int) -> None:
        """Begin: ``kept`` of ``total`` episodes were there already."""
        ...

    def advance(self, episode: Episode) -> None:
        """Count one episode."""
        ...

    def stop(self) -> None:
        """End, whether all were played or not."""
        ...


class Quiet:
    """Shows nothing."""

    def start(self, total: int, kept: int) -> None:
        """Show nothing."""

    def advance(self, episode: Episode) -> None:
        """Show nothing."""

    def stop(self) -> None:
        """Show nothing."""


class Shown:
    """Shows a bar with the time left where the console is a terminal, and a line every few seconds elsewhere.

    Args:
        console: where to show.
        line_every: seconds between lines where it is no terminal.
    """

    def __init__(self, console: Console, *, line_every: float = LINE_EVERY_S) -> None:
        self.console = console
        self.line_every = line_every
        self._bar: Any = None
        self._task: Any = None
        self._total = self._kept = self._played = self._won = self._failed = 0
        self._started = self._said = 0.0

    def start(self, total: int, kept: int) -> None:
        """Begin, and say how many episodes are kept from an earlier run."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._total, self._kept = total, kept
        self._started = self._said = time.monotonic()
        if kept:
            self.console.print(f"Resuming: {kept:,} of {total:,} episodes are there already.", highlight=False)
        if self.console.is_terminal and kept < total:
            self._bar = Bar(
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("episodes"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=kept)
            self._bar.start()

    def advance(self, episode: Episode) -> None:
        """Count one episode."""
        self._played += 1
        self._won += episode.won
        self._failed += episode.status == "failed"
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=self._words())
        elif time.monotonic() - self._said >= self.line_every:
            self._line()

    def stop(self) -> None:
        """Take the bar away and say how it went."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._played:
            self._line()

    def _words(self) -> str:
        finished = self._played - self._failed
        words = f"won {self._won / finished:.0%}" if finished else ""
        return f"{words} [red]failed {self._failed}[/red]" if self._failed else words

    def _line(self) -> None:
        self._said = time.monotonic()
        spent = self._said - self._started
        left = self._total - self._kept - self._played
        parts = [f"{self._kept + self._played:,}/{self._total:,} episodes", f"{_clock(spent)} spent"]
        if left > 0:
            parts.append(f"about {_clock(spent / self._played * left)} left")
        if self._played > self._failed:
            parts.append(f"won {self._won / (self._played - self._failed):.0%}")
        if self._failed:
            parts.append(f"failed {self._failed}")
        self.console.print(", ".join(parts), highlight=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
