"""WebShop in Chromium: equal to the text environment, whatever happens to the browser."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turngym import make
from turngym.envs.registry import specs, unmet
from turngym.envs.webshop import browser_driver
from turngym.envs.webshop.browser_driver import browser_for, close_browser
from turngym.envs.webshop.site_local import local_site
from turngym.errors import EnvironmentFailed, InvalidRequest, MissingExtra, Unavailable

pytestmark = pytest.mark.browser
chromium = pytest.mark.needs("chromium")
HOST = "127.0.0.1"
WAIT_S = 20.0
QUERIES = ("red shoes", " small ", "a]b", '"small"', "x" * 3000, "é😀\x00", "\ud800 mug", "mug\rlid", "<script>")


@pytest.fixture(scope="module", autouse=True)
def no_browser_afterwards() -> Iterator[None]:
    yield
    close_browser()


def walk(seed: int) -> Callable[[Any], str]:
    """Return a policy: the expert now and then, else any admissible action, a search or nonsense."""
    choice = random.Random(seed)
    nonsense = ["", "click[search]", "click[nothing]", " click[next >] and more", "Search[red]", "click[a[b]]", "\x00"]

    def act(env: Any) -> str:
        kind = choice.random()
        if kind < 0.4:
            return str(env.expert_action())
        if kind < 0.8:
            return choice.choice(env._admissible())  # type: ignore[no-any-return]
        return f"search[{choice.choice(QUERIES)}]" if kind < 0.93 else choice.choice(nonsense)

    return act


def compare(task: str, policy: Callable[[Any], str], *, text: Any, page: Any, steps: int = 25) -> list[Any]:
    """Play both environments side by side; everything must be equal. Return the transcript."""
    shown = [text.reset(seed=3, options={"task": task})]
    assert page.reset(seed=3, options={"task": task}) == shown[0]
    while not text.done and len(shown) <= steps:
        assert page.expert_action() == text.expert_action()
        action = policy(text)
        shown.append(text.step(action))
        assert page.step(action) == shown[-1], action
    assert page.done == text.done
    return shown


@chromium
@pytest.mark.parametrize(("observation", "seeds"), [("text", 2), ("text_rich", 1), ("quoted", 1)])
def test_equal_to_the_text_environment(observation: str, seeds: int) -> None:
    settings = {"observation": observation, "max_steps": 40, "attributes_page": True}
    text, page = make("webshop", **settings), make("webshop-browser", **settings)
    done = 0
    for seed in range(seeds):
        compare(f"test/{seed}", walk(seed), text=text, page=page)
        compare(f"train/{seed}", lambda env: env.expert_action(), text=text, page=page)
        done += page._won()
    assert done, "a purchase at the full score was among them"
    assert page.instructions == text.instructions


@chromium
def test_equal_on_the_originals_files(data: Path) -> None:
    # Its options hold brackets, quotation marks and a value of two names.
    settings = {"data": str(data), "tagger": "words", "split_rule": "all", "observation": "text_rich", "max_steps": 40}
    text, page = make("webshop", **settings), make("webshop-browser", **settings, success_reward=10)
    text.success_reward = 10  # type: ignore[attr-defined]
    assert page.splits == text.splits
    for task in range(2):
        compare(f"test/{task}", walk(task), text=text, page=page, steps=15)
    actions = iter(
        ["search[mug lid]", "click[b000000003]", "click[small]", 'click[tall 5"]', "click[a[b]]", "click[buy now]"]
    )
    compare("test/2", lambda env: next(actions), text=text, page=page)


@chromium
@pytest.mark.needs("oracles")
def test_equal_on_recorded_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Path(os.environ["TURNGYM_ORACLES"], "webshop_episodes.jsonl")
    folder = Path(os.environ.get("TURNGYM_DATA") or "/nonexistent", "webshop")
    if not (recording.is_file() and folder.is_dir()):
        pytest.skip("data: TURNGYM_DATA has no webshop, or TURNGYM_ORACLES no webshop_episodes.jsonl")
    monkeypatch.undo()  # a catalogue of this size is worth keeping
    records = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    episodes = [record for record in records if record["type"] == "episode"]
    assert episodes
    for record in episodes[:: max(1, len(episodes) // 6)]:
        settings = {"data": str(folder), "tagger": "words", "split_rule": "all", "goals": record["goals"]}
        settings |= {"attributes_page": record["show_attrs"], "max_steps": 100}
        actions = iter([step["action"] for step in record["steps"]])
        played = compare(
            f"test/{record['goal_idx']}",
            lambda env, actions=actions: next(actions),  # type: ignore[misc]
            text=make("webshop", **settings),
            page=make("webshop-browser", **settings),
            steps=len(record["steps"]),
        )
        assert len(played) > 1


@chromium
def test_html_is_the_sites_own() -> None:
    env = make("webshop-browser", observation="html")
    first, _ = env.reset(seed=0, options={"task": "test/0"})
    pages = [first, *(env.step(action)[0] for action in env.expert())]
    assert all(page.startswith("<html") and 'id="shop"' in page for page in pages) and len(set(pages)) == len(pages)
    other = make("webshop-browser", observation="html")
    assert other.reset(seed=0, options={"task": "test/0"})[0] == first, "no id of a session stands in it"


@chromium
def test_forks_take_turns_and_stay_apart() -> None:
    env = make("webshop-browser")
    env.reset(seed=0, options={"task": "test/0"})
    env.step("search[coffee]")
    twin, other = env.fork(), env.fork(seed=5)
    assert twin.step("click[next >]") == env.fork().step("click[next >]")
    before = env._observe()
    other.step("click[back to search]")
    twin.step("click[next >]")
    assert "Page 3" in twin._observe() and "Page 1" in env._observe() == before
    assert env.step("click[next >]")[0] != before


@chromium
def test_two_at_once() -> None:
    transcripts: dict[int, list[Any]] = {}
    failures: list[BaseException] = []

    def play(number: int) -> None:
        try:
            env = make("webshop-browser")
            env.reset(seed=0, options={"task": f"test/{number}"})
            transcripts[number] = [env.step(action) for action in env.expert()]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    text = make("webshop")
    for number, transcript in transcripts.items():
        text.reset(seed=0, options={"task": f"test/{number}"})
        assert transcript == [text.step(action) for action in text.expert()]


@chromium
@pytest.mark.parametrize("what", ["browser", "driver", "page", "session", "everything"])
def test_what_is_lost_is_rebuilt(what: str) -> None:
    text, env = make("webshop"), make("webshop-browser")
    for each in (text, env):
        each.reset(seed=0, options={"task": "test/2"})
    for number, action in enumerate(text.expert()):
        if number == 2:
            with browser_for(HOST) as browser:
                if what in ("browser", "everything"):
                    os.kill(browser.pid, signal.SIGKILL)
                if what == "driver":
                    browser.process.kill()
                if what == "page":
                    browser.driver.execute_script("location = 'about:blank'")
            if what in ("session", "everything"):
                env._place = local_site() + "no-such-session/2"  # type: ignore[attr-defined]
        assert env.step(action) == text.step(action)
    assert env._won() and env.done


@chromium
def test_a_browser_that_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    close_browser()
    script = tmp_path / "chromium"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EnvironmentFailed, match=r"did not start.*same version"):
        make("webshop-browser").reset(seed=0)


@chromium
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(3)", "os._exit(0)"])
def test_the_browser_ends_with_the_process(end: str) -> None:
    code = (
        "import os, sys; from turngym import make\n"
        "from turngym.envs.webshop.browser_driver import browser_for\n"
        "make('webshop-browser').reset(seed=0)\n"
        "with browser_for('127.0.0.1') as browser: print(browser.pid, browser.process.pid)\n"
        f"print(browser.profile, flush=True); {end}"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    pids, profile = done.stdout.splitlines()
    deadline = time.monotonic() + WAIT_S
    while any(running(int(pid)) for pid in pids.split()) or Path(profile).exists():
        assert time.monotonic() < deadline, "something was left"
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@chromium
def test_markup_in_the_data_stays_text(data: Path) -> None:
    hostile = "<script>window.attacked=1</script><img src=x onerror='window.attacked=2'></main>\"'><b>"
    for path in data.iterdir():
        content = path.read_text(encoding="utf-8")
        for word in ("Mug", "tea", "plain", "Small ", "Color", "light weight"):
            content = content.replace(word, f"{word}{json.dumps(hostile)[1:-1]}")
        path.write_text(content, encoding="utf-8")
    settings = {"data": str(data), "tagger": "words", "split_rule": "all", "max_steps": 40, "attributes_page": True}
    text, page = make("webshop", **settings), make("webshop-browser", **settings)
    asked = []

    def act(env: Any) -> str:
        with browser_for(HOST) as browser:
            asked.append(browser.run("return [window.attacked ?? 0, document.querySelectorAll('img, b').length]"))
        script = ["search[mug]", "click[b000000003]", "click[features]", "click[< prev]", "click[attributes]"]
        return [*script, "click[< prev]", f"search[{hostile}]", "search[mug]", "click[b000000003]", "click[buy now]"][
            len(asked) - 1
        ]

    compare("test/2", act, text=text, page=page)
    assert text.done and asked == [[0, 0]] * 10


@chromium
def test_an_agent_of_the_originals_site() -> None:
    """Do what the original's own Selenium environment does, on our pages."""
    from selenium.webdriver.common.by import By

    text = make("webshop")
    text.reset(seed=0, options={"task": "test/4"})
    actions = [action for action in text.expert() if [text.step(action)]]
    with browser_for(HOST) as browser:
        driver = browser.driver
        browser.visit(local_site() + "?task=test/4")
        for action in actions:
            verb, _, argument = action[:-1].partition("[")
            before = driver.current_url
            if verb == "search":
                field = driver.find_element(By.ID, "search_input")
                field.send_keys(argument)
                field.submit()
            else:
                links = driver.find_elements(By.CLASS_NAME, "product-link")
                found = {each.text.lower(): each for each in [*driver.find_elements(By.CLASS_NAME, "btn"), *links]}
                radios = driver.find_elements(By.CSS_SELECTOR, "input[type='radio']")
                found |= {str(each.get_attribute("value")): each for each in radios}
                found[argument].click()
            wait_until(lambda before=before: driver.current_url != before)  # type: ignore[misc]
        reward = driver.find_element(By.CSS_SELECTOR, "#reward pre").text
    assert float(reward) == text._score() == 1


