"""What is done with an environment, wherever it runs: jobs that travel to it, and touch nothing else.

A job is a message. :meth:`Job.run` carries it out where the environment lives (on the event loop, in a thread, or in
a worker process, which receives it as MessagePack); :meth:`Job.read` makes of the answer that came back from a process
what ``run`` returned there.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from zlib import crc32

import msgspec

from ..envs.core import Tasks, TextEnv, check_seed, shown
from ..envs.grid import png_bytes
from ..envs.registry import EnvSpec, get_spec, make, parameters
from ..errors import (
    EnvironmentFailed,
    EpisodeOver,
    InvalidRequest,
    NotReset,
    ReplayDiverged,
    TurngymError,
    Unsupported,
)
from ..protocol import EnvCard, Level, LogEntry
from ..records import scrub_tree

if TYPE_CHECKING:
    from ..envs.turn.env import TurnEnv

    AnyEnv = TextEnv | TurnEnv

Seeding = tuple[int | None, str | None, str | int | None]
"""Seed, split and task of a reset."""
_BIG = 1
"""Code of the MessagePack extension for values with integers of more than 64 bits: JSON."""


# Results -------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a reset or step gave."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Made(NamedTuple):
    """A new environment.

    Attributes:
        env: the environment.
        outcome: its last outcome, None if it was not reset.
        splits: its tasks, where its settings may give it others than its card lists.
        digest: of the outcomes so far.
    """

    env: Any
    outcome: Outcome | None = None
    splits: dict[str, int] | None = None
    digest: int = 0


def checked(result: tuple[Any, ...]) -> Outcome:
    """Return what a reset or step gave.

    Raises:
        EnvironmentFailed: it is nothing that a client could read.
    """
    observation, reward, terminated, truncated, info = result
    if reward.__class__ is not float:
        reward = float(reward)
    if not isfinite(reward):
        raise EnvironmentFailed(f"The environment gave the reward {reward}.", hint="The session is closed.")
    if observation.__class__ not in _OBSERVED or not isinstance(info, dict):
        raise EnvironmentFailed("The environment gave no text or no info.", hint="The session is closed.")
    return Outcome(observation, reward, bool(terminated), bool(truncated), info)


_OBSERVED = (str, list)


# Jobs ----------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """One thing to do with an environment.

    Attributes:
        makes: it gives a new environment, as :class:`Made`.
        long: it may read or build data, which takes longer than a step.
    """

    makes: ClassVar[bool] = False
    long: ClassVar[bool] = False

    def run(self, env: Any) -> Any:
        """Do it; ``env`` is None for a job that needs none."""
        raise NotImplementedError

    @staticmethod
    def read(value: Any) -> Any:
        """Return what ``run`` returned, from its plain values."""
        return value


class Make(Job, frozen=True):
    """Make an environment as ``create`` asks for it, and reset it if there is a seeding."""

    makes: ClassVar[bool] = True
    long: ClassVar[bool] = True
    env_id: str
    level: Level = "text"
    config: dict[str, Any] = {}
    turn: dict[str, Any] = {}
    seeding: Seeding | None = None

    def build(self) -> AnyEnv:
        """Make the environment.

        Raises:
            InvalidRequest: settings or turn options do not fit.
        """
        if self.turn and self.level == "text":
            raise InvalidRequest(
                "Turn options were sent for the text level.", hint='Send level "turn", or leave them out.'
            )
        try:
            env = make(self.env_id, **self.config)
            if self.level == "text":
                return env
            from ..envs.turn.env import at_turn_level

            return at_turn_level(self.env_id, env, self.turn)
        except TurngymError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            # Classes check their own arguments; what they miss is still the caller's mistake.
            raise InvalidRequest(
                f"{self.env_id} does not take these settings: {shown(str(error), 200)}.",
                hint=f"GET /v1/envs/{self.env_id} lists the settings with their defaults.",
            ) from error

    def run(self, env: None) -> Made:
        """Return the environment."""
        built = self.build()
        outcome = None if self.seeding is None else _reset(built, *self.seeding)
        return Made(built, outcome, dict(built.splits) if self.config else None)


class Replay(Job, frozen=True):
    """Make an environment and replay a log of actions (text) and noise seeds (integers).

    Attributes:
        digest: of the outcomes as they were the first time, None where that is not known.
    """

    makes: ClassVar[bool] = True
    long: ClassVar[bool] = True
    make: Make
    task: str
    seed: int
    log: list[LogEntry]
    digest: int | None = None

    @property
    def env_id(self) -> str:
        """Registry id."""
        return self.make.env_id

    def run(self, env: None) -> Made:
        """Return the environment.

        Raises:
            ReplayDiverged: the outcomes are not those of the first time.
        """
        built = self.make.build()
        try:
            outcome = _reset(built, check_seed(self.seed), None, self.task)
            digest = crc32(pack(outcome))
            for entry in self.log:
                if isinstance(entry, str):
                    outcome = checked(built.step(entry))
                    digest = crc32(pack(outcome), digest)
                else:
                    built.reseed(entry)
            if self.digest not in (None, digest):
                raise ReplayDiverged(
                    f"Replaying {len(self.log)} actions of task {self.task} did not give what it gave before.",
                    hint="The environment draws from something else than its seed; its contract forbids that.",
                )
        except BaseException:
            built.close()
            raise
        return Made(built, outcome, digest=digest)


class Begin(Job, frozen=True):
    """Reset as ``TextEnv.reset`` does, leaving out what was not sent."""

    seed: int | None
    split: str | None
    task: str | int | None

    def run(self, env: AnyEnv) -> Outcome:
        """Return the first observation."""
        return _reset(env, self.seed, self.split, self.task)

    @staticmethod
    def read(value: Any) -> Outcome:
        """Return the outcome."""
        return Outcome(*value)


class Act(Job, frozen=True):
    """Step."""

    action: str

    def run(self, env: AnyEnv) -> Outcome:
        """Return what it gave."""
        return checked(env.step(self.action))

    @staticmethod
    def read(value: Any) -> Outcome:
        """Return the outcome."""
        return Outcome(*value)


class Branch(Job, frozen=True):
    """Fork; with a seed, the copy draws noise of its own."""

    makes: ClassVar[bool] = True
    seed: int | None

    def run(self, env: AnyEnv) -> Made:
        """Return the copy."""
        _check_begun(env, "fork")
        return Made(env.fork(self.seed))


class Advise(Job, frozen=True):
    """Ask the expert for an action."""

    def run(self, env: AnyEnv) -> str:
        """Return the action.

        Raises:
            NotReset, EpisodeOver, Unsupported: there is none.
        """
        _check_begun(env, "expert")
        if env.done:
            raise EpisodeOver(f"The episode of task {env.task} is over.", hint="Call reset to start another.")
        action = env.expert_action()
        if action is None:
            raise Unsupported("The expert knows no action here.", hint="Use another policy.")
        return action


class Show(Job, frozen=True):
    """Render."""

    picture: bool

    def run(self, env: AnyEnv) -> tuple[str, str | None, str]:
        """Return the state as text, as a base64 PNG if asked for, and the rules."""
        _check_begun(env, "render")
        inner = env if isinstance(env, TextEnv) else env.env
        # The mode is the caller's choice of this very call, whatever the environment was made with.
        mode, inner.render_mode = inner.render_mode, "ansi"
        try:
            text = str(inner.render())
        finally:
            inner.render_mode = mode
        png = base64.b64encode(png_bytes(inner.picture())).decode() if self.picture else None
        return text, png, str(inner.instructions)


class Rules(Job, frozen=True):
    """Ask for the rules."""

    def run(self, env: AnyEnv) -> str:
        """Return them as a player of this task must know them."""
        return str(env.instructions)


class End(Job, frozen=True):
    """Close."""

    def run(self, env: AnyEnv) -> None:
        """Close the environment."""
        env.close()


class Draw(Job, frozen=True):
    """Let an environment draw the task that all members of a group play."""

    long: ClassVar[bool] = True
    env_id: str
    config: dict[str, Any]
    seed: int
    split: str | None

    def run(self, env: None) -> str:
        """Return the task id."""
        built = Make(self.env_id, "text", self.config).build()
        try:
            return str(_reset(built, self.seed, self.split, None).info["task"])
        finally:
            built.close()


class List(Job, frozen=True):
    """Ask for the task ids of a split under the default settings."""

    long: ClassVar[bool] = True
    env_id: str
    split: str

    def run(self, env: None) -> Sequence[str]:
        """Return them; a sequence made on demand where the environment's is."""
        built = make(self.env_id)
        try:
            found = built.tasks(self.split)
            return found if isinstance(found, Tasks) else list(found)
        finally:
            built.close()

    @staticmethod
    def read(value: Any) -> Sequence[str]:
        """Return the sequence."""
        return Tasks(value["split"], range(*value["range"])) if isinstance(value, dict) else value


