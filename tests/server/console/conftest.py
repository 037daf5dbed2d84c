"""A headless Chromium and a hub for the console's tests: one of each for all of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn

from turngym.envs import registry
from turngym.envs.core import Effect, TextEnv
from turngym.server.app import create_app
from turngym.server.settings import HubSettings

WAIT_S = 15
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


class Console:
    """The console in a browser, as a person uses it.

    Attributes:
        driver: the Selenium driver.
        downloads: folder that the browser saves files to.
        url: address of the hub.
    """

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver = driver
        self.downloads = downloads
        self.url = ""

    def visit(self, url: str) -> None:
        """Open the hub's page with an empty session storage."""
        self.url = url
        self.driver.get(f"{url}/console/style.css")
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(url)

    def go(self, address: str) -> None:
        """Go to another view of the page."""
        self.driver.execute_script("location.hash = arguments[0]", address)

    def all(self, css: str) -> list[Any]:
        """Return the elements that fit."""
        return list(self.driver.find_elements("css selector", css))

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds and return its value; ``what`` says what was waited for."""
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(
            self.driver, WAIT_S, poll_frequency=0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        try:
            return waiting.until(lambda _: condition())
        except TimeoutException:
            raise TimeoutException(f"waited for {what}; the page says:\n{self.text('body')[:2000]}") from None

    def find(self, css: str, text: str = "") -> Any:
        """Wait for a visible element that contains a text."""

        def look() -> Any:
            return next((e for e in self.all(css) if e.is_displayed() and text in e.text), None)

        return self.wait(look, f"{css} with {text!r}")

    def click(self, css: str, text: str = "") -> None:
        """Click an element."""
        self.find(css, text).click()

    def text(self, css: str) -> str:
        """Return the text of the first element that fits, "" where there is none."""
        return str(self.driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def figure(self, name: str) -> str:
        """Return one of the figures of a view (turns, reward, return, …)."""
        return self.text(f"[data-figure='{name}']")

    def fill(self, css: str, text: str) -> None:
        """Replace the value of a field."""
        field = self.find(css)
        field.clear()
        field.send_keys(text)

    def choose(self, css: str, value: str) -> None:
        """Choose an option of a select."""
        from selenium.webdriver.support.ui import Select

        Select(self.find(css)).select_by_value(value)

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def idle(self) -> None:
        """Wait until the player works on nothing."""
        self.wait(lambda: not self.all(".play[aria-busy]"), "the player")

    def errors(self) -> list[str]:
        """Return what the browser logged as an error, but for answers that were no success."""
        entries = self.driver.get_log("browser")
        return [
            f"{e['source']}: {e['message']}" for e in entries if e["level"] == "SEVERE" and e["source"] != "network"
        ]


class Hostile(TextEnv):
    """<script>window.attacked = 1</script> in every text.

    Args:
        steps: <img src=x onerror=alert(1)>
    """

    @property
    def instructions(self) -> str:
        return "<img src=x onerror=alert(2)>"

    def _begin(self, split: str, index: int) -> None:
        self._state = ""

    def _apply(self, action: str) -> Effect:
        self._state = action
        return Effect(note=action)

    def _observe(self) -> str:
        return f"<img src=x onerror=alert(3)><script>alert(4)</script>{self._state}"

    def _admissible(self) -> list[str]:
        return [f"<img src=x onerror=alert({number})>" for number in range(300)]


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    """A hub without API key that serves three games and an environment whose text attacks the page."""
    # An entry names a module; this one exists for the time of these tests.
    module = ModuleType("turngym_hostile")
    module.Hostile = Hostile  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    registry.register(registry.EnvSpec("hostile", "turngym_hostile:Hostile", "<script>alert(5)</script>", inline=True))
    try:
        with serving(HubSettings(envs=("bandit", "frozen-lake", "sokoban", "hostile"))) as url:
            yield url
    finally:
        del registry._registry["hostile"], sys.modules[module.__name__]


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[str]]:
    """``with serve(envs=…) as url``: a hub with the given settings."""
    return lambda **settings: serving(HubSettings(**settings))


@contextmanager
def serving(settings: HubSettings) -> Iterator[str]:
    """Serve a hub on a free port from a thread."""
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium") or shutil.which("google-chrome"))
    downloads = tmp_path_factory.mktemp("downloads")
    # Under /tmp itself: the path of a socket in the profile may have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield Console(driver, downloads)
        finally:
            driver.quit()


@pytest.fixture
def console(browser: Console, hub_url: str) -> Iterator[Console]:
    """The console of the open hub; a test during which the page logs an error fails."""
    browser.errors()
    browser.visit(hub_url)
    yield browser
    assert browser.errors() == []
