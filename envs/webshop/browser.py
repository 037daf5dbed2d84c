"""WebShop in a real browser: the same actions, done by Selenium on the shop's website.

What the agent sees and is paid is read off the page that Chromium shows; the text forms are made of the page's texts as
the text environment makes them. Only the expert, the splits and the kinds of tasks are taken from an engine in this
process, which follows along.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ...errors import EnvironmentFailed, InvalidRequest, ServerUnavailable, SessionNotFound, Unauthorized, from_problem
from ..core import Effect, TextEnv
from ..registry import parameters
from .browser_driver import BrowserLost, Chromium, browser_for, check_browser
from .env import WebShop
from .pages import SPACES, Node, quoted_text_of, rich_text_of, text_of
from .shop import State, parse
from .site_local import local_site

ATTEMPTS = 3
"""Browsers that may be lost on one action before the environment gives up."""
OBSERVATIONS = ("text", "text_rich", "html", "quoted")
KEY = "TURNGYM_API_KEY"
_SESSION_STEPS = 10**9  # the environment counts the steps, not the site's session

# The controls in the order in which the original's site environment collects them.
_CONTROLS = """
  const controls = [".btn", ".product-link", "input[type=radio]"].flatMap(
    (css) => [...document.querySelectorAll("#shop " + css)]);
"""
# Kinds of nodes as in `pages`: 0 text, 1 button, 2 option, 3 link. Hidden texts count, as in the original's HTML.
_READ = (
    """
  if (document.readyState !== "complete" || performance.timeOrigin === arguments[0]) return null;
  const page = {mark: performance.timeOrigin, address: location.href};
  const shop = document.querySelector("#shop");
  if (shop === null) return {...page, problem: document.body.dataset.problem ?? null,
    told: document.body.innerText.slice(0, 300), login: document.querySelector("#login") !== null,
    start: document.querySelector("#start") !== null};
"""
    + _CONTROLS
    + """
  const walker = document.createTreeWalker(shop, NodeFilter.SHOW_TEXT), nodes = [];
  const kinds = {BUTTON: 1, LABEL: 2, A: 3};
  while (walker.nextNode()) nodes.push([kinds[walker.currentNode.parentNode.tagName] ?? 0, walker.currentNode.data]);
  const bought = document.querySelector("#outcome");
  return {...page, step: Number(shop.dataset.step), url: shop.dataset.url, nodes,
          html: arguments[1] ? document.documentElement.outerHTML : "",
          field: document.querySelector("#search_input") !== null,
          clicks: controls.map((e) => [e.type === "radio" ? e.value : e.textContent.toLowerCase(), !e.disabled]),
          seen: [...document.querySelectorAll(".product-link.seen")].map((link) => link.textContent),
          reward: document.querySelector("#reward pre")?.textContent ?? null,
          parts: bought?.dataset.parts ?? null, asin: bought?.dataset.asin ?? null};
"""
)
_CONTROL = _CONTROLS + "return controls[arguments[0]];"
_TYPE = """
  const field = document.querySelector("#search_input, .anywhere input");
  field.value = arguments[0];
  return field;
"""
_POST = """
  const form = Object.assign(document.createElement("form"), {method: "post", action: arguments[0]});
  for (const [name, value] of Object.entries(arguments[1])) {
    form.append(Object.assign(document.createElement("textarea"), {name, value}));
  }
  document.body.append(form);
  form.submit();
"""
_LOG_IN = """
  document.querySelector("#key").value = arguments[0];
  document.querySelector("#login").requestSubmit();
"""


class _View(NamedTuple):
    """A page as it was read; never changed.

    Attributes:
        step: actions of the site's session so far.
        url: the page's address as the original writes it.
        nodes: its texts.
        clicks: what can be clicked, by its text: which control, and whether an action can name it.
        field: whether it has the search field of the first page.
        seen: products marked as opened.
        html: its whole HTML, "" where nobody asks for it.
        reward: the score that it tells, None before the purchase.
        parts: parts of that score.
        asin: the product that was bought.
    """

    step: int
    url: str
    nodes: tuple[Node, ...]
    clicks: Mapping[str, tuple[int, bool]]
    field: bool
    seen: frozenset[str]
    html: str
    reward: float | None
    parts: Mapping[str, Any]
    asin: str


class _Stranded(Exception):
    """The site's session is gone or stands elsewhere: it must be rebuilt."""


