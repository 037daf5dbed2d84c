"""The teacher of a supervised start: it annotates or plays, is never asked twice, and its absence is said clearly."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import msgspec
from fastapi import Response

from turngym.client.rollout import Job
from turngym.client.sources import LocalSource, Wanted
from turngym.envs.turn.grammar import GRAMMARS
from turngym.errors import InvalidRequest, PolicyFailed, RecordError
from turngym.records import Episode
from turngym.trainer_backends.recipes import Recipe, StartTable
from turngym.trainer_backends.torch_backend.collect import played_through
from turngym.trainer_backends.torch_backend.start import examples
from turngym.trainer_backends.torch_backend.teacher import usable
from turngym.trainer_backends.torch_backend.trainer import Trainer

CONFIG = {"size": 4, "slippery": False, "max_actions_per_step": 1}
TAGGED = {
    "style": "meta-tags",
    "memory": 1,
    "max_turns": 7,
    "prompt": {"first": "{observation}", "later": "{observation}\n\nPlan: {plan}"},
}
THINKING = {"style": "think-action", "memory": 0, "max_turns": 7, "prompt": {"first": "{observation}"}}
TAKEN = re.compile(r"The action that the agent took now:\n(.*)\n")
Answer = Callable[[dict[str, Any], int], Awaitable[Response]]


def _load_server() -> Any:
    path = Path(__file__).parents[2] / "client" / "chat_server.py"
    spec = spec_from_file_location("chat_server", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chat = _load_server()


@pytest.fixture
def server() -> Iterator[Any]:
    running = chat.ChatServer()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def taken(body: dict[str, Any]) -> str:
    """The action that a question is about."""
    found = TAKEN.search(body["messages"][1]["content"])
    assert found is not None
    return found[1]


def telling(thought: str) -> Answer:
    """Answer with this thought and the action that was asked about."""

    async def answer(body: dict[str, Any], earlier: int) -> Response:
        return chat.completion(f"{thought}<action>{taken(body)}</action>")

    return answer


def table(server: Any, model: str = "wise", **changes: Any) -> StartTable:
    teacher = {"base_url": server.url, "model": model, "retries": 0, **changes.pop("teacher", {})}
    base = {"policy": "expert", "tags": "teacher", "episodes": 4, "threshold": 0.5, "epochs": 1, "teacher": teacher}
    return msgspec.convert({**base, **changes}, StartTable)


def recipe_of(start: StartTable, policy: Path, folder: Path, turn: dict[str, Any] = TAGGED) -> Recipe:
    folder.mkdir(exist_ok=True)
    preset = folder / "lake.toml"
    preset.write_text('env = "frozen-lake"\n')
    data = {
        "env": {"preset": str(preset), "config": CONFIG, "turn": turn},
        "model": {"path": str(policy), "dtype": "float32"},
        "rollout": {"id": "chains", "samples": 2},
        "sampling": {"tasks": 1, "max_tokens": 8, "slots": 4},
        "credit": {"id": "grpo"},
        "start": msgspec.to_builtins(start),
        "run": {"steps": 0, "eval_every": 0, "eval_tasks": 1, "deterministic": True},
    }
    return msgspec.convert(data, Recipe)


def gathered(
    start: StartTable, policy: Path, folder: Path, turn: dict[str, Any] = TAGGED, wanted: Wanted | None = None
) -> tuple[list[Episode], dict[str, float]]:
    """What is imitated, and what is logged about it."""
    trainer = Trainer(recipe_of(start, policy, folder, turn), folder / "run")

    async def gather() -> tuple[list[Episode], dict[str, float]]:
        source = LocalSource()

        async def wait(lost: int) -> None:
            raise AssertionError("environments of this process are never away")

        play = partial(played_through, source=source, concurrency=4, wait=wait, keep_prompts=True)
        lake = Wanted("frozen-lake", CONFIG, "turn", turn)
        jobs = [Job(f"start.{place}", wanted or lake, f"train/{place}", seed=place) for place in range(start.episodes)]
        try:
            return await examples(start, trainer.policy, jobs, play, folder / "run", 0)
        finally:
            await source.aclose()

    return asyncio.run(gather())


def test_a_run_imitates_thoughts_of_the_teacher(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    server.answers["wise"] = telling("<planning>Go around the holes.</planning>")
    recipe = recipe_of(table(server), policy_folder, tmp_path)
    asyncio.run(Trainer(recipe, tmp_path / "run").train())
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, *steps = [entry for entry in entries if entry["kind"] == "start"]
    turns = first["teacher_turns"]
    assert turns == first["teacher_calls"] == len(server.requests) > 4
    assert (first["kept"], first["lost"], first["teacher_refused"], first["teacher_stand_ins"]) == (4, 0, 0, 0)
    assert (first["teacher_prompt_tokens"], first["teacher_tokens"]) == (120 * turns, 30 * turns)
    assert steps and all(entry["start_loss"] > 0 for entry in steps)
    assert len((tmp_path / "run" / "teacher.jsonl").read_text().splitlines()) == turns


def test_prompts_hold_what_the_teacher_planned_and_the_actions_stay(
    server: Any, policy_folder: Path, tmp_path: Path
) -> None:
    async def answer(body: dict[str, Any], earlier: int) -> Response:
        story = body["messages"][1]["content"]
        tag = "monitor" if "The agent's reply" in story else "planning"
        return chat.completion(f"<{tag}>Around the holes.</{tag}>\n<action>{taken(body).upper()}</action> So be it.")

    server.answers["wise"] = answer
    told, _ = gathered(table(server), policy_folder, tmp_path / "told")
    plain, _ = gathered(StartTable(policy="expert", threshold=0.5, episodes=4), policy_folder, tmp_path / "plain")
    assert [[turn.action for turn in each.turns] for each in told] == [
        [turn.action for turn in each.turns] for each in plain
    ]
    for episode in told:
        assert [turn.tag for turn in episode.turns] == ["planning", *["monitor"] * (len(episode.turns) - 1)]
        assert all(turn.format_valid and turn.completion.token_ids for turn in episode.turns)
        for turn in episode.turns[1:]:
            assert turn.prompt is not None and turn.prompt[-1]["content"].endswith("Plan: Around the holes.")
    # The teacher sees the course so far, with the thoughts that it gave the agent.
    stories = [body["messages"][1]["content"] for body in server.requests]
    earlier = sorted(turn.index for episode in told for turn in episode.turns)
    assert sorted(story.count("Around the holes.</") for story in stories) == earlier
    assert sorted(story.count("What the agent saw then") for story in stories) == earlier
    assert all(f"<{tag}>" in server.requests[0]["messages"][0]["content"] for tag in GRAMMARS["meta-tags"].thoughts)


def test_rules_leave_their_plan_in_the_prompts_too(policy_folder: Path, tmp_path: Path) -> None:
    start = StartTable(policy="expert", tags="rules", threshold=0.5, episodes=8)
    told, metrics = gathered(start, policy_folder, tmp_path)
    assert (metrics["kept"], metrics["lost"]) == (8, 0)
    for episode in told:
        plans = [turn.prompt[-1]["content"].rpartition("Plan: ")[2] for turn in episode.turns[1:] if turn.prompt]
        assert plans == ["none yet"] * len(plans) or all("Finish the task." in plan for plan in plans)


def test_answers_that_cannot_be_used_are_sent_back_and_rules_stand_in(
    server: Any, policy_folder: Path, tmp_path: Path
) -> None:
    async def answer(body: dict[str, Any], earlier: int) -> Response:
        asked, action = len(body["messages"]) // 2, taken(body)
        if action == "Right":
            return chat.completion("<monitor>I would rather go up.</monitor><action>Nowhere</action>")
        bad = ["no tags at all", f"<musing>Hm.</musing><action>{action}</action>"]
        return chat.completion([*bad, f"<explore>This way.</explore><action>{action}</action>"][asked - 1])

    server.answers["slow"] = answer
    told, metrics = gathered(table(server, "slow", episodes=6), policy_folder, tmp_path)
    turns = [turn for episode in told for turn in episode.turns]
    right = [turn for turn in turns if turn.action == "right"]
    assert 0 < len(right) < len(turns)
    assert metrics["teacher_turns"] == len(turns)
    assert metrics["teacher_stand_ins"] == len(right)
    assert metrics["teacher_refused"] == 2 * (len(turns) - len(right)) + 3 * len(right)
    assert metrics["teacher_calls"] == 3 * len(turns) == len(server.requests)
    assert all("<explore>This way.</explore>" in turn.completion.text for turn in turns if turn.action != "right")
    assert all(turn.tag and turn.format_valid and "rather" not in turn.completion.text for turn in right)
    last = [body["messages"] for body in server.requests if len(body["messages"]) == 6]
    assert any("0 thought blocks" in messages[-1]["content"] for messages in last)
    assert any("the action is 'Nowhere'" in messages[-1]["content"] for messages in last)


def test_styles_without_tags_get_plain_thoughts(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    server.answers["wise"] = telling("<think>Which tag? <planning>?</think><think>The goal is near.</think>")
    told, metrics = gathered(table(server), policy_folder, tmp_path, THINKING)
    assert metrics["teacher_stand_ins"] == 0
    assert {turn.completion.text.partition("<action>")[0] for each in told for turn in each.turns} == {
        "<think>The goal is near.</think>"
    }
    assert "<planning>" not in server.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize("tags", ["teacher", "rules"])
def test_conversations_with_several_actions_in_a_reply(
    tags: str, server: Any, policy_folder: Path, tmp_path: Path
) -> None:
    async def answer(body: dict[str, Any], earlier: int) -> Response:
        return chat.completion(f"<think>On to {earlier}.</think>\n<answer>{taken(body)}</answer>")

    server.answers["wise"] = answer
    turn = {"style": "think-answer", "prompt": {"first": "{observation}", "later": "{observation}"}}
    sokoban = Wanted("sokoban", {"max_actions_per_step": 2}, "turn", turn)
    start = table(server) if tags == "teacher" else StartTable(policy="expert", tags=tags, threshold=0.5, episodes=4)
    told, metrics = gathered(start, policy_folder, tmp_path, turn, sokoban)
    assert (metrics["kept"], metrics["lost"]) == (4, 0)
    replies = [[turn.completion.text for turn in episode.turns] for episode in told]
    assert any(" || " in reply for each in replies for reply in each)
    assert all(("On to" in reply) == (tags == "teacher") and "Next step" not in reply for e in replies for reply in e)
    for episode, said in zip(told, replies, strict=True):
        for number, turn in enumerate(episode.turns):
            assert turn.prompt is not None
            assert [each["content"] for each in turn.prompt if each["role"] == "assistant"] == said[:number]


def test_what_the_teacher_plays_well_is_imitated(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    # Down, down, right, right, … solves some of the maps.
    async def answer(body: dict[str, Any], earlier: int) -> Response:
        move = "Down" if earlier % 2 else "Right"
        return chat.completion(f"<think>Towards the goal.</think><action>{move}</action>")

    server.answers["player"] = answer
    start = table(server, "player", policy="teacher", tags="", episodes=24, teacher={"concurrency": 1})
    told, metrics = gathered(start, policy_folder, tmp_path, THINKING)
    assert 0 < len(told) == metrics["kept"] < metrics["episodes"] == 24
    assert all(episode.won and episode.policy == "player" for episode in told)
    assert all(turn.completion.token_ids and "Towards" in turn.completion.text for e in told for turn in e.turns)
    calls = len(server.requests)
    again, recalled = gathered(start, policy_folder, tmp_path, THINKING)
    assert len(server.requests) == calls == recalled["teacher_recalled"] and recalled["teacher_calls"] == 0
    assert [each.turns for each in again] == [each.turns for each in told]


SCRIPT = """
import asyncio, sys, msgspec, torch
torch.set_num_threads(1)
from pathlib import Path
from turngym.trainer_backends.recipes import Recipe
from turngym.trainer_backends.torch_backend.trainer import Trainer
recipe = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Recipe)
asyncio.run(Trainer(recipe, Path(sys.argv[2])).train())
"""


def test_a_run_killed_while_annotating_does_not_ask_again(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    killed = threading.Event()

    async def stuck(body: dict[str, Any], earlier: int) -> Response:
        while earlier >= 5 and not killed.is_set():
            await asyncio.sleep(0.01)
        return await telling("<monitor>On.</monitor>")(body, earlier)

    server.answers["wise"] = stuck
    start = table(server, teacher={"concurrency": 1})
    recipe = recipe_of(start, policy_folder, tmp_path)
    file, out = tmp_path / "recipe.json", tmp_path / "run"
    file.write_bytes(msgspec.json.encode(recipe))
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(file), str(out)], stderr=subprocess.DEVNULL) as process:
        while len(server.requests) < 6 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    killed.set()
    known = (out / "teacher.jsonl").read_bytes()
    assert len(known.splitlines()) == 5
    (out / "teacher.jsonl").write_bytes(known + b'{"key": "tor')  # as if it had been killed while writing
    answered = [body["messages"] for body in server.requests[:5]]
    server.requests.clear()
    server.answers["wise"] = telling("<monitor>On.</monitor>")
    asyncio.run(Trainer(recipe, out).train())
    asked = [body["messages"] for body in server.requests]
    assert asked and not [messages for messages in answered if messages in asked]
    entry = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert (entry["teacher_recalled"], entry["teacher_calls"]) == (5, len(asked))
    assert entry["teacher_turns"] == 5 + len(asked) == len((out / "teacher.jsonl").read_text().splitlines())


def test_a_server_that_is_away_ends_the_start_and_the_same_command_goes_on(
    server: Any, policy_folder: Path, tmp_path: Path
) -> None:
    async def failing(body: dict[str, Any], earlier: int) -> Response:
        if earlier >= 3:
            return chat.problem(503, "out of memory")
        return await telling("<monitor>On.</monitor>")(body, earlier)

    server.answers["wise"] = failing
    start = table(server, teacher={"concurrency": 1})
    with pytest.raises(PolicyFailed, match=r"503: out of memory.*\[start.teacher\].*teacher\.jsonl") as caught:
        gathered(start, policy_folder, tmp_path)
    assert caught.value.hint.endswith("the same command goes on from there.")
    assert len(server.requests) == 4  # the first failure was the last call
    server.answers["wise"] = telling("<monitor>On.</monitor>")
    _, metrics = gathered(start, policy_folder, tmp_path)
    assert metrics["teacher_recalled"] == 3


@pytest.mark.parametrize(("policy", "tags"), [("expert", "teacher"), ("teacher", "")])
def test_nobody_listens(policy: str, tags: str, server: Any, policy_folder: Path, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(PolicyFailed, match=f"The teacher gives no answer: No connection to {server.url}"):
        gathered(table(server, policy=policy, tags=tags), policy_folder, tmp_path)


def test_a_prompt_that_the_server_refuses_is_left_to_the_rules(
    server: Any, policy_folder: Path, tmp_path: Path
) -> None:
    async def picky(body: dict[str, Any], earlier: int) -> Response:
        if earlier == 1:
            return chat.problem(400, "this prompt is not liked")
        if earlier == 2:
            return chat.problem(400, "maximum context length", "context_length_exceeded")
        return await telling("<monitor>On.</monitor>")(body, earlier)

    server.answers["picky"] = picky
    _, metrics = gathered(table(server, "picky", teacher={"concurrency": 1}), policy_folder, tmp_path)
    assert (metrics["teacher_stand_ins"], metrics["teacher_refused"]) == (2, 0)
    assert metrics["teacher_turns"] == len(server.requests)


def test_a_teacher_that_never_does_as_told_is_an_error(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    server.says("dull", "I cannot help with that.")
    with pytest.raises(PolicyFailed, match=r"dull wrote no thought that can be used \(at last: no <action> block\)"):
        gathered(table(server, "dull", teacher={"attempts": 1}), policy_folder, tmp_path)


def test_the_key_comes_from_the_environment(
    server: Any, policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["wise"] = telling("<monitor>On.</monitor>")
    start = table(server, teacher={"api_key_env": "TEACHER_KEY"}, episodes=1)
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    with pytest.raises(InvalidRequest, match=r"No API key in TEACHER_KEY.*start\.teacher\.api_key_env"):
        gathered(start, policy_folder, tmp_path)
    monkeypatch.setenv("TEACHER_KEY", "open sesame")
    gathered(start, policy_folder, tmp_path)
    assert set(server.keys) == {"Bearer open sesame"}
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]


def test_a_damaged_file_of_answers_is_named(server: Any, policy_folder: Path, tmp_path: Path) -> None:
    server.answers["wise"] = telling("<monitor>On.</monitor>")
    gathered(table(server), policy_folder, tmp_path)
    file = tmp_path / "run" / "teacher.jsonl"
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    with pytest.raises(RecordError, match=r"Line 1 of .*teacher\.jsonl is damaged"):
        gathered(table(server), policy_folder, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "expert", "tags": "teacher"}, "table .start.teacher. with its base_url and model"),
        ({"policy": "teacher"}, "table .start.teacher. with its base_url and model"),
        ({"policy": "self", "tags": "rules"}, 'set start.policy = "expert"'),
        ({"policy": "expert", "teacher": {"base_url": "http://x/v1", "model": "m"}}, "nobody asks"),
        ({"policy": "teacher", "teacher": {"model": "m"}}, "base_url"),
        ({"policy": "teacher", "teacher": {"base_url": "127.0.0.1:80", "model": "m"}}, "must begin with http://"),
        ({"policy": "teacher", "teacher": {"base_url": "http://x/v1", "model": ""}}, "must name a model"),
        ({"policy": "teacher", "teacher": {"base_url": "http://x", "model": "m", "attempts": 0}}, "attempts"),
        ({"policy": "teacher", "teacher": {"base_url": "http://x", "model": "m", "concurrency": 0}}, "concurrency"),
        ({"policy": "teacher", "teacher": {"base_url": "http://x", "model": "m", "retries": -1}}, "retries"),
    ],
)
def test_settings_that_do_not_fit_say_what_is_right(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(changes, StartTable)


@pytest.mark.parametrize(
    ("grammar", "answer", "written"),
    [
        ("meta-tags", "<Explore> A drawer? </Explore> <ACTION> Go  to desk 1</ACTION>", "<explore>A drawer?</explore>"),
        ("meta-tags-loose", "Sure! <monitor>On.</monitor><action>go to desk 1</action>", "<monitor>On.</monitor>"),
        (
            "meta-tags",
            "<think>A <planning> or a <monitor>?</think><monitor>On.</monitor><action>go to desk 1</action>",
            "<monitor>On.</monitor>",
        ),
        ("think-action", "<think>On.</think><action>go to desk 1</action>", "<think>On.</think>"),
        ("think-action", "<think>Hm.</think><think>On.</think><action>go to desk 1</action>", "<think>On.</think>"),
    ],
)
def test_answers_are_read_leniently_and_written_strictly(grammar: str, answer: str, written: str) -> None:
    assert usable(GRAMMARS[grammar], "Go to desk 1", answer) == (f"{written}<action>Go to desk 1</action>", "")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("", "no <action> block"),
        ("<monitor>On.</monitor>", "no <action> block"),
        ("<action>look</action>", "0 thought blocks instead of one"),
        ("<monitor> </monitor><action>look</action>", "the thought block is empty"),
        ("<monitor>On.</monitor><planning>Or?</planning><action>look</action>", "2 thought blocks instead of one"),
        ("<action>look</action><monitor>On.</monitor>", "the thought comes after the action"),
        ("<monitor>On.</monitor><action>go</action>", "the action is 'go'"),
        ("<monitor>继续</monitor><action>look</action>", "Chinese characters"),
    ],
)
def test_what_is_wrong_with_an_answer(answer: str, complaint: str) -> None:
    assert usable(GRAMMARS["meta-tags"], "look", answer) == (None, complaint)
