"""Where data sets lie on this machine, and how they get into turngym's own folder and out again.

turngym's own folder is ``$XDG_DATA_HOME/turngym`` (default ``~/.local/share/turngym``). A data set in it is either a
symbolic link to the user's folder, or a folder with a note (``.turngym.json``) that says where its files came from.
What is neither was not put there by turngym and is never removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataMissing, InvalidRequest, TurngymError
from . import sets

NOTE = ".turngym.json"
SHARED = "TURNGYM_DATA"
"""Variable that names a folder with one folder a data set."""
_FORM = 1  # of the note


class Status(NamedTuple):
    """What there is of a data set on this machine.

    Attributes:
        state: "linked", "fetched" or "copied" (in turngym's own folder), "found" (elsewhere), "broken" or "missing".
        where: variable or tool that names the place; "" for turngym's own folder.
        path: the folder; None where there is none.
        bytes: size of its files.
        holds: what its files hold, or what is wrong with them.
        partial: bytes of a fetch that was interrupted.
    """

    state: str
    where: str
    path: Path | None
    bytes: int
    holds: str
    partial: int


def user_folder(variable: str, usual: str) -> Path | None:
    """Return a folder of the XDG rules, or None where the user has no home folder."""
    named = os.environ.get(variable, "")
    path = Path(named if os.path.isabs(named) else os.path.expanduser(usual))
    return path if path.is_absolute() else None


def home() -> Path | None:
    """Return turngym's own folder of data sets, or None where the user has no home folder."""
    base = user_folder("XDG_DATA_HOME", "~/.local/share")
    return None if base is None else base / "turngym"


def writable_home() -> Path:
    """Return turngym's own folder, made if need be.

    Raises:
        InvalidRequest: it cannot be written.
    """
    base = home()
    try:
        if base is None:
            raise PermissionError(13, "there is no home folder")
        base.mkdir(parents=True, exist_ok=True)
        if not os.access(base, os.W_OK):
            raise PermissionError(13, "no right to write")
    except OSError as error:
        raise InvalidRequest(
            f"Data sets cannot be kept in {base}: {error.strerror}.", hint="Set XDG_DATA_HOME to a folder of yours."
        ) from error
    return base


def places(name: str) -> Iterator[tuple[str, Path]]:
    """Yield where a data set may lie, in the order in which it is looked for, each with a name for the place.

    ``$TURNGYM_DATA/NAME``, turngym's own folder (named ""), then where the original's own tools put it.
    """
    shared, own = os.environ.get(SHARED), home()
    if shared:
        yield SHARED, Path(shared) / name
    if own is not None:
        yield "", own / name
    yield from sets.get(name).load().elsewhere()


def locate(name: str) -> Path | None:
    """Return the folder of a data set, or None where it is not on this machine.

    Raises:
        DataMissing: it was added from a folder that no longer holds it.
    """
    holds = sets.get(name).load().holds
    for where, path in places(name):
        if holds(path):
            return path
        if not where and path.is_symlink():
            # Whoever added it means this one, and not whatever else may be found.
            raise DataMissing(
                f"The data set {name} was added from {os.readlink(path)}, which does not hold it now.",
                hint=f"Bring that folder back, or name another: turngym data remove {name}, then turngym data add.",
            )
    return None


def needed(name: str) -> Path:
    """Return the folder of a data set.

    Raises:
        DataMissing: it is not on this machine; the hint says how to get it.
    """
    path = locate(name)
    if path is None:
        raise DataMissing(f"The data set {name} is not on this machine.", hint=advice(name))
    return path


def advice(name: str) -> str:
    """Return what to do to get a data set."""
    return f"Run: turngym data fetch {name}, or with a copy of your own: turngym data add {name} FOLDER"


def status(name: str) -> Status:
    """Say what there is of a data set; every file is looked at, none is read whole."""
    layout, own = sets.get(name).load(), home()
    partial = sum(_size(path) for path in own.glob(f".fetch-{name}@*")) if own is not None else 0
    for where, path in places(name):
        mine = own is not None and path == own / name
        if not (layout.holds(path) or (mine and os.path.lexists(path))):
            continue
        how = "found" if not mine else "linked" if path.is_symlink() else note_of(path).get("how", "found")
        try:
            if not layout.holds(path):
                raise DataMissing(f"{path.resolve()} does not hold {name}.")
            holds = layout.check(path)
            size = sum(file.stat().st_size for file in layout.files(path))
        except (TurngymError, OSError) as error:
            text = error.detail if isinstance(error, TurngymError) else str(error)
            return Status("broken", where, path, 0, text, partial)
        return Status(how, where, path.resolve() if how == "linked" else path, size, holds, partial)
    return Status("missing", "", None, 0, "", partial)


def link(name: str, folder: str) -> str:
    """Remember the user's folder as a data set; return what it holds.

    Raises:
        InvalidRequest: there is no such folder, or the data set is there already.
        TurngymError: the folder does not hold the data set, or it is damaged.
    """
    path, holds = _checked(name, folder)
    with claimed(name) as target:
        refuse_second(name, target, path)
        if not os.path.lexists(target):
            target.symlink_to(path)
    return holds


def copy(name: str, folder: str) -> str:
    """Copy a data set's files into turngym's own folder; return what they hold. Errors as for :func:`link`."""
    path, holds = _checked(name, folder)
    files = sets.get(name).load().files(path)
    with claimed(name) as target:
        refuse_second(name, target)
        check_room(target.parent, sum(file.stat().st_size for file in files))
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".draft-{name}-"))
        try:
            for file in files:
                place = draft / file.relative_to(path)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
            install(draft, target, {"how": "copied", "from": str(path)})
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return holds


