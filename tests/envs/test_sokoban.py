"""Sokoban: rules, rooms, shortest solutions, vocabularies and the stored rooms."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from turngym.envs.sokoban.env import ACTIONS, CELLS, VOCABULARIES, Sokoban
from turngym.envs.sokoban.rooms import SYMBOLS, Settings, fixed_room, generate, room_of, text_of
from turngym.envs.sokoban.solver import solve
from turngym.errors import InvalidRequest, Unsupported

PINNED_TEXT, PINNED_SOLUTION = "######\n#_P###\n##_O##\n#_X_##\n#____#\n######", "DRDDLLURDRU"
TWO_BOXES = "#######\n#P____#\n#_XO__#\n#_XO__#\n#_____#\n#######"
STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep stored rooms of a test in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    room_of.cache_clear()
    return tmp_path / "turngym" / "sokoban"


def started(room: str | list[str] | None = None, **settings: Any) -> Sokoban:
    """Return an environment after ``reset``."""
    env = Sokoban(room=room, **settings)
    env.reset(seed=0)
    return env


def distance(text: str) -> int | None:
    """Return the length of a shortest solution by a plain search over (player, boxes) on the text, or None."""
    rows = text.split("\n")
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    walls = {cell for cell, symbol in cells.items() if symbol == "#"}
    targets = frozenset(cell for cell, symbol in cells.items() if symbol in "O√S")
    boxes = frozenset(cell for cell, symbol in cells.items() if symbol in "X√")
    player = next(cell for cell, symbol in cells.items() if symbol in "PS")
    queue, seen = deque([(player, boxes, 0)]), {(player, boxes)}
    while queue:
        (r, c), boxes, moves = queue.popleft()
        if boxes == targets:
            return moves
        for down, right in STEPS.values():
            cell, beyond = (r + down, c + right), (r + 2 * down, c + 2 * right)
            after = boxes
            if cell in walls or (cell in boxes and (beyond in walls or beyond in boxes)):
                continue
            if cell in boxes:
                after = boxes - {cell} | {beyond}
            if (cell, after) not in seen:
                seen.add((cell, after))
                queue.append((cell, after, moves + 1))
    return None


def python(code: str, **variables: str) -> str:
    """Run ``code`` in a new interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Rules ---------------------------------------------------------------------------------------------


def test_rewards_of_pushing_on_off_and_finishing() -> None:
    env = started(TWO_BOXES)
    seen = [env.step(move) for move in ("Down", "Right", "Right")]
    # Down walks, Right pushes the upper box onto its target, Right pushes it off again.
    assert [round(reward, 9) for _, reward, *_ in seen] == [-0.1, 0.9, -1.1]
    assert seen[1][0].split("\n")[2] == "#_P√__#"
    assert seen[2][0].split("\n")[2] == "#__SX_#"

    env = started(TWO_BOXES)
    results = [env.step(move) for move in ("Down", "Right", "Left", "Down", "Right")]
    assert [round(reward, 9) for _, reward, *_ in results] == [-0.1, 0.9, -0.1, -0.1, 10.9]
    assert [terminated for *_, terminated, _, _ in results] == [False] * 4 + [True]
    assert [info["score"] for *_, info in results] == [0.0, 0.5, 0.5, 0.5, 1.0]
    assert results[-1][4]["won"]
    assert not results[-1][3]


@pytest.mark.parametrize(
    ("room", "move"),
    [
        ("#####\n#_P_#\n#_XO#\n#####", "Up"),
        ("#####\n#_P_#\n#_XO#\n#####", "Down"),
        ("######\n#PXXO#\n#___O#\n######", "Right"),
    ],
    ids=["wall", "box at wall", "box at box"],
)
def test_blocked_moves_cost_a_step_and_change_nothing(room: str, move: str) -> None:
    env = started(room)
    observation, reward, terminated, truncated, info = env.step(move)
    assert (observation, round(reward, 9), terminated, truncated) == (room, -0.1, False, False)
    assert info["action_valid"]
    assert not info["action_effective"]


def test_unknown_moves_are_answered_in_world() -> None:
    env = started(TWO_BOXES)
    observation, reward, _, _, info = env.step("jump\nhigh")
    assert observation == f"Unknown move 'jump high'. Moves: Up, Down, Left, Right.\n{TWO_BOXES}"
    assert (reward, info["action_valid"], info["action_effective"], info["step"]) == (-0.1, False, False, 1)
    assert env.step("  dOwN ")[4]["action_valid"]


def test_joined_actions_stop_at_the_end() -> None:
    env = started(TWO_BOXES)
    _, reward, terminated, _, info = env.step("Down || Right || Left || Down || Right || Up")
    assert (round(reward, 9), terminated, info["steps"]) == (11.5, True, 5)


