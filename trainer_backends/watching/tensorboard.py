"""Event files: TensorBoard shows a run's numbers under "train/" and "eval/"."""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import RecordError

FOLDER = "events"


def event_files(out: Path) -> EventFiles | None:
    """Return the writer of a run's event files, None where tensorboard is not installed.

    Raises:
        RecordError: the folder cannot be written.
    """
    return None if importlib.util.find_spec("tensorboard") is None else EventFiles(out / FOLDER)


class EventFiles:
    """Writes numbers as TensorBoard reads them; needs the package ``tensorboard``.

    Args:
        folder: where to; files of an earlier start of the same run are kept there.

    Raises:
        RecordError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        # Imported by name: type checkers need not have the package.
        writer = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        try:
            self._writer: Any = writer.EventFileWriter(str(folder))
        except OSError as error:
            raise _refused(folder, error) from error
        self.folder = folder
        self._starts = 0

    def hear(self, kind: str, metrics: Mapping[str, float]) -> None:
        """Write the numbers of one report.

        Args:
            kind: "train", "eval" and "start" are written; "resumed" hides what an earlier start wrote after that step.
            metrics: numbers, the step among them.

        Raises:
            RecordError: the disk refused.
        """
        event, summary = self._event.Event, self._summary
        step = int(metrics.get("step", 0))
        if kind == "resumed":
            log = self._event.SessionLog
            self._add(event(session_log=log(status=log.START), step=step + 1, wall_time=time.time()))
        elif kind in ("train", "eval", "start"):
            if kind == "start":  # its reports all come before the first step
                step, self._starts = self._starts, self._starts + 1
            values = [
                summary.Value(tag=f"{kind}/{name.removeprefix(f'{kind}_')}", simple_value=value)
                for name, value in metrics.items()
                if name != "step" and math.isfinite(value)
            ]
            self._add(event(summary=summary(value=values), step=step, wall_time=time.time()))

    def close(self) -> None:
        """Write what is left.

        Raises:
            RecordError: the disk refused.
        """
        try:
            self._writer.close()
        except OSError as error:
            raise _refused(self.folder, error) from error

    def _add(self, event: Any) -> None:
        try:
            self._writer.add_event(event)
            # A step takes seconds: whoever looks sees it at once.
            self._writer.flush()
        except OSError as error:
            raise _refused(self.folder, error) from error


def _refused(folder: Path, error: OSError) -> RecordError:
    return RecordError(f"Cannot write event files to {folder}: {error.strerror}.", hint="Free disk space.")
