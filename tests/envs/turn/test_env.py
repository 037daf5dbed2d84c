"""TurnEnv: prompts, memory, invalid replies, limits, hooks that rewrite, forks."""

from __future__ import annotations

import pytest

from turngym import TurnEnv, make
from turngym.errors import EpisodeOver, InvalidRequest, NotReset
from turngym.records import Completion

START = {"task": "test/3"}


def lake(**options: object) -> TurnEnv:
    env = make("frozen-lake", slippery=False, max_actions_per_step=3)
    return TurnEnv(env, **options)  # type: ignore[arg-type]


def test_the_prompt_has_rules_state_and_admissible_actions() -> None:
    env = lake(style="think-action")
    messages, info = env.reset(seed=0, options=START)
    (message,) = messages
    assert message["role"] == "user"
    for part in (env.instructions, info["observation"], "[Left, Down, Right, Up]", "<action>", "||"):
        assert part in message["content"]
    assert messages in env.observation_space


def test_the_window_shows_the_last_turns_only() -> None:
    env = lake(style="think-action", memory=2)
    env.reset(seed=0, options=START)
    for move in ("Left", "Left", "Right", "Left"):
        messages, *_ = env.step(env.wrap(move))
    text = messages[0]["content"]
    assert "taken 4 step(s)" in text and "Action 4: 'left'" in text and "Action 3: 'right'" in text
    assert "Action 2" not in text and "step 5" in text


def test_memory_zero_and_all() -> None:
    for memory, shown in ((0, 0), (-1, 3)):
        env = lake(style="think-action", memory=memory)
        env.reset(seed=0, options=START)
        for move in ("Left", "Left", "Right"):
            messages, *_ = env.step(env.wrap(move))
        assert messages[0]["content"].count("[Observation ") == shown


def test_the_plan_is_fed_back() -> None:
    env = lake(style="meta-tags")
    env.reset(seed=0, options=START)
    env.step("<planning>1. west 2. south</planning><action>left</action>")
    messages, *_ = env.step("<monitor>ok</monitor><action>right</action>")
    assert "Your plan so far: 1. west 2. south" in messages[0]["content"]


def test_chat_keeps_the_conversation_as_it_was() -> None:
    env = lake(style="think-answer")
    first, _ = env.reset(seed=0, options=START)
    reply = "<think>hm</think><answer>Left || Left</answer>"
    second, *_ = env.step(reply)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": reply}
    assert second[-1]["content"].startswith("Reward: 0\n\nTurn 2")
    assert "98 action(s) left" in second[-1]["content"]
    third, *_ = env.step(env.wrap("Up"))
    assert third[: len(second)] == second


def test_chat_with_a_short_memory_still_has_the_rules() -> None:
    env = lake(style="think-answer", memory=1)
    env.reset(seed=0, options=START)
    for move in ("Left", "Right", "Left"):
        messages, *_ = env.step(env.wrap(move))
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert env.instructions in messages[1]["content"] and "Turn 3" in messages[1]["content"]


def test_a_tagless_reply_is_an_invalid_action() -> None:
    env = lake(style="think-action", hooks={"format-penalty": {"penalty": 0.25}, "void-turn": {"penalty": 1}})
    env.reset(seed=0, options=START)
    _, reward, _, _, info = env.step("I would rather go left.")
    assert (info["action"], info["action_valid"], info["format_valid"], info["void"]) == ("", False, False, True)
    assert reward == -1.25 and info["rewards"] == {"env": 0.0, "format-penalty": -0.25, "void-turn": -1.0}
    assert info["parse_error"] == "no <action> block"


def test_relaxed_strict_and_released() -> None:
    reply = "Left it is: <action>left</action>"
    for options, action, valid in (
        ({}, "left", True),
        ({"strict": True}, "", False),
    ):
        env = lake(style="think-action", **options)
        env.reset(seed=0, options=START)
        info = env.step(reply)[4]
        assert (info["action"], info["action_valid"], info["format_valid"]) == (action, valid, False)
    env = lake(style="think-action", variant="released")
    env.reset(seed=0, options=START)
    assert env.step("Left")[4]["action"] == "Left"


def test_max_turns_truncates() -> None:
    env = lake(style="think-action", max_turns=2)
    env.reset(seed=0, options=START)
    assert not env.step(env.wrap("Left"))[3]
    _, _, terminated, truncated, info = env.step(env.wrap("Left"))
    assert truncated and not terminated and info["admissible"] == []
    with pytest.raises(EpisodeOver):
        env.step("<think>on</think><action>left</action>")


def test_planning_is_rewarded_at_the_end_and_the_rewrite_is_visible() -> None:
    env = lake(style="meta-tags", hooks={"meta-reasoning": {"plan": 0.5, "gamma": 0.5}})
    env.reset(seed=0, options=START)
    rewards = []
    for reply in env.expert():
        info = env.step(reply.replace("monitor", "planning"))[4]
        rewards.append(env.turns[-1].reward)
        if not env.done:
            assert info["revised"] == {} and info["rewards"]["meta-reasoning"] == 0.0
    last = len(env.turns) - 1
    assert last >= 1
    assert info["rewards"]["meta-reasoning"] == 0.5
    assert info["revised"] == {str(i): {"meta-reasoning": 0.5 * 0.5 ** (last - i)} for i in range(last)}
    assert env.turns[0].revised == ["meta-reasoning"]
    assert env.turns[0].reward == sum(env.turns[0].rewards.values()) > 0


