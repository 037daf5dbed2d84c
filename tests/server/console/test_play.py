"""Playing by hand in a browser, at both levels, against a real hub."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from turngym.records import Episode, read_episodes

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]

UP, DOWN, LEFT, RIGHT = "\ue013", "\ue015", "\ue012", "\ue014"
ARROWS = {"Up": UP, "Down": DOWN, "Left": LEFT, "Right": RIGHT}


def start(console: Any, env: str, *, level: str = "text", style: str = "", **fields: str) -> None:
    """Fill the form in and start an episode."""
    console.go(f"/play/{env}")
    console.wait(lambda: env in console.text(".view-play select option:checked"), "the form")
    console.choose("select[name=level]", level)
    if style:
        console.choose("select[name=style]", style)
    for name, value in fields.items():
        console.fill(f"[name={name}]", value)
    console.click("button", "Start episode")
    turns(console, 0)


def turns(console: Any, count: int) -> None:
    """Wait until so many turns were played."""
    console.wait(lambda: console.figure("turns") == str(count), f"turn {count}")
    console.idle()


def session(console: Any) -> str:
    """Return the session on the screen."""
    return str(console.driver.execute_script("return new URLSearchParams(location.hash.split('?')[1]).get('session')"))


def test_a_whole_episode_by_clicking(console: Any) -> None:
    start(console, "sokoban", task="3", seed="11")
    assert "Task test/3" in console.text(".play-board h2")
    wide = "return document.querySelector('.picture')?.naturalWidth > 0"
    console.wait(lambda: console.driver.execute_script(wide), "a picture")
    played = 0
    while not console.all(".verdict"):
        console.click(".tools button", "Hint")
        console.idle()
        hinted = console.find(".action-button.hinted")
        hinted.click()
        played += 1
        turns(console, played)
        assert played < 100
    assert f"Won after {played} turns." in console.text(".verdict")
    assert console.text(".play-board .badge") == "won"
    assert float(console.figure("return").replace("−", "-")) > 5
    assert len(console.all(".transcript li")) == played
    assert console.all(".action-button") == []


def test_the_keyboard_plays(console: Any) -> None:
    start(console, "sokoban", task="3", seed="11")
    for played in range(1, 4):
        console.keys("h")
        hinted = console.find(".action-button.hinted").get_attribute("data-action")
        console.keys(ARROWS[hinted])
        turns(console, played)
        assert console.text(f".transcript li:nth-child({played}) code") == hinted
    console.keys("u")
    turns(console, 2)
    first = console.find(".action-button").get_attribute("data-action")
    console.keys("1")
    turns(console, 3)
    assert console.text(".transcript li:nth-child(3) code") == first
    # In a field the same keys write text.
    console.click("input[name=action]")
    console.keys("u1")
    assert console.find("input[name=action]").get_attribute("value") == "u1"
    assert console.figure("turns") == "3"


def test_free_text_reaches_the_environment(console: Any) -> None:
    start(console, "sokoban", task="3", seed="11")
    console.fill("input[name=action]", "Up || Up")
    console.keys("\ue007")
    turns(console, 1)
    assert console.text(".transcript code") == "Up || Up"
    console.fill("input[name=action]", "fly <b>away</b> \U0001f642")
    console.click(".free button")
    turns(console, 2)
    assert "invalid" in console.text(".transcript li:nth-child(2)")
    assert "fly <b>away</b> \U0001f642" in console.text(".transcript li:nth-child(2) code")


def test_undo_and_fork_go_back_to_the_same_state(console: Any) -> None:
    start(console, "frozen-lake", task="5", seed="2")
    before = console.text(".play-board .observation")
    console.click("[data-action=Down]")
    turns(console, 1)
    after = console.text(".play-board .observation")
    first = session(console)
    console.click(".tools button", "Undo")
    turns(console, 0)
    assert console.text(".play-board .observation") == before
    assert session(console) != first
    # The noise is the session's own: the same action slips the same way again.
    console.click("[data-action=Down]")
    turns(console, 1)
    assert console.text(".play-board .observation") == after
    console.click(".tools button", "Fork")
    console.find(".branches button[aria-current]", "Fork 1 at 1")
    console.click(".tools button", "Fork with new noise")
    console.find(".branches button[aria-current]", "Fork 2 at 1, noise")
    assert not console.find(".tools button", "Save episode").is_enabled()
    assert len(console.all(".branches button")) == 3
    console.click(".branches button", "Main line")
    console.wait(lambda: "Main line" in console.text(".branches [aria-current]"), "the main line")
    assert console.text(".play-board .observation") == after


def test_a_reload_resumes(console: Any) -> None:
    start(console, "sokoban", task="3", seed="11")
    console.click(".action-button")
    turns(console, 1)
    state = console.text(".play-board .observation")
    alive = session(console)
    console.driver.refresh()
    turns(console, 1)
    assert console.text(".play-board .observation") == state
    assert session(console) == alive
    # From another view, too.
    console.go("/live")
    console.find(".sessions")
    console.go("/play")
    console.click(".earlier a", "test/3, text level, 1 turn")
    turns(console, 1)
    assert session(console) == alive
    # A session that has ended meanwhile is rebuilt, and the page says so.
    httpx.post(f"{console.url}/v1/close", json={"items": [{"session": alive}]})
    console.driver.refresh()
    turns(console, 1)
    assert "rebuilt by replay" in console.find(".notice").text
    assert console.text(".play-board .observation") == state
    assert session(console) != alive
    # The same in the middle of the game.
    httpx.post(f"{console.url}/v1/close", json={"items": [{"session": session(console)}]})
    console.click(".action-button")
    turns(console, 2)
    assert "rebuilt by replay" in console.find(".notice").text


def test_a_step_from_elsewhere_is_noticed(console: Any) -> None:
    start(console, "sokoban", task="3", seed="11")
    step = {"items": [{"session": session(console), "action": "Down"}]}
    httpx.post(f"{console.url}/v1/step", json=step).raise_for_status()
    console.click(".action-button")
    assert "STEP_CONFLICT" in console.find(".problem").text
    assert console.figure("turns") == "0"
    console.click(".problem button", "Show the session as it is now")
    assert "played on from elsewhere" in console.find(".notice").text
    assert not console.find(".tools button", "Undo").is_enabled()
    console.click(".action-button")
    turns(console, 1)
    assert console.all(".problem") == []


def test_a_session_of_another_client_can_be_played_on(console: Any) -> None:
    item = {"env": "sokoban", "session": "from-a-script", "reset": True, "seed": 1, "split": "test", "task": 4}
    httpx.post(f"{console.url}/v1/create", json={"items": [item]}).raise_for_status()
    console.go("/play/sokoban?session=from-a-script")
    assert "started elsewhere" in console.find(".notice").text
    assert not console.find(".tools button", "Undo").is_enabled()
    console.click(".action-button")
    turns(console, 1)
    console.click(".tools button", "Close")
    console.find(".setup")
    problem = httpx.post(f"{console.url}/v1/state", json={"items": [{"session": "from-a-script"}]}).json()["items"][0]
    assert problem["error"]["code"] == "SESSION_NOT_FOUND"


def test_a_turn_level_episode(console: Any) -> None:
    start(console, "sokoban", level="turn", task="3", seed="11", hooks='{"format-penalty": {"penalty": 0.5}}')
    prompt = [message.text for message in console.all(".message pre")]
    assert "<think>" in prompt[0]
    assert "box" in prompt[-1]
    console.fill("textarea", "I just go Up")
    console.click("button", "Send")
    turns(console, 1)
    assert "malformed" in console.text(".parse")
    assert "no <" in console.text(".parse")
    assert "−0.5" in console.text(".rewards")
    played = 1
    while not console.all(".verdict"):
        console.click("button", "Well-formed reply")
        console.wait(lambda: "</" in console.find("textarea").get_attribute("value"), "the expert's reply")
        console.idle()
        console.find("textarea").send_keys("\ue009", "\ue007")  # control + enter
        played += 1
        turns(console, played)
        assert "well formed" in console.text(".parse")
        assert played < 100
    assert "Won" in console.text(".verdict")


def test_components_that_hooks_rewrite_are_marked_and_undone(console: Any) -> None:
    hooks = '{"meta-reasoning": {}, "format-penalty": {}}'
    start(console, "sokoban", level="turn", style="meta-tags", task="3", seed="11", hooks=hooks)
    console.fill("textarea", "<planning>1. push 2. win</planning><action>Up</action>")
    console.click("button", "Send")
    turns(console, 1)
    assert "planning" in console.text(".parse")
    played = 1
    while not console.all(".verdict"):
        console.click("button", "Well-formed reply")
        console.wait(lambda: "</" in console.find("textarea").get_attribute("value"), "the expert's reply")
        console.idle()
        console.click("button", "Send")
        played += 1
        turns(console, played)
    assert "revised" in console.text(".transcript li:first-child summary")
    console.click(".transcript li:first-child summary")
    assert "meta-reasoning" in console.text(".transcript li:first-child .revised")
    assert "was 0" in console.text(".transcript li:first-child .revised")
    console.click(".tools button", "Undo")
    turns(console, played - 1)
    assert "revised" not in console.text(".transcript")


def test_an_action_button_writes_into_the_reply(console: Any) -> None:
    start(console, "frozen-lake", level="turn", task="1", seed="0")
    console.click("[data-action=Left]")
    console.wait(lambda: ">Left</" in console.find("textarea").get_attribute("value"), "the action in the reply")
    console.idle()
    console.click("[data-action=Right]")
    console.wait(lambda: ">Right</" in console.find("textarea").get_attribute("value"), "the other action")
    console.idle()
    console.click("button", "Send")
    turns(console, 1)
    assert console.text(".transcript code") == "Right"


def test_settings_reach_the_environment(console: Any) -> None:
    console.go("/play/frozen-lake?split=train&task=7&seed=3")
    console.click(".setup details summary")
    console.fill("#setting-size", "6")
    console.click("label[for=setting-slippery] input")
    console.click("button", "Start episode")
    turns(console, 0)
    assert "Task train/7" in console.text(".play-board h2")
    assert "noise seed 3" in console.text(".play-board header")
    rows = console.text(".play-board .observation").split("\n")
    assert [len(row) for row in rows] == [6] * 6


def test_mistakes_are_answered_with_advice(console: Any) -> None:
    console.go("/play/frozen-lake?task=999999")
    console.click("button", "Start episode")
    assert "No task 999999" in console.find(".problem").text
    assert "tasks 0 to 255" in console.find(".problem").text
    console.fill("[name=task]", "three")
    console.click("button", "Start episode")
    console.find(".problem", "no integer")
    console.fill("[name=task]", "3")
    console.click(".setup details summary")
    console.fill("#setting-size", "99")
    console.click("button", "Start episode")
    console.find(".problem", "from 2 to 16")
    console.fill("#setting-size", "5")
    console.fill("#setting-rows", '["SF')
    console.click("button", "Start episode")
    console.find(".problem", "no valid JSON")
    console.find("#setting-rows").clear()
    console.click("button", "Start episode")
    turns(console, 0)
    assert console.all(".problem") == []


def test_a_saved_episode_is_a_record(console: Any) -> None:
    console.go("/play/frozen-lake?level=turn&task=1&seed=0")
    console.click(".setup details summary")
    console.click("label[for=setting-slippery] input")
    console.click("button", "Start episode")
    turns(console, 0)
    for played in range(1, 40):
        console.click("button", "Well-formed reply")
        console.wait(lambda: "</" in console.find("textarea").get_attribute("value"), "a reply")
        console.idle()
        console.click("button", "Send")
        turns(console, played)
        if console.all(".verdict"):
            break
    console.click(".tools button", "Save episode")
    path = console.downloads / "frozen-lake-test-1.jsonl"
    console.wait(path.exists, "the download")
    (episode,) = read_episodes(path)
    assert isinstance(episode, Episode)
    assert (episode.env, episode.task, episode.seed, episode.policy) == ("frozen-lake", "test/1", 0, "human")
    assert len(episode.turns) == played
    assert (episode.status, episode.won, episode.config) == ("terminated", True, {"slippery": False})
    log = [turn.completion.text for turn in episode.turns]
    item = {
        "env": "frozen-lake",
        "level": "turn",
        "config": episode.config,
        "task": episode.task,
        "seed": 0,
        "log": log,
    }
    reply = httpx.post(f"{console.url}/v1/restore", json={"items": [item]}).json()["items"][0]
    assert reply["info"]["observation"] == episode.final_observation
    assert reply["info"]["won"] is episode.won
    assert reply["info"]["anchor"] == episode.turns[-1].next_anchor
    console.go("/episodes")
    console.find("#episodes-file").send_keys(str(path))
    console.find(".episode-row", "frozen-lake test/1")


def test_an_environment_with_hostile_text_is_harmless(console: Any) -> None:
    start(console, "hostile")
    assert "<img src=x onerror" in console.text(".play-board .observation")
    assert len(console.all(".action-button")) == 200
    console.fill(".play-actions input[type=search]", "alert(77)")
    assert len(console.all(".action-button")) == 1
    console.click(".action-button")
    turns(console, 1)
    assert "<img src=x onerror=alert(77)>" in console.text(".transcript code")
    console.go("/env/hostile")
    console.wait(lambda: "<script>" in console.text(".lead"), "the documentation")
    made = "return document.querySelectorAll('main img, main script, main [onerror]').length"
    assert console.driver.execute_script(made) == 0
    assert json.loads(console.driver.execute_script("return JSON.stringify(sessionStorage.length)")) > 0
