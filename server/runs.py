"""Run folders as the console reads them: what ``turngym train`` and ``turngym eval`` wrote, while they write on.

Nothing is ever written. Files are named by a fixed list, folders must lie below the one that is served, links are not
followed, and a file of any size is read a piece at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from fastapi import Request, Response

from ..envs.core import shown
from ..errors import InvalidRequest, TurngymError
from ..protocol import PREFIX
from .listings import json_response
from .schemas import Api, Parameter

FILES = ("metrics.jsonl", "episodes.jsonl", "eval.jsonl", "recipe.json", "machine.json", "plan.json", "metrics.json")
"""What a console may read of a run's folder."""
DEPTH = 3
"""Folders below the one that is served in which runs are looked for."""
MOST_RUNS = 500
"""Runs in a list, the newest first."""
PIECE = 1 << 20
"""Bytes of a piece, unless others are asked for."""
MOST_BYTES = 8 << 20
MOST_LINE = 64 << 20
"""Longest line that is passed on; a line is never cut."""
TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that tell where a run stands."""
CLOSE = 1 << 16
"""Bytes among which a step's first line is looked for one by one."""
# Ids of a training run's episodes are written first and bear the step: "s000012.g3.1", "e000010.5".
_STEP = re.compile(rb'\{"id":"[es](\d+)\.')

Kind = Literal["training", "evaluation"]


class RunsNotServed(TurngymError):
    """The hub was started without a folder of runs."""

    code, status, title = "RUNS_NOT_SERVED", 404, "No runs are served"


class RunNotFound(TurngymError):
    """There is no such run, or no such file in it."""

    code, status, title = "RUN_NOT_FOUND", 404, "No such run"


class RunCard(msgspec.Struct, frozen=True):
    """A run in a list.

    Attributes:
        run: its name: the folder, relative to the one that is served.
        kind: "training" or "evaluation".
        summary: one line by whoever set it up; "" for none.
        envs: names of environments or of their preset.
        age_s: seconds since something was written.
        step: training steps taken.
        steps: training steps wanted; 0 where that is not known.
        success: of the newest evaluation on held-out tasks; None before the first.
        size: bytes of its episodes.
    """

    run: str
    kind: Kind
    summary: str
    envs: list[str]
    age_s: float
    step: int
    steps: int
    success: float | None
    size: int


class RunFile(msgspec.Struct, frozen=True):
    """A file of a run.

    Attributes:
        name: one of those that are served.
        size: bytes.
        age_s: seconds since it was written.
    """

    name: str
    size: int
    age_s: float


class Piece(msgspec.Struct, frozen=True):
    """Whole lines of a file.

    Attributes:
        tag: names the file's present form; where it changes, what was read before no longer holds.
        start: byte at which the text begins.
        next: byte at which to go on; a line that is still being written is left for then.
        size: bytes of the file.
        age_s: seconds since it was written.
        text: the lines.
    """

    tag: str
    start: int
    next: int
    size: int
    age_s: float
    text: str


