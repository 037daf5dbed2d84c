"""Where ALFWorld's files are: the user's copy in either layout, or the texts of the installed ``alfworld`` package.

Two layouts are read. The official one: ``json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`` with ``traj_data.json``
beside each game. The packed one: ``<split>.jsonl.gz`` (a game a line: id, task, pddl_problem, walkthrough) beside one
domain (``*.pddl``) and one grammar (``*.twl2``). In both, the games of a split are in the order of a hash of their ids
``<task>/<trial>``: an index names the same game, and any stretch of tasks is a mix of all types.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from ...errors import DataMissing, GameError
from ..datasets.sets import Layout
from ..datasets.store import locate, needed, user_folder
from .engine import Game

SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_GAME = "game.tw-pddl"
_GOAL = "UNKNOWN GOAL"
_FORM = 1  # of the cache; raised when what is in it changes


@dataclass(frozen=True)
class GameFile:
    """One game's texts; ``grammar`` has the task sentence in it."""

    id: str
    domain: str
    grammar: str
    problem: str
    walkthrough: tuple[str, ...]


def task_type_of(name: str) -> str:
    """Return which of the six task types a game's id names; "" where it names none."""
    kind = name.partition("-")[0]
    return kind if kind in TASK_TYPES else ""


class Split(Protocol):
    """The games of one split."""

    def __len__(self) -> int:
        """Return the number of games."""

    def __hash__(self) -> int:
        """Return a hash, by identity: loaded games are cached by split and index."""

    def game(self, index: int) -> GameFile:
        """Return one game's texts."""


def data_folder(named: str | None) -> Path | None:
    """Return the folder with ALFWorld's games, or None where there is none.

    Args:
        named: the user's ``data`` argument; it wins. Else ``$TURNGYM_DATA/alfworld``, turngym's own data folder
            (see ``turngym data``), ``$ALFWORLD_DATA`` and the original's default folder are looked at.

    Raises:
        DataMissing: ``named`` is no such folder, or a folder that was added holds no games now.
    """
    if named is None:
        return locate("alfworld")
    path = Path(os.path.expanduser(named))
    if not _holds_games(path):
        raise DataMissing(f"{path} holds no ALFWorld data.", hint=_layouts())
    return path


def open_splits(folder: Path) -> dict[str, FileSplit]:
    """Return the splits that a folder holds.

    Raises:
        DataMissing: it holds none, or the packed form lacks its domain or grammar.
    """
    return dict(_opened(str(folder), tuple(_stamp(path) for path in sorted(folder.glob("*.jsonl.gz")))))


@lru_cache(maxsize=8)
def _opened(folder: str, stamps: tuple[tuple[str, int, int], ...]) -> dict[str, FileSplit]:
    root = Path(folder)
    splits: dict[str, FileSplit] = {}
    if stamps:
        texts = texts_of(root)
        for path, _, _ in stamps:
            splits[Path(path).name.removesuffix(".jsonl.gz")] = PackedSplit(Path(path), *texts)
    else:
        base = root / "json_2.1.1" if (root / "json_2.1.1").is_dir() else root
        splits = {name: FolderSplit(base / name) for name in SPLITS if (base / name).is_dir()}
    if not splits:
        raise DataMissing(f"{root} holds no games.", hint=_layouts())
    return splits


def save_game(file: GameFile, folder: Path) -> Path:
    """Write a game as the original's tools expect it: ``game.tw-pddl`` and ``traj_data.json``.

    Returns:
        The path of the game file.
    """
    target = folder / file.id
    target.mkdir(parents=True, exist_ok=True)
    kind, thing, _, goal, _ = file.id.partition("/")[0].split("-")
    lamp = kind == "look_at_obj_in_light"
    names = {"object_target": thing, "parent_target": "" if lamp else goal, "toggle_target": goal if lamp else ""}
    parameters = {**names, "mrecep_target": "", "object_sliced": False}
    (target / "traj_data.json").write_text(json.dumps({"task_type": kind, "pddl_params": parameters}))
    game = {"pddl_domain": file.domain, "grammar": file.grammar, "pddl_problem": file.problem, "solvable": True}
    (target / _GAME).write_text(json.dumps({**game, "walkthrough": list(file.walkthrough)}))
    return target / _GAME


