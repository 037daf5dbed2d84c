"""Errors: every class crosses the wire and comes back."""

from __future__ import annotations

import json

import pytest

import turngym.errors as errors
from turngym.errors import InvalidRequest, TurngymError, from_problem, nearest

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TurngymError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_round_trip(cls: type[TurngymError]) -> None:
    problem = json.loads(json.dumps(cls("It broke.", hint="Mend it.", session="s1").to_problem()))
    assert {"type", "title", "status", "detail"} <= set(problem)
    back = from_problem(problem)
    assert type(back) is cls
    assert (back.detail, back.hint, back.extra) == ("It broke.", "Mend it.", {"session": "s1"})


def test_codes_are_unique() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


def test_unknown_problems_become_the_base_class() -> None:
    back = from_problem({"title": "Teapot", "status": 418, "not an identifier": 1})
    assert type(back) is TurngymError and back.detail == "Teapot"


def test_a_problem_from_outside_cannot_clash_with_the_arguments() -> None:
    back = from_problem({"code": "INVALID_REQUEST", "detail": "x", "self": 1, "cls": 2})
    assert type(back) is InvalidRequest and back.extra == {"self": 1, "cls": 2}


def test_nearest() -> None:
    assert nearest("sokobn", ["sokoban", "bandit"]).startswith("Did you mean 'sokoban'?")
    assert "bandit" in nearest("zzz", ["bandit"])
    assert issubclass(errors.UnknownEnvironment, InvalidRequest)
