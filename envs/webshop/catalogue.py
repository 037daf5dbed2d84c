"""The catalogue: products, their prices, and where they lie on disk.

A catalogue is built once from an iterator of products and then only read: records lie one behind another in one
memory-mapped file, so that all sessions and processes share them, and a product is decoded when it is looked at.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidRequest, Unavailable
from .analysis import ANALYSIS_VERSION
from .index import Index, IndexWriter

STORE_VERSION = 1
"""Raise it whenever the form on disk changes: stored catalogues of other versions are built anew."""
KEPT = 4096  # decoded products kept in memory
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_ROOM_HINT = (
    "A million products take about 2 GB of disk and 1.1 GB of memory while they are built. Make room, take fewer"
    " products, or set XDG_CACHE_HOME to a larger disk."
)


class Review(msgspec.Struct, array_like=True, frozen=True):
    """One customer review: a title, a score in stars, a text."""

    title: str
    score: float
    body: str


class Human(msgspec.Struct, array_like=True, frozen=True):
    """A goal in a person's words: the instruction, and the attributes and option values it asks for."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


class ProductFields(msgspec.Struct, frozen=True):
    """What a product consists of.

    Attributes:
        asin: id, upper case, up to ten characters.
        name: title.
        description: text of the description page.
        bullets: lines of the features page.
        price_tag: the price as shown.
        prices: no price, one, or the two ends of a range, in dollars.
        options: values by option name.
        images: picture of each option value, or None.
        image: main picture.
        attributes: what the reward compares.
        category: one of a few departments.
        query: the search phrase that the product belongs to, for example "men's shoes".
        product_category: path of the product's kind, its levels joined by U+203A.
        rating: as shown.
        reviews: customer reviews.
        instruction: synthetic instruction without options and price, or None.
        instruction_attributes: attributes that it asks for.
        humans: goals in people's words.
    """

    asin: str
    name: str
    description: str
    bullets: tuple[str, ...]
    price_tag: str
    prices: tuple[float, ...]
    options: dict[str, tuple[str, ...]]
    images: dict[str, str | None]
    image: str
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    humans: tuple[Human, ...] = ()


class Product(ProductFields, array_like=True, frozen=True):
    """One product, stored as a list without the names of its fields."""

    def contents(self) -> str:
        """Return the text that the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return " ".join((self.name, self.description, first, options)).lower()


class Catalogue:
    """Products by number, in catalogue order, with their search index; read-only.

    Args:
        folder: what :func:`opened` has built.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets = _array(folder / "offsets.npy")
        self._asins = _array(folder / "asins.npy")
        self._by_asin = _array(folder / "by_asin.npy")
        self._blob = _mapped(folder / "products.bin")
        self._decode = msgspec.msgpack.Decoder(Product).decode
        self.index = Index(folder)
        self.product = lru_cache(maxsize=KEPT)(self._product)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Product]:
        return map(self._product, range(len(self)))

    def _product(self, number: int) -> Product:
        start, end = self._offsets[number : number + 2].tolist()
        return self._decode(self._blob[start:end])

    def find(self, asin: str) -> int | None:
        """Return the number of the product with this id, or None."""
        key = np.bytes_(asin.encode())
        at = int(np.searchsorted(self._asins, key))
        return int(self._by_asin[at]) if at < len(self) and self._asins[at] == key else None

    def search(self, text: str, count: int = 50) -> tuple[int, ...]:
        """Return the numbers of the best products, best first; equal scores in the order of their ids."""
        # The index numbers its documents by asin, so that its rule for ties is the lower number.
        return tuple(self._by_asin[self.index.search(text, count)].tolist())


def opened(key: dict[str, Any], products: Callable[[], Iterable[Product]]) -> Catalogue:
    """Return the catalogue of this key from the cache, built and stored first if need be.

    Args:
        key: whatever the products depend on; JSON-serialisable.
        products: gives the products; called only where they are not stored.
    """
    digest = blake2b(
        json.dumps([STORE_VERSION, ANALYSIS_VERSION, key], sort_keys=True).encode(), digest_size=10
    ).hexdigest()
    with _cache_folder() as base:
        built_once(base / digest, key, lambda draft: _write(draft, products()))
        return Catalogue(base / digest)


def built_once(folder: Path, key: dict[str, Any], write: Callable[[Path], None]) -> None:
    """Have ``write`` fill a folder, unless a complete one is there; readers see all of it or nothing.

    Raises:
        Unavailable: there is no place to write, or the disk or the memory does not suffice.
    """
    if _complete(folder):
        return
    try:
        lock = open(folder.with_name(f"{folder.name}.lock"), "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise Unavailable(
            f"The cache folder {folder.parent} cannot be written: {error.strerror}.",
            hint="Set XDG_CACHE_HOME to a folder that can.",
        ) from error
    # One process builds, the others wait; the lock goes away with its holder.
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _complete(folder):
            return
        for stale in folder.parent.glob(f"{folder.name}.draft-*"):  # of builders that were killed
            shutil.rmtree(stale, ignore_errors=True)
        try:
            _build(folder, key, write)
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_ROOM:
                raise
            raise Unavailable(
                f"The catalogue could not be built in {folder.parent}: {str(error) or 'not enough memory'}.",
                hint=_ROOM_HINT,
            ) from error


def cache_base() -> Path | None:
    """Return ``$XDG_CACHE_HOME/turngym/webshop`` (default ``~/.cache/…``), or None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base, "turngym", "webshop") if os.path.isabs(base) else None


@contextlib.contextmanager
def _cache_folder() -> Iterator[Path]:
    """Yield the cache folder; where it cannot be written, one that lasts as long as its open files."""
    base = cache_base()
    if base is not None:
        try:
            base.mkdir(parents=True, exist_ok=True)
            writable = os.access(base, os.W_OK)
        except OSError:
            writable = False
        if writable:
            yield base
            return
    with tempfile.TemporaryDirectory(prefix="turngym-webshop-") as name:
        yield Path(name)


def _complete(folder: Path) -> bool:
    """Return whether a finished catalogue lies here and none of its files was cut or changed in size."""
    try:
        sizes = json.loads((folder / "complete.json").read_text())["sizes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _build(folder: Path, key: dict[str, Any], write: Callable[[Path], None]) -> None:
    """Write everything beside the folder and rename it."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.draft-", dir=folder.parent))
    try:
        write(draft)
        sizes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
        (draft / "complete.json").write_text(json.dumps({"key": key, "sizes": sizes}))
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, products: Iterable[Product]) -> None:
    encode = msgspec.msgpack.Encoder().encode
    writer = IndexWriter()
    offsets, asins, seen = [0], [], set()
    with open(draft / "products.bin", "wb") as file:
        for product in products:
            if product.asin in seen:
                continue
            seen.add(product.asin)
            asins.append(product.asin.encode())
            record = encode(product)
            file.write(record)
            offsets.append(offsets[-1] + len(record))
            writer.add(product.contents())
    if not asins:
        raise InvalidRequest("The catalogue has no products.", hint="Give a file with at least one product.")
    ids = np.array(asins)
    by_asin = np.argsort(ids, kind="stable").astype(np.int32)
    np.save(draft / "offsets.npy", np.array(offsets, dtype=np.int64))
    np.save(draft / "asins.npy", ids[by_asin])
    np.save(draft / "by_asin.npy", by_asin)
    writer.write(draft, by_asin)


def _mapped(path: Path) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _array(path: Path) -> NDArray[Any]:
    # A plain view on the map: slices of np.memmap itself cost several microseconds each.
    return np.asarray(np.load(path, mmap_mode="r"))
