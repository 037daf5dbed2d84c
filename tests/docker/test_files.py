"""What can be checked of the container files without an engine; `make docker-test` does the rest."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    run = subprocess.run(
        [hadolint, ROOT / "docker" / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout


def test_the_build_sees_every_package_folder() -> None:
    """Every top-level folder that holds a part of the package is let through by ``.dockerignore``."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    parts = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {p.parts[-3] for p in ROOT.glob("configs/*/*")}
    assert parts <= let_through