def remove(name: str) -> Path:
    """Take a data set out of turngym's own folder; a linked folder itself stays. Returns where it was.

    Raises:
        InvalidRequest: it is not there, or turngym did not put it there.
    """
    sets.get(name)
    with claimed(name) as target:
        drafts = [*target.parent.glob(f".fetch-{name}@*"), *target.parent.glob(f".draft-{name}-*")]
        if not os.path.lexists(target):
            if not drafts:
                raise InvalidRequest(f"{name} is not in {target.parent}.", hint="Nothing was removed.")
        elif target.is_symlink():
            target.unlink()
        else:
            if not note_of(target):
                raise InvalidRequest(
                    f"{target} was not put there by turngym.",
                    hint="Nothing was removed. Delete it yourself if need be.",
                )
            # Out of the way at once, so that no one meets a half of it.
            grave = target.with_name(f".draft-{name}-removed-{os.getpid()}")
            target.rename(grave)
            drafts.append(grave)
        for draft in drafts:
            shutil.rmtree(draft)
    return target


def install(draft: Path, target: Path, note: dict[str, Any]) -> None:
    """Make a folder with all files of a data set the one in turngym's own folder, whole or not at all."""
    full = {"form": _FORM, **note, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (draft / NOTE).write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")
    draft.chmod(0o755)  # a temporary folder is its maker's alone
    draft.rename(target)


def note_of(folder: Path) -> dict[str, Any]:
    """Return what turngym noted when it made a folder; {} where it did not make it."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and not folder.is_symlink() else {}


@contextmanager
def claimed(name: str, waiting: Callable[[], None] | None = None) -> Iterator[Path]:
    """Yield a data set's place in turngym's own folder, which no other process changes meanwhile.

    Args:
        name: the data set.
        waiting: called before waiting for another process that is at it.
    """
    base = writable_home()
    with open(base / f".{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield base / name


def check_room(folder: Path, wanted: int) -> None:
    """Check that a disk has room.

    Raises:
        InvalidRequest: it has not; says how much is missing.
    """
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise InvalidRequest(
            f"{wanted / 1e6:,.0f} MB are needed in {folder}, {free / 1e6:,.0f} MB are free.",
            hint="Free disk space, or set XDG_DATA_HOME to a folder on another disk.",
        )


def refuse_second(name: str, target: Path, same: Path | None = None) -> None:
    """Check that a data set's place is free, or holds a link to the ``same`` folder.

    Raises:
        InvalidRequest: it is not free.
    """
    if os.path.lexists(target) and (same is None or target.resolve() != same):
        what = f"{target}, a link to {os.readlink(target)}" if target.is_symlink() else str(target)
        raise InvalidRequest(f"{name} is there already: {what}.", hint=f"First run: turngym data remove {name}")


def _checked(name: str, folder: str) -> tuple[Path, str]:
    layout = sets.get(name).load()
    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        what = "is a file" if path.is_file() else "does not exist"
        raise InvalidRequest(f"{path} {what}.", hint=f"Name the folder that holds {name}; unpack an archive first.")
    path = path.resolve()
    return path, layout.check(path)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
