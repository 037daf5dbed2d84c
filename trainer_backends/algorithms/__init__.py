"""The papers' methods as small pure parts on tensors and records, with no engine underneath.

Every folder is a kind of part, every file in it one part, its hyper-parameters a ``Config`` beside the function: the
file name is the id. ``parts.py`` finds them; a recipe names them. ``docs/algorithms.md`` is the page to check line by
line against the papers.
"""

from __future__ import annotations

import importlib.util

from ...errors import MissingExtra

if importlib.util.find_spec("torch") is None:
    raise MissingExtra("The algorithms need torch.", hint='Run: pip install "turngym[torch]"')