def test_the_expert_joins_actions_where_nothing_is_random() -> None:
    env = TurnEnv(make("sokoban-large", max_actions_per_step=4), style="think-answer")
    shortest = env.reset(seed=0, options={"task": "test/5"})[1]["shortest"]
    for reply in env.expert():
        info = env.step(reply)[4]
    assert info["won"] and info["step"] == shortest and info["turn"] == -(-shortest // 4)
    lake_env = lake(style="think-answer")
    lake_env.reset(seed=0, options=START)
    assert "||" not in str(lake_env.expert_action())


def test_forks_do_not_share_turns() -> None:
    env = lake(style="meta-tags", hooks={"meta-reasoning": {}})
    env.reset(seed=0, options=START)
    env.step("<planning>go</planning><action>left</action>")
    twin = env.fork()
    for reply in twin.expert():
        twin.step(reply)
    assert twin.turns[0].rewards["meta-reasoning"] == 1.0
    assert env.turns[0].rewards["meta-reasoning"] == 0.0 and len(env.turns) == 1
    assert env.prompt() != twin.prompt()


def test_token_data_stays_in_the_turn() -> None:
    env = lake(style="think-action")
    env.reset(seed=0, options=START)
    completion = Completion(env.wrap("Left"), token_ids=[5, 6], logprobs=[-0.1, -0.2], policy_version=3)
    env.step(completion)
    assert env.turns[0].completion is completion


def test_a_turn_knows_the_states_around_it_and_its_steps() -> None:
    env = lake(style="think-answer")
    _, info = env.reset(seed=0, options=START)
    before = info["anchor"]
    info = env.step(env.wrap("Left || Up || Up"))[4]
    turn = env.turns[0]
    assert (turn.anchor, turn.next_anchor, turn.steps) == (before, info["anchor"], 3)
    assert turn.anchor != turn.next_anchor


def test_the_chat_tells_the_reward_of_the_environment() -> None:
    env = TurnEnv(make("sokoban"), style="think-answer", hooks={"format-penalty": {}})
    env.reset(seed=0, options=START)
    messages, reward, *_ = env.step("<answer>Up</answer>")
    assert reward == pytest.approx(-0.2)
    assert messages[-1]["content"].startswith("Reward: -0.1\n")


def test_a_new_episode_has_no_plan_yet() -> None:
    env = lake(style="meta-tags")
    for _ in range(2):
        env.reset(seed=0, options=START)
        messages, *_ = env.step("<monitor>ok</monitor><action>left</action>")
        assert "Your plan so far: none yet" in messages[0]["content"]
        env.step("<planning>1. west</planning><action>left</action>")


def test_a_lost_episode_pays_no_plan() -> None:
    env = lake(style="meta-tags", max_turns=2, hooks={"meta-reasoning": {}})
    env.reset(seed=0, options=START)
    for _ in range(2):
        info = env.step("<planning>1. west</planning><action>left</action>")[4]
    assert env.done and not info["won"] and info["revised"] == {}
    assert [turn.rewards["meta-reasoning"] for turn in env.turns] == [0.0, 0.0]


def test_an_invalid_action_costs_its_penalty() -> None:
    env = lake(style="think-action", hooks={"invalid-action-penalty": {"penalty": 0.5}})
    env.reset(seed=0, options=START)
    assert env.step(env.wrap("fly"))[1] == -0.5
    assert env.step(env.wrap("left"))[1] == 0.0


def test_long_lists_of_actions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake(style="think-action")
    monkeypatch.setattr(env.env, "_admissible", lambda: [f"go {number}" for number in range(250)])
    messages, info = env.reset(seed=0, options=START)
    assert len(info["admissible"]) == 250
    assert "go 199, and 50 more]" in messages[0]["content"]


def test_bad_settings_name_the_nearest() -> None:
    for options, match in (
        ({"style": "think-actions"}, "'think-action'"),
        ({"hooks": {"format-penality": {}}}, "'format-penalty'"),
        ({"hooks": {"format-penalty": {"penaltie": 1}}}, "'penalty'"),
        ({"hooks": {"format-penalty": {"penalty": "much"}}}, "format-penalty"),
        ({"hooks": {"meta-reasoning": {"variant": "arxiv"}}}, "variant"),
        ({"memory": -2}, "memory"),
        ({"max_turns": 0}, "max_turns"),
        ({"variant": "paper"}, "variant"),
        ({"variant": ["released"]}, "variant"),
        ({"style": ["think-action"]}, "style"),
        ({"strict": "no"}, "strict"),
        ({"hooks": ["format-penalty"]}, "hooks"),
        ({"hooks": {"format-penalty": 0.1}}, "hooks"),
    ):
        with pytest.raises(InvalidRequest, match=match):
            lake(**options)
    env = lake()
    with pytest.raises(NotReset):
        env.prompt()
    with pytest.raises(NotReset):
        env.step("Left")
    env.reset(seed=0)
    with pytest.raises(InvalidRequest):
        env.step(3)  # type: ignore[arg-type]


def test_the_language_rule_can_be_set() -> None:
    for rule, valid in ((None, False), (True, False), (False, True)):
        env = lake(style="think-action", language_rule=rule)
        env.reset(seed=0, options=START)
        assert env.step("<think>往左</think><action>left</action>")[4]["format_valid"] is valid


def test_a_malformed_reply_has_no_tag() -> None:
    env = lake(style="meta-tags")
    env.reset(seed=0, options=START)
    assert env.step("<explore>x</explore><action>left</action>")[4]["tag"] == "explore"
    assert env.step("<explore>x</explore><explore>y</explore><action>left</action>")[4]["tag"] == ""
