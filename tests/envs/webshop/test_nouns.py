"""The nouns of titles: each is tagged once, whichever process asks."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turngym.envs.webshop.nouns import tagger
from turngym.errors import InvalidRequest

# As spaCy's model answers: every word is a noun; each title that is tagged is written down.
MODEL = """
from types import SimpleNamespace

def load(exclude):
    def pipeline(title):
        print("tagged", title.split()[0])
        return [SimpleNamespace(text=word, pos_="NOUN") for word in title.split()]
    return pipeline
"""
ASK = "from turngym.envs.webshop.nouns import tagger; print(*tagger('spacy')('Red Mug \\ud800'), sep='|')"


@pytest.fixture
def ask(tmp_path: Path, own_cache: Path) -> list[str]:
    """Return the command of a process that asks for the nouns of a title, with a model of our own."""
    folder = tmp_path / "site"
    for package in ("spacy", "en_core_web_sm"):
        (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{package}-1.0.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
        (folder / f"{package}.py").write_text(MODEL)
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {ASK}"]


def asked(command: list[str]) -> list[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


def test_a_title_is_tagged_by_one_process_only(ask: list[str], own_cache: Path) -> None:
    assert asked(ask) == ["tagged Red", r"red|mug|\ud800"]
    assert asked(ask) == [r"red|mug|\ud800"]
    (kept,) = own_cache.glob("nouns-*.sqlite")
    kept.write_bytes(b"no database" * 1000)
    assert asked(ask) == ["tagged Red", r"red|mug|\ud800"], "a damaged file is made anew"
    assert asked(ask) == [r"red|mug|\ud800"]


def test_processes_that_ask_at_once_agree(ask: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert {lines[-1] for lines in pool.map(asked, [ask] * 4)} == {r"red|mug|\ud800"}
    assert asked(ask) == [r"red|mug|\ud800"]


def test_no_cache_folder(ask: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")  # nothing can be kept below a file
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [asked(ask)[0] for _ in range(2)] == ["tagged Red"] * 2


def test_words() -> None:
    assert tagger("words")("The Mug, by X-Craft for you") == ("mug", "craft")
    with pytest.raises(InvalidRequest, match="words"):
        tagger("guess")
