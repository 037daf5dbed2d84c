"""The shop's website on the hub, as a browser and a person use it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from turngym import make
from turngym.envs.webshop.browser_driver import browser_for
from turngym.errors import CapacityReached, ServerUnavailable, Unauthorized
from turngym.server.auth import COOKIE, TICKET_S, Keyring

SITE = "/webshop/site/"
KEY, OTHER = "a-secret-key", "another-secret-key"
HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def hub(start_hub: Any) -> Iterator[Any]:
    with start_hub(envs=("webshop", "bandit")) as hub:
        yield hub


@pytest.fixture(scope="module")
def locked(start_hub: Any) -> Iterator[Any]:
    with start_hub(envs=("webshop",), api_keys={"me": KEY, "an.other": OTHER}) as hub:
        yield hub


class Page(HTMLParser):
    """A page's forms and links, by what they do.

    Attributes:
        controls: action text -> (method, address, fields).
        text: all its text.
        ids: its elements with ids, by id.
    """

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self.controls: dict[str, tuple[str, str, dict[str, str]]] = {}
        self.text = ""
        self.ids: dict[str, dict[str, str | None]] = {}
        self._form: dict[str, str | None] = {}
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.ids[own.get("id") or ""] = own
        if tag == "form":
            self._form = own
        elif own.get("name") == "search_query":
            self.controls["search"] = ("post", str(self._form["action"]), {"search_query": ""})
        elif own.get("class") == "product-link":
            address = str(own["href"])
            self.controls[f"click[{address.partition('=')[2].lower()}]"] = ("get", address, {})
        elif (tag == "button" and own.get("name")) or own.get("type") == "radio":
            name, value = str(own["name"]), str(own["value"])
            self.controls[f"click[{value}]"] = ("post", str(self._form["action"]), {name: value})

    def handle_data(self, data: str) -> None:
        self.text += data


class Browser:
    """A client that follows redirects and uses the pages' own controls."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.page: Page

    def open(self, address: str, **query: Any) -> Page:
        return self.took(self.client.get(address, params=query or None, headers=HTML, follow_redirects=True))

    def act(self, action: str) -> Page:
        """Do an action by the control of the page that stands for it."""
        query = action.removeprefix("search[")[:-1] if action.startswith("search[") else None
        method, address, fields = self.page.controls["search" if query is not None else action]
        address = str(self.page.response.url.join(address))
        if query is not None:
            fields = {"search_query": query}
        sent = {"data": fields} if fields else {}
        return self.took(self.client.request(method.upper(), address, headers=HTML, follow_redirects=True, **sent))

    def took(self, response: httpx.Response) -> Page:
        self.page = Page(response)
        return self.page


@pytest.fixture
def browser(hub: Any) -> Iterator[Browser]:
    with httpx.Client(base_url=hub.url, timeout=20) as client:
        yield Browser(client)


def expert_actions(task: str) -> tuple[list[str], float]:
    env = make("webshop")
    env.reset(seed=0, options={"task": task})
    actions, reward = [], 0.0
    for action in env.expert():
        actions.append(action)
        reward = env.step(action)[1]
    return actions, reward


def test_a_purchase_by_links_and_forms(hub: Any, browser: Browser) -> None:
    page = browser.open("/webshop/site")
    assert str(page.response.url).endswith(SITE) and "webshop" in page.text
    actions, reward = expert_actions("test/3")
    page = browser.open(SITE, task="test/3")
    session = page.response.url.path.split("/")[3]
    instruction = hub.one("state", session=session).observation
    assert len(page.text) > 30 and page.text.split("Instruction: ")[1][:40] in instruction
    for number, action in enumerate(actions, start=1):
        page = browser.act(action)
        assert page.response.url.path == f"{SITE}{session}/{number}"
    assert f"max 1.0){reward}" in page.text and "Where the score comes from" in page.text
    assert page.controls == {}, "nothing more can be done"
    (card,) = [card for card in hub.http.get("/v1/sessions").json() if card["session"] == session]
    assert (card["env"], card["task"], card["step_index"], card["done"]) == ("webshop", "test/3", len(actions), True)
    # The session is one like any other: here it is read, and ended, over the native protocol.
    assert hub.one("state", session=session).reward == reward
    hub.one("close", session=session)
    assert browser.open(f"{SITE}{session}").response.status_code == 404


