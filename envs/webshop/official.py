"""WebShop's own files: ``items_shuffle*.json``, ``items_ins_v2*.json`` and ``items_human_ins*.json``.

Products become what the original's loader makes of them. The files are read in pieces and never parsed whole: the
largest holds 1.18 million products in one JSON array of 5 GB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import msgspec

from ...errors import InvalidRequest
from ..datasets.sets import Layout
from ..datasets.store import needed
from .catalogue import Catalogue, Product, ProductFields, opened

CHUNK = 1 << 22  # characters read at a time
LONGEST = 1 << 26  # characters of one product; longer ones mean a damaged file
NO_PRICE = (100.0,)  # what the original asks for a product without a price
_SPACE = re.compile(r"[\s,]*")
_NOT_NUMBER = re.compile(r"[^\d.]")


class Files(NamedTuple):
    """The files of one catalogue."""

    items: Path
    attributes: Path
    humans: Path | None


REGISTERED = "official"
"""What ``data`` says for the copy that ``turngym data`` knows."""


def folder_of(data: str) -> str:
    """Return the folder that ``data`` means.

    Raises:
        DataMissing: it is "official", and that data set is not on this machine.
    """
    return str(needed("webshop")) if data == REGISTERED else data


def files_of(folder: str) -> Files:
    """Return the files in a folder.

    Raises:
        InvalidRequest: there is no such folder, a file is missing, or it is not clear which one is meant.
    """
    base = Path(folder).expanduser()
    if not base.is_dir():
        raise InvalidRequest(f"There is no folder {folder!r:.200}.", hint="Name the folder of WebShop's JSON files.")
    found = {name: sorted(base.glob(f"{name}*.json")) for name in ("items_shuffle", "items_ins_v2", "items_human_ins")}
    for name, paths in found.items():
        if len(paths) > 1 or (not paths and name != "items_human_ins"):
            raise InvalidRequest(
                f"The folder {folder!r:.200} has {len(paths) or 'no'} files {name}*.json.",
                hint=f"Leave exactly one of {', '.join(path.name for path in paths)} there."
                if paths
                else "It takes items_shuffle*.json and items_ins_v2*.json of WebShop's data.",
            )
    humans = found["items_human_ins"]
    return Files(found["items_shuffle"][0], found["items_ins_v2"][0], humans[0] if humans else None)


def official(folder: str, limit: int | None = None) -> Catalogue:
    """Return the catalogue of a folder's files, from the cache where it was read before.

    Args:
        folder: where the files lie.
        limit: only the first so many entries of the items file.
    """
    files = files_of(folder)
    stamps = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files if path]
    return opened({"files": stamps, "limit": limit}, partial(_products, files, limit))


def _products(files: Files, limit: int | None) -> Iterator[Product]:
    # The loader looks attributes and instructions up by id: kept as packed bytes, they take a fifth of the memory.
    pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
    attributes = {asin: pack(entry) for asin, entry in entries(files.attributes) if isinstance(entry, dict)}
    humans: dict[str, Any] = dict(entries(files.humans)) if files.humans else {}
    for number, item in enumerate(elements(files.items)):
        if limit is not None and number >= limit:
            break
        asin = item.get("asin") if isinstance(item, dict) else None
        if not isinstance(asin, str):
            raise _damaged(files.items, f"entry {number} has no asin")
        if asin == "nan" or len(asin) > 10:  # as the original's loader
            continue
        try:
            packed = attributes.get(asin)
            yield product_of(item, unpack(packed) if packed else {}, humans.get(asin, []))
        except KeyError as error:
            raise _damaged(files.items, f"product {asin!r:.40} lacks the field {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, InvalidOperation) as error:
            raise _damaged(files.items, f"product {asin!r:.40}: {type(error).__name__}: {error}") from error


def product_of(item: dict[str, Any], extra: dict[str, Any], humans: list[dict[str, Any]]) -> Product:
    """Return the product that the original's loader makes of an entry.

    Args:
        item: entry of the items file.
        extra: its entry in the attributes file; {} for none.
        humans: its entries in the file of people's instructions.
    """
    bullets = item["small_description"]
    tag, prices = _prices(item.get("pricing"))
    options, images = _options(item["customization_options"])
    instruction = extra.get("instruction")
    checked = msgspec.convert(
        {
            "asin": item["asin"],
            "name": item["name"],
            "description": item["full_description"],
            "bullets": bullets if isinstance(bullets, list) else [bullets],
            "price_tag": tag,
            "prices": prices,
            "options": options,
            "images": images,
            "image": item["images"][0],
            "attributes": extra.get("attributes", ["DUMMY_ATTR"]),  # the original's word for none
            "category": item["category"],
            "query": item["query"].lower().strip(),
            "product_category": item["product_category"],
            "reviews": [_review(review) for review in item.get("reviews") or []],
            "instruction": instruction,
            "instruction_attributes": (extra.get("instruction_attributes") or []) if instruction is not None else [],
            "humans": [
                [human["instruction"], human["instruction_attributes"], human["instruction_options"]]
                for human in humans
            ],
        },
        ProductFields,
    )
    return Product(**msgspec.structs.asdict(checked))


def _review(review: dict[str, Any]) -> list[Any]:
    score = review.get("score", review.get("stars", 0))
    return [str(review.get("title", "")), float(score), str(review.get("review", review.get("body", "")))]


def _prices(pricing: str | None) -> tuple[str, tuple[float, ...]]:
    """Return the price as shown, and its one or two numbers."""
    if not pricing:
        return "$100.0", NO_PRICE
    numbers = [float(Decimal(_NOT_NUMBER.sub("", part))) for part in pricing.split("$")[1:]]
    if not numbers:
        raise ValueError(f"the price {pricing!r:.40} has no dollar sign")
    if len(numbers) == 1:
        return f"${numbers[0]}", (numbers[0],)
    return f"${numbers[0]} to ${numbers[1]}", (numbers[0], numbers[1])


def _options(given: dict[str, Any] | str | None) -> tuple[dict[str, list[str]], dict[str, str | None]]:
    options: dict[str, list[str]] = {}
    images: dict[str, str | None] = {}
    for name, contents in (given or {}).items():  # type: ignore[union-attr]
        if contents is None:
            continue
        values = [content["value"].strip().replace("/", " | ").lower() for content in contents]
        images.update((value, content.get("image")) for value, content in zip(values, contents, strict=True))
        options[name.lower()] = values
    return options, images


# As a data set -------------------------------------------------------------------------------------------------------


def _holds(folder: Path) -> bool:
    return any(folder.glob("items_shuffle*.json"))


def _present(folder: Path) -> list[Path]:
    return [path for path in files_of(str(folder)) if path]


def _check(folder: Path) -> str:
    """Read the first entry of each file, because the largest has 5 GB, and say which files there are."""
    files = files_of(str(folder))
    item = next(elements(files.items), None)
    if not (isinstance(item, dict) and "asin" in item):
        raise _damaged(files.items, "its first entry is no product")
    for path in (files.attributes, files.humans):
        if path and not isinstance(next(entries(path), ("", {}))[1], dict | list):
            raise _damaged(path, "its first entry is of another kind")
    return ", ".join(path.name for path in files if path)


# Reading JSON in pieces ----------------------------------------------------------------------------------------------


def elements(path: Path) -> Iterator[Any]:
    """Yield the elements of a JSON array."""
    with _opened(path) as file:
        reader = _Reader(path, file)
        reader.open("[")
        while not reader.at("]"):
            yield reader.value()


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a JSON object."""
    with _opened(path) as file:
        reader = _Reader(path, file)
        reader.open("{")
        while not reader.at("}"):
            name = reader.value()
            reader.open(":")
            yield name, reader.value()