def test_a_box_that_starts_on_its_target_shows_and_pays_nothing() -> None:
    room = "#######\n#P_√__#\n#_XO__#\n#_____#\n#######"
    env = started(room)
    assert env.step("Down")[1] == -0.1
    assert env.step("Right")[1:3] == (10.9, True)


def test_truncation_is_not_termination() -> None:
    env = started(TWO_BOXES, max_steps=2)
    env.step("Up")
    *_, terminated, truncated, info = env.step("Up")
    assert (terminated, truncated, info["admissible"]) == (False, True, [])


# Rooms and shortest solutions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "boxes", "least", "most", "count"),
    [(6, 1, 4, 60, 60), (6, 1, 1, 3, 30), (8, 2, 8, 60, 12), (6, 3, 12, 60, 12), (5, 3, 4, 60, 12), (7, 4, 16, 20, 3)],
)
def test_rooms_are_closed_and_their_solutions_shortest(
    size: int, boxes: int, least: int, most: int, count: int
) -> None:
    for index in range(count):
        room = generate(Settings(size, boxes, least, most), "train", index)
        text = text_of(room.board, room.start)
        rows = text.split("\n")
        assert len(rows) == size
        assert all(len(row) == size and row[0] == row[-1] == "#" for row in rows)
        assert set(rows[0] + rows[-1]) == {"#"}
        assert text.count("X") == text.count("O") + text.count("S") == boxes
        assert "√" not in text
        assert room.solution is not None
        assert len(room.solution) == distance(text)
        assert least <= len(room.solution) <= most
        assert len(solve(room.board, room.start) or "") == len(room.solution)


def test_default_rooms_are_not_trivial_and_vary() -> None:
    env = Sokoban()
    lengths = [env.reset(options={"task": f"train/{index}"})[1]["shortest"] for index in range(300)]
    assert min(lengths) >= 4
    assert len(set(lengths)) >= 8
    assert len({text_of(*generate(env.settings, "train", index)[:2]) for index in range(300)}) > 250


def test_difficulty_is_selected_by_length() -> None:
    for least, most in ((1, 1), (5, 5), (12, 15), (20, 60)):
        env = Sokoban(min_solution=least, max_solution=most)
        for task in range(10):
            assert least <= env.reset(options={"task": f"test/{task}"})[1]["shortest"] <= most
    assert Sokoban(boxes=2, size=8, max_solution=5).settings[2:] == (5, 5)
    assert Sokoban(min_solution=80).settings[2:] == (80, 80)
    assert Sokoban(boxes=3).settings[2:] == (12, 60)


def test_rooms_do_not_depend_on_the_process(tmp_path: Path) -> None:
    code = (
        "import hashlib\n"
        "from turngym.envs.sokoban.rooms import Settings, generate\n"
        "rooms = [generate(s, split, i) for s in (Settings(6, 1, 4, 60), Settings(8, 2, 8, 60))\n"
        "         for split in ('train', 'validation', 'test') for i in range(20)]\n"
        "print(hashlib.sha256(repr(rooms).encode()).hexdigest())"
    )
    assert python(code, PYTHONHASHSEED="1") == python(code, PYTHONHASHSEED="2")


def test_a_known_room_of_this_generator_version() -> None:
    # If this fails after a change of the generator, raise GENERATOR_VERSION: stored rooms would be out of date.
    room = room_of(Settings(6, 1, 4, 60), "test", 0)
    assert (text_of(room.board, room.start), room.solution) == (PINNED_TEXT, PINNED_SOLUTION)


def test_splits_share_no_room() -> None:
    settings = Settings(5, 1, 1, 60)  # small enough for rooms to come up again and again
    rooms = {
        split: {text_of(*generate(settings, split, index)[:2]) for index in range(count)}
        for split, count in (("train", 1500), ("validation", 256), ("test", 256))
    }
    assert len(rooms["train"]) < 1500
    assert not rooms["train"] & rooms["test"]
    assert not rooms["train"] & rooms["validation"]
    assert not rooms["validation"] & rooms["test"]


def test_lengths_that_rooms_do_not_offer_give_an_error() -> None:
    env = Sokoban(size=5, min_solution=90)
    with pytest.raises(InvalidRequest, match="min_solution"):
        env.reset(seed=0)


# The expert ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"size": 8, "boxes": 2}, {"boxes": 3}, {"size": 10, "boxes": 2}], ids=str)
def test_expert_solves_in_the_fewest_moves(settings: dict[str, int]) -> None:
    env = Sokoban(**settings)
    for task in range(15):
        _, info = env.reset(options={"split": "test", "task": task})
        for action in env.expert():
            *_, last = env.step(action)
        assert last["won"]
        assert last["step"] == last["shortest"] == info["shortest"]


