"""The one exception tree of turngym.

Every error says what went wrong and, in ``hint``, what to do next. Errors cross the wire as RFC 9457 problem
documents (``to_problem``) and come back as the same class in the client (``from_problem``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

PROBLEM_TYPE_PREFIX = "urn:turngym:error:"


class TurngymError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        code: stable machine-readable name, unique per class.
        status: HTTP status used when the error crosses the wire.
        title: one short sentence that is the same for every instance of the class.
        detail: what happened this time.
        hint: what to do next; may be empty.
    """

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something failed inside turngym"

    def __init__(self, detail: str, /, *, hint: str = "", **extra: Any) -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.detail = detail
        self.hint = hint
        self.extra = extra

    def to_problem(self) -> dict[str, Any]:
        """Return the RFC 9457 members plus ``code`` and ``hint``."""
        return {
            **self.extra,
            "type": PROBLEM_TYPE_PREFIX + self.code.lower().replace("_", "-"),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "hint": self.hint,
        }


class InvalidRequest(TurngymError):
    """The request or argument does not fit; sending it again unchanged will fail again."""

    code, status, title = "INVALID_REQUEST", 422, "The request does not fit"


class UnknownEnvironment(InvalidRequest):
    """No environment has this id."""

    code, status, title = "UNKNOWN_ENVIRONMENT", 404, "No such environment"


class UnknownTask(InvalidRequest):
    """The split or task does not exist in this environment."""

    code, status, title = "UNKNOWN_TASK", 404, "No such task"


class PayloadTooLarge(InvalidRequest):
    """The body or message is over the server's limit."""

    code, status, title = "PAYLOAD_TOO_LARGE", 413, "The request is too large"


class Unauthorized(TurngymError):
    """The API key is missing or wrong."""

    code, status, title = "UNAUTHORIZED", 401, "An API key is needed"


class SessionNotFound(TurngymError):
    """The session does not exist: never created, closed, or evicted after idling."""

    code, status, title = "SESSION_NOT_FOUND", 404, "No such session"


class NotReset(TurngymError):
    """``step`` came before ``reset``."""

    code, status, title = "NOT_RESET", 409, "The environment was not reset"


class EpisodeOver(TurngymError):
    """``step`` came after the episode had terminated or was truncated."""

    code, status, title = "EPISODE_OVER", 409, "The episode is over"


class StepConflict(TurngymError):
    """A ``step_index`` was used twice with different actions, or skips ahead."""

    code, status, title = "STEP_CONFLICT", 409, "The step does not follow the session's history"


class SessionBusy(TurngymError):
    """Another request is working on this session right now."""

    code, status, title = "SESSION_BUSY", 409, "The session is busy"


class CapacityReached(TurngymError):
    """The server holds as many sessions as it may."""

    code, status, title = "CAPACITY_REACHED", 503, "No room for another session"


class QuotaExceeded(TurngymError):
    """This API key has used up what it may use."""

    code, status, title = "QUOTA_EXCEEDED", 429, "Quota used up"


class Draining(TurngymError):
    """The server is shutting down and takes no new sessions."""

    code, status, title = "DRAINING", 503, "The server is shutting down"


class StepTimeout(TurngymError):
    """The environment did not answer in time; its session was closed."""

    code, status, title = "STEP_TIMEOUT", 504, "The environment took too long"


class EnvironmentFailed(TurngymError):
    """The environment raised; its session was closed, other sessions go on."""

    code, status, title = "ENVIRONMENT_FAILED", 502, "The environment failed"


class Unsupported(TurngymError):
    """The environment lacks this ability (fork, expert, picture)."""

    code, status, title = "UNSUPPORTED", 501, "Not supported by this environment"


class Unavailable(TurngymError):
    """Something that is needed is not on this machine: data, an optional package, a program. The hint gets it."""

    code, status, title = "UNAVAILABLE", 501, "Something needed is not installed"


class MissingExtra(Unavailable):
    """An optional dependency is not installed."""

    code, status, title = "MISSING_EXTRA", 501, "An optional dependency is missing"


class MissingInput(TurngymError):
    """A part of a training method was not given what it computes from."""

    code, status, title = "MISSING_INPUT", 422, "An input is missing"


class ServerUnavailable(TurngymError):
    """The hub could not be reached, or the connection broke and could not be rebuilt."""

    code, status, title = "SERVER_UNAVAILABLE", 503, "The server cannot be reached"


class ReplayDiverged(TurngymError):
    """Rebuilding a session by replay gave other results than were recorded."""

    code, status, title = "REPLAY_DIVERGED", 500, "The replay took another course"


class RecordError(TurngymError):
    """A records file is damaged, of another schema version, or cannot be written."""

    code, status, title = "RECORD_ERROR", 500, "The records file cannot be used"


class DataMissing(Unavailable):
    """A world's data files are not on this machine."""

    code, status, title = "DATA_MISSING", 501, "The world's data is not installed"


class DownloadFailed(TurngymError):
    """A file could not be fetched, or is not the one it should be; what was fetched so far is kept."""

    code, status, title = "DOWNLOAD_FAILED", 502, "The download failed"


class GameError(InvalidRequest):
    """A game file, domain or grammar is damaged or uses something that the engine does not know."""

    code, status, title = "GAME_FILE", 422, "The game file cannot be used"

    def __init__(
        self, detail: str, *, hint: str = "Use the file as ALFWorld ships or generates it.", **extra: Any
    ) -> None:
        super().__init__(detail, hint=hint, **extra)


class PolicyFailed(TurngymError):
    """The policy (for example a hosted model) gave no completion."""

    code, status, title = "POLICY_FAILED", 502, "The policy gave no completion"


def _subclasses(cls: type[TurngymError]) -> Iterable[type[TurngymError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def from_problem(problem: dict[str, Any]) -> TurngymError:
    """Rebuild the error that ``to_problem`` described; an unknown code gives a plain :class:`TurngymError`."""
    by_code = {sub.code: sub for sub in _subclasses(TurngymError)}
    cls = by_code.get(str(problem.get("code")), TurngymError)
    known = {"type", "title", "status", "detail", "code", "hint"}
    extra = {name: value for name, value in problem.items() if name not in known and name.isidentifier()}
    detail = str(problem.get("detail") or problem.get("title") or "unknown error")
    return cls(detail, hint=str(problem.get("hint", "")), **extra)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint that names the closest valid name and the others (at most 20)."""
    names = sorted(valid)
    # Cut, because comparing takes time and memory, and the name comes from outside.
    close = difflib.get_close_matches(str(name)[:200], names, n=1, cutoff=0.4)
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"Did you mean {close[0]!r}? Valid: {shown}." if close else f"Valid: {shown}."


__all__ = [
    "CapacityReached",
    "DataMissing",
    "DownloadFailed",
    "Draining",
    "EnvironmentFailed",
    "EpisodeOver",
    "GameError",
    "InvalidRequest",
    "MissingExtra",
    "MissingInput",
    "NotReset",
    "PayloadTooLarge",
    "PolicyFailed",
    "QuotaExceeded",
    "RecordError",
    "ReplayDiverged",
    "ServerUnavailable",
    "SessionBusy",
    "SessionNotFound",
    "StepConflict",
    "StepTimeout",
    "TurngymError",
    "Unauthorized",
    "Unavailable",
    "UnknownEnvironment",
    "UnknownTask",
    "Unsupported",
    "from_problem",
    "nearest",
]
