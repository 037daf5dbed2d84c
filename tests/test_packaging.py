"""The wheel holds the package and nothing else, and works where it is installed alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_PACKAGES = {"build", "dist", "docker", "docs", "runs", "tests"}
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def ours(folder: Path) -> list[Path]:
    """Return the files below ``folder`` that are neither hidden nor caches."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(p == "__pycache__" or p.startswith(".") for p in path.relative_to(folder).parts)
    ]


def folders() -> list[Path]:
    """Return every folder of the root that belongs into the package."""
    return [
        path
        for path in sorted(ROOT.iterdir())
        if path.is_dir() and path.name[0] not in "._" and path.name not in NO_PACKAGES and path.suffix != ".egg-info"
    ]


def expected() -> set[str]:
    files = [*ROOT.glob("*.py"), ROOT / "py.typed", *(path for folder in folders() for path in ours(folder))]
    return {"turngym/" + path.relative_to(ROOT).as_posix() for path in files}


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a "wheel" or an "sdist" offline, with the setuptools that is installed here."""
    run = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return out / run.stdout.splitlines()[-1]


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads: building in the checkout would write into it and pick up old builds."""
    copy = tmp_path_factory.mktemp("copy") / "turngym"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    return copy


@pytest.fixture(scope="module")
def wheel(clean_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", clean_copy, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert sorted(expected() - inside) == [], "missing from the wheel: name it in [tool.setuptools] of pyproject.toml"
    assert sorted(inside - expected()) == [], "does not belong into the wheel"


def test_every_folder_with_modules_is_a_package() -> None:
    holders = {path.parent for folder in folders() for path in ours(folder) if path.suffix == ".py"}
    assert not [folder for folder in holders if not (folder / "__init__.py").is_file()]


def test_a_wheel_built_from_the_source_distribution_is_the_same(wheel: Path, clean_copy: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", clean_copy, tmp_path)) as archive:
        # Python 3.11.2 (Debian 12) knows no filter= and newer ones warn without a filter.
        archive.extraction_filter = lambda member, path: member
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    assert contents(build("wheel", source, tmp_path)) == contents(wheel)


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(file.read(name).decode())
        assert any(name.endswith("LICENSE") for name in file.namelist())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "turngym contributors"
    assert metadata["Author-email"] is None
    assert metadata["Requires-Python"] == ">=3.11"
    base = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    heavy = ("torch", "transformers", "vllm", "verl", "trl", "ray", "openenv", "selenium", "spacy")
    assert base
    assert not [line for line in base if line.startswith(heavy)]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a new virtual environment with the wheel; its dependencies are those installed here."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
    # A folder named in a .pth file is searched, but its own .pth files are not read: the editable install of the
    # checkout stays out of sight.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def outside(command: Sequence[str | Path], cwd: Path) -> str:
    """Run ``command`` away from the checkout and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_installed_wheel_imports(installed: Path, wheel: Path, tmp_path: Path) -> None:
    modules = [name[:-3].replace("/", ".") for name in contents(wheel) if name.endswith(".py")]
    modules = sorted(name.removesuffix(".__init__") for name in modules if not name.endswith("__main__"))
    code = f"import importlib, turngym\nfor name in {modules!r}: importlib.import_module(name)\nprint(turngym.__file__)"
    assert Path(outside([installed / "python", "-c", code], tmp_path).strip()).is_relative_to(installed.parent)


def test_the_installed_command_lists_the_environments(installed: Path, tmp_path: Path) -> None:
    ids = outside([installed / "turngym", "envs", "--ids"], tmp_path).split()
    assert {"bandit", "frozen-lake", "sokoban"} <= set(ids)
