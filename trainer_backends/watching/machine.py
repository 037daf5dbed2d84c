"""Where a run ran, noted beside its numbers: figures mean little without it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...errors import RecordError
from .folder import MACHINE

PACKAGES = ("torch", "transformers", "peft")


def describe(device: str = "cpu") -> dict[str, Any]:
    """Return the machine and the versions that matter.

    Args:
        device: what the policy runs on; a GPU is named.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "device": _gpu(device) if device.startswith("cuda") else device,
        "python": platform.python_version(),
        "turngym": __version__,
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def note(out: Path, device: str = "cpu") -> None:
    """Write the machine into a run's folder.

    Raises:
        RecordError: the disk refused.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / MACHINE).write_bytes(msgspec.json.format(msgspec.json.encode(describe(device)), indent=1))
    except OSError as error:
        raise RecordError(f"Cannot write {out / MACHINE}: {error.strerror}.", hint="Choose another --out.") from error


def _gpu(device: str) -> str:
    import torch

    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB)"