class Runs:
    """The runs below a folder.

    Args:
        root: the folder.

    Raises:
        InvalidRequest: there is no such folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise InvalidRequest(f"There is no folder {root}.", hint="Name the folder that holds the runs.")

    def cards(self) -> list[RunCard]:
        """Return the runs, those written to last first."""
        cards = [self._card(folder) for folder in self._folders()]
        return sorted(cards, key=lambda card: card.age_s)[:MOST_RUNS]

    def files(self, run: str) -> list[RunFile]:
        """Return the files of a run.

        Raises:
            RunNotFound: there is no such run.
        """
        folder = self._folder(run)
        found = ((name, _regular(folder / name)) for name in FILES)
        return [RunFile(name, status.st_size, _age(status)) for name, status in found if status is not None]

    def read(
        self, run: str, name: str, start: int = 0, *, tag: str = "", step: int | None = None, limit: int = PIECE
    ) -> Piece:
        """Return a piece of a file, cut between lines.

        Args:
            run: name of the run.
            name: name of the file.
            start: byte to begin at; below 0, so many before the end.
            tag: of the piece read before; where it no longer fits, the file is read from its beginning.
            step: begin at the first episode of this training step, or of a later one, instead.
            limit: bytes to read; a longer line comes whole.

        Raises:
            RunNotFound: there is no such run or file.
            InvalidRequest: a line is too long to be passed on.
        """
        path = self._folder(run) / name
        if name not in FILES:
            raise RunNotFound(f"A run has no file {shown(name, 60)!r}.", hint=f"One of: {', '.join(FILES)}.")
        with _open(path, run) as file:
            status = os.fstat(file.fileno())
            own = f"{status.st_dev:x}-{status.st_ino:x}"
            size = status.st_size
            if tag not in ("", own) or start > size:
                start = 0
            if step is not None:
                start = _first_of(file, size, step)
            elif start < 0:
                start = _line_at(file, max(0, size + start))
            text = _lines(file, start, min(limit, MOST_BYTES), growing=name.endswith(".jsonl"))
        return Piece(own, start, start + len(text), size, _age(status), text.decode("utf-8", "replace"))

    def _folders(self) -> Iterator[Path]:
        """Yield the folders of runs; what lies inside a run is its own."""
        waiting = [(self.root, 0)]
        while waiting:
            folder, depth = waiting.pop()
            if _kind(folder) is not None:
                yield folder
                continue
            if depth < DEPTH:
                waiting += [(each, depth + 1) for each in _below(folder)]

    def _folder(self, run: str) -> Path:
        missing = RunNotFound(f"There is no run {shown(run, 200)!r}.", hint=f"GET {PREFIX}/runs lists them.")
        if not run or "\0" in run:
            raise missing
        try:
            folder = (self.root / run).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise missing from error
        if not folder.is_relative_to(self.root) or _kind(folder) is None:
            raise missing
        return folder

    def _card(self, folder: Path) -> RunCard:
        kind = _kind(folder) or "training"
        statuses = {name: status for name in FILES if (status := _regular(folder / name)) is not None}
        set_up = _set_up(folder / ("recipe.json" if kind == "training" else "plan.json"))
        train, held_out = _newest(folder / "metrics.jsonl") if kind == "training" else (_Line(), _Line())
        return RunCard(
            run=folder.relative_to(self.root).as_posix(),
            kind=kind,
            summary=set_up.summary,
            envs=[set_up.env.preset] if kind == "training" else [env.name for env in set_up.envs],
            age_s=min(map(_age, statuses.values()), default=0.0),
            step=int(max(train.step, held_out.step)),
            steps=set_up.run.steps,
            success=held_out.eval_success,
            size=sum(status.st_size for name, status in statuses.items() if name in ("episodes.jsonl", "eval.jsonl")),
        )


class _Named(msgspec.Struct, frozen=True):
    name: str = ""
    preset: str = ""


class _Length(msgspec.Struct, frozen=True):
    steps: int = 0


class _SetUp(msgspec.Struct, frozen=True):
    """What a list tells of a recipe or a plan."""

    summary: str = ""
    env: _Named = _Named()
    envs: list[_Named] = []
    run: _Length = _Length()


class _Line(msgspec.Struct, frozen=True):
    """What a list tells of a line of numbers."""

    kind: str = ""
    step: float = 0
    eval_success: float | None = None


def mount(api: Api, root: str | None) -> None:
    """Add the routes.

    Args:
        api: the application's documented routes.
        root: the folder of the runs; None serves none, and says so.

    Raises:
        InvalidRequest: there is no such folder.
    """
    served = None if root is None else Runs(root)

    def runs() -> Runs:
        if served is None:
            raise RunsNotServed("This hub serves no runs.", hint="Start it with: turngym serve --runs DIR")
        return served

    async def every(request: Request) -> Response:
        return json_response(await asyncio.to_thread(runs().cards))

    async def files(request: Request) -> Response:
        return json_response(await asyncio.to_thread(runs().files, request.query_params.get("run", "")))

    async def text(request: Request) -> Response:
        query = request.query_params
        step = _number(query.get("step"), "step", -1, 0)
        piece = await asyncio.to_thread(
            runs().read,
            query.get("run", ""),
            query.get("file", ""),
            _number(query.get("start"), "start", 0),
            tag=query.get("tag", ""),
            step=None if step < 0 else step,
            limit=_number(query.get("limit"), "limit", PIECE, 1),
        )
        return json_response(piece)

    which = Parameter("run", "query", {"type": "string"}, "Name of the run.")
    whole = {"type": "integer"}
    parts = [
        which,
        Parameter("file", "query", {"type": "string", "enum": list(FILES)}, "Name of the file."),
        Parameter("start", "query", {**whole, "default": 0}, "Byte to begin at; below 0, so many before the end."),
        Parameter("tag", "query", {"type": "string"}, "Tag of the piece before: a file that was replaced starts anew."),
        Parameter("step", "query", {**whole, "minimum": 0}, "Begin at the episodes of this training step."),
        Parameter("limit", "query", {**whole, "minimum": 1, "default": PIECE}, "Bytes to read; a line comes whole."),
    ]
    base, wrong = f"{PREFIX}/runs", (RunsNotServed, RunNotFound)
    api.add("GET", base, every, "List the runs", answer=list[RunCard], errors=(RunsNotServed,))
    api.add("GET", f"{base}/files", files, "List a run's files", answer=list[RunFile], parameters=[which], errors=wrong)
    api.add(
        "GET",
        f"{base}/text",
        text,
        "Read a piece of a run's file",
        answer=Piece,
        parameters=parts,
        errors=(*wrong, InvalidRequest),
    )


def _number(text: str | None, name: str, default: int, least: int | None = None) -> int:
    if text is None:
        return default
    number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
    if number is None or (least is not None and number < least):
        raise InvalidRequest(f"{name} is {shown(text, 60)!r}.", hint="Give a whole number.")
    return number


def _below(folder: Path) -> list[Path]:
    """Return the folders in a folder, but for hidden ones and links; [] where it may not be read."""
    try:
        with os.scandir(folder) as entries:
            found = [each for each in entries if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
    except OSError:
        return []
    return [Path(each.path) for each in found]


def _kind(folder: Path) -> Kind | None:
    if (folder / "recipe.json").is_file() or (folder / "metrics.jsonl").is_file():
        return "training"
    return "evaluation" if (folder / "plan.json").is_file() else None


def _regular(path: Path) -> os.stat_result | None:
    """Return the status of a plain file, None where there is none; a link is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _age(status: os.stat_result) -> float:
    return max(0.0, time.time() - status.st_mtime)


