"""ALFWorld's games, official and procedural, through the environment; needs the user's data."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from turngym.envs.alfworld.data import TASK_TYPES, open_splits, save_game, texts_of
from turngym.envs.alfworld.env import ALFWorld, _source
from turngym.envs.alfworld.household import ROOMS
from turngym.envs.registry import unmet
from turngym.errors import DataMissing, GameError, InvalidRequest

FOLDER = Path(os.environ.get("TURNGYM_DATA") or "/nonexistent") / "alfworld"
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason="data: set TURNGYM_DATA to the folder that holds alfworld/")
GAMES = ("official", "procedural")


@pytest.fixture(autouse=True)
def only_named_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no copy of the user's own be found by accident."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ALFWORLD_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def made(games: str, **more: object) -> ALFWorld:
    return ALFWorld(games=games, data=str(FOLDER), **more)  # type: ignore[arg-type]


def some_game(kind: str, split: str = "valid_unseen") -> str:
    folder_split = open_splits(FOLDER)[split]
    return f"{split}/{next(i for i, name in enumerate(folder_split.ids) if name.startswith(kind))}"


@needs_data
@pytest.mark.parametrize("games", GAMES)
def test_walkthroughs_win_and_say_the_kind(games: str) -> None:
    env = made(games)
    kinds = set()
    for index in range(40):
        observation, info = env.reset(seed=0, options={"task": f"test/{index}"})
        assert "Your task is to: " in observation and info["task_type"] == env.task_type() in TASK_TYPES
        assert info["game"].startswith(env.task_type())
        assert env.instructions.endswith(observation.rpartition("\n")[2])
        kinds.add(env.task_type())
        assert not info["won"]
        for number, action in enumerate(env.walkthrough, start=1):
            _, reward, terminated, _, info = env.step(action)
            assert info["action_valid"]
            assert (reward, terminated) == (float(number == len(env.walkthrough)),) * 2
    assert kinds == set(TASK_TYPES)


@needs_data
@pytest.mark.parametrize("games", GAMES)
def test_the_expert_recovers_from_what_others_did(games: str) -> None:
    env = made(games, max_steps=100)
    draw = random.Random(5)
    wins = 0
    for index in range(40):
        _, info = env.reset(seed=0, options={"task": f"test/{index}"})
        for _ in range(12):
            if not env.done:
                *_, info = env.step(draw.choice([*info["admissible"], "dance"]))
        for action in env.expert():
            *_, info = env.step(action)
            assert info["action_valid"]
        wins += env._won()
    assert wins >= 38  # a roll of paper towels, once taken, fits nowhere in some official games


@needs_data
def test_the_expert_knows_nothing_hidden() -> None:
    """Where two games have read the same so far, it does the same, whatever else is different in them."""
    env = made("procedural")
    env.reset(seed=0, options={"task": "test/0"})
    action = env.expert_action()
    other = made("official").fork()
    other.reset(seed=0, options={"task": some_game("pick_clean")})
    other._state = other._state._replace(history=env._state.history, commands=env._state.commands)
    assert other.expert_action() == action


@needs_data
def test_nonsense_changes_nothing() -> None:
    env = made("official")
    _, first = env.reset(seed=0, options={"task": "test/5"})
    for action in ("", "LOOK", "look around", "go to nowhere 9", "take", "examine", "{r}", "go to cabinet 1 2"):
        observation, reward, terminated, _, info = env.step(action)
        assert observation == "Nothing happens." and not info["action_valid"] and not info["action_effective"]
        assert (reward, terminated) == (0.0, False) and info["admissible"] == first["admissible"]
    *_, info = env.step("  look ")
    assert info["action_valid"] and not info["action_effective"]


@needs_data
def test_splits_of_the_official_games() -> None:
    env = made("official")
    sizes = env.splits
    assert sizes["test"] == sizes["valid_unseen"] == sizes["L1"] and sizes["validation"] == sizes["valid_seen"]
    assert env.reset(options={"task": "test/7"})[1]["game"] == env.reset(options={"task": "valid_unseen/7"})[1]["game"]
    kinds = [env.reset(options={"task": task})[1]["task_type"] for task in env.tasks("valid_seen")[:30]]
    assert set(kinds) == set(TASK_TYPES)  # the order of the tasks mixes the types
    held = {env.reset(options={"task": task})[1]["task_type"] for task in env.tasks("L2")}
    assert held == {"pick_cool_then_place_in_recep", "pick_two_obj_and_place"}
    assert {env.reset(options={"task": task})[1]["task_type"] for task in env.tasks("train_L2")[:200]}.isdisjoint(held)


@needs_data
def test_some_task_types_only() -> None:
    for games in GAMES:
        env = made(games, task_types=["look_at_obj_in_light"])
        kinds = {env.reset(options={"task": task})[1]["task_type"] for task in env.tasks("test")[:10]}
        assert kinds == {"look_at_obj_in_light"}
    for wrong in ("look_at_obj_in_light", [], ["look"], 3):
        with pytest.raises(InvalidRequest, match="task"):
            made("official", task_types=wrong)
    with pytest.raises(InvalidRequest, match="procedural"):
        made("procedurally")


@needs_data
def test_procedural_scenes_and_types_are_held_out() -> None:
    env = made("procedural")
    scenes: dict[str, set[int]] = {}
    for split in ("train", "L0", "validation", "test", "L1", "L2", "train_L2"):
        infos = [env.reset(options={"task": task})[1] for task in env.tasks(split)[:60]]
        scenes[split] = {int(info["game"].partition("/")[0].rpartition("-")[2]) for info in infos}
        cool_or_two = {info["task_type"] for info in infos} & {
            "pick_cool_then_place_in_recep",
            "pick_two_obj_and_place",
        }
        assert bool(cool_or_two) == (split != "train_L2")
        assert len({info["game"] for info in infos}) == len(infos)
    seen = scenes["train"] | scenes["L0"] | scenes["validation"] | scenes["train_L2"]
    assert seen.isdisjoint(scenes["test"] | scenes["L1"] | scenes["L2"])
    assert all(seen & set(numbers) for numbers in ROOMS.values())


@needs_data
@pytest.mark.parametrize("games", GAMES)
def test_the_folder_layout_gives_the_same(games: str, tmp_path: Path) -> None:
    source = made(games)
    texts = {}
    for index in range(6):
        observation, info = source.reset(seed=0, options={"task": f"test/{index}"})
        save_game(source.game_file(), tmp_path / "json_2.1.1" / "valid_unseen")
        texts[info["game"]] = (observation, info["admissible"])
    env = ALFWorld(games="official", data=str(tmp_path))
    assert env.splits["valid_unseen"] == 6 and "train" not in env.splits
    found = [env.reset(seed=0, options={"task": task}) for task in env.tasks("test")]
    assert {info["game"]: (text, info["admissible"]) for text, info in found} == texts
    assert texts_of(tmp_path)[0] == texts_of(FOLDER)[0]


@needs_data
def test_sessions_are_small_and_forks_share() -> None:
    env = made("official")
    env.reset(seed=0, options={"task": "test/3"})
    tracemalloc.start()
    sessions = [made("official") for _ in range(10)]
    for number, session in enumerate(sessions):
        session.reset(seed=0, options={"task": f"train/{number * 11}"})
        for action in session.expert():
            session.step(action)
    size = tracemalloc.get_traced_memory()[0] / len(sessions)
    forks = [env.fork() for _ in range(100)]
    forks_size = (tracemalloc.get_traced_memory()[0] - size * len(sessions)) / len(forks)
    tracemalloc.stop()
    assert size < 200_000 and forks_size < 5_000


def test_no_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TURNGYM_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _source.cache_clear()
    with pytest.raises(DataMissing, match="turngym data fetch alfworld-texts"):
        ALFWorld()
    assert isinstance(unmet("alfworld"), DataMissing)
    with pytest.raises(DataMissing, match="turngym data fetch alfworld,"):
        ALFWorld(games="official")
    with pytest.raises(DataMissing, match="json_2"):
        ALFWorld(data=str(tmp_path))


@needs_data
def test_the_texts_of_the_package_suffice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site" / "alfworld"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the texts are read, the package is not imported')")
    for name, text in zip(("alfred.pddl", "alfred.twl2"), texts_of(FOLDER), strict=True):
        (package / "data" / name).write_text(text)
    monkeypatch.delenv("TURNGYM_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.syspath_prepend(str(package.parent))
    _source.cache_clear()
    env = ALFWorld()
    assert env.reset(seed=0, options={"task": "test/2"}) == made("procedural").reset(seed=0, options={"task": "test/2"})
    _source.cache_clear()


@needs_data
def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    domain, grammar = texts_of(FOLDER)
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "a.pddl").write_text(domain)
    (packed / "a.twl2").write_text(grammar)
    whole = gzip.compress(json.dumps({"id": "x/y", "task": "t", "pddl_problem": "(define"}).encode() + b"\n")
    for content, message in (
        (whole[:30], "damaged"),
        (gzip.compress(b"[]\n"), "damaged"),
        (gzip.compress(b"{}\n"), "lacks"),
    ):
        (packed / "train.jsonl.gz").write_bytes(content)
        with pytest.raises(GameError, match=message):
            ALFWorld(games="official", data=str(packed))
    (packed / "train.jsonl.gz").write_bytes(whole)
    with pytest.raises(GameError, match="cut off"):
        ALFWorld(games="official", data=str(packed)).reset(options={"task": "train/0"})
    single = tmp_path / "single" / "train" / "task" / "trial"
    single.mkdir(parents=True)
    (single / "game.tw-pddl").write_text("{}")
    with pytest.raises(GameError, match="lacks"):
        ALFWorld(games="official", data=str(tmp_path / "single")).reset(options={"task": "train/0"})


@needs_data
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in FOLDER.iterdir():
        if path.suffix in (".pddl", ".twl2") or path.name == "valid_seen.jsonl.gz":
            (copy / path.name).write_bytes(path.read_bytes())
    env = ALFWorld(games="official", data=str(copy))
    expected = made("official").reset(seed=0, options={"task": "valid_seen/9"})[0]
    assert env.reset(seed=0, options={"task": "valid_seen/9"})[0] == expected
