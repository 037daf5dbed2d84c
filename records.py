"""The one vocabulary: what a step, a completion, a turn and an episode are.

The same structs travel over the wire, lie in files, fill the viewer and feed training. They are
:class:`msgspec.Struct` classes: cheap to build on the step path, validated when decoded.

Files are JSON Lines (``.jsonl``, or ``.jsonl.zst`` compressed with zstandard): a header line
``{"schema": "turngym.episodes", "version": 1}``, then one episode a line.
"""

from __future__ import annotations

import io
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from .errors import RecordError

SCHEMA = "turngym.episodes"
VERSION = 1
SYNC_S = 1.0
"""Least seconds between two waits for the disk."""


class Message(TypedDict):
    """One chat message as chat templates and chat APIs take it."""

    role: str
    content: str


Observation = str | list[Message]
Status = Literal["running", "terminated", "truncated", "failed"]


class StepResult(msgspec.Struct, omit_defaults=True):
    """The five-tuple of ``step`` (or of ``reset``, with reward 0) as one value.

    Attributes:
        observation: text (``TextEnv``) or the next prompt as chat messages (``TurnEnv``).
        reward: reward of this step.
        terminated: the task ended the episode (won, lost, or bought).
        truncated: a limit ended the episode.
        info: see ``turngym.envs.core.StepInfo``; JSON-serialisable.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the episode is over, for either reason."""
        return self.terminated or self.truncated


class Completion(msgspec.Struct, omit_defaults=True):
    """What a policy answered to one prompt.

    Attributes:
        text: the raw reply, reasoning included.
        prompt_ids: prompt token ids (T_p,), as fed to the model.
        token_ids: sampled token ids (T,); never re-tokenised.
        logprobs: log-probability of each sampled token under the sampling policy (T,), nats.
        entropies: entropy of each sampling distribution (T,), nats.
        certainty: uncertainty signal of each token (T,), as the recipe defines it (T2PO's M_t).
        forced: per token (T,), true where the token was forced and not sampled (loss mask 0).
        finish_reason: "stop", "length", "context_overflow" or what the server said.
        prompt_tokens: prompt length in tokens, where known.
        completion_tokens: reply length in tokens, where known.
        cost: price of this call in the currency of the policy's price list, where known.
        policy_version: version of the weights that sampled it.
        info: anything else worth keeping, for example the number of discarded samples before this one.
    """

    text: str
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    entropies: list[float] | None = None
    certainty: list[float] | None = None
    forced: list[bool] | None = None
    finish_reason: str = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    policy_version: int | None = None
    info: dict[str, Any] = msgspec.field(default_factory=dict)


class Turn(msgspec.Struct, omit_defaults=True):
    """One prompt, one completion, and what the environment made of it.

    Attributes:
        index: 0-based position in the episode; turn ends are never inferred from masks or rewards.
        observation: raw text the agent saw before acting.
        anchor: key of the state before acting, for step-level grouping.
        next_anchor: key of the state after acting.
        completion: the reply; its ``text`` is what was parsed.
        action: the action taken out of the reply; "" where none could be.
        action_valid: the environment knew the action and it was admissible.
        format_valid: the reply kept the tag grammar; None where no grammar was applied (text level).
        void: the reply held neither an action nor an answer.
        tag: the meta-reasoning tag of the reply ("planning", …), "" for none.
        reward: sum of ``rewards`` as last revised.
        rewards: named reward components; "env" is the environment's own.
        revised: names of components that a hook rewrote after the turn was over.
        steps: environment actions executed in this turn (several where joined by a separator).
        prompt: the chat messages the policy saw, where they were kept.
        info: other fields of the step's info worth keeping.
    """

    index: int
    observation: str
    completion: Completion
    action: str = ""
    anchor: str = ""
    next_anchor: str = ""
    action_valid: bool = True
    format_valid: bool | None = None
    void: bool = False
    tag: str = ""
    reward: float = 0.0
    rewards: dict[str, float] = msgspec.field(default_factory=dict)
    revised: list[str] = msgspec.field(default_factory=list)
    steps: int = 1
    prompt: list[Message] | None = None
    info: dict[str, Any] = msgspec.field(default_factory=dict)


