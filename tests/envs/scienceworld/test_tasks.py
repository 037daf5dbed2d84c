"""The thirty tasks, RLVMR's splits, and what is refused."""

from __future__ import annotations

import pytest

from turngym.envs.scienceworld.tasks import BY_NUMBER, HELD_OUT, TASKS, named, simplified, splits
from turngym.errors import InvalidRequest


def sizes(*tasks: int) -> dict[str, int]:
    return {name: len(table) for name, table in splits(named(tasks or None)).items()}


def test_sizes() -> None:
    whole = {"train": 3592, "validation": 1796, "test": 1819, "L0": 1796, "L1": 1819, "L2": 549, "train_L2": 2512}
    assert sizes() == whole and sum(task.variations for task in TASKS) == 3592 + 1796 + 1819


def test_without_the_last_task_the_sizes_are_those_that_rlvmr_reports() -> None:
    got = sizes(*range(29))
    assert (got["train"], got["L0"], got["L1"], got["train_L2"], got["L2"]) == (3322, 1661, 1684, 2242, 549)


def test_one_task_of_each_topic_is_held_out() -> None:
    topics = [task.id.partition("-")[0] for task in TASKS if task.name in HELD_OUT]
    assert sorted(topics, key=int) == [str(topic) for topic in range(1, 11)]
    assert {task.name for task, _ in splits(BY_NUMBER)["L2"]} == HELD_OUT
    assert not {task.name for task, _ in splits(BY_NUMBER)["train_L2"]} & HELD_OUT


def test_no_variation_is_in_two_parts_and_any_first_few_are_of_all_kinds() -> None:
    table = splits(BY_NUMBER)
    parts = [set(table[name]) for name in ("train", "validation", "test")]
    assert len(set.union(*parts)) == sum(len(table[name]) for name in ("train", "validation", "test")) == 7207
    assert [task for task, _ in table["test"][:30]] == list(BY_NUMBER)


def test_tasks_are_named_in_three_ways() -> None:
    assert named(["boil", "4-2", 29]) == (TASKS[0], TASKS[12], TASKS[4])
    assert sizes(1) == {"train": 14, "validation": 7, "test": 9, "L0": 7, "L1": 9, "L2": 9}
    for wrong in ("boil", [], ["boi"], [30], [True], [None], 3):
        with pytest.raises(InvalidRequest, match="boil"):
            named(wrong)


def test_simplifications() -> None:
    assert simplified("", TASKS) == "" == simplified([], TASKS)
    assert simplified(["openDoors", "easy"], TASKS) == "easy"
    assert simplified("openDoors,teleportAction", TASKS) == "openDoors,teleportAction"
    assert simplified(["noElectricalAction"], named(["boil"])) == "noElectricalAction"
    with pytest.raises(InvalidRequest, match=r'power-component cannot be done.*"easy"'):
        simplified("noElectricalAction", named(["boil", "power-component"]))
    with pytest.raises(InvalidRequest, match="openDoors"):
        simplified("opendoor", TASKS)
    with pytest.raises(InvalidRequest, match="simplifications is 3"):
        simplified(3, TASKS)
