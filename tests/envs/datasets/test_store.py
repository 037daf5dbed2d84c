"""Where data sets are found, and how they get into turngym's own folder and out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngym import make
from turngym.envs.datasets import sets, store
from turngym.errors import DataMissing, InvalidRequest


@pytest.fixture
def shop(tmp_path: Path, shop_files: dict[str, bytes]) -> Path:
    """A user's folder with WebShop's files, and other things."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    for name, content in shop_files.items():
        (folder / name).write_bytes(content)
    (folder / "notes.txt").write_text("mine")
    return folder


def test_a_linked_folder_is_used_and_stays_when_it_is_removed(data_home: Path, shop: Path) -> None:
    assert store.status("webshop").state == "missing" and store.locate("webshop") is None
    assert "items_shuffle_1000.json" in store.link("webshop", str(shop))
    status = store.status("webshop")
    assert (status.state, status.path, status.where) == ("linked", shop, "")
    assert status.bytes == sum(path.stat().st_size for path in shop.glob("*.json"))
    assert store.needed("webshop").resolve() == shop
    store.link("webshop", str(shop))  # once more is no error
    assert store.remove("webshop") == data_home / "webshop"
    assert store.locate("webshop") is None and (shop / "notes.txt").read_text() == "mine"


def test_a_copy_has_the_files_alone_and_goes_when_it_is_removed(data_home: Path, shop: Path) -> None:
    store.copy("webshop", str(shop))
    assert store.status("webshop").state == "copied"
    assert sorted(path.name for path in (data_home / "webshop").glob("[!.]*")) == sorted(
        path.name for path in shop.glob("*.json")
    )
    assert store.note_of(data_home / "webshop")["from"] == str(shop)
    store.remove("webshop")
    assert [path.name for path in data_home.iterdir()] == [".webshop.lock"]
    with pytest.raises(InvalidRequest, match="not in"):
        store.remove("webshop")


def test_one_of_a_name(data_home: Path, shop: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shop.rename(other)
    store.link("webshop", str(other))
    other.rename(shop)
    # The link leads nowhere now: that is told, and nothing else is taken in its place.
    with pytest.raises(DataMissing, match="does not hold it now") as caught:
        store.locate("webshop")
    assert "turngym data remove webshop" in caught.value.hint
    assert store.status("webshop").state == "broken"
    for add in (store.link, store.copy):
        with pytest.raises(InvalidRequest, match="there already"):
            add("webshop", str(shop))
    store.remove("webshop")
    store.link("webshop", str(shop))


def test_a_folder_that_turngym_did_not_make_is_not_removed(data_home: Path, shop: Path) -> None:
    (data_home / "webshop").mkdir(parents=True)
    for path in shop.glob("*.json"):
        (data_home / "webshop" / path.name).write_bytes(path.read_bytes())
    assert store.status("webshop").state == "found"
    with pytest.raises(InvalidRequest, match="not put there by turngym"):
        store.remove("webshop")
    assert store.status("webshop").state == "found"
    # Nor what lies behind a link, even if a note lies there.
    (data_home / "webshop").rename(shop.parent / "elsewhere")
    (shop.parent / "elsewhere" / store.NOTE).write_text("{}")
    store.link("webshop", str(shop.parent / "elsewhere"))
    store.remove("webshop")
    assert (shop.parent / "elsewhere" / "items_human_ins.json").exists()


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("items_shuffle_1000.json", None, r"no files items_shuffle\*\.json"),
        ("items_ins_v2_1000.json", None, r"no files items_ins_v2\*\.json"),
        ("items_shuffle_1000.json", b"<html>quota</html>", "damaged"),
        ("items_shuffle_1000.json", b"[1, 2]", "no product"),
        ("items_ins_v2_1000.json", b'{"B1": ', "damaged"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(
    data_home: Path, shop: Path, name: str, broken: bytes | None, message: str
) -> None:
    if broken is None:
        (shop / name).unlink()
    else:
        (shop / name).write_bytes(broken)
    for add in (store.link, store.copy):
        with pytest.raises(InvalidRequest, match=message):
            add("webshop", str(shop))
    assert store.locate("webshop") is None
    with pytest.raises(InvalidRequest, match="does not exist"):
        store.link("webshop", str(shop / "nowhere"))
    with pytest.raises(InvalidRequest, match="is a file"):
        store.link("webshop", str(shop / "notes.txt"))
    with pytest.raises(InvalidRequest, match="Did you mean 'webshop'"):
        store.link("webshp", str(shop))


def test_the_order_of_places(data_home: Path, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(path: Path) -> Path:
        (path / "json_2.1.1" / "train" / "task" / "trial").mkdir(parents=True)
        return path

    original = made(tmp_path / "home" / ".cache" / "alfworld")
    assert store.locate("alfworld") == original
    named = made(tmp_path / "named")
    monkeypatch.setenv("ALFWORLD_DATA", str(named))
    assert store.locate("alfworld") == named
    own = made(data_home / "alfworld")
    assert store.locate("alfworld") == own
    shared = made(tmp_path / "shared" / "alfworld")
    monkeypatch.setenv("TURNGYM_DATA", str(shared.parent))
    assert store.locate("alfworld") == shared
    monkeypatch.setenv("TURNGYM_DATA", str(tmp_path / "nowhere"))
    assert store.locate("alfworld") == own


def test_official_means_the_copy_that_is_known(data_home: Path) -> None:
    for make_it in (
        lambda: make("webshop", data="official"),
        lambda: make("alfworld", games="official"),
    ):
        with pytest.raises(DataMissing) as caught:
            make_it()
        assert "turngym data fetch" in caught.value.hint and "turngym data add" in caught.value.hint


def test_a_home_that_is_a_file(data_home: Path, shop: Path) -> None:
    data_home.parent.write_text("")
    with pytest.raises(InvalidRequest, match="cannot be kept") as caught:
        store.link("webshop", str(shop))
    assert "XDG_DATA_HOME" in caught.value.hint


@pytest.mark.parametrize("name", sets.SETS)
def test_every_row_of_the_table_is_whole(name: str) -> None:
    data = sets.get(name)
    layout = data.load()
    assert data.licence and data.home.startswith("https://") and data.needed_by and data.variants
    assert callable(layout.holds) and callable(layout.files) and callable(layout.check)
    for files in data.variants.values():
        assert all(url.startswith("https://") for file in files for url in file.urls)
        assert all(file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32 for file in files)
        assert data.package or all(file.urls for file in files)
