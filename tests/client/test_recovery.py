"""Broken connections and hubs that die: nothing is lost, and nothing is applied twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import turngym
from turngym.client.connect import connect_async
from turngym.errors import (
    NotReset,
    PayloadTooLarge,
    ReplayDiverged,
    ServerUnavailable,
    StepConflict,
    TurngymError,
)
from turngym.records import StepResult

MOVES = ["Left", "Down", "Right", "Up"]
KILL, TERMINATE = subprocess.Popen.kill, subprocess.Popen.terminate


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("end", [KILL, TERMINATE])
def test_a_hub_that_restarts_in_the_middle_of_64_episodes(
    end: Callable[..., None], new_hub: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    hub = new_hub()
    # The largest lake, so that many episodes are still running; its noise shows whether the replay is exact.
    env = turngym.connect(hub.url, "frozen-lake", n=64, autoreset_mode="Disabled", size=8)
    env.reset(seed=100, options={"split": "test"})
    local = turngym.make_vec("frozen-lake", 64, autoreset_mode="Disabled", size=8)
    local.reset(seed=100, options={"split": "test"})
    choose = random.Random(0)
    lost = 0
    for turn in range(8):
        live = [i for i, last in enumerate(env.last) if last is not None and not last.done]
        if turn == 4:
            hub.end(end)
            hub.start()
            lost = len(live)
        actions = {i: choose.choice(MOVES) for i in live}
        assert env.step_some(actions) == local.step_some(actions)
    assert lost > 10 and env.rebuilt == lost
    assert [text for text in warnings_of(caplog) if "by replay" in text] == [
        f"Rebuilt {lost} sessions by replay: the hub at {hub.url} no longer had them (it restarted, or evicted them)."
    ]
    env.close()


def wait_for(marker: Path) -> None:
    while not marker.exists():
        threading.Event().wait(0.01)


@pytest.mark.parametrize("level", ["text", "turn"])
def test_the_step_in_flight_is_applied_once(level: str, new_hub: Callable[..., Any], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hub = new_hub()
    env = turngym.connect(hub.url, "tally", level=level, marker=str(marker))  # type: ignore[arg-type]
    env.reset(seed=1)
    env.step(env.wrap("one"))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(env.step(env.wrap("slow"))))
    thread.start()
    wait_for(marker)  # the hub is in the middle of the step
    hub.end(KILL)
    hub.start()
    thread.join()
    shown = results[0][0] if level == "text" else results[0][4]["observation"]
    assert shown == "one slow"
    assert results[0][4]["step"] == 2 and env.rebuilt == 1
    assert marker.read_text() == "slow\nslow\n"  # once by the hub that died, once by the other
    result = env.step(env.wrap("two"))
    assert (result[0] if level == "text" else result[4]["observation"]) == "one slow two"
    if level == "turn":
        assert [turn.action for turn in env.turns] == ["one", "slow", "two"]
    env.close()


def caught(call: Callable[[], Any]) -> Any:
    """Return what a call in a thread gave, or the exception it raised."""
    try:
        return call()
    except Exception as error:
        return error


def test_a_hub_that_drains_finishes_what_it_began(new_hub: Callable[..., Any], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hub = new_hub()
    slow = turngym.connect(hub.url, "tally", marker=str(marker))
    quick = turngym.connect(hub.url, "tally-inline", max_steps=1_000_000)
    slow.reset(seed=1)
    quick.reset(seed=1)
    slow_results: list[Any] = []
    quick_results: list[Any] = []
    restarted = threading.Event()

    def play_on() -> None:
        while not restarted.wait(0.001):
            quick_results.append(caught(lambda: quick.step("x")))

    threads = [
        threading.Thread(target=lambda: slow_results.append(caught(lambda: slow.step("slow")))),
        threading.Thread(target=play_on),
    ]
    threads[0].start()
    wait_for(marker)
    threads[1].start()
    hub.end(TERMINATE)  # refuses new work, and ends when the slow step is over
    hub.start()
    restarted.set()
    for thread in threads:
        thread.join()
    assert not [each for each in slow_results + quick_results if isinstance(each, Exception)]
    assert slow_results[0][0] == "slow" and marker.read_text() == "slow\n"
    assert [result[4]["step"] for result in quick_results] == list(range(1, len(quick_results) + 1))
    assert quick_results[-1][0].split() == ["x"] * len(quick_results)
    slow.close()
    quick.close()


def test_forks_and_reseeded_noise_survive(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    with turngym.connect(hub.url) as client:
        env, local = client.make("tally-inline"), turngym.connect(new_hub().url, "tally-inline")
        pairs: list[tuple[Any, Any]] = [(env, local)]
        for each in (env, local):
            each.reset(seed=1)
            each.step("one")
        pairs.append((env.fork(), local.fork()))
        pairs.append((env.fork(seed=5), local.fork(seed=5)))
        for each in (env, local):
            each.step("two")
            each.reseed(8)
        hub.end(KILL)
        hub.start()
        for ours, theirs in pairs:
            assert [ours.step("x") for _ in range(3)] == [theirs.step("x") for _ in range(3)]
        assert client.rebuilt == 3
        local.close()


def test_every_operation_finds_its_session_again(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    env = turngym.connect(hub.url, "sokoban", render_mode="ansi")
    env.reset(seed=1, options={"task": "test/3"})
    env.step("Up")
    before = (env.expert_action(), env.render(), env.state(), env.instructions, env.picture().tolist())
    operations: list[Callable[[], Any]] = [
        env.expert_action,
        env.render,
        env.state,
        lambda: env.instructions,
        lambda: env.picture().tolist(),
    ]
    for operation, expected in zip(operations, before, strict=True):
        drop(hub.url, env)
        assert operation() == expected
    drop(hub.url, env)
    assert env.fork().state() == env.state()
    assert env.rebuilt == 6
    env.close()


def drop(url: str, env: Any) -> None:
    """End the environment's session behind its client's back, as an eviction does."""
    answer = httpx.post(f"{url}/v1/close", json={"items": [{"session": env.remote.session.id}]})
    assert "error" not in answer.json()["items"][0]


def test_a_reset_needs_no_replay(url: str, caplog: pytest.LogCaptureFixture) -> None:
    env = turngym.connect(url, "frozen-lake")
    drop(url, env)
    assert env.reset(seed=1) == turngym.make("frozen-lake").reset(seed=1)
    env.step("Left")
    drop(url, env)
    assert env.reset(seed=2) == turngym.make("frozen-lake").reset(seed=2)
    assert env.rebuilt == 0 and not warnings_of(caplog)
    env.close()


def test_a_session_without_an_episode_is_made_again(url: str) -> None:
    env = turngym.connect(url, "frozen-lake")
    drop(url, env)
    with pytest.raises(NotReset):
        env.step("Left")
    env.reset(seed=1)
    env.close()


def test_a_replay_that_leads_elsewhere_is_an_error_until_the_next_reset(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    env = turngym.connect(hub.url, "drift")
    env.reset(seed=1)
    env.step("one")
    hub.end(KILL)
    hub.start(world="new")
    for _ in range(2):
        with pytest.raises(ReplayDiverged, match="ended at another observation") as caught:
            env.step("two")
        assert "reset" in caught.value.hint
    assert env.rebuilt == 0
    assert env.reset(seed=1)[0] == "new "
    assert env.step("three")[0] == "new three"
    env.close()


def test_members_that_cannot_be_rebuilt_harm_no_other(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    with turngym.connect(hub.url) as client:
        env, other = client.make_vec("drift", 2), client.make_vec("tally-inline", 2)
        for each in (env, other):
            each.reset(seed=1)
            each.step(["one", "one"])
        drop_one = env.remote.sessions[0].id
        hub.end(KILL)
        hub.start(world="new")
        assert other.step(["two", "two"])[0] == ("one two", "one two")
        outcomes = env.step_some({0: "two", 1: "two"})
        assert all(isinstance(outcome, ReplayDiverged) for outcome in outcomes.values())
        env.reset_some({0: {"seed": 1}})
        outcomes = env.step_some({0: "two", 1: "two"})
        assert isinstance(outcomes[0], StepResult) and isinstance(outcomes[1], ReplayDiverged)
        assert drop_one == env.remote.sessions[0].id


async def test_many_callers_are_rebuilt_together(new_hub: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    hub = new_hub()
    async with await connect_async(hub.url) as client:
        envs = await asyncio.gather(*(client.make("tally-inline") for _ in range(16)))
        await asyncio.gather(*(env.reset(seed=i) for i, env in enumerate(envs)))
        await asyncio.gather(*(env.step("one") for env in envs))
        await asyncio.to_thread(hub.end)
        restart = asyncio.to_thread(hub.start)
        results = await asyncio.gather(restart, *(env.step("two") for env in envs))
        assert [result[0] for result in results[1:]] == ["one two"] * 16
        assert client.rebuilt == 16 and client.reconnects >= 1
        rebuilt = [text for text in warnings_of(caplog) if "by replay" in text]
        assert len(rebuilt) < 16


def test_a_hub_that_stays_away_is_unavailable(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    env = turngym.connect(hub.url, "tally-inline", retry_s=0.3)
    env.reset(seed=1)
    hub.end(KILL)
    for _ in range(2):
        with pytest.raises(ServerUnavailable) as caught:
            env.step("one")
        assert "turngym serve" in caught.value.hint
    hub.start()
    assert env.step("one")[0] == "one"  # the environment goes on where it was
    env.close()


def test_closing_does_not_wait_for_a_hub_that_is_gone(new_hub: Callable[..., Any]) -> None:
    hub = new_hub()
    client = turngym.connect(hub.url)
    env = client.make("tally-inline")
    own = turngym.connect(hub.url, "tally-inline", n=3)
    hub.end(KILL)
    started = time.monotonic()
    env.close()
    own.close()
    client.close()
    assert time.monotonic() - started < 30  # far below retry_s


def test_no_answer_in_time(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    env = turngym.connect(url, "tally", timeout_s=0.2, marker=str(marker))
    env.reset(seed=0)
    with pytest.raises(ServerUnavailable, match="within 0.2 s".replace(".", r"\.")) as caught:
        env.step("slow")
    assert "same action is not applied twice" in caught.value.hint
    shown = None
    while shown is None:  # until the slow step is over: each repetition waits for it, and repeats none of it
        with contextlib.suppress(ServerUnavailable):
            shown = env.step("slow")[0]
    assert shown == "slow" and marker.read_text() == "slow\n"
    env.close()


def test_another_action_after_a_step_that_was_cut_off_is_a_conflict(url: str, tmp_path: Path) -> None:
    env = turngym.connect(url, "tally", timeout_s=0.2, marker=str(tmp_path / "marker"))
    env.reset(seed=0)
    with pytest.raises(ServerUnavailable):
        env.step("slow")
    error: TurngymError | None = None
    while error is None or isinstance(error, ServerUnavailable):
        with pytest.raises(TurngymError) as caught:
            env.step("other")
        error = caught.value
    assert isinstance(error, StepConflict)
    with pytest.raises(StepConflict):
        env.fork()
    assert env.reset(seed=0)[0] == ""
    env.close()


def test_a_message_that_is_too_large_fails_alone(new_hub: Callable[..., Any]) -> None:
    hub = new_hub(max_body_bytes=100_000)
    with turngym.connect(hub.url) as client:
        env = client.make("tally-inline")
        env.reset(seed=0)
        with pytest.raises(PayloadTooLarge):
            env.step("x" * 200_000)
        assert env.step("one")[0] == "one"


class Cutter:
    """A TCP relay that can cut its connections in the moment an answer comes back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cut_next_answer = False
        self.cuts = 0
        self.relays: set[asyncio.Task[None]] = set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def forth() -> None:
            while data := await reader.read(65536):
                far_writer.write(data)
                await far_writer.drain()

        async def back() -> None:
            while data := await far_reader.read(65536):
                if self.cut_next_answer:
                    self.cut_next_answer = False
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()

        ways = [asyncio.ensure_future(forth()), asyncio.ensure_future(back())]
        await asyncio.wait([*ways, self.over], return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for side in (writer, far_writer):
            side.transport.abort()
            with contextlib.suppress(ConnectionError):
                await side.wait_closed()

    async def relayed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self.relay(reader, writer))
        self.relays.add(task)
        await task

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(self.relayed, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.over.set_result(None)
            await asyncio.gather(*self.relays)


@pytest.fixture
async def cutter(hub: Any) -> AsyncIterator[tuple[Cutter, str]]:
    cutter = Cutter(hub.port)
    async with cutter.listening() as url:
        yield cutter, url


@pytest.mark.parametrize("name", ["tally", "tally-inline"])
async def test_an_answer_that_is_lost_is_asked_for_again(name: str, cutter: tuple[Cutter, str]) -> None:
    relay, url = cutter
    async with await connect_async(url) as hub:
        env = await hub.make(name)
        await env.reset(seed=1)

        async def cut(work: Any) -> Any:
            relay.cut_next_answer = True
            before = relay.cuts
            result = await work
            assert relay.cuts == before + 1
            return result

        assert (await cut(env.step("one")))[0] == "one"
        assert (await cut(env.step("one")))[0] == "one one"
        twin = await cut(env.fork(seed=3))
        assert (await cut(twin.step("two")))[0] == "one one two"
        assert (await cut(env.state())).observation == "one one"
        await cut(env.reset(seed=2))
        assert (await env.step("one"))[4]["step"] == 1
        made = await cut(hub.make(name))
        await cut(made.reset(seed=1))
        group = await cut(hub.group(name, 3, seed=1))
        assert (await cut(group.step(["one"] * 3)))[0] == ("one",) * 3
        await cut(hub.close([made.session]))
        assert hub.rebuilt == 0 and hub.reconnects == relay.cuts
        alive = {card.session for card in await hub.sessions()}
        assert {env.session.id, twin.session.id} <= alive and made.session.id not in alive
