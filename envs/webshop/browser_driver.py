"""One Chromium a Python process, driven by Selenium, that ends with the process however that ends.

Pages of several environments take turns in its one tab: what an environment must remember lies on the shop's server and
in the environment itself, so that the browser may be lost at any moment.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from ...errors import EnvironmentFailed, MissingExtra, ServerUnavailable, Unavailable

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVER = "chromedriver"
COMMAND_S = 30.0
"""Seconds after which a command, or a page that does not come, counts as a broken browser."""
POLL_S = 0.002
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm is tiny in containers
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-smooth-scrolling",
    "--disable-renderer-backgrounding",
    "--disable-features=BackForwardCache,OptimizationHints,PaintHolding,Translate",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1280,1000",
)
# Ends the browser's process group and removes its profile once the Python process has gone, even by SIGKILL: that
# closes the pipe which is the script's input.
_REAPER = (
    'cat >/dev/null; kill -9 "-$1" 2>/dev/null; n=0;'
    ' while ! rm -rf "$2" 2>/dev/null && [ $n -lt 20 ]; do n=$((n+1)); sleep 0.1; done'
)


class BrowserLost(Exception):
    """The browser crashed, hangs or lost its page; another one may do."""


def check_browser() -> tuple[str, str]:
    """Return the paths of Chromium and its driver.

    Raises:
        MissingExtra: Selenium is not installed.
        Unavailable: the browser or the driver is not installed.
    """
    if importlib.util.find_spec("selenium") is None:
        raise MissingExtra("Selenium is not installed.", hint='Run: pip install "turngym[browser]"')
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which(DRIVER)
    if browser is None or driver is None:
        lacking = " and ".join([*(["Chromium"] if browser is None else []), *([DRIVER] if driver is None else [])])
        raise Unavailable(
            f"There is no {lacking} on the PATH.",
            hint="On Debian: sudo apt-get install -y chromium chromium-driver. Nothing is downloaded by itself.",
        )
    return browser, driver


class Chromium:
    """A headless Chromium with a profile of its own that reaches the given hosts and no other.

    Args:
        hosts: names or addresses it may connect to.

    Attributes:
        driver: Selenium's own.
        process: chromedriver, which leads the process group of the browser.
        profile: folder of its profile, removed at the end.
        showing: address of the page it is known to show, "" if it may be any; kept by whoever drives it.
    """

    def __init__(self, hosts: frozenset[str]) -> None:
        browser, driver = check_browser()
        self.hosts = hosts
        self.showing = ""
        self._mark: Any = None
        # Under /tmp itself: the path of a socket in the profile may have 107 characters at most.
        self.profile = tempfile.mkdtemp(prefix="turngym-chromium-", dir="/tmp" if os.path.isdir("/tmp") else None)
        with self._log("wb") as log:
            # A session of its own: Ctrl+C does not reach it, and one signal ends the driver and the browser.
            self.process = subprocess.Popen(
                [driver, "--port=0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", _REAPER, "sh", str(self.process.pid), self.profile], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self.driver = _connected(self._port(), browser, hosts, self.profile)
        except Exception as error:  # of Selenium, of its HTTP client, of the socket
            self.close()
            raise EnvironmentFailed(
                f"Chromium did not start: {_first_line(error)}.",
                hint=f"Check that `{browser} --headless --version` and {driver} run, and are of the same version.",
            ) from error

    def _log(self, mode: str) -> IO[bytes]:
        return open(os.path.join(self.profile, "driver.log"), mode)

    def _port(self) -> int:
        """Return the port that the driver listens on, as it tells in its first lines."""
        deadline = time.monotonic() + COMMAND_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with self._log("rb") as log:
                if told := re.search(rb"successfully on port (\d+)", log.read()):
                    return int(told[1])
            time.sleep(POLL_S)
        raise OSError(f"{DRIVER} ended or told no port")

    def close(self) -> None:
        """End the browser and remove its profile."""
        assert self._reaper.stdin is not None, "it was started with a pipe"
        self._reaper.stdin.close()
        self._reaper.wait()
        self.process.wait()
        if hasattr(self, "driver"):
            self.driver.command_executor.close()

    @property
    def pid(self) -> int:
        """Process id of the browser itself."""
        return int(self.driver.capabilities["goog:processID"])

    def visit(self, address: str) -> None:
        """Open an address.

        Raises:
            ServerUnavailable: nobody answers there.
        """
        from selenium.common.exceptions import WebDriverException

        self.showing = ""
        try:
            self.driver.get(address)
        except WebDriverException as error:
            if "net::ERR" in str(error):
                raise ServerUnavailable(
                    f"{address:.200} does not answer: {_first_line(error)}.", hint="Check that the hub runs there."
                ) from error
            raise BrowserLost(_first_line(error)) from error
        except Exception as error:
            raise BrowserLost(_first_line(error)) from error

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function body in the page and return what it returns."""
        return self._ask(lambda: self.driver.execute_script(script, *arguments))

    def click(self, element: Any) -> None:
        """Click an element as the mouse does; None is one that the page does not have, and no longer the right page."""
        if element is None:
            raise BrowserLost("it shows another page")
        self._ask(element.click)

    def press_enter(self, element: Any) -> None:
        """Press the Enter key in a field."""
        from selenium.webdriver.common.keys import Keys

        self._ask(lambda: element.send_keys(Keys.ENTER))

    def read(self, script: str, *arguments: Any) -> dict[str, Any]:
        """Return what a script says of a page that was not read before, as soon as it is there.

        Between two pages there is a moment without any: errors in it are no news.

        Args:
            script: a function body; gets the ``mark`` of the page read last and the arguments, and returns an object
                with the ``mark`` of its page, or null to be asked again.
            *arguments: passed on.

        Raises:
            BrowserLost: it does not come.
        """
        from selenium.common.exceptions import InvalidSessionIdException, NoSuchWindowException, WebDriverException

        deadline = time.monotonic() + COMMAND_S
        while time.monotonic() < deadline:
            try:
                page: dict[str, Any] | None = self.driver.execute_script(script, self._mark, *arguments)
            except (InvalidSessionIdException, NoSuchWindowException) as error:
                raise BrowserLost(_first_line(error)) from error
            except WebDriverException as error:
                if not self.alive() or "crash" in str(error):
                    raise BrowserLost(_first_line(error)) from error
                page = None
            except Exception as error:
                raise BrowserLost(_first_line(error)) from error
            if page is not None:
                self._mark = page["mark"]
                return page
            time.sleep(POLL_S)
        raise BrowserLost(f"No page came within {COMMAND_S:g} s")

    def alive(self) -> bool:
        """Return whether the browser's process is there (and no zombie)."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return not os.path.isdir("/proc/self") and self.process.poll() is None

    def _ask(self, command: Any) -> Any:
        try:
            return command()
        except Exception as error:  # of Selenium, of its HTTP client, of the socket: the browser is of no use
            raise BrowserLost(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def _connected(port: int, browser: str, hosts: frozenset[str], profile: str) -> Any:
    """Start the browser by the driver at a port; return Selenium's driver."""
    from selenium import webdriver
    from selenium.webdriver.common.proxy import Proxy, ProxyType
    from selenium.webdriver.remote.client_config import ClientConfig

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    reached = ", ".join(f"EXCLUDE {host}" for host in sorted(hosts))
    flags = [*FLAGS, f"--user-data-dir={profile}", f"--host-resolver-rules=MAP * ~NOTFOUND , {reached}"]
    if os.geteuid() == 0:
        # Chromium cannot use its sandbox as root; the pages are the shop's and load nothing from elsewhere.
        flags.append("--no-sandbox")
    for flag in flags:
        options.add_argument(flag)
    direct = Proxy(raw={"proxyType": ProxyType.DIRECT})
    address = f"http://127.0.0.1:{port}"
    config = ClientConfig(address, proxy=direct, timeout=int(COMMAND_S))
    driver = webdriver.Remote(address, options=options, client_config=config)
    driver.set_page_load_timeout(COMMAND_S)
    return driver


_lock = threading.RLock()
_shared: tuple[int, Chromium] | None = None  # with the id of the process that started it


@contextlib.contextmanager
def browser_for(host: str) -> Iterator[Chromium]:
    """Lend the process's browser to one caller at a time; started on first use, and again after it was lost.

    Raises:
        EnvironmentFailed: it does not start.
        Unavailable: it is not installed.
    """
    global _shared
    with _lock:
        if _shared is not None and _shared[0] != os.getpid():
            _shared = None  # of the parent process, which goes on using it
        hosts = frozenset({host})
        if _shared is not None and host not in _shared[1].hosts:
            hosts |= _shared[1].hosts
            close_browser()
        if _shared is None:
            _shared = os.getpid(), Chromium(hosts)
        try:
            yield _shared[1]
        except BrowserLost:
            close_browser()
            raise


def close_browser() -> None:
    """End the process's browser, if there is one; the next use starts another."""
    global _shared
    with _lock:
        if _shared is not None and _shared[0] == os.getpid():
            _shared[1].close()
        _shared = None


atexit.register(close_browser)
