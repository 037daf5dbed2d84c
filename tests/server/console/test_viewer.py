"""The episode viewer in a browser: files, filters, turns, damage, and text that tries to become code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turngym.records import Completion, Episode, EpisodeWriter, Turn, encode_episode

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]

HEADER = '{"schema": "turngym.episodes", "version": 1}\n'
HOSTILE = [
    "<script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "<svg onload='window.attacked = 1'></svg>",
    "javascript:window.attacked=1",
    "\"><iframe srcdoc='<script>parent.attacked = 1</script>'></iframe>",
    "</pre></textarea></title><script>window.attacked = 1</script>",
    "{{constructor.constructor('window.attacked = 1')()}}",
]


def turn(index: int, **fields: Any) -> Turn:
    values: dict[str, Any] = {
        "observation": f"room {index}",
        "completion": Completion(f"<think>step {index}</think><action>go {index}</action>"),
        "action": f"go {index}",
        "reward": -0.1,
        "rewards": {"env": -0.1},
        "format_valid": True,
    }
    return Turn(index, **{**values, **fields})


def episode(name: str, **fields: Any) -> Episode:
    values: dict[str, Any] = {"env": "sokoban", "task": "test/0", "seed": 1, "status": "terminated", "turns": [turn(0)]}
    return Episode(name, **{**values, **fields})


@pytest.fixture
def load(console: Any, tmp_path: Path) -> Any:
    """Write episodes to a file and open it in the viewer."""

    def opened(episodes: list[Episode], name: str = "episodes.jsonl") -> None:
        with EpisodeWriter(tmp_path / name) as writer:
            for each in episodes:
                writer.write(each)
        open_file(console, tmp_path / name)

    return opened


def open_file(console: Any, path: Path) -> None:
    console.go("/episodes")
    console.find("#episodes-file").send_keys(str(path))


def test_a_turn_is_shown_with_all_its_parts(console: Any, load: Any) -> None:
    first = turn(
        0, rewards={"env": -0.1, "meta-reasoning": 0.5}, reward=0.4, revised=["meta-reasoning"], tag="planning"
    )
    second = turn(1, action="", action_valid=False, format_valid=False, void=True, steps=1)
    played = episode(
        "a",
        turns=[first, second, turn(2, completion=Completion("go", finish_reason="length", completion_tokens=9))],
        final_observation="the end",
        won=True,
        reward=0.2,
        policy="expert",
    )
    load([played])
    body = console.find(".turn")
    assert "room 0" in body.text
    assert "step 0" in console.text(".completion")
    assert console.text(".action") == "go 0"
    assert "planning" in body.text
    revised = console.text(".rewards .revised")
    assert "meta-reasoning" in revised
    assert "revised" in revised
    assert "+0.5" in revised
    assert "revised" not in console.text(".rewards tr:not(.revised)")
    console.click("button", "Next")
    assert "invalid action" in console.text(".turn")
    assert "malformed" in console.text(".turn")
    assert "void turn" in console.text(".turn")
    console.keys("\ue014")  # arrow right
    assert "length" in console.text(".turn")
    assert "9 reply" in console.text(".turn")
    console.keys("\ue014")
    assert "the end" in console.text(".turn")
    console.keys("\ue012", "\ue012")  # arrow left
    assert "Turn 2 of 3" in console.text(".turn")


def test_filters_and_keys_choose_episodes(console: Any, load: Any) -> None:
    load(
        [
            episode("a", won=True, policy="expert"),
            episode("b", env="bandit", policy="random"),
            episode("c", status="truncated", policy="random", task="test/77"),
            episode("d", status="failed", error={"detail": "The model fell silent.", "hint": "Wake it."}),
        ]
    )
    console.find(".episode-row")
    assert len(console.all(".episode-row")) == 4
    assert "25.0 % won" in console.text(".side")
    for name, value, count in (
        ("policy", "random", 2),
        ("won", "yes", 1),
        ("status", "failed", 1),
        ("env", "bandit", 1),
    ):
        console.choose(f"select[name={name}]", value)
        assert len(console.all(".episode-row")) == count, name
        console.choose(f"select[name={name}]", "")
    console.fill("input[name=text]", "77")
    assert "test/77" in console.text(".episode-row")
    console.fill("input[name=text]", "nothing like it")
    assert "None of 4 episodes" in console.text(".side")
    console.find("input[name=text]").clear()
    console.fill("input[name=text]", "test")
    console.click("h1")
    console.driver.execute_script("document.activeElement.blur()")
    console.keys("n", "n", "n")
    assert "The model fell silent." in console.text(".episode")
    assert "Wake it." in console.text(".episode")
    console.keys("p")
    assert "truncated" in console.text(".episode header")


def test_absent_fields_mean_their_defaults(console: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.write_bytes(
        HEADER.encode() + encode_episode(Episode("a", "bandit", "train/5", 0, turns=[turn(0, rewards={})]))
    )
    open_file(console, path)
    detail = console.find(".episode").text
    assert "bandit train/5" in detail
    assert "running" in detail
    assert "valid action" in detail
    assert "invalid action" not in detail


@pytest.mark.parametrize("struct", [Episode, Turn, Completion])
def test_the_schema_is_that_of_the_records(console: Any, struct: type[msgspec.Struct]) -> None:
    script = "const done = arguments[1]; import('/console/records.js').then((m) => done(m.SCHEMAS[arguments[0]]))"
    known = console.driver.execute_async_script(script, struct.__name__)
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    # What only training needs is left out of the browser's memory.
    left_out = {"prompt_ids", "token_ids", "logprobs", "entropies", "certainty", "forced"}
    assert set(known) == set(fields) - (left_out if struct is Completion else set())
    for name, (_, *default) in known.items():
        field = fields[name]
        assert (default == []) is field.required, name
        if default:
            made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            assert default == [made], name


def test_damaged_lines_are_named_and_the_rest_is_kept(console: Any, tmp_path: Path) -> None:
    good = encode_episode(episode("good")).decode()
    lines = [good, '{"id": "torn", "env": "sok', json.dumps({"id": "x", "env": 3}), good.replace("good", "also good")]
    path = tmp_path / "torn.jsonl"
    path.write_text(HEADER + "\n".join(lines) + "\n" + good[:40])
    open_file(console, path)
    console.click("details.problem summary", "3 damaged lines left out")
    problem = console.text("details.problem")
    assert "line 3" in problem
    assert "line 4: episode.env is number, expected string" in problem
    assert "line 6" in problem
    assert len(console.all(".episode-row")) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "empty.jsonl is empty"),
        ("other.jsonl", b'{"schema": "other", "version": 1}\n', 'schema "other"'),
        ("future.jsonl", b'{"schema": "turngym.episodes", "version": 99}\n', "schema version 99"),
        ("text.jsonl", b"hello\n", "not a turngym records file"),
        ("binary.jsonl", bytes(range(256)), "not a turngym records file"),
        ("packed.jsonl", b"\x28\xb5\x2f\xfd....", "zstd -d packed.jsonl"),
    ],
)
def test_other_files_are_refused_with_advice(
    console: Any, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    open_file(console, path)
    assert message in console.find(".problem").text
    assert console.all(".episode-row") == []


def test_text_of_a_file_never_becomes_markup_or_code(console: Any, load: Any) -> None:
    console.driver.execute_script("window.attacked = 0")
    hostile = []
    for number, text in enumerate(HOSTILE):
        bad = turn(
            0,
            observation=text,
            completion=Completion(text, finish_reason=text),
            action=text,
            tag=text,
            rewards={text: 1.0, "__proto__": 1.0},
            revised=[text],
            prompt=[{"role": text, "content": text}],
            info={text: text, "constructor": text},
        )
        hostile.append(
            episode(
                f"{text}{number}",
                env=text,
                task=text,
                policy=text,
                group=text,
                task_type=text,
                split=text,
                config={text: text},
                style={text: text},
                metrics={text: 1.0},
                status="failed",
                error={"detail": text, "hint": text, "code": text, "status": 1},
                final_observation=text,
                turns=[bad],
            )
        )
    load(hostile, name="<img src=x onerror=alert(1)>.jsonl")
    console.find(".episode-row")
    for _ in HOSTILE:
        for summary in console.all(".episode details:not([open]) > summary"):
            summary.click()
        shown = console.find(".completion").text
        assert shown in HOSTILE
        assert console.text(".action") == shown
        assert shown in console.text(".message pre")
        console.keys("\ue014")
        assert shown in console.text(".turn .observation")
        console.keys("\ue012", "n")
    made = console.driver.execute_script(
        "return [window.attacked, document.querySelectorAll('main img, main script, main iframe, main svg').length,"
        " ({}).polluted === undefined, [...document.querySelectorAll('main a')].map((a) => a.protocol)]"
    )
    assert made == [0, 0, True, []]


def test_a_dropped_file_opens(console: Any, tmp_path: Path) -> None:
    console.go("/episodes")
    console.find(".drop")
    line = encode_episode(episode("dropped")).decode()
    console.driver.execute_script(
        """
        const transfer = new DataTransfer();
        transfer.items.add(new File([arguments[0]], "dropped.jsonl"));
        const event = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
        document.querySelector(".drop").dispatchEvent(event);
        """,
        HEADER + line,
    )
    assert "sokoban test/0" in console.find(".episode-row").text
    assert "dropped.jsonl" in console.text(".drop")


def test_long_lists_come_in_pages(console: Any, load: Any, tmp_path: Path) -> None:
    line = encode_episode(episode("many", task="test/1"))
    path = tmp_path / "many.jsonl"
    path.write_bytes(HEADER.encode() + b"\n".join([line] * 450))
    open_file(console, path)
    console.find(".episode-list > button")
    assert len(console.all(".episode-row")) == 200
    console.click(".episode-list > button", "Show 200 more")
    console.click(".episode-list > button", "Show 50 more")
    assert len(console.all(".episode-row")) == 450
