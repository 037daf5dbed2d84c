"""TurnEnv: prompts, memory, invalid replies, limits, hooks that rewrite, forks."""

from __future__ import annotations

import pytest

from turngym import TurnEnv, make
from turngym.envs.turn.env import at_turn_level
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
    for part in (env.instructions, info["observation"], "['Left', 'Down', 'Right', 'Up']", "<action>", "||"):
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
    assert "'go 199', and 50 more]" in messages[0]["content"]


def test_a_preset_changes_the_style() -> None:
    changes = {"hidden": ["Down"], "guide": "Moves: {x}.", "notes": "Be brief.", "system": "Play well."}
    env = lake(style="think-action", prompt=changes)
    messages, info = env.reset(seed=0, options=START)
    assert [message["role"] for message in messages] == ["system", "user"] and messages[0]["content"] == "Play well."
    text = messages[1]["content"]
    assert "['Left', 'Right', 'Up']" in text and "Down" in info["admissible"]
    assert text.index("Moves: {x}.") < text.index("It is your turn") < text.index("Be brief.")
    assert text.endswith("\n\nBe brief.")
    silent, _ = lake(style="think-action", prompt={"listing": ""}).reset(seed=0, options=START)
    assert "The actions you may take now" not in silent[0]["content"] and "\n\n\n" not in silent[0]["content"]


def test_templates_of_ones_own() -> None:
    own = {"first": "Do: {observation}", "later": "{history}\n\nNow {step}: {observation}", "entry": "{n}={action}"}
    env = lake(style="think-action", memory=-1, prompt=own)
    messages, info = env.reset(seed=0, options=START)
    assert messages[0]["content"] == f"Do: {info['observation']}"
    for move in ("Left", "Right"):
        messages, *_, info = env.step(env.wrap(move))
    assert messages[0]["content"] == f"1=left\n2=right\n\nNow 3: {info['observation']}"


@pytest.mark.parametrize("memory", [0, 1, -1])
def test_a_prompt_can_go_on_showing_the_first_observation(memory: int) -> None:
    env = lake(style="think-action", memory=memory, prompt={"first": "{start}", "later": "{start}\n\n{observation}"})
    messages, info = env.reset(seed=0, options=START)
    begun = info["observation"]
    assert messages[0]["content"] == begun
    for move in ("Left", "Left"):
        messages, *_, info = env.step(env.wrap(move))
    assert info["observation"] != begun
    assert messages[0]["content"] == (f"{begun}\n\n{info['observation']}" if memory else begun)


def test_a_long_prompt_falls_back_to_the_one_without_history() -> None:
    env = lake(style="think-action")
    env.reset(seed=0, options=START)
    (long,) = env.step(env.wrap("Left"))[0]
    size = len(long["content"])
    for limit, history in ((size, True), (size - 1, False)):
        env = lake(style="think-action", prompt={"max_chars": limit})
        (first,), _ = env.reset(seed=0, options=START)
        (message,), *_, info = env.step(env.wrap("Left"))
        assert ("[Observation 1" in message["content"]) is history
        assert history or message["content"].splitlines()[:2] == first["content"].splitlines()[:2]
        assert info["observation"] in message["content"]


def test_a_chat_lists_actions_where_the_preset_says_so() -> None:
    env = lake(style="think-answer", memory=1, prompt={"listing": "Available: {admissible}"})
    env.reset(seed=0, options=START)
    for _ in range(3):
        messages, *_ = env.step(env.wrap("Left"))
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert len(asked) == 2 and all("Available: 'Left', 'Down', 'Right', 'Up'" in content for content in asked)


def test_another_grammar_over_the_same_tags() -> None:
    env = lake(style="meta-tags", grammar="meta-tags-loose")
    env.reset(seed=0, options=START)
    reply = "<explore>a</explore><monitor></monitor> so <action>Left</action>"
    info = env.step(reply)[4]
    assert info["format_valid"] and info["tag"] == "explore" and info["action"] == "Left"
    assert not lake(style="meta-tags").style.rules.parse(reply).format_valid


def test_success_pays_once_and_nothing_else_does() -> None:
    env = TurnEnv(make("sokoban", max_actions_per_step=1), success_reward=10, hooks={"format-penalty": {}})
    env.reset(seed=0, options=START)
    env.step("Up")
    for reply in env.expert():
        *_, info = env.step(reply)
    assert info["won"] and [turn.rewards["env"] for turn in env.turns] == [0.0] * (len(env.turns) - 1) + [10.0]
    assert sum(turn.reward for turn in env.turns) == pytest.approx(9.9)
    env = TurnEnv(make("sokoban"), success_reward=10, max_turns=1)
    env.reset(seed=0, options=START)
    assert env.step(env.wrap("Up"))[1:4] == (0.0, False, True)


def test_one_penalty_for_a_reply_that_is_wrong_twice() -> None:
    env = lake(style="think-action", hooks={"format-penalty": {"inadmissible": True}})
    env.reset(seed=0, options=START)
    rewards = [env.step(reply)[1] for reply in (env.wrap("fly"), "<action>fly</action>", env.wrap("left"))]
    assert rewards == [-0.1, -0.1, 0.0]


def test_options_by_name() -> None:
    assert at_turn_level("frozen-lake", make("frozen-lake"), {"memory": 1}).style.name == "think-answer"
    with pytest.raises(InvalidRequest, match="'max_turns'"):
        at_turn_level("frozen-lake", make("frozen-lake"), {"max_turn": 3})


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
        ({"prompt": ["help"]}, "prompt"),
        ({"prompt": {"hiden": ["help"]}}, "'hidden'"),
        ({"prompt": {"hidden": "help"}}, "hidden"),
        ({"prompt": {"name": "mine"}}, "'name'"),
        ({"prompt": {"first": "{observation"}}, "prompt.first"),
        ({"prompt": {"first": "{observation.__class__}"}}, "no field"),
        ({"prompt": {"later": "{observation:>999999999}"}}, "no field"),
        ({"prompt": {"entry": "{admissible}"}}, "n, observation, action"),
        ({"prompt": {"first": "{observation:g}"}}, "no number"),
        ({"style": "think-answer", "prompt": {"max_chars": 100}}, "memory"),
        ({"grammar": "think-answer"}, "other tags"),
        ({"grammar": "think-mov"}, "'think-move'"),
        ({"success_reward": "much"}, "success_reward"),
        ({"success_reward": float("nan")}, "success_reward"),
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
