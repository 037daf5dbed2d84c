"""The lines of a run's files: which are written, in which order, and which are dropped when steps are taken again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...errors import RecordError
from ...records import Episode


def slim(episode: Episode) -> Episode:
    """Return the record without what only training needs and fills the disk."""
    turns = [
        msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, prompt_ids=None))
        for turn in episode.turns
    ]
    return msgspec.structs.replace(episode, turns=turns)


def in_order(episodes: Sequence[Episode]) -> list[Episode]:
    """Return episodes in the order of their ids, their members by number."""

    def key(episode: Episode) -> tuple[Any, ...]:
        head, _, tail = episode.id.rpartition(".")
        return (len(head), head, int(tail) if tail.isdigit() else 0)

    return sorted(episodes, key=key)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file that the disk refused to take.

    Raises:
        RecordError: it did.
    """
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"Cannot write {path}: {error.strerror}.", hint="Free disk space, then run the command again."
        ) from error


def keep_lines(path: Path, wanted: Callable[[bytes], bool]) -> None:
    """Rewrite a file of lines with the wanted ones and those that cannot be read; a last one cut off is dropped."""
    if not path.is_file():
        return

    def keep(line: bytes) -> bool:
        try:
            return wanted(line)
        except (msgspec.DecodeError, KeyError, ValueError, TypeError):
            return True  # whoever reads the file says that it is damaged

    kept = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and keep(line)]
    draft = path.with_suffix(".draft")
    with naming(path):
        draft.write_bytes(b"".join(kept))
        draft.replace(path)


def step_of(line: bytes) -> int:
    """Return the step in an episode's id: "s000012.g3.1" or "e000010.5"."""
    return int(msgspec.json.decode(line)["id"].partition(".")[0][1:])