@pytest.mark.parametrize("settings", [{}, {"boxes": 2}], ids=str)
def test_expert_is_right_in_the_middle_of_a_game(settings: dict[str, int]) -> None:
    rng = random.Random(7)
    outcomes = set()
    for task in range(25):
        env = Sokoban(render_mode="ansi", **settings)
        env.reset(options={"task": f"train/{task}"})
        for _ in range(rng.randrange(1, 20)):
            if not env.done:
                env.step(rng.choice(ACTIONS))
        if env.done:
            continue
        left = distance(env.render())
        outcomes.add(left is None)
        if left is None:
            assert env.expert_action() is None
            continue
        moves = 0
        for action in env.expert():
            *_, info = env.step(action)
            moves += 1
        assert info["won"]
        assert moves == left
    assert outcomes == {True, False}


def test_a_lost_room_has_no_expert() -> None:
    env = started("######\n#XP__#\n#___O#\n######")
    assert env.expert_action() is None
    assert env.step("Left")[4]["shortest"] is None
    with pytest.raises(Unsupported):
        next(env.expert())


def test_the_solver_knows_solved_rooms_and_its_limit() -> None:
    room = fixed_room(TWO_BOXES)
    assert room.solution == "DRLDR"
    assert solve(room.board, room.start._replace(boxes=room.board.targets)) == ""
    assert solve(room.board, room.start, limit=0) is None


def test_asking_the_expert_does_not_change_the_game() -> None:
    first, second = started(TWO_BOXES), started(TWO_BOXES)
    for move in ("Right", "Down", "Left"):
        first.expert_action()
        assert first.step(move) == second.step(move)


# Forks, tasks, looks -----------------------------------------------------------------------------------


def test_forks_are_independent() -> None:
    env = Sokoban(size=8, boxes=2, render_mode="ansi")
    env.reset(options={"task": "test/3"})
    env.step(next(env.expert()))
    before = env.render()
    twin = env.fork()
    for action in twin.expert():
        *_, info = twin.step(action)
    assert info["won"]
    assert env.render() == before
    assert not env.done
    for action in env.expert():
        *_, info = env.step(action)
    assert info["won"]


def test_reset_to_another_task_forgets_the_plan() -> None:
    env = Sokoban()
    for task in ("test/1", "test/2", "test/1"):
        env.reset(options={"task": task})
        for action in env.expert():
            *_, info = env.step(action)
        assert info["won"]


def test_infos_are_json_and_name_the_kind_of_task() -> None:
    env = Sokoban()
    for task in range(20):
        _, info = env.reset(options={"split": "validation", "task": task})
        assert json.loads(json.dumps(info)) == info
        low, high = map(int, env.task_type().split()[0].split("-"))
        assert low <= info["shortest"] <= high
    assert started("######\n#XP__#\n#___O#\n######").task_type() == "unknown"


CUSTOM = dict(zip(CELLS, ("[]", "..", "()", "{}", "<>", "me", "ME"), strict=True))


@pytest.mark.parametrize("vocab", ["letters", "spaced", CUSTOM], ids=["letters", "spaced", "custom"])
def test_vocabularies_change_the_looks_and_nothing_else(vocab: str | dict[str, str]) -> None:
    plain, other = Sokoban(boxes=2), Sokoban(boxes=2, vocab=vocab)
    symbols = VOCABULARIES[vocab] if isinstance(vocab, str) else tuple(vocab.values())
    table = str.maketrans(dict(zip(SYMBOLS, symbols, strict=True)))
    for task in range(5):
        options = {"task": f"train/{task}"}
        text, translated = plain.reset(seed=0, options=options)[0], other.reset(seed=0, options=options)[0]
        for action in plain.expert():
            assert translated == text.translate(table)
            text, *result = plain.step(action)
            translated, *same = other.step(action)
            assert result[:3] == same[:3]
        assert translated == text.translate(table)
    for symbol, name in zip(symbols, CELLS[:3], strict=False):
        assert f"{symbol.strip()} {name}" in other.instructions


def test_a_room_in_letters() -> None:
    env = started("#######\n#S_√__#\n#_X___#\n#__O__#\n#_X___#\n#######", vocab="letters", render_mode="ansi")
    assert env.render() == "WWWWWWW\nW@.C..W\nW.B...W\nW..G..W\nW.B...W\nWWWWWWW"


def test_picture_tells_every_kind_of_cell_apart() -> None:
    env = started("#######\n#S_√__#\n#_X_O_#\n#_X___#\n#######", render_mode="rgb_array")
    image = env.render()
    assert image.shape == (5 * 32, 7 * 32, 3)
    env.step("Right")
    kinds = [(image, cell) for cell in ((0, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 4))]  # wall, S, floor, √, X, O
    kinds.append((env.render(), (1, 2)))  # P
    tiles = {shot[32 * r : 32 * r + 32, 32 * c : 32 * c + 32].tobytes() for shot, (r, c) in kinds}
    assert len(tiles) == len(kinds)


