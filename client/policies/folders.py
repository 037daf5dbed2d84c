"""Policies from folders of weights; who can load them says so here, for the client itself knows no engine.

``turngym eval`` registers the engine of this process; in Python, import
``turngym.trainer_backends.torch_backend.folder_policy`` before you evaluate a folder.
"""

from __future__ import annotations

import os
from typing import Protocol

from ...errors import Unavailable
from .base import Policy
from .hosted import Sampling


class Loader(Protocol):
    """Makes policies of folders."""

    def locate(self, path: str) -> str:
        """Return the folder of the weights themselves, as of now; a run has a newest checkpoint.

        Raises:
            InvalidRequest: no policy is there.
        """
        ...

    def load(self, folder: str, *, name: str, sampling: Sampling, device: str, concurrency: int) -> Policy:
        """Return the policy.

        Args:
            folder: see :meth:`locate`.
            name: name in records.
            sampling: sampling settings.
            device: "cpu", "cuda" or "" for whichever there is.
            concurrency: most replies generated at once.

        Raises:
            InvalidRequest: there is no model, or a setting does not fit.
            MissingExtra: the engine is not installed.
        """
        ...


_registered: list[Loader] = []


def register(loader: Loader) -> None:
    """Let folders be loaded by ``loader`` from now on."""
    _registered[:] = [loader]


def loader() -> Loader:
    """Return who loads folders.

    Raises:
        Unavailable: nobody does.
    """
    if not _registered:
        raise Unavailable(
            "No engine loads folders of weights.",
            hint="Import turngym.trainer_backends.torch_backend.folder_policy, or use the command line.",
        )
    return _registered[0]


def is_path(text: str) -> bool:
    """Return whether a policy's name is meant as a folder."""
    return os.sep in text or text.startswith((".", "~")) or os.path.isdir(text)


def label(folder: str) -> str:
    """Return a short name: the folder's, for a checkpoint with its run's before it."""
    *_, run, parent, name = ["", "", *os.path.abspath(folder).split(os.sep)]
    return f"{run}-{name}" if parent == "checkpoints" else name
