"""The registry: rows ``id -> "module:Class"``, imported when an environment is made.

One kebab-case id serves the command line, URLs and ``turngym.make``; the gymnasium id is derived from it
("frozen-lake" -> "turngym/FrozenLake-v0"). Other packages register environments through the entry-point group
``turngym.envs`` (name = id, value = "module:Class").
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ..errors import EnvironmentFailed, InvalidRequest, TurngymError, Unavailable, UnknownEnvironment, nearest

if TYPE_CHECKING:
    from .core import TextEnv

ENTRY_POINT_GROUP = "turngym.envs"
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class EnvSpec:
    """One row of the registry.

    Attributes:
        id: kebab-case id.
        entry: "module:Class" of a ``TextEnv``.
        summary: one line for lists.
        kwargs: arguments this id sets; the caller's win over them.
        inline: a step takes microseconds, so that a server runs it without a thread hop.
        slow: some calls take seconds, so that a server keeps it in processes of its own, where only its like waits.
        style: prompt style that suits it at turn level.
        hidden: left out of lists, and served only where it is named.
    """

    id: str
    entry: str
    summary: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    inline: bool = False
    slow: bool = False
    style: str = "think-action"
    hidden: bool = False

    @property
    def gymnasium_id(self) -> str:
        """The derived gymnasium id."""
        return "turngym/" + "".join(word.capitalize() for word in self.id.split("-")) + "-v0"

    def load(self) -> type[TextEnv]:
        """Import the module and return the class."""
        module, _, name = self.entry.partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


_ENVS = __package__
_ROWS = [
    EnvSpec("echo", f"{_ENVS}.echo:Echo", "Answers with the action; measures latency", inline=True, hidden=True),
    EnvSpec(
        "bandit",
        f"{_ENVS}.bandit:Bandit",
        "Two arms whose names hint at their rewards; one pull",
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "bandit-reversed",
        f"{_ENVS}.bandit:Bandit",
        "The bandit with the names' meaning turned around",
        {"reversed": True},
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "frozen-lake",
        f"{_ENVS}.frozen_lake:FrozenLake",
        "Cross slippery ice to the goal without falling into a hole",
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "sokoban",
        f"{_ENVS}.sokoban.env:Sokoban",
        "Push the box onto the target: 6x6, one box",
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "sokoban-large",
        f"{_ENVS}.sokoban.env:Sokoban",
        "Sokoban on 8x8 with two boxes",
        {"size": 8, "boxes": 2},
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "sokoban-vocab",
        f"{_ENVS}.sokoban.env:Sokoban",
        "Sokoban with other symbols for the same cells",
        {"vocab": "letters"},
        inline=True,
        style="think-answer",
    ),
    EnvSpec(
        "alfworld",
        f"{_ENVS}.alfworld.env:ALFWorld",
        "Household tasks in text: find, clean, heat, cool, place",
    ),
    EnvSpec(
        "webshop",
        f"{_ENVS}.webshop.env:WebShop",
        "Find and buy the product that an instruction asks for",
    ),
    EnvSpec(
        "scienceworld",
        f"{_ENVS}.scienceworld.env:ScienceWorld",
        "Do elementary science experiments in a simulated house",
        slow=True,
    ),
    # Hidden: ten steps a second at best, so that whole-registry runs leave it out unless it is named.
    EnvSpec(
        "webshop-browser",
        f"{_ENVS}.webshop.browser:WebShopBrowser",
        "WebShop as a website, driven in a real Chromium",
        hidden=True,
        slow=True,
    ),
]
_registry: dict[str, EnvSpec] = {row.id: row for row in _ROWS}
_plugins_loaded = False


def _load_plugins() -> None:
    global _plugins_loaded
    if not _plugins_loaded:
        _plugins_loaded = True
        for point in entry_points(group=ENTRY_POINT_GROUP):
            if point.name in _registry and _registry[point.name].entry == point.value:
                continue
            try:
                register(EnvSpec(point.name, point.value, summary=f"from {point.value.partition(':')[0]}"))
            except InvalidRequest as error:
                # One bad package must not take every environment away.
                warnings.warn(f"Entry point {point.name} = {point.value} is left out: {error}", stacklevel=2)


def register(spec: EnvSpec) -> None:
    """Add a row while the program runs; its gymnasium id is registered too.

    Raises:
        InvalidRequest: the id is not kebab-case or is taken.
    """
    if not _ID.fullmatch(spec.id):
        raise InvalidRequest(f"Environment id {spec.id!r} is not kebab-case.", hint='Use an id like "my-env".')
    if spec.id in _registry:
        raise InvalidRequest(f"Environment id {spec.id!r} is taken.", hint="Choose another id.")
    _registry[spec.id] = spec
    _register_one(spec)


def specs() -> dict[str, EnvSpec]:
    """Return all rows by id, plug-ins included, hidden ones not."""
    _load_plugins()
    return {env_id: spec for env_id, spec in sorted(_registry.items()) if not spec.hidden}


def is_registered(env_id: str) -> bool:
    """Return whether a row has this id, hidden ones included."""
    _load_plugins()
    return env_id in _registry


def get_spec(env_id: str) -> EnvSpec:
    """Return the row of ``env_id``.

    Raises:
        UnknownEnvironment: names the nearest id.
    """
    _load_plugins()
    if env_id not in _registry:
        raise UnknownEnvironment(f"No environment {env_id!r:.60}.", hint=nearest(str(env_id), _registry))
    return _registry[env_id]


def make(env_id: str, /, **config: Any) -> TextEnv:
    """Make an environment.

    Args:
        env_id: registry id, for example "sokoban".
        **config: arguments of the environment's class; they win over the row's.

    Raises:
        UnknownEnvironment: no such id.
        InvalidRequest: an argument the class does not know.
    """
    spec = get_spec(env_id)
    cls = spec.load()
    config = {**spec.kwargs, **config}
    known = parameters(cls)
    for name in config:
        if name not in known:
            raise InvalidRequest(f"{spec.id} has no setting {name!r:.60}.", hint=nearest(name, known))
    return cls(**config)


def unmet(env_id: str) -> TurngymError | None:
    """Return why an environment cannot be made on this machine, or None where nothing is missing.

    Cheap: nothing is made. What is missing (:class:`Unavailable`) is named with the line that gets it; a row whose
    module cannot be imported is told as :class:`EnvironmentFailed`.

    Raises:
        UnknownEnvironment: no such id.
    """
    spec = get_spec(env_id)
    try:
        spec.load().check_needs(**spec.kwargs)
    except Unavailable as error:
        return error
    except (ImportError, AttributeError) as error:
        return EnvironmentFailed(f"{spec.entry} cannot be loaded: {error}.", hint="Repair or remove its package.")
    return None


def playable() -> list[str]:
    """Return the ids of :func:`specs` for which this machine lacks nothing."""
    return [env_id for env_id in specs() if unmet(env_id) is None]


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the keyword parameters of a class, those it passes on to its base classes included."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        own = inspect.signature(vars(base)["__init__"]).parameters
        for name, parameter in list(own.items())[1:]:
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                found.setdefault(name, parameter)
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    return found


def _register_one(spec: EnvSpec) -> None:
    from gymnasium.envs.registration import register as gymnasium_register
    from gymnasium.envs.registration import registry as gymnasium_registry

    if spec.gymnasium_id not in gymnasium_registry:
        gymnasium_register(spec.gymnasium_id, entry_point=spec.entry, kwargs=dict(spec.kwargs))


def register_gymnasium() -> None:
    """Register the gymnasium id of every row, plug-ins and hidden ones included."""
    _load_plugins()
    for spec in list(_registry.values()):
        _register_one(spec)
