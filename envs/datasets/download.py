"""One file over HTTP: resumed where it was interrupted, checked, and there only when it is whole.

What has come so far lies in ``NAME.part``, and beside it which version of the file it belongs to (``NAME.part.json``),
so that a later run asks for the rest only of the very same version (RFC 9110: Range with If-Range).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ...errors import DownloadFailed, InvalidRequest
from .sets import RemoteFile
from .store import check_room

TRIES = 6
"""Attempts in a row that bring nothing new before a source is given up."""
LONGEST_PAUSE_S = 30.0
_PAGE = re.compile(rb"\s*<(!doctype\s+html|html)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_PASSING = {408, 425, 429, 500, 502, 503, 504}

Show = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes of the whole file, where known."""


class Fetched(NamedTuple):
    """A file that has come: from where, how large, its checksum."""

    url: str
    size: int
    sha256: str


class _Passing(Exception):
    """What may go better the next time."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


def client() -> httpx.Client:
    """Return an HTTP client for downloads; proxies come from the usual variables."""
    return httpx.Client(
        follow_redirects=True,
        timeout=httpx.Timeout(30.0, read=60.0),
        # Bytes on the way are bytes of the file, so that a range means the same on both sides.
        headers={"Accept-Encoding": "identity", "User-Agent": "turngym"},
    )


def download(
    file: RemoteFile, target: Path, http: httpx.Client, show: Show, pause: Callable[[float], None] = time.sleep
) -> Fetched:
    """Fetch a file from the first of its sources that gives it.

    Args:
        file: what to fetch; its checksum is checked where known.
        target: where to put it.
        http: see :func:`client`.
        show: told about the progress.
        pause: waits so many seconds before another attempt.

    Raises:
        DownloadFailed: no source gave it; says what each answered. What came is kept for the next time.
        InvalidRequest: the disk has no room for it.
    """
    problems = []
    for url in file.urls:
        try:
            return _Source(url, file, target, http, show, pause).fetch()
        except DownloadFailed as error:
            problems.append(f"{httpx.URL(url).host}: {error.detail}")
    raise DownloadFailed(
        f"{file.name} could not be fetched. {' '.join(problems)}",
        hint="Run the same command again later; what has come is kept. Or name a mirror with --url, or get the files "
        "by other means and name their folder: turngym data add.",
    )


class _Source:
    """One file from one address."""

    def __init__(
        self,
        url: str,
        file: RemoteFile,
        target: Path,
        http: httpx.Client,
        show: Show,
        pause: Callable[[float], None],
    ) -> None:
        self.url, self.file, self.target = url, file, target
        self.http, self.show, self.pause = http, show, pause
        self.part = target.with_name(target.name + ".part")
        self.note = target.with_name(target.name + ".part.json")

    def fetch(self) -> Fetched:
        """Fetch until it is whole and right, or no attempt brings anything new."""
        failures = attempts = 0
        most, mixed, again = self._have(), False, False
        while True:
            start, headers = self._resume()
            try:
                self._stream(start, headers)
                mixed = mixed or start > 0
                digest = self._digest()
            except (_Passing, httpx.TransportError) as error:
                have = self._have()
                if have > most:
                    failures, attempts, most = 0, 0, have
                attempts += 1
                # A server that was never reached is most likely not there at all.
                failures += 2 if isinstance(error, httpx.ConnectError) and not have else 1
                if failures >= TRIES:
                    what = str(error) or type(error).__name__
                    raise DownloadFailed(f"{what}, {attempts} times in a row.") from error
                wait = getattr(error, "wait", None)
                self.pause(min(LONGEST_PAUSE_S, 2.0 ** max(0, failures - 1) if wait is None else wait))
                continue
            except httpx.HTTPError as error:
                raise DownloadFailed(f"{error}.") from error
            if self.file.sha256 in (None, digest):
                return self._keep(digest)
            self._drop()
            if again or not mixed:
                raise DownloadFailed(f"its SHA-256 is {digest}, not {self.file.sha256}: it is another file.")
            # The pieces of several runs may not belong together: once more, in one piece.
            again, most = True, 0

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _resume(self) -> tuple[int, dict[str, str]]:
        """Return the bytes that can be kept, and the headers that ask for the others."""
        have = self._have()
        if not have:
            return 0, {}
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            note = {}
        headers = {"Range": f"bytes={have}-"}
        if note.get("url") == self.url and note.get("validator"):
            return have, {**headers, "If-Range": note["validator"]}
        # Without a word on the version only a checksum can tell whether the pieces fit.
        return (have, headers) if self.file.sha256 else (0, {})

    def _stream(self, start: int, headers: dict[str, str]) -> None:
        with self.http.stream("GET", self.url, headers=headers) as response:
            if response.status_code == 416 and start:
                # There is nothing after what we have: it is whole, or it is of another version.
                if _total(response) == start:
                    return
                self._drop()
                raise _Passing("the file has changed")
            self._check_status(response)
            start = start if response.status_code == 206 else 0
            total = _total(response) if start else _length(response)
            self._check_size(total)
            # As they come and not in larger pieces, of which a broken connection would lose the last.
            pieces = response.iter_raw()
            first = next(pieces, b"")
            if not start:
                self._refuse_page(response, first, pieces)
            if total is not None:
                check_room(self.part.parent, total - start)
            self._note(response)
            self._write(start, first, pieces, total)
        if total is not None and self._have() != total:
            raise _Passing(f"it ended after {self._have():,} of {total:,} bytes")

    def _check_status(self, response: httpx.Response) -> None:
        code = response.status_code
        if code in _PASSING:
            wait = response.headers.get("retry-after", "")
            raise _Passing(f"the server answered {code}", float(wait) if wait.isascii() and wait.isdigit() else None)
        if code not in (200, 206):
            raise DownloadFailed(f"the server answered {code} {response.reason_phrase}.")
        if code == 206 and _range_start(response) != self._have():
            self._drop()
            raise _Passing("the server sent another part than was asked for")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise DownloadFailed("the server sends it compressed, which was not asked for.")

    def _check_size(self, total: int | None) -> None:
        # With a checksum the size is known for certain; otherwise the file may have been published anew.
        if self.file.sha256 and self.file.size is not None and total not in (None, self.file.size):
            raise DownloadFailed(f"it has {total:,} bytes there, not {self.file.size:,}: it is another file.")

    def _refuse_page(self, response: httpx.Response, first: bytes, rest: Iterator[bytes]) -> None:
        if not (response.headers.get("content-type", "").startswith("text/html") or _PAGE.match(first)):
            return
        page = first + next(rest, b"")
        title = _TITLE.search(page.decode("utf-8", "replace"))
        said = f' ("{" ".join(title[1].split())[:120]}")' if title else ""
        raise DownloadFailed(f"the server sends a page{said} instead of the file.")

    def _note(self, response: httpx.Response) -> None:
        etag = response.headers.get("etag", "")
        # A weak tag says "as good as", which is not enough to put pieces together.
        validator = etag if etag and not etag.startswith("W/") else response.headers.get("last-modified", "")
        self.note.write_text(json.dumps({"url": self.url, "validator": validator}), encoding="utf-8")

    def _write(self, start: int, first: bytes, rest: Iterator[bytes], total: int | None) -> None:
        try:
            with open(self.part, "r+b" if start else "wb") as out:
                out.seek(start)
                out.truncate()
                done = start
                for piece in _chained(first, rest):
                    out.write(piece)
                    done += len(piece)
                    self.show(done, total)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise InvalidRequest(
                f"The disk of {self.part.parent} is full; {self._have():,} bytes of {self.file.name} have come.",
                hint="Free disk space and run the same command again: it goes on from there.",
            ) from error

    def _digest(self) -> str:
        with open(self.part, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _keep(self, digest: str) -> Fetched:
        size = self._have()
        self.part.replace(self.target)
        self.note.unlink(missing_ok=True)
        return Fetched(self.url, size, digest)

    def _drop(self) -> None:
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _length(response: httpx.Response) -> int | None:
    return _number(response.headers.get("content-length"))


def _total(response: httpx.Response) -> int | None:
    """Return the size of the whole file from Content-Range, for example "bytes 100-199/200"."""
    return _number(str(response.headers.get("content-range", "")).rpartition("/")[2])


def _range_start(response: httpx.Response) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    return int(found[1]) if found else None


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None