def texts_of(folder: Path | None) -> tuple[str, str]:
    """Return (domain, grammar) from a folder with games, else from the data set ``alfworld-texts``.

    Raises:
        DataMissing: they are in neither; the hint says how to get them.
    """
    places = [] if folder is None else [folder, folder / "logic"]
    beside = next((place for place in places if _holds_texts(place)), None)
    if beside is None and folder is not None and locate("alfworld-texts") is None:
        for game in _first_games(folder):
            return game.domain, game.grammar
    domain, grammar = _text_files(needed("alfworld-texts") if beside is None else beside)
    return _text(domain), _text(grammar)


def read_game(path: Path, name: str) -> GameFile:
    """Read a ``game.tw-pddl`` file.

    Raises:
        GameError: it is no such file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if "pddl_domain" not in data or "grammar" not in data or "pddl_problem" not in data:
            raise GameError(f"{path} lacks pddl_domain, grammar or pddl_problem.")
        return GameFile(
            name, data["pddl_domain"], data["grammar"], data["pddl_problem"], tuple(data.get("walkthrough") or ())
        )
    except (OSError, ValueError, TypeError) as error:
        raise GameError(f"{path} is no game file: {error}.") from None


class FileSplit(Split, Protocol):
    """The games of a split of files, with their ids in order."""

    ids: Sequence[str]


class FolderSplit:
    """A split in the official layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = (path.parent.relative_to(folder).as_posix() for path in folder.glob(f"*/*/{_GAME}"))
        # The original skips these too: its games know neither movable receptacles nor slices.
        kept = [name for name in found if "movable" not in name and "Sliced" not in name]
        self.ids: Sequence[str] = sorted(kept, key=_mixed)
        if not self.ids:
            raise DataMissing(f"{folder} holds no game files.", hint="Expected <task>/<trial>/game.tw-pddl in it.")

    def __len__(self) -> int:
        return len(self.ids)

    def game(self, index: int) -> GameFile:
        """Return one game's texts."""
        return read_game(self.folder / self.ids[index] / _GAME, self.ids[index])


class PackedSplit:
    """A split in the packed form, unpacked once into a file in which games are found by place."""

    def __init__(self, path: Path, domain: str, grammar: str) -> None:
        self.path, self.domain, self.grammar = path, domain, grammar
        index, self._games = _unpacked(path)
        self.ids: Sequence[str] = [name for name, _, _ in index]
        self._places = [(start, end) for _, start, end in index]

    def __len__(self) -> int:
        return len(self.ids)

    def game(self, index: int) -> GameFile:
        """Return one game's texts."""
        start, end = self._places[index]
        data = json.loads(zlib.decompress(self._games[start:end]))
        grammar = self.grammar.replace(_GOAL, json.dumps(data["task"])[1:-1])
        return GameFile(data["id"], self.domain, grammar, data["pddl_problem"], tuple(data.get("walkthrough", ())))


def cache_folder() -> Path | None:
    """Return the folder of what is made from the user's files, or None where the user has no home folder."""
    base = user_folder("XDG_CACHE_HOME", "~/.cache")
    return None if base is None else base / "turngym" / "alfworld"


def _unpacked(path: Path) -> tuple[list[tuple[str, int, int]], Any]:
    key = hashlib.blake2b(repr((_FORM, _stamp(path))).encode(), digest_size=8).hexdigest()
    base = cache_folder()
    if base is None:
        return _packed_lines(path)
    folder = base / f"{path.name.removesuffix('.jsonl.gz')}-{key}"
    if not (folder / "index.json").is_file():
        index, games = _packed_lines(path)
        try:
            _store(folder, index, games)
        except OSError:  # a read-only or full cache costs a slower start, nothing else
            return index, games
    index = [tuple(entry) for entry in json.loads((folder / "index.json").read_text())]
    with (folder / "games.bin").open("rb") as file:
        return index, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _packed_lines(path: Path) -> tuple[list[tuple[str, int, int]], bytes]:
    pieces: list[tuple[str, bytes]] = []
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                data = json.loads(line)
                if not {"id", "task", "pddl_problem"} <= data.keys():
                    raise GameError(f"A line of {path} lacks id, task or pddl_problem.")
                pieces.append((data["id"], zlib.compress(line, 3)))
    except (OSError, EOFError, ValueError, AttributeError, zlib.error) as error:
        raise GameError(f"{path} is damaged: {error}.", hint="Copy it again.") from None
    index, games, place = [], [], 0
    for name, piece in sorted(pieces, key=lambda item: _mixed(item[0])):
        index.append((name, place, place + len(piece)))
        games.append(piece)
        place += len(piece)
    return index, b"".join(games)


