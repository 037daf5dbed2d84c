"""The loop that all oracle tests share: run the checks whose file is there, count, and close with one line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Case = tuple[str, bool, str]
"""Name, whether it passed, and what differed."""


def run(checks: Mapping[str, Callable[[Path], Iterator[Case]]], folder: Path) -> int:
    """Run every check whose file lies in ``folder``; return 0 if all cases passed and there was at least one."""
    files = total = failed = 0
    for name, check in checks.items():
        path = folder / name
        if not path.is_file():
            print(f"skipped {name}: not in the folder")
            continue
        files += 1
        before = total
        try:
            for case, passed, detail in check(path):
                total += 1
                if not passed:
                    failed += 1
                    print(f"FAILED {name}: {case}: {detail}")
        except Exception:
            # A case of a form that cannot be read must not hide the other files.
            total, failed = total + 1, failed + 1
            print(f"FAILED {name}: after {total - before - 1} cases:\n{traceback.format_exc()}")
        if total == before:
            failed += 1
            print(f"FAILED {name}: no case was read")
    print(f"{files} files, {total} cases, {failed} failed")
    return 1 if failed or total == 0 else 0