class Episode(msgspec.Struct, omit_defaults=True):
    """One episode, finished or not, with everything needed to judge, replay and train on it.

    Attributes:
        id: unique within its file.
        env: registry id.
        task: canonical task id, "split/index".
        seed: seed of the environment's noise.
        config: keyword arguments the environment was made with.
        level: "text" or "turn".
        style: prompt style and turn options at turn level.
        split: split of the task.
        group: id shared by the episodes of one group (same task and variation), "" for none.
        member: position in the group.
        parent: id of the episode that this one was forked from, "" for none; the first ``fork_turn`` turns are
            the parent's.
        fork_turn: turns played before the fork.
        reseeds: (turn, seed) of every new noise seed since the reset, as ``fork(seed)`` and ``reseed`` give.
        status: "terminated", "truncated", "failed" (see ``error``) or "running".
        error: RFC 9457 problem of a failed episode.
        turns: the turns in order.
        final_observation: what the agent would have seen next.
        reward: sum of the turns' rewards.
        won: the task was solved.
        score: task score in [0, 1] where the environment has one, else 1.0 if won.
        task_type: kind of task, for tables ("" where there is one kind only).
        policy: name of the policy.
        metrics: further numbers about the episode.
        seconds: wall-clock duration.
        attempt: number of the attempt at the same task (for pass@k), from 0.
    """

    id: str
    env: str
    task: str
    seed: int
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    level: Literal["text", "turn"] = "turn"
    style: dict[str, Any] = msgspec.field(default_factory=dict)
    split: str = ""
    group: str = ""
    member: int = 0
    parent: str = ""
    fork_turn: int = 0
    reseeds: list[tuple[int, int]] = msgspec.field(default_factory=list)
    status: Status = "running"
    error: dict[str, Any] | None = None
    turns: list[Turn] = msgspec.field(default_factory=list)
    final_observation: str = ""
    reward: float = 0.0
    won: bool = False
    score: float = 0.0
    task_type: str = ""
    policy: str = ""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    attempt: int = 0


_encoder = msgspec.json.Encoder()
_episode_decoder = msgspec.json.Decoder(Episode)


def scrub(text: str) -> str:
    """Replace lone surrogates, which JSON and UTF-8 cannot carry, by "?"."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def encode_episode(episode: Episode) -> bytes:
    """Encode one episode as one JSON line, without the newline.

    Raises:
        RecordError: the episode holds a NaN or infinite number, which JSON has no word for.
    """
    try:
        line = _encoder.encode(episode)
    except UnicodeEncodeError:
        line = _encoder.encode(scrub_tree(msgspec.to_builtins(episode)))
    if b"null" in line:
        # Such numbers are encoded as null: the line would be written, and then be refused by the reader.
        try:
            _episode_decoder.decode(line)
        except msgspec.ValidationError as error:
            raise RecordError(
                f"Episode {scrub(episode.id)!r:.80} cannot be written: {error}.",
                hint="Is a reward, score or log-probability NaN or infinite? Give a finite number.",
            ) from error
    return line


def scrub_tree(value: Any) -> Any:
    """Replace lone surrogates in every string of a JSON-like value."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list | tuple):
        return [scrub_tree(item) for item in value]
    if isinstance(value, dict):
        return {scrub(str(name)): scrub_tree(item) for name, item in value.items()}
    return value