def test_what_is_asked_for_is_started(browser: Browser, hub: Any) -> None:
    def started(**query: Any) -> dict[str, Any]:
        session = browser.open(SITE, **query).response.url.path.split("/")[3]
        return hub.http.get(f"/v1/sessions/{session}").json()  # type: ignore[no-any-return]

    assert started(task="test/5", seed=7)["seed"] == 7
    assert started(split="validation")["task"].startswith("validation/")
    assert started(split="test", task="")["task"].startswith("test/")
    assert started(products=300, attributes_page="true", split="train")["env"] == "webshop"
    log = '["search[red]", "nonsense", "click[next >]"]'
    assert started(task="test/5", seed=1, log=log)["step_index"] == 3
    assert "Page 2" in browser.page.text


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"task": "test/999999"}, 404, "test"),
        ({"split": "nowhere"}, 404, "Valid: test, train, validation"),
        ({"task": "test/1", "product": "3"}, 422, "products"),
        ({"task": "test/1", "observation": "html"}, 422, "observation"),
        ({"task": "test/1", "seed": "-1"}, 422, "seed"),
        ({"task": "test/1", "seed": "1e5"}, 422, "seed"),
        ({"task": "test/1", "log": "[]"}, 422, "seed"),
        ({"task": "test/1", "seed": "1", "log": "[1.5]"}, 422, "log"),
        ({"task": "test/1", "products": "[" * 20000}, 422, "products"),
        ({"task": "<img src=x>"}, 404, "<img src=x>"),
    ],
)
def test_a_bad_wish_is_answered_by_a_page(browser: Browser, query: dict[str, str], status: int, says: str) -> None:
    page = browser.took(browser.client.post(SITE, data=query))
    assert page.response.status_code == status and says in page.text
    assert page.response.headers["content-type"] == "text/html; charset=utf-8"
    assert "<img" not in page.response.text


def test_a_form_sent_twice_acts_once(browser: Browser) -> None:
    first = browser.open(SITE, task="test/0").response.url
    search = str(first.join("0/search"))
    for _ in range(2):
        answer = browser.client.post(search, data={"search_query": "red"})
        assert answer.status_code == 303 and answer.headers["location"] == "../1"
    page = browser.open(str(first))
    assert page.response.url.path.endswith("/1"), "the address of an old page leads to the current one"


def test_an_old_page_does_nothing(browser: Browser) -> None:
    first = browser.open(SITE, task="test/0").response.url
    browser.act("search[red]")
    old = browser.page
    new = browser.act("click[next >]").response.url
    browser.page = old
    page = browser.act("click[back to search]")
    assert page.response.status_code == 409 and "Go on where the shop stands" in page.text
    assert browser.open(str(page.response.url.join("../../" + first.path.split("/")[3]))).response.url == new


def test_what_a_person_types_is_searched_for(browser: Browser) -> None:
    browser.open(SITE, task="test/0")
    for typed in ("red", "[red]", "a]b[c", "  ", "\n", "'\"><script>alert(1)</script>", "😀 é", "x" * 100_000):
        page = browser.act(f"search[{typed}]")
        assert "Total results: " in page.text
        assert page.response.text.count("<script") == 1
    page = browser.act("search[]")
    assert "Nothing happened" in page.text and "Total results: " in page.text


def test_the_end_of_an_unfinished_episode(browser: Browser) -> None:
    browser.open(SITE, task="test/0", max_steps=1)
    page = browser.act("search[red]")
    assert "The episode is over" in page.text and "inert" in page.ids["shop"]
    page = browser.act("click[next >]")
    assert page.response.status_code == 409 and "over" in page.text


