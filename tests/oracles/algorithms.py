"""Check the algorithms against vectors computed by the reference implementations and from the papers' equations.

Run: ``make oracle-test ORACLES=algorithms`` with the folder of vectors in TURNGYM_ORACLES. The checks stand in
``algorithms_<topic>.py`` beside this file, in ``CHECKS``: file name -> function of one case (its inputs, params and
outputs) that yields (what, got, expected). Everything is computed in float64 and compared within the file's own
tolerance. Files that the folder lacks are named and skipped; the last line is ``N files, M cases, F failed``.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from runner import Case, run

Compared = Iterator[tuple[str, Any, Any]]
Check = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Compared]


def collected() -> dict[str, Check]:
    """Return the checks of every topic, by file name."""
    checks: dict[str, Check] = {}
    for path in sorted(Path(__file__).parent.glob("algorithms_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        checks.update(module.CHECKS)
    return checks


def cases(check: Check, path: Path) -> Iterator[Case]:
    """Yield the outcome of every case of a file."""
    file = json.loads(path.read_text())
    close = partial(differences, **file["tolerance"])
    for case in file["cases"]:
        # Some files print a second reading beside the first, as "outputs_<reading>".
        outputs = {**case["outputs"], **{name: value for name, value in case.items() if name.startswith("outputs_")}}
        compared = list(check(case["inputs"], case.get("params") or {}, outputs))
        wrong = [f"{what}: {text}" for what, got, expected in compared for text in close(plain(got), plain(expected))]
        if not compared:
            wrong = ["nothing was compared"]
        yield str(case.get("id")), not wrong, "; ".join(wrong[:3])


def plain(value: Any) -> Any:
    """Return tensors, tuples and numbers of numpy as what JSON would hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def differences(got: Any, expected: Any, rtol: float, atol: float, where: str = "") -> Iterator[str]:
    """Yield where two values differ by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(got, dict) and got.keys() == expected.keys():
        for key in expected:
            yield from differences(got[key], expected[key], rtol, atol, f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(got) == len(expected):
        for place, pair in enumerate(zip(got, expected, strict=True)):
            yield from differences(*pair, rtol, atol, f"{where}[{place}]")
    elif isinstance(expected, bool) or not isinstance(expected, int | float):
        if got != expected:
            yield f"{where} is {got!r:.80}, expected {expected!r:.80}"
    elif not isinstance(got, int | float) or not math.isclose(got, expected, rel_tol=rtol, abs_tol=atol):
        yield f"{where} is {got!r:.80}, expected {expected!r:.80}"


def main() -> int:
    """Run every check whose file is there; return 0 if all cases passed and there was at least one."""
    folder = os.environ.get("TURNGYM_ORACLES")
    if not folder:
        print("skipped: TURNGYM_ORACLES names no folder")
        return 0
    return run({name: partial(cases, check) for name, check in collected().items()}, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
