"""Records: round trips, damaged and foreign files, full disks."""

from __future__ import annotations

import math
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import RecordError
from turngym.records import Completion, Episode, EpisodeWriter, Turn, encode_episode, read_episodes


def episode(number: int, text: str = "ok") -> Episode:
    turn = Turn(0, "obs", Completion(text, token_ids=[1, 2]), action="a", rewards={"env": 1.0}, reward=1.0)
    return Episode(f"e{number}", "bandit", f"test/{number}", 7, turns=[turn], reward=1.0)


@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.zst"])
def test_round_trip_and_append(tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / name
    for start in (0, 3):
        with EpisodeWriter(path) as writer:
            for number in range(start, start + 3):
                writer.write(episode(number))
    assert list(read_episodes(path)) == [episode(number) for number in range(6)]


@given(st.text(st.characters(), max_size=50))
def test_any_text_can_be_written(text: str) -> None:
    line = encode_episode(episode(0, text))
    assert b"\n" not in line
    read = msgspec.json.decode(line, type=Episode)
    assert read.turns[0].completion.text == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.zst"])
def test_a_torn_last_line_keeps_the_rest(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with EpisodeWriter(path) as writer:
        for number in range(4):
            writer.write(episode(number))
    path.write_bytes(path.read_bytes()[:-9])
    damaged: list[RecordError] = []
    assert [e.id for e in read_episodes(path, damaged=damaged)] == ["e0", "e1", "e2"]


def test_a_torn_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(episode(0))
        writer.write(episode(1))
    path.write_bytes(path.read_bytes()[:-9])
    with EpisodeWriter(path) as writer:
        writer.write(episode(2))
    damaged: list[RecordError] = []
    assert [e.id for e in read_episodes(path, damaged=damaged)] == ["e0", "e2"]
    assert "line 3" in str(damaged[0])


@pytest.mark.parametrize("cut", [1, 9, 60])
def test_a_torn_compressed_episode_costs_no_other(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e.jsonl.zst"
    with EpisodeWriter(path) as writer:
        writer.write(episode(0))
        writer.write(episode(1))
    path.write_bytes(path.read_bytes()[:-cut])
    with EpisodeWriter(path) as writer:
        for number in (2, 3):
            writer.write(episode(number))
    with pytest.raises(RecordError, match="after line 2"):
        list(read_episodes(path))
    damaged: list[RecordError] = []
    assert [e.id for e in read_episodes(path, damaged=damaged)] == ["e0", "e2", "e3"]
    assert len(damaged) == 1


def test_a_file_compressed_as_a_whole_is_read(tmp_path: Path) -> None:
    plain, path = tmp_path / "e.jsonl", tmp_path / "e.jsonl.zst"
    with EpisodeWriter(plain) as writer:
        for number in range(400):
            writer.write(episode(number, str(random.Random(number).random()) * 20))
    whole = zstandard.ZstdCompressor().compress(plain.read_bytes())
    path.write_bytes(whole)
    assert list(read_episodes(path)) == list(read_episodes(plain))
    path.write_bytes(whole[:-50])
    damaged: list[RecordError] = []
    kept = [e.id for e in read_episodes(path, damaged=damaged)]
    assert kept == [f"e{number}" for number in range(len(kept))]
    assert len(damaged) == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused_when_written(tmp_path: Path, number: float) -> None:
    path = tmp_path / "e.jsonl"
    bad = [msgspec.structs.replace(episode(1), reward=number), episode(2)]
    bad[1].turns[0].completion.logprobs = [-0.5, number]
    with EpisodeWriter(path) as writer:
        writer.write(episode(0, "null"))
        for one in bad:
            with pytest.raises(RecordError, match="cannot be written"):
                writer.write(one)
    assert [e.id for e in read_episodes(path)] == ["e0"]


def test_the_line_of_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    with EpisodeWriter(path) as writer:
        writer.write(episode(0))
    with open(path, "ab") as file:
        file.write(b'{"id": 3}\n\xff\xfe\n')
        file.write(encode_episode(episode(1)) + b"\n")
    with pytest.raises(RecordError, match="line 3"):
        list(read_episodes(path))
    damaged: list[RecordError] = []
    assert [e.id for e in read_episodes(path, damaged=damaged)] == ["e0", "e1"]
    assert [str(e).split(",")[1].split(":")[0].strip() for e in damaged] == ["line 3", "line 4"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"schema": "turngym.episodes", "version": 0}', "version 0"),
        (b'{"schema": "turngym.episodes", "version": 99}', "version 99"),
        (b'{"schema": "other", "version": 1}', "schema 'other'"),
        (b"hello", "not a turngym records file"),
        (b"", "empty"),
    ],
)
def test_foreign_files(tmp_path: Path, header: bytes, message: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(header and header + b"\n")
    with pytest.raises(RecordError, match=message):
        list(read_episodes(path))
    if header:
        with pytest.raises(RecordError, match=message):
            EpisodeWriter(path)
        assert path.read_bytes() == header + b"\n"


def test_a_full_disk_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    code = (
        "import sys; from turngym.records import EpisodeWriter, read_episodes\n"
        "from turngym.errors import RecordError\n"
        "source = next(iter(read_episodes(sys.argv[2])))\n"
        "writer = EpisodeWriter(sys.argv[1])\n"
        "try:\n"
        "    while True: writer.write(source)\n"
        "except RecordError as error: print(error)\n"
    )
    with EpisodeWriter(tmp_path / "source.jsonl") as writer:
        writer.write(episode(0, "x" * 1500))

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "source.jsonl")],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=small_disk,
    )
    assert "Cannot write" in done.stdout and "Free disk space" in done.stdout
    assert len(list(read_episodes(path))) >= 3


def test_a_torn_header_is_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"schema": "turngym'.replace(b": ", b":"))
    with EpisodeWriter(path) as writer:
        writer.write(episode(0))
    assert list(read_episodes(path)) == [episode(0)]
