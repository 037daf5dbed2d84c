"""The console's shell in a browser: documentation, API key, live sessions, layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from turngym.envs import registry
from turngym.envs.registry import specs

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]

KEY = "a-key-of-the-tests"
VIEWS = ("/", "/env/sokoban", "/play/sokoban", "/live", "/episodes")


def test_every_environment_is_listed_with_its_documentation(console: Any) -> None:
    console.find(".card")
    names = [element.text for element in console.all(".card h2")]
    served = [card["id"] for card in httpx.get(f"{console.url}/v1/envs").json()]
    assert names == served
    assert set(specs()) >= set(served) >= {"bandit", "frozen-lake", "sokoban"}
    console.find(".view-list input[type=search]").send_keys("ice")
    assert [element.text for element in console.all(".card h2")] == ["frozen-lake"]
    console.click(".card h2 a")
    page = console.find(".docs").text
    for expected in (
        "Walk over a frozen lake",  # rules
        "probability that a cell is ice",  # documented settings
        "slippery",
        "100,000",  # splits
        "turngym/FrozenLake-v0",
        f'turngym.connect("{console.url}", "frozen-lake")',
        f"{console.url}/frozen-lake",
        f"{console.url}/v1/step",
    ):
        assert expected in page
    console.click(".row a", "Play")
    console.find(".setup")


def test_what_an_environment_lacks_is_named_in_place_of_its_game(
    browser: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = registry.EnvSpec("lacking", "turngym_no_such_module:Env", "What cannot be had here", hidden=True)
    monkeypatch.setitem(registry._registry, "lacking", spec)
    with serve(envs=("bandit", "lacking")) as url:
        browser.errors()
        browser.visit(url)
        card = browser.find(".card", "What cannot be had here")
        assert "turngym_no_such_module" in card.text and "Play" not in card.text
        browser.click(".card h2 a", "lacking")
        assert "turngym_no_such_module" in browser.find(".notice").text
        browser.go("/play")
        browser.find(".setup")
        assert [option.text for option in browser.all("select[name=env] option, .setup option")].count("lacking") == 0
        browser.go("/play/lacking")
        assert "turngym_no_such_module" in browser.find(".problem", "cannot be played").text
        assert browser.errors() == []


def test_the_python_snippet_works(console: Any) -> None:
    console.go("/env/sokoban")
    console.find(".snippet", "turngym")
    names: dict[str, Any] = {}
    exec(console.all(".snippet pre")[0].text, names)
    assert names["info"]["step"] == 1
    names["env"].close()


def test_the_curl_snippet_works(console: Any) -> None:
    console.go("/env/sokoban")
    console.find(".snippet", "curl")
    text = console.all(".snippet pre")[2].text
    for op, item in re.findall(r"/v1/(create|close) \\\s+-d '(.*)'", text):
        reply = httpx.post(f"{console.url}/v1/{op}", content=item, headers={"Content-Type": "application/json"})
        assert "error" not in reply.json()["items"][0]


def test_unknown_places_say_so(console: Any) -> None:
    console.go("/nowhere")
    assert 'no page "nowhere"' in console.find(".problem").text
    console.go("/env/constructor")
    assert 'no environment "constructor"' in console.find(".problem").text
    console.go("/play/atlantis")
    assert "It serves: bandit" in console.find(".problem").text
    console.go("/play/sokoban?session=gone")
    console.find(".problem", "SESSION_NOT_FOUND")


def test_live_sessions_and_rates(console: Any) -> None:
    items = [{"env": "frozen-lake", "session": f"live-{n}", "reset": True, "seed": n} for n in range(3)]
    httpx.post(f"{console.url}/v1/create", json={"items": items}).raise_for_status()
    console.go("/live")
    console.find(".sessions a", "live-1")
    seen = int(console.figure("steps").replace(",", ""))
    step = [{"session": f"live-{n}", "action": "Up"} for n in range(3)]
    httpx.post(f"{console.url}/v1/step", json={"items": step}).raise_for_status()
    console.wait(lambda: int(console.figure("steps").replace(",", "")) == seen + 3, "three more steps")
    console.wait(lambda: console.all(".curve polyline"), "the curve")
    row = console.driver.execute_script(
        "return [...document.querySelectorAll('.sessions tbody tr')]"
        ".find((row) => row.innerText.includes('live-2')).innerText"
    )
    assert "frozen-lake" in row
    assert "train/" in row
    console.find(".view-live section input").send_keys("live-0")
    console.wait(lambda: len(console.all(".sessions tbody tr")) == 1, "the one session that fits")
    console.click(".sessions button", "Close")
    console.wait(lambda: "No session fits" in console.text(".view-live"), "the session to be gone")
    gone = httpx.post(f"{console.url}/v1/state", json={"items": [{"session": "live-0"}]}).json()["items"][0]
    assert gone["error"]["code"] == "SESSION_NOT_FOUND"


def test_the_api_key_is_asked_for_and_kept_in_the_tab(browser: Any, keyed_hub_url: str) -> None:
    browser.visit(keyed_hub_url)
    dialog = browser.find("dialog[open]")
    assert "asks for an API key" in dialog.text
    browser.click("dialog button", "Not now")
    assert "UNAUTHORIZED (401)" in browser.find(".problem").text
    browser.click(".problem button", "Try again")
    browser.fill("dialog input", "not the kéy")
    browser.click("dialog button", "Use this key")
    browser.find("dialog", "printable ASCII")
    browser.fill("dialog input", "a-wrong-key")
    browser.click("dialog button", "Use this key")
    browser.find("dialog", "The hub refused this API key.")
    browser.fill("dialog input", KEY)
    browser.click("dialog button", "Use this key")
    browser.find(".card")
    browser.go("/env/frozen-lake")
    assert "api_key=KEY" in browser.find(".docs").text
    assert KEY not in browser.find(".docs").text
    browser.go("/play/frozen-lake?seed=1")
    browser.click("button", "Start episode")
    browser.wait(lambda: browser.figure("turns") == "0", "an episode")
    browser.driver.refresh()
    browser.wait(lambda: browser.figure("turns") == "0", "the same episode")
    stored = browser.driver.execute_script(
        "return [sessionStorage.getItem('turngym.key'), localStorage.length, document.cookie]"
    )
    assert stored == [KEY, 0, ""]
    browser.click("#key-button")
    browser.find("dialog[open]")
    assert browser.errors() == []


def test_a_hub_that_is_gone_is_named(browser: Any, serve: Any) -> None:
    with serve(envs=("frozen-lake",)) as url:
        browser.visit(url)
        browser.find(".card")
    browser.go("/live")
    assert f"The hub at {url} does not answer." in browser.find(".problem").text
    assert "turngym serve" in browser.text(".problem")
    assert browser.errors() == []


@pytest.fixture
def keyed_hub_url(serve: Any) -> Iterator[str]:
    with serve(envs=("frozen-lake",), api_keys={"tests": KEY}) as url:
        yield url


@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_fit_and_can_be_read(console: Any, width: int, scheme: str) -> None:
    """Nothing is wider than the window, every control has a name, and text stands out from its ground."""
    driver = console.driver
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 640},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        for address in VIEWS:
            console.go(address)
            console.find("h1, .problem")
            console.wait(
                lambda: driver.execute_script("return document.querySelector('main').innerText.length > 60"), address
            )
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width, address
            assert driver.execute_script(NAMELESS) == [], address
            assert driver.execute_script(FAINT) == [], address
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# Controls without an accessible name.
NAMELESS = """
return [...document.querySelectorAll('button, input, select, textarea, a, img')].filter((e) =>
  !(e.innerText || e.getAttribute('aria-label') || e.alt || e.labels?.[0]?.innerText)
  && e.checkVisibility()).map((e) => e.outerHTML);
"""

# Visible text whose contrast to its background is under 4.5 (WCAG 2.2, AA).
FAINT = """
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] > 250) return colour;
  }
  return rgba('Canvas');
};
return [...document.querySelectorAll('main *, header *')].filter((e) =>
  [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.checkVisibility()
  && !e.closest('option, :disabled')).filter((e) => {
  const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05) < 4.5;
}).map((e) => e.outerHTML.slice(0, 120));
"""