def test_requests_that_no_page_makes(browser: Browser, hub: Any) -> None:
    at = browser.open(SITE, task="test/0").response.url
    assert browser.client.post(str(at.join("0/click"))).status_code == 422
    assert browser.client.post(str(at.join("0/click")), data={"a": "1", "b": "2"}).status_code == 422
    assert browser.client.post(str(at.join("0/search")), data={str(n): "" for n in range(200)}).status_code == 422
    assert browser.client.get(str(at.join("0/search"))).status_code == 405
    assert browser.client.post(str(at.join("99/click")), data={"a": "search"}).status_code == 409
    assert browser.client.get(SITE + "static/../../v1").status_code == 404
    assert browser.client.get(SITE + "static/site.py").status_code == 404
    assert browser.client.get("/bandit/site/").status_code == 404, "bandits keep no shop"
    text = hub.one("create", env="webshop", reset=True).session
    page = browser.open(f"{SITE}{text}/0")
    assert page.response.status_code == 422 and "not started on this site" in page.text


def test_headers(browser: Browser) -> None:
    page = browser.open(SITE, task="test/0").response
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store" and page.headers["x-content-type-options"] == "nosniff"
    for name, kind in (("site.css", "text/css"), ("site.js", "text/javascript")):
        answer = browser.client.get(SITE + "static/" + name)
        assert answer.headers["content-type"].startswith(kind) and "immutable" in answer.headers["cache-control"]
        assert "http" not in answer.text, "nothing is loaded from elsewhere"


# Keys ----------------------------------------------------------------------------------------------


@pytest.fixture
def visitor(locked: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked.url, timeout=20, headers=HTML) as client:
        yield client


def test_a_browser_logs_in_and_goes_where_it_wanted(locked: Any, visitor: httpx.Client) -> None:
    answer = visitor.get(SITE, params={"task": "test/4"})
    assert answer.status_code == 303 and answer.headers["location"] == "login?next=%3Ftask%3Dtest%252F4"
    login = visitor.get(str(answer.url.join(answer.headers["location"])))
    assert login.status_code == 200 and 'type="password"' in login.text and 'value="?task=test%2F4"' in login.text
    wrong = visitor.post(f"{SITE}login", data={"key": "wrong-key", "next": "?task=test/4"})
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers and 'value="?task=test/4"' in wrong.text
    right = visitor.post(f"{SITE}login", data={"key": KEY, "next": "?task=test/4"})
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=" not in cookie and KEY not in cookie
    person = Browser(visitor)
    page = person.open(str(right.url.join(right.headers["location"])))
    assert page.response.status_code == 200 and "Instruction" in page.text
    assert "Total results" in person.act("search[red]").text
    # The session is the key's own, and nobody else's.
    (card,) = locked.http.get("/v1/sessions", headers={"X-API-Key": KEY}).json()
    assert card["task"] == "test/4"
    assert locked.http.get("/v1/sessions", headers={"X-API-Key": OTHER}).json() == []
    address = page.response.url.path
    assert visitor.get(address, headers={"X-API-Key": OTHER, "Cookie": ""}).status_code == 404


def test_without_a_ticket_nothing_is_shown(visitor: httpx.Client) -> None:
    for method, path, wanted in (
        ("GET", f"{SITE}abc/3", "../login?next=abc%2F3"),
        ("POST", f"{SITE}abc/3/click", "../../login?next=abc"),
        ("POST", SITE, "login?next="),
    ):
        answer = visitor.request(method, path)
        assert (answer.status_code, answer.headers["location"]) == (303, wanted)
    programs = visitor.get(SITE, headers={"Accept": "*/*"})
    assert programs.status_code == 401 and programs.json()["code"] == "UNAUTHORIZED"
    for path in ("login", "static/site.css", "static/site.js"):
        assert visitor.get(SITE + path).status_code == 200
    assert visitor.get("/v1/sessions").status_code == 401 and visitor.get("/webshop/state").status_code == 401


def test_a_ticket_opens_the_site_only(visitor: httpx.Client) -> None:
    visitor.post(f"{SITE}login", data={"key": KEY})
    ticket = visitor.cookies[COOKIE]
    for path, status in ((SITE, 200), ("/v1/sessions", 401), ("/webshop/tasks", 401), ("/openapi.json", 401)):
        assert visitor.get(path, headers={"Cookie": f"{COOKIE}={ticket}"}).status_code == status


