"""What is done with an environment, wherever it runs: functions that touch nothing else, safe in a thread."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..envs.core import TextEnv, check_seed, shown
from ..envs.grid import png_bytes
from ..envs.registry import EnvSpec, make, parameters
from ..errors import EpisodeOver, InvalidRequest, NotReset, TurngymError, Unsupported
from ..protocol import EnvCard, Level, LogEntry
from ..records import Observation

if TYPE_CHECKING:
    from ..envs.turn.env import TurnEnv

    AnyEnv = TextEnv | TurnEnv


class Outcome(NamedTuple):
    """What a reset or step gave."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Made(NamedTuple):
    """A new environment, with its last outcome (None if it was not reset)."""

    env: AnyEnv
    outcome: Outcome | None = None
    steps: int = 0
    last_action: str | None = None


def build(env_id: str, level: Level, config: dict[str, Any], turn: dict[str, Any]) -> AnyEnv:
    """Make an environment as ``create`` asks for it.

    Raises:
        InvalidRequest: settings or turn options do not fit.
    """
    if turn and level == "text":
        raise InvalidRequest("Turn options were sent for the text level.", hint='Send level "turn", or leave them out.')
    try:
        env = make(env_id, **config)
        if level == "text":
            return env
        from ..envs.turn.env import at_turn_level

        return at_turn_level(env_id, env, turn)
    except TurngymError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        # Classes check their own arguments; what they miss is still the caller's mistake.
        raise InvalidRequest(
            f"{env_id} does not take these settings: {shown(str(error), 200)}.",
            hint=f"GET /v1/envs/{env_id} lists the settings with their defaults.",
        ) from error


def reset(env: AnyEnv, seed: int | None, split: str | None, task: str | int | None) -> Outcome:
    """Reset as ``TextEnv.reset`` does, leaving out what was not sent."""
    options: dict[str, Any] = {}
    if split is not None:
        options["split"] = split
    if task is not None:
        options["task"] = task
    observation, info = env.reset(seed=seed, options=options)
    return Outcome(observation, 0.0, False, False, info)


def rebuild(
    env_id: str,
    level: Level,
    config: dict[str, Any],
    turn: dict[str, Any],
    task: str,
    seed: int,
    history: Sequence[LogEntry],
) -> Made:
    """Make an environment and replay a log of actions (text) and noise seeds (integers)."""
    env = build(env_id, level, config, turn)
    outcome = reset(env, check_seed(seed), None, task)
    steps, last_action = 0, None
    for entry in history:
        if isinstance(entry, str):
            outcome = Outcome(*env.step(entry))
            steps, last_action = steps + 1, entry
        else:
            env.reseed(entry)
    return Made(env, outcome, steps, last_action)


def check_begun(env: AnyEnv, op: str) -> None:
    """Raise :class:`NotReset` if there is no episode."""
    if not env.task:
        raise NotReset(f"{op} was called before reset.", hint="Call reset first.")


def expert(env: AnyEnv) -> str:
    """Return the expert's action for the current state.

    Raises:
        NotReset, EpisodeOver, Unsupported: there is none.
    """
    check_begun(env, "expert")
    if env.done:
        raise EpisodeOver(f"The episode of task {env.task} is over.", hint="Call reset to start another.")
    action = env.expert_action()
    if action is None:
        raise Unsupported("The expert knows no action here.", hint="Use another policy.")
    return action


def render(env: AnyEnv, picture: bool) -> tuple[str, str | None, str]:
    """Return the state as text, as a base64 PNG if asked for, and the rules."""
    check_begun(env, "render")
    inner = env if isinstance(env, TextEnv) else env.env
    # The mode is the caller's choice of this very call, whatever the environment was made with.
    mode, inner.render_mode = inner.render_mode, "ansi"
    try:
        text = str(inner.render())
    finally:
        inner.render_mode = mode
    png = base64.b64encode(png_bytes(inner.picture())).decode() if picture else None
    return text, png, str(inner.instructions)


def card(spec: EnvSpec) -> EnvCard:
    """Describe an environment; makes one to ask it for its rules."""
    from ..envs.turn.prompts import STYLES

    cls = spec.load()
    env = make(spec.id)
    try:
        instructions = str(env.instructions)
    except Exception:
        instructions = ""  # the rules depend on the task, and there is none yet
    finally:
        env.close()
    return EnvCard(
        id=spec.id,
        gymnasium_id=spec.gymnasium_id,
        summary=spec.summary,
        doc=inspect.getdoc(cls) or "",
        instructions=instructions,
        splits=dict(env.splits),
        settings=_settings(spec),
        separator=env.separator,
        styles=sorted(STYLES),
        style=spec.style,
        expert=env.expert_success > 0,
        pictures="rgb_array" in env.metadata["render_modes"],
    )


def broken_card(spec: EnvSpec, error: TurngymError) -> EnvCard:
    """Describe an environment that cannot be made."""
    return EnvCard(
        spec.id, spec.gymnasium_id, spec.summary, "", "", {}, {}, None, [], spec.style, False, False, needs=str(error)
    )


def tasks(env_id: str, split: str) -> Sequence[str]:
    """Return the task ids of a split under the default settings."""
    env = make(env_id)
    try:
        return env.tasks(split)
    finally:
        env.close()


def _settings(spec: EnvSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in parameters(spec.load()).items():
        if name == "render_mode":
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        try:
            found[name] = msgspec.to_builtins(spec.kwargs.get(name, default))
        except TypeError:
            found[name] = repr(default)
    return found
