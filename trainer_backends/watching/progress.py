"""Live progress of training: a panel in a terminal, a plain line a step elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..recipes import Recipe
from .alarms import Alarms
from .folder import Entry, shares, with_rates
from .machine import note
from .tensorboard import event_files
from .units import Unit, clock, text_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Report = Callable[[str, Mapping[str, float]], None]
BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 24
"""Steps in a small curve."""
RECENT = 20
"""Steps whose pace tells how long the rest will take."""


class Figure(NamedTuple):
    """A number in the panel.

    Attributes:
        label: how it is called there.
        names: where it stands in the metrics; the first that is there is taken.
        unit: how it reads.
        always: shown also in a plain line.
    """

    label: str
    names: tuple[str, ...]
    unit: Unit = "number"
    always: bool = False


FIGURES = (
    Figure("success", ("success",), "share", True),
    Figure("reward", ("reward",), always=True),
    Figure("reward std", ("reward_std",)),
    Figure("entropy", ("policy_entropy", "entropy", "sampling_entropy"), always=True),
    Figure("KL", ("kl", "approx_kl"), always=True),
    Figure("gradient norm", ("gradient_norm",)),
    Figure("response tokens", ("response_tokens",)),
    Figure("invalid", ("invalid",), "share"),
    Figure("repeated", ("repetitive",), "share"),
    Figure("TTI stops", ("interventions",), "share"),
    Figure("TDS discards", ("discarded",), "share"),
    Figure("tree forks", ("tree_forks",)),
    Figure("tokens/s", ("tokens_per_second",), "count", True),
)


@contextmanager
def watch(
    recipe: Recipe, out: Path, label: str = "", *, device: str = "cpu", console: Console | None = None
) -> Iterator[Report]:
    """Watch a run: show it, note its machine, and write event files where tensorboard is installed.

    Args:
        recipe: of the run.
        out: folder of the run.
        label: what the run is called.
        device: what the policy runs on.
        console: where to show; standard output by default.

    Yields:
        What the trainer reports to.

    Raises:
        RecordError: the folder cannot be written.
    """
    from rich.console import Console

    shown = Progress(recipe, console or Console(), label or out.name)
    note(out, device)
    events = event_files(out)
    if events is None:
        shown.say('No event files: pip install "turngym[tensorboard]" lets TensorBoard show this run.')

    def report(kind: str, metrics: Mapping[str, Any]) -> None:
        shown.hear(kind, metrics)
        if events is not None:
            events.hear(kind, metrics)

    try:
        with shown:
            yield report
    finally:
        if events is not None:
            events.close()


class Progress:
    """Shows a run while it goes on.

    Args:
        recipe: of the run; how long it is.
        console: where to show.
        label: what the run is called.
        now: clock, seconds.
    """

    def __init__(
        self, recipe: Recipe, console: Console, label: str = "", *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.recipe = recipe
        self.console = console
        self.label = label
        self.alarms = Alarms()
        self._now = now
        self._began = now()
        self._train: deque[Entry] = deque(maxlen=CURVE)
        self._times: deque[float] = deque(maxlen=RECENT + 1)
        self._held_out: Mapping[str, float] = {}
        self._state = "starting"
        self._step = 0
        self._trained_s = 0.0
        self._live: object | None = None

    def __enter__(self) -> Progress:
        """Begin to show; in a terminal the panel stays below whatever else is printed."""
        if self.console.is_terminal:
            from rich.live import Live

            live = Live(console=self.console, get_renderable=self.panel, refresh_per_second=2)
            live.start()
            self._live = live
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the last state of the panel where it is."""
        if self._live is not None:
            self._live.stop()  # type: ignore[attr-defined]
            self._live = None

    def hear(self, kind: str, metrics: Mapping[str, Any]) -> None:
        """Take what the trainer reports.

        Args:
            kind: "playing", "start", "train", "eval", "resumed" or "waiting"; others are shown by their name.
            metrics: numbers; of "waiting" also ``why``.
        """
        if kind == "train":
            self._trained(metrics)
        elif kind == "eval":
            self._held_out = dict(metrics)
            self._line(f"step {self._step}: held-out success {held_out(metrics)}")
        elif kind == "resumed":
            self._step = int(metrics.get("step", 0))
            self.say(f"Resumed after step {self._step}.")
        elif kind == "waiting":
            lost = metrics.get("episodes", 0)
            again = f" {lost:.0f} episodes will be played again." if lost else ""
            self._state = "waiting for the environment server"
            self.say(f"{metrics.get('why', '')} Waiting for the environment server.{again}".lstrip())
        elif kind == "playing":
            self._state = f"{metrics['episodes']:,.0f} of {metrics['of']:,.0f} episodes of the start played"
            self._line(self._state)
        else:
            self._state = ", ".join([kind, *(f"{name} {text_of(value)}" for name, value in metrics.items())])
            self._line(self._state)

    def say(self, text: str) -> None:
        """Print one sentence."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _trained(self, metrics: Mapping[str, float]) -> None:
        entry = with_rates(metrics)
        self._state = "training"
        self._step = int(metrics["step"])
        self._train.append(entry)
        self._times.append(self._now())
        self._trained_s += math.fsum(value for name, value in metrics.items() if name.endswith("_seconds"))
        self._line(self._sentence(entry))
        for warning in self.alarms.hear(metrics):
            self.console.print(f"Warning, step {self._step}: {warning}", style="yellow", markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        if self._live is None:
            self.say(text)

    def _sentence(self, entry: Entry) -> str:
        parts = [f"step {self._step}/{self.recipe.run.steps}"]
        for figure in FIGURES:
            name = next((name for name in figure.names if name in entry), None)
            if figure.always and name is not None:
                parts.append(f"{figure.label} {text_of(entry[name], figure.unit)}")
        if self._held_out:
            parts.append(f"held-out {text_of(self._held_out.get('eval_success'), 'share')}")
        spent = ", ".join(f"{name} {share:.0%}" for name, share in shares(entry).items())
        parts += [spent] if spent else []
        left = self.left()
        return "  ".join([*parts, f"left {clock(left)}"] if left is not None else parts)

    def left(self) -> float | None:
        """Return the seconds that the rest will take at the pace of the last steps, None before the first."""
        if not self._train:
            return None
        run = self.recipe.run
        # Between steps there are evaluations and checkpoints: they count.
        between = len(self._times) - 1
        pace = (self._times[-1] - self._times[0]) / between if between else self._trained_s
        left = pace * (run.steps - self._step)
        if run.minutes:
            left = min(left, 60 * run.minutes - self._trained_s)
        return max(0.0, left - (self._now() - self._times[-1]))

    # The panel -------------------------------------------------------------------------------------

    def panel(self) -> RenderableType:
        """Return the panel of this moment."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        # A terminal draws from a thread of its own; these may grow meanwhile.
        train, held_out_now, warnings = list(self._train), self._held_out, list(self.alarms.active.values())
        table = Table.grid(padding=(0, 2))
        for figure in FIGURES:
            name = next((each for each in figure.names if train and each in train[-1]), None)
            if name is None or (name in ("interventions", "discarded") and not self._controlled()):
                continue
            values = [entry[name] for entry in train if name in entry]
            curve = Text(sparkline(values), style="cyan")
            table.add_row(
                Text(figure.label, style="dim"), Text(text_of(values[-1], figure.unit), justify="right"), curve
            )
        rows: list[RenderableType] = [self._bar(), table]
        if held_out_now:
            step = held_out_now.get("step", 0)
            rows.append(Text(f"held-out success {held_out(held_out_now)} after step {step:.0f}", style="bold"))
        if train and (spent := shares(train[-1])):
            rows.append(Text(" · ".join(f"{name} {share:.0%}" for name, share in spent.items()), style="dim"))
        rows += [Text(f"! {warning}", style="yellow") for warning in warnings]
        return Panel(Group(*rows), title=Text(self.label), title_align="left", border_style="dim")

    def _controlled(self) -> bool:
        return self.recipe.token_control is not None or self.recipe.turn_control is not None

    def _bar(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        steps, left = self.recipe.run.steps, self.left()
        words = f"{self._state}, {clock(self._now() - self._began)} spent"
        words += f", about {clock(left)} left" if left is not None and self._step < steps else ""
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(f"step {self._step}/{steps}", style="bold"),
            ProgressBar(total=steps, completed=self._step, width=28),
            Text(words),
        )
        return bar


def held_out(metrics: Mapping[str, float]) -> str:
    """Return the success of an evaluation with its interval."""
    text = text_of(metrics.get("eval_success"), "share")
    if "eval_success_low" in metrics and "eval_success_high" in metrics:
        low, high = (100 * metrics[f"eval_success_{end}"] for end in ("low", "high"))
        text += f" (95 %: {low:.1f} to {high:.1f})"
    return text


def sparkline(values: list[float]) -> str:
    """Return values as a row of blocks between their least and greatest."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    low, span = min(known), max(known) - min(known)
    if not span:
        return BLOCKS[0] * len(values)
    return "".join(
        BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] if math.isfinite(value) else " " for value in values
    )
