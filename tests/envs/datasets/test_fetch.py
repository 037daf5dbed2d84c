"""Whole data sets: from a server, out of archives, out of a package; several at once."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.datasets import sets, store
from turngym.envs.datasets.fetch import fetch, unpack
from turngym.envs.datasets.sets import RemoteFile
from turngym.errors import DownloadFailed, InvalidRequest

GAME = {"pddl_domain": "(define", "grammar": "", "pddl_problem": ""}
Get = Callable[..., list[str]]


@pytest.fixture
def get() -> Get:
    def get(name: str, variant: str | None = None, url: str | None = None) -> list[str]:
        said: list[str] = []
        fetch(name, variant, url=url, say=said.append, pause=lambda seconds: None)
        return said

    return get


@pytest.fixture
def shop_site(site: Any, shop_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server with WebShop's files, and the table with the checksums of these."""
    for name, body in shop_files.items():
        site.add(name, body)
    files = tuple(
        RemoteFile(name, (site.url + name,), len(page.body), page.sha256) for name, page in site.pages.items()
    )
    table = {"small": files, "full": files}
    monkeypatch.setitem(sets.SETS, "webshop", replace(sets.get("webshop"), variants=table))
    return site


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return out.getvalue()


def test_a_data_set_is_there_whole_and_once(shop_site: Any, data_home: Path, get: Get) -> None:
    said = get("webshop")
    assert len(said) == 3 and all("as published" in line for line in said)
    status = store.status("webshop")
    assert status.state == "fetched" and status.path == data_home / "webshop" and status.partial == 0
    note = store.note_of(data_home / "webshop")
    assert note["variant"] == "small" and {file["name"] for file in note["files"]} == set(shop_site.pages)
    assert sorted(path.name for path in data_home.iterdir()) == [".webshop.lock", "webshop"]
    assert "there already" in get("webshop")[0]
    assert all(len(page.asked) == 1 for page in shop_site.pages.values())
    with pytest.raises(InvalidRequest, match="turngym data remove webshop"):
        get("webshop", "full")
    with pytest.raises(InvalidRequest, match="no variant"):
        get("webshop", "half")
    store.remove("webshop")
    assert store.locate("webshop") is None


def test_an_interrupted_fetch_goes_on_where_it_was(shop_site: Any, data_home: Path, get: Get) -> None:
    large = shop_site.pages["items_ins_v2_1000.json"]
    large.fails = [404]
    with pytest.raises(DownloadFailed, match=r"items_ins_v2_1000\.json could not be fetched"):
        get("webshop")
    assert store.locate("webshop") is None and store.status("webshop").partial > 0
    get("webshop")
    assert len(shop_site.pages["items_shuffle_1000.json"].asked) == 1  # it had come already
    assert store.status("webshop").state == "fetched"


def test_what_is_left_of_a_fetch_can_be_removed(shop_site: Any, data_home: Path, get: Get) -> None:
    shop_site.pages["items_human_ins.json"].fails = [404]
    with pytest.raises(DownloadFailed):
        get("webshop")
    store.remove("webshop")
    assert store.status("webshop").partial == 0


def test_another_address(shop_site: Any, data_home: Path, get: Get, shop_files: dict[str, bytes]) -> None:
    for name, body in shop_files.items():
        shop_site.add(f"mirror/{name}", body)
        del shop_site.pages[name]
    for url, message in (("ftp://x/", "no address"), ("mirror", "no address"), (f"{shop_site.url}one", "One address")):
        with pytest.raises(InvalidRequest, match=message):
            get("webshop", url=url)
    get("webshop", url=f"{shop_site.url}mirror/")
    assert store.status("webshop").state == "fetched"


