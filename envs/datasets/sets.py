"""The table of data sets: what each is, its licence, who needs it, and where its files can be fetched.

Sizes and checksums are those that several projects which use the files have published; where none is known, the field
is empty, and the checksum of the first fetch is shown and written down.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import InvalidRequest, nearest


class RemoteFile(NamedTuple):
    """A file that can be fetched.

    Attributes:
        name: its name in the data set's folder; an archive's own name.
        urls: where it is, tried in this order.
        size: bytes, as published.
        sha256: checksum, as published; None where none is known.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Layout:
    """How a data set looks on disk; each world defines its own.

    Attributes:
        holds: whether a folder holds it, by a glance.
        files: its files in such a folder.
        check: reads some of each file and says what is there, for example "1,000 products"; raises where it is damaged.
        elsewhere: further places where the original's own tools put it, each with a name for it.
    """

    holds: Callable[[Path], bool]
    files: Callable[[Path], list[Path]]
    check: Callable[[Path], str]
    elsewhere: Callable[[], Iterable[tuple[str, Path]]] = tuple


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: as on the command line.
        summary: one line.
        licence: under what terms its owners give it away.
        home: where it comes from.
        needed_by: what needs it.
        layout: "module:NAME" of its :class:`Layout`.
        variants: name -> files; the first is the default.
        archive: whether the files are zip archives, to be unpacked.
        package: requirement of the Python package it is taken from, instead of files by URL.
    """

    name: str
    summary: str
    licence: str
    home: str
    needed_by: str
    layout: str
    variants: Mapping[str, tuple[RemoteFile, ...]]
    archive: bool = False
    package: str = ""

    def load(self) -> Layout:
        """Return its layout."""
        module, _, name = self.layout.partition(":")
        return getattr(importlib.import_module(module, __package__), name)  # type: ignore[no-any-return]

    def variant(self, named: str | None) -> str:
        """Return the name of a variant, the default one for None.

        Raises:
            InvalidRequest: there is no such variant.
        """
        if named is not None and named not in self.variants:
            raise InvalidRequest(f"{self.name} has no variant {named!r:.60}.", hint=nearest(named, self.variants))
        return next(iter(self.variants)) if named is None else named


def get(name: str) -> DataSet:
    """Return a data set by name.

    Raises:
        InvalidRequest: there is none of this name.
    """
    if name not in SETS:
        raise InvalidRequest(f"There is no data set {name!r:.60}.", hint=nearest(name, SETS))
    return SETS[name]


def _webshop(name: str, drive: str, size: int, sha256: str) -> RemoteFile:
    # confirm=t skips the page that asks whether a file too large for a virus scan is wanted all the same.
    original = f"https://drive.usercontent.google.com/download?id={drive}&export=download&confirm=t"
    # Drive refuses popular files for hours; the checksum says whether the mirror's are the same.
    mirror = "https://huggingface.co/datasets/YWZBrandon/webshop-data/resolve/ce990fff5aee388db2706f07820c578ab68e0453"
    return RemoteFile(name, (original, f"{mirror}/{name}"), size, sha256)


# The Drive ids stand in the original's setup.sh.
_HUMANS = _webshop(
    "items_human_ins.json",
    "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O",
    5_137_548,
    "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3",
)
_WEBSHOP = {
    "small": (
        _webshop(
            "items_shuffle_1000.json",
            "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
            4_467_013,
            "30a4765c3a327af72d9a9a95a6b2486d516f0fa1d3ecd83681901ce82a21b269",
        ),
        _webshop(
            "items_ins_v2_1000.json",
            "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
            147_099,
            "f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f",
        ),
        _HUMANS,
    ),
    "full": (
        _webshop(
            "items_shuffle.json",
            "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB",
            5_479_720_229,
            "2ef591d65df3af89e972ab72468eb82cbf124d876552d9f3678667edd620a6c8",
        ),
        _webshop(
            "items_ins_v2.json",
            "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi",
            186_295_270,
            "1d36af476bdb8f82a5da62bd8acdabe54cd8de2fa84010d37da5c4890feb447e",
        ),
        _HUMANS,
    ),
}
_RELEASES = "https://github.com/alfworld/alfworld/releases/download"
_ALFWORLD = {
    # What alfworld-download of 0.4.0 to 0.4.2 fetches.
    "2.1.2": (RemoteFile("json_2.1.2_tw-pddl.zip", (f"{_RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip",), 36_493_542),),
    "2.1.3": (
        RemoteFile(
            "json_2.1.3_tw-pddl.zip",
            (f"{_RELEASES}/0.4.2/json_2.1.3_tw-pddl.zip",),
            36_507_267,
            "5df77ea759f2211a4106082839ddbbb790f1ba4e7d097ed732cf453f72aa36cf",
        ),
    ),
}
_TEXTS = (
    RemoteFile("alfred.pddl", (), 17_202, "f1473041ed01da514de1f87adfd7ef0804862361f83ccf63c75e43633b0eb280"),
    RemoteFile("alfred.twl2", (), 13_263, "c5b22f0f73309a7fd7c8e5b71de42ad4803b60766ab4a51cc2feb34162be036b"),
)

SETS: dict[str, DataSet] = {
    each.name: each
    for each in (
        DataSet(
            "alfworld",
            "The 3,827 official text games (json_2.1.1)",
            "MIT (ALFWorld; its scenes and tasks are ALFRED's: MIT)",
            "https://github.com/alfworld/alfworld",
            'make("alfworld", games="official")',
            "..alfworld.data:GAMES",
            _ALFWORLD,
            archive=True,
        ),
        DataSet(
            "alfworld-texts",
            "The domain and the grammar that ALFWorld's games share",
            "MIT (ALFWorld)",
            "https://pypi.org/project/alfworld",
            'make("alfworld"), its procedural games',
            "..alfworld.data:TEXTS",
            {"0.4.2": _TEXTS},
            package="alfworld==0.4.2",
        ),
        DataSet(
            "webshop",
            "The original's products and instructions: 1,000 (small) or 1.18 million (full)",
            "MIT (WebShop's repository; its early versions: research use only). The product texts are amazon.com's.",
            "https://github.com/princeton-nlp/WebShop",
            'make("webshop", data="official")',
            "..webshop.official:FILES",
            _WEBSHOP,
        ),
    )
}