@pytest.mark.parametrize("then", ["//evil.example", "https://evil.example", "\\\\evil.example", "/../../x", "\r\nX: y"])
def test_a_login_leads_nowhere_else(visitor: httpx.Client, then: str) -> None:
    answer = visitor.post(f"{SITE}login", data={"key": KEY, "next": then})
    there = answer.url.join(answer.headers["location"])
    assert there.host == answer.url.host and "x" not in answer.headers


def test_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring({"me": KEY, "an.other": OTHER})

    def holder(ring: Keyring, ticket: str) -> str:
        return ring.account([(b"cookie", f"a=b; {COOKIE}={ticket}".encode())], ticket=True).name

    mine, theirs = ring.ticket(KEY), ring.ticket(OTHER)
    assert holder(ring, mine) == "me" and holder(ring, theirs) == "an.other"
    assert holder(Keyring({"me": KEY}), mine) == "me", "it outlives a restart"
    name, until, signature = mine.rsplit(".", 2)
    forged = [f"an.other.{until}.{signature}", f"{name}.{int(until) + 1}.{signature}", f"{name}.{until}.", "", "x"]
    forged += [f"{name}..{signature}", mine[:-1], f"{name}.{until}.é", f".{until}.{signature}"]
    for ticket in forged:
        with pytest.raises(Unauthorized):
            holder(ring, ticket)
    with pytest.raises(Unauthorized):
        holder(Keyring({"me": "a-changed-key"}), mine)
    with pytest.raises(Unauthorized):
        ring.account([(b"cookie", f"{COOKIE}={mine}".encode())])
    with pytest.raises(Unauthorized):
        ring.ticket("unknown")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + TICKET_S + 2)
    with pytest.raises(Unauthorized):
        holder(ring, mine)


def test_where_no_key_is_asked_for_there_is_no_login(browser: Browser) -> None:
    assert str(browser.open(f"{SITE}login").response.url).endswith(SITE)


# The environment in a real browser -----------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.needs("chromium")
def test_the_browser_environment_plays_on_a_hub(locked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGYM_API_KEY", OTHER)
    text, env = make("webshop"), make("webshop-browser", url=locked.url + SITE)
    assert text.reset(seed=0, options={"task": "test/1"}) == env.reset(seed=0, options={"task": "test/1"})
    number = 0
    for number, action in enumerate(text.expert()):
        if number == 1:  # the ticket runs out: the key is typed in again
            with browser_for("127.0.0.1") as browser:
                browser.driver.delete_all_cookies()
        if number == 2:  # the hub forgets: the session is rebuilt there
            for account in locked.hub.accounts:
                for session in list(account.sessions.values()):
                    locked.on_loop(locked.hub.drop, session)
        assert text.step(action) == env.step(action)
    assert text.done and number > 2
    (card,) = locked.http.get("/v1/sessions", headers={"X-API-Key": OTHER}).json()
    assert (card["task"], card["done"]) == ("test/1", True)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.browser
@pytest.mark.needs("chromium")
def test_what_a_site_refuses(start_hub: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNGYM_API_KEY", raising=False)
    with pytest.raises(ServerUnavailable, match="no page of a shop"):
        make("webshop-browser", url=hub.url).reset(seed=0)
    with pytest.raises(ServerUnavailable, match="does not answer"):
        make("webshop-browser", url=f"http://127.0.0.1:{closed_port()}/webshop/site").reset(seed=0)
    with start_hub(envs=("webshop",), max_sessions=1) as full:
        full.one("create", env="webshop")
        with pytest.raises(CapacityReached, match="Close sessions"):
            make("webshop-browser", url=full.url + SITE).reset(seed=0)
    with start_hub(envs=("webshop",), api_keys={"me": KEY}) as locked:
        with pytest.raises(Unauthorized, match="Set TURNGYM_API_KEY"):
            make("webshop-browser", url=locked.url + SITE).reset(seed=0)
        monkeypatch.setenv("TURNGYM_API_KEY", "wrong-key")
        with pytest.raises(Unauthorized, match="Correct TURNGYM_API_KEY"):
            make("webshop-browser", url=locked.url + SITE).reset(seed=0)