def test_files_that_are_not_what_they_should_be_are_never_put_in_place(
    site: Any, data_home: Path, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    for name in names:
        site.add(name, b"[1]" if "shuffle" in name else b"{}")
    files = tuple(RemoteFile(name, (site.url + name,)) for name in names)
    monkeypatch.setitem(sets.SETS, "webshop", replace(sets.get("webshop"), variants={"small": files}))
    with pytest.raises(InvalidRequest, match="no product"):
        get("webshop")
    assert store.locate("webshop") is None and store.status("webshop").partial == 0


def test_an_archive_without_a_known_checksum(site: Any, data_home: Path, get: Get) -> None:
    path = "json_2.1.1/train/pick_and_place_simple-Mug-None-Desk-308/trial_1/game.tw-pddl"
    site.add("games.zip", zipped({path: json.dumps(GAME).encode(), "json_2.1.1/": b""}))
    # What is in it is checked too, before it is put in place.
    with pytest.raises(InvalidRequest, match="cut off"):
        get("alfworld", url=f"{site.url}games.zip")
    assert store.locate("alfworld") is None


@pytest.mark.skipif(not os.environ.get("TURNGYM_DATA"), reason="data: set TURNGYM_DATA to a folder with alfworld/")
def test_official_games_from_an_archive_are_played(
    site: Any, get: Get, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from turngym import make
    from turngym.envs.alfworld.data import open_splits

    games = open_splits(Path(os.environ["TURNGYM_DATA"]) / "alfworld")["valid_unseen"]
    files = {}
    for game in map(games.game, range(3)):
        content = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem, "solvable": True}
        files[f"json_2.1.1/valid_unseen/{game.id}/game.tw-pddl"] = json.dumps(content).encode()
    page = site.add("games.zip", zipped(files))
    request.getfixturevalue("data_home")
    said = get("alfworld", url=f"{site.url}games.zip")
    assert page.sha256 in " ".join(said) and "no published one is known" in " ".join(said)
    assert store.status("alfworld").holds == "valid_unseen 3 games"
    env = make("alfworld", games="official")
    env.reset(seed=0, options={"task": "test/0"})
    assert sum(env.step(action)[1] for action in env.expert()) == 1


@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "..\\out.txt", "C:/out.txt"])
def test_an_archive_cannot_write_outside(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(zipped({"good.txt": b"x", name: b"evil"}))
    with pytest.raises(DownloadFailed, match="outside"):
        unpack(archive, tmp_path / "in" / "deep")
    assert not list(tmp_path.rglob("*.txt"))


def test_an_archive_with_a_link_or_damage(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as out:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        out.writestr(link, "/etc/passwd")
    with pytest.raises(DownloadFailed, match="plain file"):
        unpack(archive, tmp_path / "in")
    whole = zipped({"a.txt": os.urandom(5000)})
    for damaged in (whole[:2000], b"", whole.replace(whole[100:200], bytes(100))):
        archive.write_bytes(damaged)
        with pytest.raises(DownloadFailed, match="cannot be unpacked"):
            unpack(archive, tmp_path / "in")
        assert not archive.exists()


@pytest.mark.parametrize("url", [False, True])
def test_two_at_once_fetch_it_once(shop_site: Any, data_home: Path, tmp_path: Path, url: bool) -> None:
    files = [[name, [shop_site.url + name], len(page.body), page.sha256] for name, page in shop_site.pages.items()]
    code = (
        "import json, sys\nfrom dataclasses import replace\n"
        "from turngym.envs.datasets import sets, fetch\n"
        "files = tuple(sets.RemoteFile(n, tuple(u), s, h) for n, u, s, h in json.loads(sys.argv[1]))\n"
        "sets.SETS['webshop'] = replace(sets.SETS['webshop'], variants={'small': files})\n"
        "print(fetch.fetch('webshop', url=sys.argv[2] or None))\n"
    )
    command = [sys.executable, "-c", code, json.dumps(files), shop_site.url if url else ""]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert all(len(page.asked) == 1 for page in shop_site.pages.values())
    assert sum("there already" in out for out, _ in outputs) == 1
    assert store.status("webshop").state == "fetched"


# Out of a package ----------------------------------------------------------------------------------------------------


def wheel_of(texts: dict[str, bytes]) -> bytes:
    files = {f"alfworld/data/{name}": text for name, text in texts.items()}
    return zipped({**files, "alfworld-0.4.2.dist-info/LICENSE": b"MIT License"})


def test_a_wheel_with_other_texts_is_refused(site: Any, data_home: Path, get: Get) -> None:
    for texts, message in (
        ({"alfred.pddl": b"(define", "alfred.twl2": b""}, "SHA-256"),
        ({"alfred.pddl": b"(define"}, "no files alfred|SHA-256"),
        ({}, "no files alfred"),
    ):
        site.add("alfworld.whl", wheel_of(texts))
        with pytest.raises(DownloadFailed, match=message):
            get("alfworld-texts", url=f"{site.url}alfworld.whl")
    assert store.locate("alfworld-texts") is None
    assert [path.name for path in data_home.iterdir()] == [".alfworld-texts.lock"]


def test_the_texts_of_an_installed_package(
    some_texts: dict[str, bytes], data_home: Path, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site"
    with zipfile.ZipFile(io.BytesIO(wheel_of(some_texts))) as wheel:
        wheel.extractall(package)
    info = package / "alfworld-0.4.2.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alfworld\nVersion: 0.4.2\n")
    files = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.syspath_prepend(str(package))
    assert all("the installed alfworld 0.4.2" in line for line in get("alfworld-texts"))
    folder = data_home / "alfworld-texts"
    assert {path.name for path in folder.glob("[!.]*")} == {"alfred.pddl", "alfred.twl2", "LICENSE"}
    assert (folder / "alfred.pddl").read_bytes() == some_texts["alfred.pddl"]


def test_without_pip_or_network_it_says_what_to_do(
    data_home: Path, get: Get, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("turngym.envs.datasets.fetch._is_installed", lambda package: False)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DownloadFailed, match=r"pip could not fetch alfworld==0\.4\.2") as caught:
        get("alfworld-texts")
    assert "turngym data add alfworld-texts" in caught.value.hint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadFailed, match="no pip") as caught:
        get("alfworld-texts")
    assert "--url" in caught.value.hint
