"""Run folders over HTTP: what is listed, pieces of files that grow, and nothing beyond the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from turngym.errors import InvalidRequest
from turngym.server import runs as module
from turngym.server.app import create_app
from turngym.server.runs import RunNotFound, Runs
from turngym.server.settings import HubSettings

HEADER = b'{"schema":"turngym.episodes","version":1}\n'


def line(**entry: Any) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


def training(folder: Path, steps: int = 5) -> Path:
    folder.mkdir(parents=True)
    recipe = {"summary": "A run", "env": {"preset": "compact-frozen-lake"}, "run": {"steps": 9}}
    (folder / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    lines = [line(kind="eval", step=0, eval_success=0.25)]
    lines += [line(kind="train", step=step, success=step / 10) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines, line(kind="eval", step=steps, eval_success=0.5)]))
    episodes = [line(id=f"s{step:06d}.g0.{member}", text="x" * 50) for step in range(steps) for member in range(3)]
    (folder / "episodes.jsonl").write_bytes(HEADER + b"".join(episodes))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two runs, and a secret beside it."""
    folder = tmp_path / "runs"
    training(folder / "a")
    training(folder / "deep" / "er" / "b", steps=2)
    plan = folder / "evaluated"
    plan.mkdir()
    (plan / "plan.json").write_bytes(msgspec.json.encode({"summary": "Plan", "envs": [{"name": "bandit"}]}))
    (plan / "episodes.jsonl").write_bytes(HEADER)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "metrics.jsonl").write_text("a secret\n")
    return folder


@pytest.fixture
def http(root: Path, start_hub: Any) -> Iterator[httpx.Client]:
    with start_hub(envs=("bandit",), runs=str(root)) as hub:
        yield hub.http


def text(http: httpx.Client, run: str, file: str, **more: Any) -> dict[str, Any]:
    answer = http.get("/v1/runs/text", params={"run": run, "file": file, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# What is there -------------------------------------------------------------------------------------


def test_runs_are_listed_with_where_they_stand(http: httpx.Client) -> None:
    cards = {card["run"]: card for card in http.get("/v1/runs").json()}
    assert set(cards) == {"a", "deep/er/b", "evaluated"}
    first = cards["a"]
    assert (first["kind"], first["summary"], first["envs"]) == ("training", "A run", ["compact-frozen-lake"])
    assert (first["step"], first["steps"], first["success"]) == (5, 9, 0.5)
    assert (cards["evaluated"]["kind"], cards["evaluated"]["envs"]) == ("evaluation", ["bandit"])
    assert cards["evaluated"]["success"] is None


def test_a_run_that_cannot_be_read_spoils_no_list(http: httpx.Client, root: Path) -> None:
    (root / "a" / "recipe.json").write_bytes(b'{"run": 7')
    (root / "a" / "metrics.jsonl").write_bytes(b'{"kind": "train", "step": "x"}\n\xff\n[]\n')
    cards = {card["run"]: card for card in http.get("/v1/runs").json()}
    assert (cards["a"]["step"], cards["a"]["summary"], cards["deep/er/b"]["step"]) == (0, "", 2)


def test_the_newest_comes_first_and_links_are_not_followed(root: Path) -> None:
    os.utime(root / "a" / "metrics.jsonl", (1, 1))
    for name in ("recipe.json", "episodes.jsonl"):
        os.utime(root / "a" / name, (1, 1))
    (root / "link").symlink_to(root.parent / "secret")
    (root / "loop").symlink_to(root)
    assert [card.run for card in Runs(root).cards()][-1] == "a"
    assert {card.run for card in Runs(root).cards()} == {"a", "deep/er/b", "evaluated"}


def test_a_run_itself_may_be_served(root: Path) -> None:
    runs = Runs(root / "a")
    assert [card.run for card in runs.cards()] == ["."]
    assert runs.read(".", "metrics.jsonl").text.startswith('{"kind":"eval"')


def test_files_are_listed(http: httpx.Client, root: Path) -> None:
    (root / "a" / "notes.txt").write_text("not served")
    found = {file["name"]: file["size"] for file in http.get("/v1/runs/files", params={"run": "a"}).json()}
    assert set(found) == {"metrics.jsonl", "episodes.jsonl", "recipe.json"}
    assert found["metrics.jsonl"] == (root / "a" / "metrics.jsonl").stat().st_size


# Pieces --------------------------------------------------------------------------------------------


def test_a_file_that_grows_is_read_on(http: httpx.Client, root: Path) -> None:
    path = root / "a" / "metrics.jsonl"
    first = text(http, "a", "metrics.jsonl")
    assert first["text"] == path.read_text() and first["next"] == first["size"]
    with open(path, "ab") as file:
        file.write(line(kind="train", step=6) + b'{"kind": "tr')  # the next line is being written
    second = text(http, "a", "metrics.jsonl", start=first["next"], tag=first["tag"])
    assert second["text"] == '{"kind":"train","step":6}\n' and second["next"] == second["size"] - 12
    third = text(http, "a", "metrics.jsonl", start=second["next"], tag=first["tag"])
    assert third["text"] == "" and third["next"] == second["next"]


def test_a_file_that_was_replaced_is_read_anew(http: httpx.Client, root: Path) -> None:
    path = root / "a" / "metrics.jsonl"
    first = text(http, "a", "metrics.jsonl")
    draft = path.with_suffix(".draft")
    draft.write_bytes(line(kind="train", step=1))
    draft.replace(path)
    again = text(http, "a", "metrics.jsonl", start=first["next"], tag=first["tag"])
    assert again["start"] == 0 and again["text"] == '{"kind":"train","step":1}\n' and again["tag"] != first["tag"]


def test_pieces_are_cut_between_lines(root: Path) -> None:
    runs, path = Runs(root), root / "a" / "episodes.jsonl"
    found, start = "", 0
    while (piece := runs.read("a", "episodes.jsonl", start, limit=200)).text:
        assert piece.text.endswith("\n") and len(piece.text) <= 200 and piece.start == start
        found, start = found + piece.text, piece.next
    assert found == path.read_text()
    assert runs.read("a", "episodes.jsonl", limit=1).text == HEADER.decode()  # a line comes whole
    end = runs.read("a", "episodes.jsonl", -200)
    assert end.text and path.read_text().endswith(end.text) and len(end.text) <= 200
    assert runs.read("a", "episodes.jsonl", -(10**9)).start == 0


def test_a_file_without_a_last_newline_is_whole_where_it_does_not_grow(root: Path) -> None:
    (root / "a" / "recipe.json").write_bytes(b'{\n "summary": "\xc3\xa9"\n}')
    runs, found, start = Runs(root), "", 0
    while (piece := runs.read("a", "recipe.json", start, limit=4)).text:
        found, start = found + piece.text, piece.next
    assert found == '{\n "summary": "é"\n}'


@pytest.mark.parametrize("close", [1, 1 << 16])
def test_episodes_are_found_by_step(root: Path, monkeypatch: pytest.MonkeyPatch, close: int) -> None:
    monkeypatch.setattr(module, "CLOSE", close)
    runs, path = Runs(root), root / "many"
    path.mkdir()
    sizes = [1, 5000, 3, 70_000, 2, 900]
    played = [
        line(id=f"s{step:06d}.g0.{place}", t="x" * sizes[(step + place) % 6])
        for step in range(0, 60, 2)
        for place in range(3)
    ]
    played[40] = b"damaged\n"
    (path / "metrics.jsonl").write_bytes(b"")
    (path / "episodes.jsonl").write_bytes(HEADER + b"".join(played))
    for step in range(58):
        text = runs.read("many", "episodes.jsonl", step=step, limit=1).text
        assert text.startswith(f'{{"id":"s{step + step % 2:06d}.g0.0"'), step
    assert runs.read("many", "episodes.jsonl", step=59).text == ""
    assert runs.read("many", "episodes.jsonl", step=0).start == len(HEADER)


def test_a_line_without_end_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINE", 1000)
    (root / "a" / "episodes.jsonl").write_bytes(b"x" * 5000)
    with pytest.raises(InvalidRequest, match="has more than"):
        Runs(root).read("a", "episodes.jsonl", limit=10)


# Nothing beyond ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        "",
        "..",
        "../secret",
        "a/../../secret",
        "deep",
        "/etc",
        "%2e%2e/secret",
        "a\0",
        "x" * 5000,
        "a/metrics.jsonl",
        "~",
    ],
)
def test_no_other_folder_is_read(http: httpx.Client, root: Path, run: str) -> None:
    inside = [run, str(root.parent / "secret")]
    for each in inside:
        for path in ("/v1/runs/files", "/v1/runs/text"):
            answer = http.get(path, params={"run": each, "file": "metrics.jsonl"})
            assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND")
            assert "a secret" not in answer.text