class Describe(Job, frozen=True):
    """Describe an environment; makes one to ask it for its rules."""

    long: ClassVar[bool] = True
    env_id: str

    def run(self, env: None) -> EnvCard:
        """Return its card."""
        from ..envs.turn.prompts import STYLES

        spec = get_spec(self.env_id)
        cls = spec.load()
        built = make(self.env_id)
        try:
            instructions = str(built.instructions)
        except Exception:
            instructions = ""  # the rules depend on the task, and there is none yet
        finally:
            built.close()
        return EnvCard(
            id=spec.id,
            gymnasium_id=spec.gymnasium_id,
            summary=spec.summary,
            doc=inspect.getdoc(cls) or "",
            instructions=instructions,
            splits=dict(built.splits),
            settings=_settings(spec),
            separator=built.separator,
            styles=sorted(STYLES),
            style=spec.style,
            expert=built.expert_success > 0,
            pictures="rgb_array" in built.metadata["render_modes"],
        )

    @staticmethod
    def read(value: Any) -> EnvCard:
        """Return the card."""
        return msgspec.convert(value, EnvCard)


AnyJob = Make | Replay | Begin | Act | Branch | Advise | Show | Rules | End | Draw | List | Describe


def _reset(env: AnyEnv, seed: int | None, split: str | None, task: str | int | None) -> Outcome:
    options: dict[str, Any] = {}
    if split is not None:
        options["split"] = split
    if task is not None:
        options["task"] = task
    observation, info = env.reset(seed=seed, options=options)
    return checked((observation, 0.0, False, False, info))