class EpisodeWriter:
    """Appends episodes to a JSON Lines file; each is with the system before ``write`` returns, whole.

    A process that is killed loses nothing. The system is told to put the file on the disk about once a second and on
    ``close``: only a machine that crashes may lose the newest episodes.

    A path that ends in ``.zst`` is compressed, one zstandard frame an episode, so that a crash can only
    harm the line being written.

    Raises:
        RecordError: the file holds another schema, or the disk refused the write. What was written stays.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._compress = self.path.suffix == ".zst"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if not fresh and not self._compress:
            fresh = self._drop_torn_header()
        if not fresh:
            self._check_header()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._synced = time.monotonic()
        if fresh:
            self._append(_encoder.encode({"schema": SCHEMA, "version": VERSION}) + b"\n")
        elif not self._compress:
            self._end_torn_line()

    def _check_header(self) -> None:
        _read_header(self.path, next(_lines(self.path), b""))

    def _drop_torn_header(self) -> bool:
        """Empty a file that ends inside our own header: a crash in the very first write."""
        header = _encoder.encode({"schema": SCHEMA, "version": VERSION})
        if self.path.stat().st_size > len(header) or not header.startswith(self.path.read_bytes()):
            return False
        os.truncate(self.path, 0)
        return True

    def _end_torn_line(self) -> None:
        with open(self.path, "rb") as tail:
            tail.seek(-1, os.SEEK_END)
            if tail.read(1) != b"\n":
                self._append(b"\n")

    def _append(self, data: bytes) -> None:
        if self._compress:
            import zstandard

            # The checksum lets the reader tell a torn frame from a good one that follows it.
            data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
        start = os.fstat(self._file.fileno()).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            if time.monotonic() - self._synced >= SYNC_S:
                self._sync()
        except OSError as error:
            # Cut the half-written line off so that every earlier line stays readable.
            os.ftruncate(self._file.fileno(), start)
            raise RecordError(
                f"Cannot write {self.path}: {error.strerror}.",
                hint="Free disk space and run the same command again; finished episodes are kept.",
            ) from error

    def write(self, episode: Episode) -> None:
        """Append one episode."""
        self._append(encode_episode(episode) + b"\n")

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Put the file on the disk and close it; writing afterwards is an error."""
        if not self._file.closed:
            try:
                self._sync()
            except OSError as error:
                raise RecordError(f"Cannot write {self.path}: {error.strerror}.", hint="Look at the disk.") from error
            finally:
                self._file.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _lines(path: Path) -> Iterator[bytes | Exception]:
    """Yield the lines of a file, and the error in place of each damaged stretch of compressed data."""
    if path.suffix != ".zst":
        with open(path, "rb") as file:
            yield from file
    elif path.stat().st_size:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _compressed_lines(data)


def _compressed_lines(data: mmap.mmap) -> Iterator[bytes | Exception]:
    import zstandard

    position, damaged = 0, False
    while 0 <= position < len(data):
        frame = zstandard.ZstdDecompressor().decompressobj()
        end, pieces = position, []
        try:
            while not frame.eof:
                chunk = data[end : end + 2**14]
                if not chunk:
                    raise zstandard.ZstdError("the last frame is cut off")
                end += len(chunk)
                pieces.append(frame.decompress(chunk))
        except zstandard.ZstdError as error:
            yield from (line for line in io.BytesIO(b"".join(pieces)) if line.endswith(b"\n"))
            if not damaged:
                yield error
            damaged = True
            position = data.find(zstandard.FRAME_HEADER, position + 1)
        else:
            damaged = False
            position = end - len(frame.unused_data)
            yield from io.BytesIO(b"".join(pieces))


def _read_header(path: Path, line: bytes | Exception) -> None:
    if isinstance(line, Exception):
        raise RecordError(f"{path}, line 1: compressed data is damaged ({line}).") from line
    try:
        header = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RecordError(f"{path}, line 1: not a turngym records file ({error}).") from error
    if header.get("schema") != SCHEMA:
        raise RecordError(f"{path}, line 1: schema {header.get('schema')!r}, expected {SCHEMA!r}.")
    if header.get("version") != VERSION:
        raise RecordError(
            f"{path}, line 1: schema version {header.get('version')!r}, this turngym reads {VERSION}.",
            hint="Read it with the turngym release that wrote it, or run the evaluation again.",
        )


def read_episodes(path: str | os.PathLike[str], *, damaged: list[RecordError] | None = None) -> Iterator[Episode]:
    """Yield the episodes of a file.

    Args:
        path: a ``.jsonl`` or ``.jsonl.zst`` file.
        damaged: if given, lines that cannot be read are appended here as errors and skipped, so that the
            good lines are kept; if not given, the first damaged line raises.

    Raises:
        RecordError: names the file and line; also for another schema or schema version.
    """
    path = Path(path)
    number = 0
    for line in _lines(path):
        if isinstance(line, Exception) and number:
            _report(RecordError(f"{path}, after line {number}: compressed data is damaged ({line})."), damaged)
            continue
        number += 1
        if number == 1:
            _read_header(path, line)
        elif isinstance(line, bytes) and line.strip():
            try:
                yield _episode_decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _report(RecordError(f"{path}, line {number}: {error}."), damaged)
    if number == 0:
        raise RecordError(f"{path} is empty.", hint="Delete it, or run the evaluation that writes it again.")


def _report(error: RecordError, damaged: list[RecordError] | None) -> None:
    if damaged is None:
        error.hint = "Pass damaged=[] to read_episodes to keep the good lines."
        raise error
    damaged.append(error)