def _opened(path: Path) -> TextIO:
    try:
        return open(path, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.", hint="Check the file.") from error


class _Reader:
    """Decodes one value after another from a file, with a few megabytes of it in memory."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._text, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder().raw_decode

    def _more(self) -> bool:
        if self._ended:
            return False
        try:
            piece = self._file.read(CHUNK)
        except UnicodeDecodeError as error:
            raise _damaged(self._path, "it is not UTF-8") from error
        if not piece:
            self._ended = True
            return False
        self._text, self._at = self._text[self._at :] + piece, 0
        return True

    def _skip(self) -> str:
        """Return the next character that is neither space nor comma, "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def open(self, mark: str) -> None:
        if self._skip() != mark:
            raise _damaged(self._path, f"{mark!r} is expected near {self._text[self._at : self._at + 30]!r}")
        self._at += 1

    def at(self, mark: str) -> bool:
        found = self._skip()
        if not found:
            raise _damaged(self._path, "it ends too early")
        return found == mark

    def value(self) -> Any:
        self._skip()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError as error:
                raise _damaged(self._path, "it is nested too deeply") from error
            except json.JSONDecodeError as error:
                # Either the value goes on in the next piece, or it is broken.
                if len(self._text) - self._at > LONGEST or not self._more():
                    raise _damaged(self._path, f"no JSON near {self._text[self._at : self._at + 30]!r}") from error
                continue
            # A number or word that touches the end may go on.
            if end == len(self._text) and self._more():
                continue
            self._at = end
            return value


def _damaged(path: Path, what: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is damaged: {what}.", hint="Get the file again, or remove what is broken.")


FILES = Layout(_holds, _present, _check)
