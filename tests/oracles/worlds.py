"""Check the text worlds against recordings of the originals.

Run: ``make oracle-test ORACLES=worlds`` with the folder of recordings in TURNGYM_ORACLES and the folder of the
originals' data in TURNGYM_DATA. Each world's checks stand in ``worlds_<world>.py`` beside this file, in ``CHECKS``:
file name -> function of the file's path and the data folder that yields cases. Files that the folder lacks are named
and skipped; the last line is ``N files, M cases, F failed``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from runner import Case, run

Check = Callable[..., Iterator[Case]]
"""Takes the path of its file and, as ``data``, the data folder."""

WORLDS = ("webshop", "alfworld", "scienceworld")


def collected() -> dict[str, Check]:
    """Return the checks of every world that has any, by file name."""
    checks: dict[str, Check] = {}
    for world in WORLDS:
        path = Path(__file__).with_name(f"worlds_{world}.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            checks.update(module.CHECKS)
    return checks


def main() -> int:
    """Run every check whose file is there; return 0 if all cases passed and there was at least one."""
    oracles, data = os.environ.get("TURNGYM_ORACLES"), os.environ.get("TURNGYM_DATA")
    if not oracles or not data:
        missing = "TURNGYM_ORACLES" if not oracles else "TURNGYM_DATA"
        print(f"skipped: {missing} names no folder")
        return 0
    return run({name: partial(check, data=Path(data)) for name, check in collected().items()}, Path(oracles))


if __name__ == "__main__":
    sys.exit(main())
