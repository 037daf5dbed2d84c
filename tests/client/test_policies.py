from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import HTMLResponse, JSONResponse
from rich.console import Console

import turngym
from turngym.client.policies import (
    Context,
    ExpertPolicy,
    HostedPolicy,
    HumanPolicy,
    RandomPolicy,
    ReplayPolicy,
    Sampling,
)
from turngym.client.policies.human import Lines
from turngym.client.rollout import Job, play
from turngym.client.sources import LocalEnv, LocalSource, Wanted
from turngym.errors import InvalidRequest, PolicyFailed, RecordError, ReplayDiverged
from turngym.records import Episode, EpisodeWriter, Message


def _load_server() -> Any:
    spec = spec_from_file_location("chat_server", Path(__file__).with_name("chat_server.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chat = _load_server()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    running = chat.ChatServer()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


async def started(env: str, level: str = "text", task: str = "test/0", seed: int = 1, **turn: Any) -> Context:
    """Return the context of an episode that was just reset."""
    inner = turngym.make(env)
    outer = inner if level == "text" else turngym.TurnEnv(inner, **turn)
    handle = LocalEnv(outer, inline=True)
    observation, info = await handle.reset(seed=seed, options={"task": task})
    style = outer.style.name if level == "turn" else ""
    return Context(env, task, seed, 0, level, style, handle, observation=observation, info=info)


def asking(text: str = "Which way?") -> Context:
    """Return the context of a prompt of one message."""
    handle = LocalEnv(turngym.make("bandit"), inline=True)
    prompt = [Message(role="user", content=text)]
    return Context("bandit", "test/0", 1, 0, "turn", "think-action", handle, observation=prompt)


# Random and expert ---------------------------------------------------------------------------------


async def test_random_draws_all_admissible_actions_about_equally() -> None:
    context = await started("frozen-lake")
    policy = RandomPolicy()
    counts = Counter([(await policy.act(context)).text for _ in range(2000)])
    assert set(counts) == {"Left", "Down", "Right", "Up"}
    assert all(400 < count < 600 for count in counts.values())  # 500 ± 5 standard deviations


async def test_random_depends_on_its_seed_and_the_episode_alone() -> None:
    async def actions(policy_seed: int, **episode: Any) -> list[str]:
        context = await started("frozen-lake", **episode)
        return [(await RandomPolicy(seed=policy_seed).act(context)).text for _ in range(20)]

    first = await actions(0)
    assert first == await actions(0)
    assert first != await actions(1)
    assert first != await actions(0, seed=2)
    assert first != await actions(0, task="test/1")


async def test_random_is_well_formed_at_turn_level() -> None:
    for style in ("think-action", "meta-tags", "think-answer"):
        context = await started("frozen-lake", "turn", style=style)
        reply = (await RandomPolicy().act(context)).text
        info = (await context.handle.step(reply))[4]
        assert info["format_valid"] and info["action_valid"], (style, reply)


async def test_random_without_admissible_actions_says_so() -> None:
    context = await started("bandit")
    context.info = {**context.info, "admissible": []}
    with pytest.raises(PolicyFailed, match="bandit lists no admissible actions"):
        await RandomPolicy().act(context)


async def test_expert_asks_the_environment() -> None:
    for level in ("text", "turn"):
        context = await started("bandit", level)
        reply = (await ExpertPolicy().act(context)).text
        assert (await context.handle.step(reply))[4]["won"]


# Replay --------------------------------------------------------------------------------------------


async def recorded(level: str = "turn", seed: int = 5) -> Episode:
    job = Job("one", Wanted("frozen-lake", level=level), "test/3", seed)
    return await play(RandomPolicy(), job, LocalSource())


async def replayed(policy: ReplayPolicy, *, level: str = "turn", seed: int = 5, **config: Any) -> Episode:
    job = Job("two", Wanted("frozen-lake", config, level), "test/3", seed)
    return await play(policy, job, LocalSource())


@pytest.mark.parametrize("then", ["text", "turn"])
@pytest.mark.parametrize("now", ["text", "turn"])
async def test_replay_takes_the_same_course(tmp_path: Path, then: str, now: str) -> None:
    episode = await recorded(then)
    with EpisodeWriter(tmp_path / "e.jsonl") as writer:
        writer.write(episode)
    again = await replayed(ReplayPolicy(tmp_path / "e.jsonl"), level=now)
    assert again.error is None
    assert [turn.action for turn in again.turns] == [turn.action for turn in episode.turns]
    assert again.final_observation == episode.final_observation
    assert again.reward == episode.reward


async def test_replay_notices_another_course() -> None:
    again = await replayed(ReplayPolicy([await recorded()]), slippery=False)
    assert again.status == "failed"
    assert again.error is not None and again.error["code"] == ReplayDiverged.code


async def test_replay_of_what_was_not_recorded_fails() -> None:
    policy = ReplayPolicy([await recorded()])
    missing = await replayed(policy, seed=6)
    assert missing.error is not None and "was not recorded" in missing.error["detail"]
    short = await recorded()
    short.turns.pop()
    cut = await replayed(ReplayPolicy([short]))
    assert cut.error is not None and f"with {len(short.turns)} turns only" in cut.error["detail"]


async def test_replay_of_several_players_wants_one_named(tmp_path: Path) -> None:
    one, other = await recorded(), await recorded()
    other.policy = "other"
    with pytest.raises(PolicyFailed, match="'random' and 'other'"):
        ReplayPolicy([one, other])
    assert (await replayed(ReplayPolicy([one, other], player="other"))).error is None
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(RecordError, match="empty"):
        ReplayPolicy(tmp_path / "none.jsonl")


# Human ---------------------------------------------------------------------------------------------


async def typed(text: str, env: str = "frozen-lake") -> tuple[list[str], Console]:
    """Return the replies that come of typed text, and the console."""
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115 - closed below
    policy = HumanPolicy(console=console, lines=Lines(read))
    context = await started(env)
    replies: list[str] = []

    async def play_on() -> None:
        while True:
            replies.append((await policy.act(context)).text)

    with pytest.raises(PolicyFailed, match="quit"):
        await play_on()
    os.close(read)
    console.file.close()
    return replies, console


async def test_a_person_types_actions_or_their_numbers() -> None:
    replies, console = await typed("2\nLeft\n 7 \nfly\nq\nnever read\n")
    assert replies == ["Down", "Left", "7", "fly"]
    shown = console.export_text()
    assert "1) Left   2) Down" in shown and "frozen-lake test/0" in shown


async def test_the_end_of_the_input_ends_play() -> None:
    assert (await typed("Up\nDown"))[0] == ["Up", "Down"]
    assert (await typed(""))[0] == []


async def test_lines_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "moves").write_text("a\n\nb\n")
    with open(tmp_path / "moves", "rb") as file:
        lines = Lines(file.fileno())
        assert [await lines.next() for _ in range(4)] == ["a", "", "b", None]


# Hosted --------------------------------------------------------------------------------------------


async def ask(server: Any, model: str, context: Context | None = None, **settings: Any) -> Any:
    """Ask once, with little patience."""
    policy = HostedPolicy(model, base_url=server.url, **{"retries": 2, "timeout": 5.0, **settings})
    try:
        return await policy.act(context or asking())
    finally:
        await policy.aclose()


async def test_a_reply_with_usage_cost_and_settings(server: Any) -> None:
    server.says("plain", "<think>t</think><action>go</action>")
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=99, stop=["END"], extra={"min_p": 0.1})
    reply = await ask(server, "plain", sampling=sampling, price_input=1.0, price_output=10.0)
    assert reply.text == "<think>t</think><action>go</action>"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (120, 30, "stop")
    assert reply.cost == pytest.approx((120 * 1 + 30 * 10) / 1e6)
    assert reply.logprobs is None
    assert server.requests[-1] == {
        "model": "plain",
        "messages": [{"role": "user", "content": "Which way?"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 99,
        "stop": ["END"],
        "min_p": 0.1,
    }


async def test_what_is_not_set_is_not_sent(server: Any) -> None:
    server.says("plain", "x")
    await ask(server, "plain", sampling=Sampling(max_tokens=0))
    assert set(server.requests[-1]) == {"model", "messages"}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_separate_reasoning_is_joined_back(server: Any, field: str) -> None:
    server.says("thinker", "<action>go</action>", **{field: "so it is"})
    assert (await ask(server, "thinker")).text == "<think>so it is</think><action>go</action>"
    server.says("thinker", None, **{field: "never came to an end"})
    assert (await ask(server, "thinker")).text == "<think>never came to an end</think>"
    server.says("thinker", "<think>a</think>b", **{field: "a"})
    assert (await ask(server, "thinker")).text == "<think>a</think>b"


async def test_a_prefix_of_the_chat_template_is_put_back(server: Any) -> None:
    server.says("template", "so</think><action>go</action>")
    assert (await ask(server, "template", prefix="<think>")).text == "<think>so</think><action>go</action>"
    server.says("template", "<think>so</think>")
    assert (await ask(server, "template", prefix="<think>")).text == "<think>so</think>"


async def test_logprobs_and_token_ids_are_kept(server: Any) -> None:
    body = json.loads(chat.completion("ab").body)
    tokens = [{"token": t, "logprob": p, "bytes": None, "top_logprobs": []} for t, p in (("a", -0.5), ("b", -0.25))]
    body["choices"][0] |= {"logprobs": {"content": tokens}, "token_ids": [5, 6]}
    body["prompt_token_ids"] = [1, 2, 3]
    del body["usage"]
    server.script("logs", JSONResponse(body))
    reply = await ask(server, "logs", sampling=Sampling(logprobs=True))
    assert server.requests[-1]["logprobs"] is True
    assert (reply.logprobs, reply.token_ids, reply.prompt_ids) == ([-0.5, -0.25], [5, 6], [1, 2, 3])
    assert (reply.completion_tokens, reply.prompt_tokens, reply.cost) == (2, None, None)


async def test_a_busy_server_is_asked_again(server: Any) -> None:
    busy = chat.problem(429, "slow down", **{"retry-after-ms": "20"})
    server.script("busy", busy, chat.problem(503, "not now", **{"retry-after-ms": "20"}), chat.completion("here"))
    assert (await ask(server, "busy")).text == "here"
    server.script("always", busy)
    before = len(server.requests)
    with pytest.raises(PolicyFailed, match="429: slow down") as failure:
        await ask(server, "always")
    assert len(server.requests) - before == 3
    assert "--concurrency" in failure.value.hint


OVERFLOWS = [
    "This model's maximum context length is 2048 tokens. However, your messages resulted in 3000 tokens.",
    "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
    "Requested tokens (600) exceed context window of 512",
    "the request exceeds the available context size. try increasing the context size",
    "'max_tokens' is too large: 512. This model's maximum context length is 600 tokens",
]


@pytest.mark.parametrize("message", OVERFLOWS)
async def test_a_prompt_that_does_not_fit_is_an_outcome(server: Any, message: str) -> None:
    server.script("small", chat.problem(400, message))
    reply = await ask(server, "small")
    assert (reply.finish_reason, reply.text) == ("context_overflow", "")


async def test_a_refused_setting_names_what_was_sent(server: Any) -> None:
    server.script("strict", chat.problem(400, "Unsupported parameter: 'seed'"))
    with pytest.raises(PolicyFailed, match="400: Unsupported parameter: 'seed'") as failure:
        await ask(server, "strict", sampling=Sampling(seed=3, logprobs=True, top_k=3))
    assert "(sent: logprobs, max_tokens, top_k, seed)" in failure.value.hint


@pytest.mark.parametrize(
    ("response", "says", "hint"),
    [
        (chat.problem(401, "bad key"), "401: bad key", "API key"),
        (chat.problem(404, "no such model"), "404: no such model", "--model"),
        (HTMLResponse("<h1>hello</h1>"), "gave no chat completion", "OpenAI-compatible"),
        (JSONResponse({"choices": []}), "gave no chat completion", "OpenAI-compatible"),
        (JSONResponse({"choices": None}), "gave no chat completion", "OpenAI-compatible"),
        (JSONResponse([1]), "gave no chat completion", "OpenAI-compatible"),
        (Response("{", media_type="application/json"), "gave no chat completion", "OpenAI-compatible"),
    ],
)
async def test_answers_of_no_use_say_what_to_do(server: Any, response: Response, says: str, hint: str) -> None:
    server.script("odd", response)
    with pytest.raises(PolicyFailed, match=says) as failure:
        await ask(server, "odd")
    assert hint in failure.value.hint


async def test_no_server_and_no_answer_in_time(server: Any) -> None:
    policy = HostedPolicy("m", base_url="http://127.0.0.1:1/v1", retries=0)
    with pytest.raises(PolicyFailed, match=r"No connection to http://127\.0\.0\.1:1/v1"):
        await policy.act(asking())
    await policy.aclose()
    server.script("slow", chat.completion("late"), pause=2.0)
    with pytest.raises(PolicyFailed, match=r"did not answer within 0\.1 s, 1 times"):
        await ask(server, "slow", retries=0, timeout=0.1)


async def test_seeds_differ_by_turn_and_episode_and_can_be_repeated(server: Any) -> None:
    server.says("seeded", "x")

    async def sent(turn: int, attempt: int, seed: int = 7) -> int:
        context = asking()
        context.turn, context.attempt = turn, attempt
        await ask(server, "seeded", context, sampling=Sampling(seed=seed))
        return int(server.requests[-1]["seed"])

    first = await sent(0, 0)
    assert first == await sent(0, 0)
    assert len({first, await sent(1, 0), await sent(0, 1), await sent(0, 0, seed=8)}) == 4
    assert 0 <= first < 2**31


async def test_calls_in_flight_are_limited(server: Any) -> None:
    server.script("wide", chat.completion("x"), pause=0.05)
    policy = HostedPolicy("wide", base_url=server.url, concurrency=3)
    await asyncio.gather(*(policy.act(asking()) for _ in range(12)))
    await policy.aclose()
    assert server.most["wide"] == 3


async def test_keys_come_from_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="No API key in OPENAI_API_KEY") as missing:
        HostedPolicy("gpt")
    assert "--base-url" in missing.value.hint
    with pytest.raises(InvalidRequest, match="No API key in MY_KEY"):
        HostedPolicy("gpt", base_url=server.url, api_key_env="MY_KEY")
    monkeypatch.setenv("MY_KEY", "s3cret")
    server.says("keyed", "x")
    await ask(server, "keyed", api_key_env="MY_KEY")
    assert server.keys[-1] == "Bearer s3cret"


async def test_hostile_text_reaches_the_server(server: Any) -> None:
    server.says("plain", "ok \ud800".encode("utf-8", "replace").decode())
    await ask(server, "plain", asking("lone \ud800 surrogate, NUL \x00"))
    assert server.requests[-1]["messages"][0]["content"] == "lone ? surrogate, NUL \x00"


async def test_a_model_needs_the_turn_level(server: Any) -> None:
    with pytest.raises(InvalidRequest, match="no prompt"):
        await ask(server, "plain", await started("bandit"))
