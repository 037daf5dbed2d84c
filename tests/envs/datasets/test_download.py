"""One file over HTTP: interrupted, resumed, changed, refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.datasets import store
from turngym.envs.datasets.download import TRIES, Fetched, client, download
from turngym.envs.datasets.sets import RemoteFile
from turngym.errors import DownloadFailed, InvalidRequest

BODY = bytes(range(256)) * 4096  # 1 MiB
Get = Callable[..., Fetched]


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def get(site: Any, tmp_path: Path, waits: list[float]) -> Get:
    def get(*paths: str, sha256: str | None = None, size: int | None = None) -> Fetched:
        file = RemoteFile("file.bin", tuple(site.url + path for path in paths), size, sha256)
        with client() as http:
            return download(file, tmp_path / "file.bin", http, lambda done, total: None, waits.append)

    return get


def whole(tmp_path: Path) -> bytes:
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["file.bin"]
    return (tmp_path / "file.bin").read_bytes()


def test_a_file_comes_whole(site: Any, get: Get, tmp_path: Path, waits: list[float]) -> None:
    page = site.add("a", BODY)
    assert get("a", sha256=page.sha256, size=len(BODY)) == Fetched(site.url + "a", len(BODY), page.sha256)
    assert whole(tmp_path) == BODY and page.asked == [""] and waits == []


def test_a_broken_connection_is_resumed_where_it_broke(site: Any, get: Get, tmp_path: Path, waits: list[float]) -> None:
    page = site.add("a", BODY, cuts=3)
    assert get("a").sha256 == page.sha256
    assert whole(tmp_path) == BODY
    half = len(BODY) // 2
    assert page.asked == ["", f"bytes={half}-", f"bytes={half + half // 2}-", f"bytes={half + half * 3 // 4}-"]
    assert len(waits) == 3 and max(waits) <= 1  # each attempt brought something new


def test_another_run_resumes_too(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("a", BODY, cuts=100)
    with pytest.raises(DownloadFailed, match="times in a row"):
        get("a")
    have = (tmp_path / "file.bin.part").stat().st_size
    assert 0 < have < len(BODY)
    page.cuts, page.asked = 0, []
    get("a")
    assert whole(tmp_path) == BODY and page.asked == [f"bytes={have}-"]


def test_a_file_that_changed_meanwhile_is_begun_anew(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("a", BODY, etag='"v2"')
    (tmp_path / "file.bin.part").write_bytes(b"old" * 100)
    (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": site.url + "a", "validator": '"v1"'}))
    get("a")
    assert whole(tmp_path) == BODY and page.asked == ["bytes=300-"]


@pytest.mark.parametrize("etag", ["", 'W/"v1"'])
def test_pieces_without_a_known_version_are_not_put_together(site: Any, get: Get, tmp_path: Path, etag: str) -> None:
    page = site.add("a", BODY, etag=etag, cuts=1)
    get("a")
    assert whole(tmp_path) == BODY and page.asked == ["", ""]


def test_with_a_checksum_they_are_and_a_wrong_sum_is_tried_once_more(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("a", BODY, etag="")
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    assert get("a", sha256=page.sha256).sha256 == page.sha256
    assert whole(tmp_path) == BODY and page.asked == ["bytes=1000-", ""]


def test_a_server_without_ranges(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("a", BODY, ranges=False, cuts=2)
    get("a")
    assert whole(tmp_path) == BODY and len(page.asked) == 3
    page.cuts = 100
    with pytest.raises(DownloadFailed, match=f"{TRIES} times in a row"):
        get("a")


def test_a_part_that_is_whole_already(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("a", BODY)
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert get("a", sha256=page.sha256).size == len(BODY)
    assert whole(tmp_path) == BODY and page.asked == [f"bytes={len(BODY)}-"]
    # Longer than the file is now: another version.
    (tmp_path / "file.bin.part").write_bytes(BODY + b"more")
    get("a", sha256=page.sha256)
    assert whole(tmp_path) == BODY


def test_a_wrong_checksum_is_refused_and_the_mirror_asked(site: Any, get: Get, tmp_path: Path) -> None:
    page = site.add("good", BODY)
    site.add("bad", BODY[::-1])
    with pytest.raises(DownloadFailed, match="another file"):
        get("bad", sha256=page.sha256)
    assert list(tmp_path.iterdir()) == []
    assert get("bad", "good", sha256=page.sha256).url == site.url + "good"
    assert whole(tmp_path) == BODY
    with pytest.raises(DownloadFailed, match="1,048,576 bytes there, not 7"):
        get("good", sha256=page.sha256, size=7)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            b"<!DOCTYPE html><html><head><title>Google Drive - Quota\n exceeded</title></head>",
            "text/html; charset=utf-8",
        ),
        (b"\n <HTML><title>Google Drive - Quota exceeded</title>", "application/octet-stream"),
    ],
)
def test_a_page_in_place_of_the_file_is_refused(
    site: Any, get: Get, tmp_path: Path, body: bytes, kind: str, waits: list[float]
) -> None:
    site.add("page", body, headers={"Content-Type": kind})
    with pytest.raises(DownloadFailed, match=r'sends a page \("Google Drive - Quota exceeded"\)') as caught:
        get("page")
    assert "--url" in caught.value.hint and waits == [] and list(tmp_path.iterdir()) == []


def test_passing_trouble_is_waited_out_and_the_rest_is_not(
    site: Any, get: Get, tmp_path: Path, waits: list[float]
) -> None:
    site.add("a", BODY, fails=[503, 429, 500], headers={"Retry-After": "7"})
    get("a")
    assert whole(tmp_path) == BODY and waits == [7.0, 7.0, 7.0]
    site.add("b", BODY, fails=[502] * TRIES)
    waits.clear()
    with pytest.raises(DownloadFailed, match="502"):
        get("b")
    assert waits == sorted(waits) and len(waits) == TRIES - 1
    for status in (403, 404):
        page = site.add("c", BODY, fails=[status])
        with pytest.raises(DownloadFailed, match=str(status)):
            get("c")
        assert len(page.asked) == 1
    site.add("d", BODY, headers={"Content-Encoding": "gzip"})
    with pytest.raises(DownloadFailed, match="compressed"):
        get("d")


def test_no_server(get: Get, site: Any, waits: list[float]) -> None:
    site.server.server_close()
    with pytest.raises(DownloadFailed, match="3 times in a row"):
        get("a")
    assert len(waits) == 2


def test_no_room(site: Any, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = site.add("a", BODY)
    usage = store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(InvalidRequest, match="1 MB are needed"):
        get("a")
    monkeypatch.undo()
    # A disk that fills up while the file comes; what came stays.
    (tmp_path / "file.bin.part").write_bytes(BODY[:4096])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidRequest, match="is full"):
        get("a", sha256=page.sha256)
    assert (tmp_path / "file.bin.part").exists()
    monkeypatch.undo()
    get("a", sha256=page.sha256)
    assert whole(tmp_path) == BODY