@chromium
def test_options_by_keyboard() -> None:
    """Arrow keys look through the values, Space chooses: a page that reloads at every arrow could not be used."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    env = make("webshop-browser")
    env.reset(seed=0, options={"task": "test/0"})
    while "click[buy now]" not in env._admissible():
        env.step(str(env.expert_action()))
    with browser_for(HOST) as browser:
        driver, before = browser.driver, browser.driver.current_url
        radios = driver.find_elements(By.CSS_SELECTOR, "input[type='radio']")
        radios[0].send_keys(Keys.ARROW_DOWN)
        assert driver.current_url == before
        value = driver.switch_to.active_element.get_attribute("value")
        assert value == radios[1].get_attribute("value")
        driver.switch_to.active_element.send_keys(Keys.SPACE)
        wait_until(lambda: driver.current_url != before)
        chosen = driver.find_element(By.CSS_SELECTOR, "input[type='radio']:checked")
        assert chosen.get_attribute("value") == value
        browser.showing = ""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# What needs no browser -----------------------------------------------------------------------------


def test_it_is_served_where_it_is_named_only() -> None:
    assert "webshop-browser" not in specs()


@pytest.mark.parametrize("missing", ["chromium", "chromedriver", "chromium and chromedriver"])
def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    browsers = set(browser_driver.BROWSERS) if "chromium" in missing.split() else set()
    gone = browsers | {name for name in missing.split() if name == browser_driver.DRIVER}
    monkeypatch.setattr(browser_driver.shutil, "which", lambda name: None if name in gone else f"/bin/{name}")
    with pytest.raises(Unavailable, match=f"(?i)no {missing} on the PATH.*apt-get install -y chromium"):
        make("webshop-browser")
    assert isinstance(unmet("webshop-browser"), Unavailable)


def test_a_missing_package_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "selenium" else find(name))
    with pytest.raises(MissingExtra, match="turngym\\[browser\\]"):
        make("webshop-browser")


@pytest.mark.parametrize(
    "settings",
    [
        {"variant": "released"},
        {"observation": "page"},
        {"url": "127.0.0.1:8000"},
        {"url": "ftp://127.0.0.1/"},
        {"url": "http://127.0.0.1/webshop/site/?task=test/1"},
        {"url": 3},
        {"product": 3},
        {"max_steps": 0},
    ],
)
def test_settings_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    monkeypatch.setattr(browser_driver.shutil, "which", lambda name: f"/bin/{name}")
    with pytest.raises(InvalidRequest):
        make("webshop-browser", **settings)
