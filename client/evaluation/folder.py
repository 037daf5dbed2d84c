"""The folder of one run: plan, episodes, metrics, report."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...errors import InvalidRequest, RecordError
from ...records import Episode, EpisodeWriter, read_episodes
from .metrics import Summary, latest, summarise
from .plan import ResolvedPlan

PLAN, EPISODES, METRICS, REPORT = "plan.json", "episodes.jsonl", "metrics.json", "report.html"
FULL_DISK = "Free disk space and run the same command again; finished episodes are kept."


class RunFolder:
    """A run on disk. While it is open for writing, no other process can write to it.

    Args:
        path: the folder; made when it is opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged: list[RecordError] = []
        self._lock: int | None = None

    @property
    def episodes_path(self) -> Path:
        """The records file."""
        return self.path / EPISODES

    @property
    def report_path(self) -> Path:
        """The report."""
        return self.path / REPORT

    def open(self, plan: ResolvedPlan) -> EpisodeWriter:
        """Lock the folder, check or write its plan, and return the writer of its episodes.

        Raises:
            InvalidRequest: the folder holds the run of another plan, or another process is writing to it.
            RecordError: the folder cannot be written, or its records file is of another schema.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InvalidRequest(
                f"Another process is writing to {self.path}.", hint="Wait for it, or choose another folder with --out."
            ) from error
        except OSError as error:
            self.close()
            raise RecordError(
                f"Cannot use {self.path}: {error.strerror}.", hint="Choose another with --out."
            ) from error
        known = self.plan()
        if known is None and self.episodes_path.exists():
            raise InvalidRequest(
                f"{self.path} holds episodes but no {PLAN}.", hint="Choose another folder with --out, or delete it."
            )
        if known is not None:
            _check_same(self.path, known, plan)
        self.write(PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=2))
        return EpisodeWriter(self.episodes_path)

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def plan(self) -> ResolvedPlan | None:
        """Return the plan of the run, None where there is none.

        Raises:
            RecordError: it cannot be read.
        """
        path = self.path / PLAN
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=ResolvedPlan)
        except msgspec.DecodeError as error:
            raise RecordError(
                f"{path}: {error}.", hint="It was written by another version of turngym; choose another --out."
            ) from error

    def episodes(self, wanted: Callable[[Episode], bool] | None = None) -> Iterator[Episode]:
        """Yield the recorded episodes, repeated ones too; damaged lines are noted in ``damaged`` and left out."""
        self.damaged.clear()
        if self.episodes_path.exists() and self.episodes_path.stat().st_size > 0:
            for episode in read_episodes(self.episodes_path, damaged=self.damaged):
                if wanted is None or wanted(episode):
                    yield episode

    def summaries(self) -> list[Summary]:
        """Return the numbers of every recorded episode; of a repeated one, those of its last record."""
        return latest(summarise(episode) for episode in self.episodes())

    def write(self, name: str, data: bytes) -> Path:
        """Write a whole file at once: after a crash it is the old one or the new one.

        Raises:
            RecordError: the disk refused.
        """
        path = self.path / name
        part = self.path / f".{name}.part"
        try:
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise RecordError(f"Cannot write {path}: {error.strerror}.", hint=FULL_DISK) from error
        return path


def _check_same(path: Path, known: ResolvedPlan, plan: ResolvedPlan) -> None:
    """Check that a run goes on with its plan; policies may be added, so that another model joins the comparison."""
    there, wanted = known.identity(), plan.identity()
    named = {policy["name"]: policy for policy in wanted.pop("policies")}
    for policy in there.pop("policies"):
        if policy["name"] not in named:
            raise InvalidRequest(
                f"{path} also holds the policy {policy['name']!r}.",
                hint="Name it too (what is finished is not played again), or choose another folder with --out.",
            )
        key = f"policy {policy['name']}"
        there[key], wanted[key] = policy, named[policy["name"]]
    for name in sorted({*there, *wanted}):
        if there.get(name) != wanted.get(name):
            raise InvalidRequest(
                f"{path} holds the run of another plan: {_difference(name, there.get(name), wanted.get(name))}.",
                hint="Choose another folder with --out, or run with the settings of that plan.",
            )


def _difference(name: str, there: Any, wanted: Any) -> str:
    """Name the first place where two values differ, down to the single setting."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        key = next(key for key in sorted({*there, *wanted}) if there.get(key) != wanted.get(key))
        return _difference(f"{name}.{key}", there.get(key), wanted.get(key))
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        index = next(index for index in range(len(there)) if there[index] != wanted[index])
        return _difference(f"{name}[{index}]", there[index], wanted[index])
    return f"{name} is {there!r:.100} there and {wanted!r:.100} here"