# Bad arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"size": 4}, "from 5 to 12"),
        ({"size": 13}, "from 5 to 12"),
        ({"size": 6.0}, "from 5 to 12"),
        ({"boxes": 0}, "from 1 to 4"),
        ({"boxes": True}, "from 1 to 4"),
        ({"boxes": 5}, "from 1 to 4"),
        ({"size": 5, "boxes": 4}, "from 1 to 3"),
        ({"min_solution": 0}, "min_solution"),
        ({"max_solution": "9"}, "max_solution"),
        ({"min_solution": 9, "max_solution": 8}, "under min_solution"),
        ({"min_solution": 101}, "max_steps"),
        ({"vocab": "leters"}, "letters"),
        ({"vocab": {"wall": "#"}}, "player on target"),
        ({"vocab": 3}, "symbol for each"),
        ({"vocab": {**CUSTOM, "wall": "#"}}, "equal length"),
        ({"vocab": {**CUSTOM, "wall": ".."}}, "different"),
        ({"vocab": {**CUSTOM, "wall": "  "}}, "visible"),
        ({"vocab": {**CUSTOM, "wall": "#\n"}}, "newlines"),
        ({"vocab": {**CUSTOM, "wall": 35}}, "symbols"),
        ({"room": 7}, "text or as a list"),
        ({"room": [1, 2]}, "text or as a list"),
        ({"room": ""}, "rectangle"),
        ({"room": "#####\n#PXO#\n####"}, "rectangle"),
        ({"room": "\n".join(["#" * 33] * 33)}, "rectangle"),
        ({"room": "#####\n#p$.#\n#####"}, "symbols"),
        ({"room": "#####\n#PXO_\n#####"}, "border"),
        ({"room": "#####\n#_XO#\n#####"}, "one player"),
        ({"room": "######\n#PPXO#\n######"}, "one player"),
        ({"room": "######\n#PXXO#\n######"}, "as many boxes"),
        ({"room": "####\n#P_#\n####"}, "beside its target"),
        ({"room": "####\n#P√#\n####"}, "beside its target"),
    ],
    ids=repr,
)
def test_bad_arguments_say_what_to_do(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        Sokoban(**settings)


def test_rooms_come_as_text_or_rows() -> None:
    rows = TWO_BOXES.split("\n")
    for room in (rows, TWO_BOXES, f"\n{TWO_BOXES}\n"):
        assert started(room, render_mode="ansi").render() == TWO_BOXES


# Stored rooms -------------------------------------------------------------------------------------------

READ_STORED = """
from turngym.envs.sokoban import rooms
def generate(*_):
    raise SystemExit("made anew")
rooms.generate = generate
print([rooms.room_of(rooms.Settings(6, 1, 4, 60), "test", index) for index in range(20)])
"""


def test_held_out_rooms_are_stored_and_train_rooms_are_not(own_cache: Path) -> None:
    settings = Settings(6, 1, 4, 60)
    room_of(settings, "train", 0)
    assert not own_cache.exists()
    made = [room_of(settings, "test", index) for index in range(20)]
    room_of(settings, "validation", 0)
    assert sorted(path.name for path in own_cache.iterdir()) == [
        "v1-6-1-4-60-test.txt",
        "v1-6-1-4-60-validation.txt",
    ]
    assert python(READ_STORED) == f"{made}\n"


def test_damaged_stored_rooms_are_made_again(own_cache: Path) -> None:
    settings = Settings(6, 1, 4, 60)
    made = [room_of(settings, "test", index) for index in range(20)]
    (file,) = own_cache.iterdir()
    good = file.read_bytes()
    read = READ_STORED.replace("rooms.generate = generate", "")
    swapped, half, odd_index = good.replace(b"P", b"_", 1), good[: len(good) // 2], b"9" * 5000 + b" a b c\n" + good
    for damaged in (b"", b"\x00\xff" * 500, swapped, half, odd_index):
        file.write_bytes(damaged)
        assert python(read) == f"{made}\n"
        assert python(READ_STORED) == f"{made}\n"  # and are whole again on disk


def test_rooms_of_another_set_are_not_taken(own_cache: Path) -> None:
    wrong = room_of(Settings(6, 1, 4, 5), "test", 0)
    (file,) = own_cache.iterdir()
    file.rename(own_cache / "v1-6-1-4-60-test.txt")
    right = room_of(Settings(6, 1, 4, 60), "test", 0)
    assert right == generate(Settings(6, 1, 4, 60), "test", 0) != wrong


@pytest.mark.parametrize("where", ["a file", "relative"])
def test_rooms_do_without_a_cache_folder(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked) if where == "a file" else "cache")
    monkeypatch.setenv("HOME", str(blocked))
    settings = Settings(6, 1, 4, 60)
    assert room_of(settings, "test", 1) == generate(settings, "test", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