def _check_begun(env: AnyEnv, op: str) -> None:
    if not env.task:
        raise NotReset(f"{op} was called before reset.", hint="Call reset first.")


def broken_card(spec: EnvSpec, error: TurngymError) -> EnvCard:
    """Describe an environment that cannot be made."""
    return EnvCard(
        spec.id, spec.gymnasium_id, spec.summary, "", "", {}, {}, None, [], spec.style, False, False, needs=str(error)
    )


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


# Values on their way -------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Encode what environments put into infos although JSON does not know it: numpy scalars and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Tasks):
        indices = value.indices
        return {"split": value.split, "range": (indices.start, indices.stop, indices.step)}
    raise TypeError(f"{type(value).__name__} is no JSON value")


_pack = msgspec.msgpack.Encoder(enc_hook=plain).encode
_json = msgspec.json.Encoder(enc_hook=plain).encode


def pack(value: Any) -> bytes:
    """Encode a value as MessagePack; equal values give equal bytes.

    Raises:
        EnvironmentFailed: an environment put something into its info that is no JSON.
    """
    try:
        return _pack(value)
    except UnicodeEncodeError:
        # Lone surrogates: JSON cannot carry them, the rest of the text it can.
        return _pack(scrub_tree(msgspec.to_builtins(value, enc_hook=plain)))
    except OverflowError:
        return _pack(msgspec.msgpack.Ext(_BIG, _json(value)))
    except Exception as error:
        raise no_json(error) from error


def pack_job(job: Job) -> bytes:
    """Encode a job.

    Raises:
        InvalidRequest: it cannot be sent.
    """
    try:
        return _pack(job)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"The request cannot be passed on: {shown(str(error), 200)}.") from error


def unpack_extension(code: int, data: memoryview) -> Any:
    """Decode what :func:`pack` made of integers that MessagePack does not know."""
    return msgspec.json.decode(data)


def broken(error: BaseException, *, in_session: bool) -> EnvironmentFailed:
    """Return what is told of an exception that is a bug of an environment."""
    hint = "The session is closed. Create another; the server's log has the traceback."
    return EnvironmentFailed(
        f"{type(error).__name__}: {shown(str(error), 300)}",
        hint=hint if in_session else "The server's log has the traceback.",
    )


def no_json(error: Exception) -> EnvironmentFailed:
    """Return the error for a reply that cannot be encoded."""
    return EnvironmentFailed(
        f"The environment's reply is no JSON: {shown(str(error), 200)}.", hint="Correct the environment's info."
    )