class WebShopBrowser(WebShop):
    """WebShop as a website in Chromium: the actions of ``webshop`` are done with mouse and keyboard by Selenium.

    Observations, admissible actions, rewards and infos equal those of the text environment with the same settings
    (``observation="html"`` is the site's own HTML). Needs ``turngym[browser]``, Chromium and its driver. All
    environments of a process share one browser; a lost browser or session is replaced and rebuilt by replay.

    Args:
        url: address of the site, for example "http://127.0.0.1:8000/webshop/site/"; its shop must have the settings
            given here, which are sent along. Where the hub asks for an API key, TURNGYM_API_KEY must hold it. None
            for a server of this process's own.
        **shop: settings of ``webshop``; "page" observations and the released variant are not offered.
    """

    def __init__(self, *, url: str | None = None, **shop: Any) -> None:
        check_browser()
        super().__init__(**shop)
        if self.observation not in OBSERVATIONS or self.variant != "default":
            raise InvalidRequest(
                "The browser shows neither page data nor the released variant.",
                hint=f"Leave variant out; observations are {', '.join(OBSERVATIONS)}.",
            )
        own = {"observation", "success_reward", *parameters(TextEnv)}
        self._sent = {name: value for name, value in shop.items() if name not in own and value is not None}
        self._site = _site_address(url)
        self._view: _View
        self._log: tuple[str, ...] = ()
        self._place = ""  # address of this environment's page, "" while it has no session of its own

    @classmethod
    def check_needs(cls, **config: Any) -> None:
        """Check that Selenium, Chromium, its driver and the data are there."""
        check_browser()
        super().check_needs(**config)

    def _begin(self, split: str, index: int) -> None:
        super()._begin(split, index)
        self._log, self._place = (), ""
        self._start = {"task": f"{split}/{index}", "seed": str(self.seed)}
        self._view = self._shown_after(None)

    def _apply(self, action: str) -> Effect:
        before, parsed = self._view, parse(action)
        verb, argument = parsed if parsed is not None else ("", "")
        argument = argument.lower()
        if verb == "search":
            # What a field of one line, or the browser's protocol, cannot hold counts as white space to the search.
            query = argument.replace("\r", " ").encode("utf-8", "replace").decode()
            self._view = self._shown_after(lambda browser: browser.press_enter(browser.run(_TYPE, query)))
            done = f"search[{query}]"
        elif verb == "click" and argument != "search" and before.clicks.get(argument, (0, False))[1]:
            control = before.clicks[argument][0]
            self._view = self._shown_after(lambda browser: browser.click(browser.run(_CONTROL, control)))
            done = f"click[{argument}]"
        else:
            return Effect(valid=False, effective=False)
        self._log += (done,)
        self._state = self._shop.act(self._state, self._goal, done, self._sample) or self._state
        after = self._view
        changed = (after.url, after.nodes, after.seen) != (before.url, before.nodes, before.seen)
        return self._paid(after.reward, changed)

    def _observe(self) -> str:
        view = self._view
        if self.observation == "html":
            return view.html
        if self.observation == "text":
            return text_of(view.nodes)
        if self.observation == "quoted":
            return quoted_text_of(view.nodes, self._goal.instruction)
        return rich_text_of(view.nodes, State(seen=view.seen), view.url)

    def _admissible(self) -> list[str]:
        if self._view.field:
            return ["search[<your query>]"]
        return [f"click[{text}]" for text, (_, nameable) in self._view.clicks.items() if nameable]

    def _won(self) -> bool:
        return self._view.reward == 1

    def _score(self) -> float:
        """Return the score that the last page tells, 0 before the purchase."""
        return self._view.reward or 0.0

    def _extra_info(self) -> dict[str, Any]:
        view = self._view
        if view.reward is None:
            return {}
        return {"reward_parts": dict(view.parts), "purchased": view.asin, "task_score": 100 * view.reward}

    def fork(self, seed: int | None = None) -> TextEnv:
        """Return a copy; it gets a session of its own, by replay, once it acts."""
        twin = super().fork(seed)
        assert isinstance(twin, WebShopBrowser), "a fork is of the same class"
        twin._place = ""
        return twin

    # The browser -----------------------------------------------------------------------------------

    def _shown_after(self, act: Callable[[Chromium], None] | None) -> _View:
        """Do something on this environment's page and return the page that follows."""
        trouble = ""
        for _ in range(ATTEMPTS):
            try:
                site = self._site or local_site()
                with browser_for(str(urlsplit(site).hostname)) as browser:
                    page = self._arrive(browser, site)
                    if act is not None:
                        browser.showing = ""
                        act(browser)
                        page = self._read(browser, len(self._log) + 1)
                    return _view_of(page)
            except BrowserLost as error:
                trouble = f"The browser was lost: {error}."
            except _Stranded as error:
                trouble = f"The site's session was lost: {error}."
                self._place = ""
        raise EnvironmentFailed(
            f"{trouble} It happened {ATTEMPTS} times in a row.", hint="Check the memory left on this machine."
        )

    def _arrive(self, browser: Chromium, site: str) -> dict[str, Any]:
        """Show this environment's page, and make or rebuild its session if need be; {} if it is shown already."""
        if self._place and browser.showing == self._place:
            return {}
        if self._place:
            browser.visit(self._place)
            return self._read(browser, len(self._log))
        if not browser.showing.startswith(site):
            _enter(browser, site)
        settings = {"max_steps": _SESSION_STEPS, **self._sent}
        fields = {name: msgspec.json.encode(value).decode() for name, value in settings.items()}
        log = msgspec.json.encode(self._log).decode()
        browser.showing = ""
        browser.run(_POST, site, {**fields, **self._start, "log": log})
        return self._read(browser, len(self._log))

    def _read(self, browser: Chromium, step: int) -> dict[str, Any]:
        """Return this environment's next page, which must be that of a step."""
        page = browser.read(_READ, self.observation == "html")
        if "step" in page and page["step"] != step:
            raise _Stranded(f"it stands at step {page['step']}, not {step}")
        if page.get("login"):
            raise _Stranded("it asks for the API key again")
        if "step" not in page:
            problem = from_problem(msgspec.json.decode(page["problem"])) if page["problem"] else _no_site(page)
            raise _Stranded(str(problem)) if isinstance(problem, SessionNotFound) else problem
        self._place = browser.showing = page["address"]
        return page


