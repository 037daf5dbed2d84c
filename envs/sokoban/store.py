"""Rooms on disk: one text file per set of rooms, one line per room, under the user's cache folder.

Files lie in ``$XDG_CACHE_HOME/turngym/sokoban`` (default ``~/.cache/turngym/sokoban``). A line is appended by one
write and carries a digest: a damaged or torn line is skipped, and its room is made and appended again. The cache is
only a shortcut: where the folder cannot be read or written, rooms are made anew in each process.
"""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b

MAX_BYTES = 1 << 20  # of a file; a set of 256 rooms takes about 50 KB


def folder() -> str | None:
    """Return the folder of the stored rooms, or None where the user has no home folder.

    A relative ``XDG_CACHE_HOME`` does not count, as the XDG rules say.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return os.path.join(base, "turngym", "sokoban") if os.path.isabs(base) else None


def load(name: str) -> dict[int, tuple[str, str]]:
    """Return the stored rooms of a set by index, as (text, solution); the file is read once a process."""
    return _load(folder(), name)


def add(name: str, index: int, text: str, solution: str) -> None:
    """Store a room, in memory and, if the folder allows it, on disk."""
    load(name)[index] = (text, solution)
    path = folder()
    if path is None:
        return
    try:
        os.makedirs(path, exist_ok=True)
        file = os.open(os.path.join(path, f"{name}.txt"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.fstat(file).st_size < MAX_BYTES:
                # The newline in front keeps a line torn by a full disk or a crash from spoiling this one.
                os.write(file, f"\n{_line(name, index, text, solution)}\n".encode())
        finally:
            os.close(file)
    except OSError:
        return


@lru_cache(maxsize=32)
def _load(path: str | None, name: str) -> dict[int, tuple[str, str]]:
    if path is None:
        return {}
    try:
        with open(os.path.join(path, f"{name}.txt"), "rb") as file:
            content = file.read(MAX_BYTES + 4096).decode("utf-8", "replace")
    except OSError:
        return {}
    rooms: dict[int, tuple[str, str]] = {}
    for line in content.split("\n"):
        fields = line.split(" ")
        if len(fields) == 4 and fields[0].isascii() and fields[0].isdigit() and len(fields[0]) < 10:
            index, text, solution = int(fields[0]), fields[1].replace("/", "\n"), fields[2]
            if line == _line(name, index, text, solution):
                rooms[index] = (text, solution)
    return rooms


def _line(name: str, index: int, text: str, solution: str) -> str:
    fields = f"{index} {text.replace(chr(10), '/')} {solution}"
    # The set's name is part of what is signed: a file under another set's name holds no rooms of that set.
    return f"{fields} {blake2b(f'{name} {fields}'.encode(), digest_size=8).hexdigest()}"
