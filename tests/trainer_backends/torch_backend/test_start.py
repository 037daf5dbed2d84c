"""The supervised start: what is imitated is what a policy would have read and written."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch

from turngym.records import Completion, Episode, Turn
from turngym.trainer_backends.recipes import Recipe, StartTable
from turngym.trainer_backends.torch_backend.batch import Sample
from turngym.trainer_backends.torch_backend.learner import Diverged, Learner
from turngym.trainer_backends.torch_backend.start import fine_tune, retold
from turngym.trainer_backends.torch_backend.thoughts import plan_thought

from .conftest import make_model

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
    assert all(reply.startswith("<think>Up Left") and reply.endswith("<action>Up || Left</action>") for reply in told)
    assert 0.4 < sum(pause == 0 for pause in pauses) / len(pauses) < 0.6
    assert max(pauses) > 12 and len(set(pauses)) > 8
    assert plan_thought("no tags", "", random.Random(0)) == "no tags"


@pytest.mark.parametrize("rows", ["turn", "trajectory"])
def test_a_start_can_learn_the_prompts_too(rows: str) -> None:
    # The reply is the same whatever the prompt says: only who learns prompts knows how they go on.
    turns = [
        Turn(0, "", Completion("", prompt_ids=[5, 6, 7, 8], token_ids=[9, 10])),
        Turn(1, "", Completion("", prompt_ids=[5, 6, 7, 8, 9, 10, 11, 12, 13], token_ids=[14])),
    ]
    episodes = [Episode(str(number), "sokoban", "train/0", 0, turns=turns) for number in range(8)]
    data = {"env": {"preset": "compact-frozen-lake"}, "credit": {"id": "grpo"}}
    recipe = msgspec.convert(data, Recipe)
    losses, lefts = [], []
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model = make_model()
        learner = Learner(model, recipe, recipe.parts().loss)
        table = StartTable(epochs=12, batch=4, learning_rate=1e-2, prompts=weight)
        losses.append([each["start_loss"] for each in fine_tune(model, episodes, table, learner, rows, 0)])
        left = learner.run([Sample(ids=[5, 6, 7, 8], places=[1, 2, 3])]).logprobs_BT
        lefts.append(-float(left.detach().mean()))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)  # what is told is the replies' loss
    assert losses[0][-1] < 0.5 * losses[0][0] and losses[1][-1] < 0.5 * losses[1][0]
    assert lefts[1] < 0.6 * lefts[0]


def test_a_start_that_diverges_says_so_and_keeps_its_weights() -> None:
    turns = [Turn(0, "", Completion("", prompt_ids=[5, 6], token_ids=[9, 10]))]
    recipe = msgspec.convert({"env": {"preset": "compact-frozen-lake"}, "credit": {"id": "grpo"}}, Recipe)
    model = make_model()
    learner = Learner(model, recipe, recipe.parts().loss)
    run = learner.run

    def poisoned(*args: Any) -> Any:
        passed = run(*args)
        passed.logprobs_BT = passed.logprobs_BT * torch.nan
        return passed

    learner.run = poisoned  # type: ignore[method-assign]
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(Diverged, match=r"nan in update 1.*") as caught:
        list(fine_tune(model, [Episode("e", "sokoban", "train/0", 0, turns=turns)], StartTable(), learner, "turn", 0))
    assert "start.learning_rate" in caught.value.hint
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
