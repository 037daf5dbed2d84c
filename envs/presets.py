"""Environment presets: TOML files that name an environment, its settings and its turn level.

``configs/envs/*.toml`` ship with the package; a path to a file of one's own works wherever a name does.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidRequest, nearest
from .core import TextEnv
from .registry import make
from .turn.env import TurnEnv, at_turn_level

T = TypeVar("T", bound=msgspec.Struct)


class EnvPreset(msgspec.Struct, forbid_unknown_fields=True):
    """One environment as a paper or a user sets it.

    Attributes:
        env: registry id.
        summary: one line: whose setting this is.
        config: arguments of the environment.
        turn: arguments of ``TurnEnv``.
    """

    env: str
    summary: str = ""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)

    def make_text(self) -> TextEnv:
        """Make the text environment."""
        return make(self.env, **self.config)

    def make_turn(self) -> TurnEnv:
        """Make the turn level; the environment's own style where the preset names none."""
        return at_turn_level(self.env, self.make_text(), self.turn)


def config_folder(kind: str) -> Traversable:
    """Return the packaged folder ``configs/<kind>``."""
    return files(__package__.rpartition(".")[0]).joinpath("configs", kind)


def config_names(kind: str) -> list[str]:
    """Return the names of the packaged files of one kind, without ".toml"."""
    folder = config_folder(kind)
    if not folder.is_dir():
        return []
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def read_config(kind: str, name: str, cls: type[T]) -> T:
    """Read a packaged file by name, or any file by path (a name that ends in ".toml"), into ``cls``.

    Raises:
        InvalidRequest: no such file, bad TOML, an unknown key or a value of the wrong type.
    """
    if name.endswith(".toml"):
        source: Traversable = Path(name)
        if not source.is_file():
            raise InvalidRequest(f"No file {name}.", hint="Give the path of a TOML file.")
    else:
        if name not in config_names(kind):
            raise InvalidRequest(f"No {kind} preset {name!r:.60}.", hint=nearest(name, config_names(kind)))
        source = config_folder(kind).joinpath(f"{name}.toml")
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
        return msgspec.convert(data, cls)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{source}: {error}.", hint="Correct the TOML.") from error
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{source}: {error}.", hint=_hint(str(error), cls)) from error


def _hint(error: str, cls: type[msgspec.Struct]) -> str:
    """Return what to do about a msgspec error: the nearest valid key, where a key is unknown."""
    found = re.search(r"unknown field `(.*?)`(?: - at `\$\.?(.*?)`)?", error)
    if found is None:
        return "Correct the value."
    # The path names the table that the key stands in.
    table: Any = msgspec.inspect.type_info(cls)
    for name in filter(None, (found[2] or "").split(".")):
        inner = next((field.type for field in table.fields if field.encode_name == name.partition("[")[0]), None)
        for each in getattr(inner, "types", (inner,)):
            if isinstance(each, msgspec.inspect.StructType):
                table = each
    return nearest(found[1], [field.encode_name for field in table.fields])


def preset_names() -> list[str]:
    """Return the names of the packaged environment presets."""
    return config_names("envs")


def load_preset(name: str) -> EnvPreset:
    """Return the environment preset of that name or path; errors as for :func:`read_config`."""
    return read_config("envs", name, EnvPreset)