@pytest.mark.parametrize("file", ["", "../a/metrics.jsonl", "notes.txt", "checkpoints", "/etc/passwd", "eval.jsonl"])
def test_no_other_file_is_read(http: httpx.Client, root: Path, file: str) -> None:
    (root / "a" / "notes.txt").write_text("a secret")
    answer = http.get("/v1/runs/text", params={"run": "a", "file": file})
    assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("../../secret/metrics.jsonl", path)])
def test_what_is_no_plain_file_is_not_opened(root: Path, make: Callable[[Path], None]) -> None:
    make(root / "a" / "eval.jsonl")
    assert "eval.jsonl" not in {file.name for file in Runs(root).files("a")}
    with pytest.raises(RunNotFound):
        Runs(root).read("a", "eval.jsonl")


def test_a_linked_run_is_not_read(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    with pytest.raises(RunNotFound):
        Runs(root).read("link", "metrics.jsonl")


def test_nothing_is_written(http: httpx.Client) -> None:
    for path in ("/v1/runs", "/v1/runs/files", "/v1/runs/text"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert http.request(method, path).status_code == 405


@pytest.mark.parametrize("values", [{"start": "x"}, {"limit": 0}, {"step": -1}, {"start": "1e3"}, {"start": "9" * 30}])
def test_numbers_that_do_not_fit_are_refused(http: httpx.Client, values: dict[str, Any]) -> None:
    answer = http.get("/v1/runs/text", params={"run": "a", "file": "metrics.jsonl", **values})
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")


def test_a_key_is_asked_for(root: Path, start_hub: Any) -> None:
    with start_hub("a-secret-key", envs=("bandit",), runs=str(root), api_keys={"me": "a-secret-key"}) as hub:
        assert len(hub.http.get("/v1/runs").json()) == 3
        for path in ("/v1/runs", "/v1/runs/files?run=a", "/v1/runs/text?run=a&file=metrics.jsonl"):
            assert httpx.get(hub.url + path).status_code == 401


def test_a_hub_without_runs_says_so(start_hub: Any) -> None:
    with start_hub(envs=("bandit",)) as hub:
        answer = hub.http.get("/v1/runs")
        assert (answer.status_code, answer.json()["code"]) == (404, "RUNS_NOT_SERVED")
        assert "--runs DIR" in answer.json()["hint"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="There is no folder"):
        create_app(HubSettings(envs=("bandit",), runs=str(tmp_path / "nowhere")))
