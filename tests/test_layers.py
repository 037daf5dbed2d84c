"""Imports run one way, and importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = {"errors", "protocol", "records"}
# part -> the parts it may import. Parts are the modules and folders of the package's top level.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "protocol": {"errors", "records"},
    "envs": BASE,
    "client": BASE | {"envs"},
    "server": BASE | {"envs"},
    "trainer_backends": BASE | {"envs", "client"},
}
# Entry points: they may import everything, and nothing but one another imports them.
ENTRY_POINTS = {"__main__", "bench", "cli", "demo"}
NO_PACKAGES = {"build", "dist", "docker", "docs", "runs", "tests"}
# Loaded by nothing in the base package, whatever is imported.
OPTIONAL = {
    "docker",
    "java",
    "openenv",
    "py4j",
    "ray",
    "selenium",
    "spacy",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
}


def sources() -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield (dotted parts below the root, path) of every module of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not (parts[0] in NO_PACKAGES or any(part.startswith(".") or part.endswith(".egg-info") for part in parts)):
            yield parts, path


def imported(parts: tuple[str, ...], tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level part) of each import of the package, those inside functions included."""
    package = parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            base = [part for part in base if part]
            names = [["turngym", *base, alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [[*(node.module or "").split("."), alias.name] for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name[1]) for name in names if name[0] == "turngym" and len(name) > 1)


def complaints(parts: tuple[str, ...], tree: ast.AST) -> list[str]:
    """Return what is wrong with the imports of one module."""
    where, own = "/".join(parts), parts[0]
    if own == "__init__" or own in ENTRY_POINTS:
        return []
    if own not in MAY_IMPORT:
        return [f"{where}: the part {own!r} has no row in MAY_IMPORT of {Path(__file__).name}; add one."]
    allowed = MAY_IMPORT[own] | {own, "__version__"}
    return [
        f"{where}:{line}: {own} may not import {name}" for line, name in imported(parts, tree) if name not in allowed
    ]


def test_imports_run_one_way() -> None:
    found = [line for parts, path in sources() for line in complaints(parts, ast.parse(path.read_text("utf-8")))]
    assert not found, "\n".join(found)


def test_every_row_is_a_part_of_the_house() -> None:
    there = {parts[0] for parts, _ in sources()}
    assert {"errors", "envs", "client", "server"} <= there


@pytest.mark.parametrize(
    ("module", "code", "line"),
    [
        ("client/x", "from ..server import app", "client/x:1: client may not import server"),
        ("client/x", "def f():\n    from .. import server", "client/x:2: client may not import server"),
        ("server/sub/x", "from ...client.connect import connect", "server/sub/x:1: server may not import client"),
        ("envs/x", "import turngym.client.connect", "envs/x:1: envs may not import client"),
        ("envs/turn/x", "from turngym import cli", "envs/turn/x:1: envs may not import cli"),
        ("errors", "from .records import Turn", "errors:1: errors may not import records"),
        ("novelty/x", "", "novelty/x: the part 'novelty' has no row in MAY_IMPORT of test_layers.py; add one."),
    ],
)
def test_a_wrong_import_is_found(module: str, code: str, line: str) -> None:
    assert complaints(tuple(module.split("/")), ast.parse(code)) == [line]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("client/x", "from ..errors import TurngymError\nfrom .connect import connect\nfrom ..envs import core"),
        ("envs/turn/x", "from ..core import TextEnv\nfrom ...errors import TurngymError\nimport gymnasium"),
        ("cli", "from .server import app\nfrom .client import connect"),
    ],
)
def test_a_right_import_passes(module: str, code: str) -> None:
    assert complaints(tuple(module.split("/")), ast.parse(code)) == []


def loaded(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after ``code``."""
    script = code + "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(out.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_else() -> None:
    assert loaded("import turngym") - loaded("import typing") <= {"turngym"}


def test_no_module_loads_an_optional_package() -> None:
    names = [".".join(["turngym", *(p for p in parts if p != "__init__")]) for parts, _ in sources()]
    # The trainer backends are tensor code: to import one is to ask for its engine.
    names = [name for name in names if not name.endswith("__main__") and ".trainer_backends" not in name]
    code = "import importlib\nfor name in " + repr(names) + ":\n    importlib.import_module(name)"
    assert not loaded(code) & OPTIONAL