def _store(folder: Path, index: list[tuple[str, int, int]], games: bytes) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".draft-"))
    try:
        (draft / "games.bin").write_bytes(games)
        (draft / "index.json").write_text(json.dumps(index))
        draft.rename(folder)  # whole or not at all; another process may have been faster
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not (folder / "index.json").is_file():
            raise


def _mixed(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _first_games(folder: Path) -> Iterator[GameFile]:
    for path in folder.glob(f"**/{_GAME}"):
        yield read_game(path, path.parent.name)


def _holds_games(path: Path) -> bool:
    return path.is_dir() and (any(path.glob("*.jsonl.gz")) or any(_split_folders(path)))


def _split_folders(path: Path) -> Iterator[Path]:
    for root in (path / "json_2.1.1", path):
        found = [root / name for name in SPLITS if (root / name).is_dir()]
        yield from found
        if found:
            return


def _game_files(path: Path) -> list[Path]:
    """Return the files of a folder that belong to its games: what of the original's folder is of no use stays out."""
    packed = sorted(path.glob("*.jsonl.gz"))
    games = [game for split in _split_folders(path) for game in split.glob(f"*/*/{_GAME}")] if not packed else []
    traces = [trace for game in games if (trace := game.with_name("traj_data.json")).exists()]
    texts = [file for place in (path, path / "logic") if _holds_texts(place) for file in _text_files(place)]
    return [*packed, *games, *traces, *texts]


def _check_games(path: Path) -> str:
    if not _holds_games(path):
        raise DataMissing(f"{path} holds no ALFWorld games.", hint=_layouts())
    splits = open_splits(path)
    for split in splits.values():
        _play(split.game(0))
    return ", ".join(f"{name} {len(splits[name]):,}" for name in sorted(splits)) + " games"


def _play(file: GameFile) -> None:
    """Load a game as far as its first commands.

    Raises:
        GameError: a text is damaged.
    """
    game = Game(file.domain, file.grammar, file.problem)
    game.commands(game.start)


def _holds_texts(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.pddl")) and any(path.glob("*.twl2"))


def _text_files(path: Path) -> list[Path]:
    return [sorted(path.glob(pattern))[-1] for pattern in ("*.pddl", "*.twl2")]


def _check_texts(path: Path) -> str:
    from .procedural import splits

    if not _holds_texts(path):
        raise DataMissing(f"{path} lacks a domain (*.pddl) or a grammar (*.twl2).", hint="Name the folder with both.")
    files = _text_files(path)
    domain, grammar = (_text(file) for file in files)
    # That the engine can play with them shows more than any look at the texts.
    _play(splits(domain, grammar, TASK_TYPES, ())["test"].game(0))
    return " and ".join(file.name for file in files)


def _installed_texts() -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec("alfworld")
    if spec is not None and spec.submodule_search_locations:
        yield "the installed package alfworld", Path(spec.submodule_search_locations[0]) / "data"


def _original_places() -> Iterator[tuple[str, Path]]:
    if original := os.environ.get("ALFWORLD_DATA"):
        yield "ALFWORLD_DATA", Path(original)
    usual = user_folder("", "~/.cache")
    if usual is not None:
        yield "alfworld-download", usual / "alfworld"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise GameError(f"{path} cannot be read: {error}.") from None


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _layouts() -> str:
    return (
        "Name a folder with json_2.1.1/<split>/<task>/<trial>/game.tw-pddl (as alfworld-download makes it) or with "
        "<split>.jsonl.gz files beside a .pddl and a .twl2 file."
    )


GAMES = Layout(_holds_games, _game_files, _check_games, _original_places)
TEXTS = Layout(_holds_texts, _text_files, _check_texts, _installed_texts)