def _open(path: Path, run: str) -> BinaryIO:
    """Open a plain file for reading; what else there is under its name is not opened."""
    try:
        # A pipe would wait for a writer, a link lead elsewhere.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RunNotFound(
            f"The run {shown(run, 200)!r} has no file {path.name}.", hint=f"GET {PREFIX}/runs/files lists its files."
        ) from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise RunNotFound(f"{path.name} is no plain file.", hint="Look at the folder.")
    return open(number, "rb")


def _lines(file: BinaryIO, start: int, limit: int, growing: bool) -> bytes:
    """Return whole lines from a byte on, as many as ``limit`` bytes hold, or one.

    The last line of a growing file is not whole before it ends.
    """
    file.seek(start)
    data = file.read(limit)
    if b"\n" in data:
        return data[: data.rindex(b"\n") + 1]
    data += file.readline(MOST_LINE)
    if data.endswith(b"\n"):
        return data
    if len(data) >= MOST_LINE:
        raise InvalidRequest(
            f"The line at byte {start} has more than {MOST_LINE >> 20} MiB.", hint="Read the file itself."
        )
    return b"" if growing else data


def _line_at(file: BinaryIO, place: int) -> int:
    """Return the start of the first line that begins at or after a byte."""
    if place == 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


def _first_of(file: BinaryIO, size: int, step: int) -> int:
    """Return the start of the first episode of a step, or of a later one: episodes lie in the order of their steps."""
    low, high = 0, size
    while high - low > CLOSE:
        middle = (low + high) // 2
        place = _line_at(file, middle)
        found = _step_after(file, place, high)
        if found is None or found[1] >= step:
            high = middle
        else:
            low = found[0]
    while (found := _step_after(file, low, size)) is not None and found[1] < step:
        file.seek(found[0])
        file.readline()
        low = file.tell()
    return size if found is None else found[0]


def _step_after(file: BinaryIO, place: int, end: int) -> tuple[int, int] | None:
    """Return (start, step) of the first episode from a line on, None where there is none before ``end``."""
    file.seek(place)
    while place < end:
        head = file.readline(64)
        if (match := _STEP.match(head)) is not None:
            return place, int(match[1])
        while head and not head.endswith(b"\n"):
            head = file.readline(PIECE)
        if not head:
            return None
        place = file.tell()
    return None


def _set_up(path: Path) -> _SetUp:
    """Return a file's content; what cannot be read is told nothing of, so that one bad file spoils no list."""
    if _regular(path) is None:
        return _SetUp()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_SetUp)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return _SetUp()


def _newest(path: Path) -> tuple[_Line, _Line]:
    """Return the newest numbers of a training step and of an evaluation, as far as they stand near the end."""
    found: dict[str, _Line] = {}
    if (status := _regular(path)) is None:
        return _Line(), _Line()
    with open(path, "rb") as file:
        file.seek(_line_at(file, max(0, status.st_size - TAIL)))
        for line in file:
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            found[entry.kind] = entry
    return found.get("train", _Line()), found.get("eval", _Line())
