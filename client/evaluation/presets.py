"""Evaluation presets: TOML files that hold an ``EvalPlan``; ``configs/eval/*.toml`` ship with the package."""

from __future__ import annotations

import re

import msgspec

from ...envs.presets import config_names, read_config
from ...errors import InvalidRequest, nearest
from ..policies import Sampling
from .layouts import Column, Layout
from .plan import EvalEnv, EvalPlan, PolicySpec

_TABLES: dict[str, type[msgspec.Struct]] = {
    "sampling": Sampling, "envs": EvalEnv, "policies": PolicySpec, "tables": Layout, "columns": Column,
}  # fmt: skip
# The innermost table counts: `$.tables[0].columns[1]` is one of columns.
_UNKNOWN = re.compile(r"unknown field `(.*?)` - at `\$\.(?:.*\.)?(\w+)(?:\[[\d.]+\])?`")


def eval_preset_names() -> list[str]:
    """Return the names of the packaged evaluation presets."""
    return config_names("eval")


def load_eval_preset(name: str) -> EvalPlan:
    """Return the evaluation preset of that name, or the one in a file (a path that ends in ".toml").

    Raises:
        InvalidRequest: no such preset, bad TOML, an unknown key (the nearest valid one is named) or a wrong value.
    """
    try:
        return read_config("eval", name, EvalPlan)
    except InvalidRequest as error:
        # The reader names the nearest key of the top level; tables inside have keys of their own.
        found = _UNKNOWN.search(error.detail)
        if found is None or found[2] not in _TABLES:
            raise
        known = [field.name for field in msgspec.structs.fields(_TABLES[found[2]])]
        raise InvalidRequest(error.detail, hint=nearest(found[1], known)) from error
