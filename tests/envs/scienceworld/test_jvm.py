"""The Java machine: what it keeps apart, and what it tells where something is missing."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Iterator

import pytest

from turngym.envs.registry import make, unmet
from turngym.envs.scienceworld.bridge import Bridge, BridgeLost, JavaError, call, forget
from turngym.envs.scienceworld.jvm import GLOBALS, Jvm
from turngym.errors import MissingExtra

MISSING = unmet("scienceworld")
needs_simulator = pytest.mark.skipif(MISSING is not None, reason=f"extra: {MISSING}")
# Global objects that hold something, none of which a run changes: tables filled when they are made, and numbers of
# types that only the simulator's JSON lists (never asked for) give out.
CONSTANT = {
    "scienceworld.input.InputParser$": {"stopWords"},
    "scienceworld.objects.misc.Picture$": {"pictureTypes", "subjects", "artist"},
    "util.UniqueTypeID$": {"lut", "nextID"},
}
_OWN = ("scienceworld/", "main/", "util/", "language/")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Jvm]:
    made = Jvm(seats=2, limit=60)
    yield made
    made.kill()


@needs_simulator
def test_no_other_global_objects_change(jvm: Jvm) -> None:
    """A new version of the simulator with another one lets simulations disturb each other: GLOBALS must name it."""
    spec = importlib.util.find_spec("scienceworld")
    assert spec is not None and spec.origin is not None
    with zipfile.ZipFile(spec.origin.replace("__init__.py", "scienceworld.jar")) as jar:
        names = [name[:-6].replace("/", ".") for name in jar.namelist() if name.startswith(_OWN) and "class" in name]
    changing: dict[str, set[str]] = {}
    seat = jvm.seat()
    for name in names:
        # Not initialised: some of the classes are programs.
        loader = jvm.run(seat, call("java.lang.ClassLoader", "getSystemClassLoader"))[0]
        (cls,) = jvm.run(seat, call("java.lang.Class", "forName", name, False, loader))
        (fields,) = jvm.run(seat, call(cls, "getDeclaredFields"))
        (count,) = jvm.run(seat, call("java.lang.reflect.Array", "getLength", fields))
        each = jvm.run(seat, *(call("java.lang.reflect.Array", "get", fields, number) for number in range(count)))
        shown = jvm.run(seat, *(call(field, "toString") for field in each))
        jvm.run(seat, *map(forget, (loader, cls, fields, *each)))
        for field in shown:
            *modifiers, kind, full = field.split()
            if not (name.endswith("$") or "static" in modifiers) or full.endswith(("MODULE$", "serialVersionUID")):
                continue
            if "final" not in modifiers or not re.fullmatch(r"java\.lang\.String|int|long|float|double|boolean", kind):
                changing.setdefault(name, set()).add(full.rpartition(".")[2])
    apart = {name for name in GLOBALS if name.startswith(("scienceworld.", "main.", "util."))}
    assert set(changing) == apart | set(CONSTANT)
    assert {name: fields for name, fields in changing.items() if name in CONSTANT} == CONSTANT


@needs_simulator
def test_texts_come_back_as_they_were(jvm: Jvm) -> None:
    seat = jvm.seat()
    for text in ("", "a\nb", "\\n", "a\\\\n\r\n\\", "é😀\x00\t", "x" * 100_000, "\\\n" * 9000):
        (told,) = jvm.run(seat, call("java.util.Objects", "toString", text))
        assert told == text
    values = [3, -7, True, False, None]
    wanted = ["3", "-7", "true", "false", "null"]
    assert jvm.run(seat, *(call("java.util.Objects", "toString", value) for value in values)) == wanted


@needs_simulator
def test_what_java_throws_is_named_and_the_machine_goes_on(jvm: Jvm) -> None:
    seat = jvm.seat()
    with pytest.raises(JavaError, match=r"NumberFormatException.*abc"):
        jvm.run(seat, call("java.lang.Integer", "parseInt", "abc"))
    with pytest.raises(JavaError, match="nothing"):
        jvm.run(seat, call("java.lang.Integer", "nothing"))
    assert jvm.run(seat, call("java.lang.Integer", "parseInt", "12")) == [12]


@needs_simulator
def test_strangers_are_not_let_in(jvm: Jvm) -> None:
    port = jvm._bridge._socket.getpeername()[1]
    with pytest.raises(BridgeLost, match="not let in"):
        Bridge(port, "wrong", 60)
    assert jvm.run(jvm.seat(), call("java.lang.Integer", "parseInt", "12")) == [12]


@pytest.mark.parametrize("package", ["scienceworld", "py4j"])
def test_a_missing_package_is_told(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == package else real(name, *more))
    with pytest.raises(MissingExtra, match=rf"(scienceworld|{package}) is not installed.*turngym\[scienceworld\]"):
        make("scienceworld")
    assert isinstance(unmet("scienceworld"), MissingExtra)


@needs_simulator
def test_a_missing_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(MissingExtra, match=r"JAVA_HOME names /nonexistent.*Install Java 11"):
        make("scienceworld")
