"""The supervised start: what is imitated is what a policy would have read and written."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.records import Completion, Episode, Turn
from turngym.trainer_backends.torch_backend.start import retold
from turngym.trainer_backends.torch_backend.thoughts import plan_thought

PLAIN = "<think>Next step.</think><action>{}</action>"


def chat(actions: list[str]) -> Episode:
    """An episode whose prompts are the conversation so far."""
    turns, messages = [], []
    for index, action in enumerate(actions):
        messages = [*messages, {"role": "user", "content": f"room {index}"}]
        turns.append(Turn(index, f"room {index}", Completion(PLAIN.format(action)), prompt=messages))
        messages = [*messages, {"role": "assistant", "content": PLAIN.format(action)}]
    return Episode("e", "sokoban", "train/0", 0, turns=turns)


def test_later_prompts_hold_the_replies_as_they_were_retold() -> None:
    told = retold(chat(["Up", "Left", "Down"]), plan_thought, 5)
    replies = [turn.completion.text for turn in told.turns]
    assert replies[1].endswith("<action>Left</action>")
    for number, turn in enumerate(told.turns):
        assert turn.prompt is not None
        assert [each["content"] for each in turn.prompt if each["role"] == "assistant"] == replies[:number]
        assert [each["content"] for each in turn.prompt if each["role"] == "user"] == [
            f"room {index}" for index in range(number + 1)
        ]


def test_pauses_vary_and_the_action_stays() -> None:
    told = [plan_thought(PLAIN.format("Up || Left"), "", random.Random(seed)) for seed in range(400)]
    pauses = [reply.count(" .") for reply in told]
    assert all(reply.startswith("<think>Up Left") and reply.endswith("</think><action>Up</action>") for reply in told)
    assert 0.4 < sum(pause == 0 for pause in pauses) / len(pauses) < 0.6
    assert max(pauses) > 12 and len(set(pauses)) > 8
    assert plan_thought("no tags", "", random.Random(0)) == "no tags"