def _view_of(page: Mapping[str, Any]) -> _View:
    nodes = []
    for kind, text in page["nodes"]:
        # What the original's HTML parser makes of texts that are only white space.
        if text.strip(SPACES):
            nodes.append((int(kind), text))
        elif text and "\n" not in text:
            nodes.append((int(kind), " "))
    # As in the text environment, a later control takes the place of an earlier one of the same text.
    clicks = {text: (number, nameable) for number, (text, nameable) in enumerate(page["clicks"])}
    return _View(
        page["step"],
        page["url"],
        tuple(nodes),
        clicks,
        page["field"],
        frozenset(page["seen"]),
        page["html"],
        None if page["reward"] is None else float(page["reward"]),
        {} if page["parts"] is None else msgspec.json.decode(page["parts"]),
        page["asin"] or "",
    )


def _enter(browser: Chromium, site: str) -> None:
    """Open the site's first page, with the API key where one is asked for."""
    browser.visit(site)
    page = browser.read(_READ)
    if page.get("login"):
        if not (key := os.environ.get(KEY)):
            raise Unauthorized(f"{site} asks for an API key.", hint=f"Set {KEY}.")
        browser.run(_LOG_IN, key)
        page = browser.read(_READ)
        if page.get("login"):
            raise Unauthorized(f"{site} does not know the API key.", hint=f"Correct {KEY}.")
    if not page.get("start"):
        raise _no_site(page)
    browser.showing = page["address"]


def _no_site(page: Mapping[str, Any]) -> ServerUnavailable:
    return ServerUnavailable(
        f"{page['address']:.200} is no page of a shop: {page.get('told', '')!r:.200}.",
        hint='Start a hub that serves webshop and give its address, like "http://127.0.0.1:8000/webshop/site/".',
    )


def _site_address(url: Any) -> str:
    if url is None:
        return ""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest(f"url is {url!r:.60}.", hint='Give one like "http://127.0.0.1:8000/webshop/site/".')
    return str(url).rstrip("/") + "/"
