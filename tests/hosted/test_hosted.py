"""A real model behind a real server, on the CPU: `make hosted-test`. It tests the road, not the model's skill."""

from __future__ import annotations

import json
import re
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turngym
from turngym.cli import main
from turngym.client.policies import Context, HostedPolicy, Sampling
from turngym.client.sources import LocalEnv
from turngym.records import Completion, Message, read_episodes

pytestmark = pytest.mark.hosted
SETUP_S = 900


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    """Model name and base URL of a server that lives as long as these tests."""
    script = Path(__file__).with_name("run.sh")
    process = subprocess.Popen(["bash", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], SETUP_S)
        found = re.search(r"serving (\S+) on (\S+)", process.stdout.readline() if ready else "")
        if found is None:
            process.kill()
            pytest.fail(f"the model server did not start:\n{process.communicate()[1][-3000:]}")
        yield found[1], found[2]
    finally:
        process.kill()
        process.communicate()


async def ask(server: tuple[str, str], text: str, **sampling: Any) -> Completion:
    model, url = server
    policy = HostedPolicy(model, base_url=url, sampling=Sampling(**sampling))
    handle = LocalEnv(turngym.make("bandit"), inline=True)
    prompt = [Message(role="user", content=text)]
    try:
        context = Context("bandit", "test/0", 1, 0, "turn", "think-action", handle, observation=prompt)
        return await policy.act(context)
    finally:
        await policy.aclose()


def test_a_real_model_is_evaluated_and_the_run_resumed(server: tuple[str, str], tmp_path: Path) -> None:
    model, url = server
    words = ["eval", "--env", "bandit,frozen-lake", "--model", model, "--base-url", url, "--out", str(tmp_path)]
    words += ["--episodes", "3", "--pass-k", "2", "--max-turns", "2", "--max-tokens", "32", "--temperature", "0.6"]
    words += ["--sampling-seed", "1", "--logprobs", "--concurrency", "4", "--price-input", "1", "--price-output", "2"]
    assert main(words) == 0
    path = tmp_path / "episodes.jsonl"
    episodes = list(read_episodes(path))
    assert len(episodes) == 12 and all(episode.status in ("terminated", "truncated") for episode in episodes)
    replies = [turn.completion for episode in episodes for turn in episode.turns]
    assert all(reply.text.strip() for reply in replies)
    for reply in replies:
        assert reply.prompt_tokens is not None and reply.prompt_tokens > 50
        assert reply.logprobs is not None and 0 < len(reply.logprobs) <= 32
        assert max(reply.logprobs) <= 0 and reply.cost is not None and reply.cost > 0
        assert reply.finish_reason in ("stop", "length")
    assert len({reply.text for reply in replies}) > 3  # sampled, and not one answer to everything
    before = path.read_bytes()
    assert main(words) == 0 and path.read_bytes() == before
    (row,) = [
        r
        for r in json.loads((tmp_path / "metrics.json").read_text())["rows"]
        if (r["by"], r["env"]) == ("env", "bandit")
    ]
    assert row["tokens_turn"] > 0 and row["cost"] > 0 and row["format_valid"] is not None and "2" in row["pass_at"]
    assert (tmp_path / "report.html").stat().st_size > 20_000


async def test_equal_seeds_give_equal_replies(server: tuple[str, str]) -> None:
    one, same, other = [
        await ask(server, "Name three animals.", temperature=1.0, max_tokens=24, seed=seed) for seed in (1, 1, 2)
    ]
    assert one.text == same.text != other.text


async def test_a_real_overflow_is_recognised(server: tuple[str, str]) -> None:
    reply = await ask(server, "left right " * 2000)
    assert (reply.finish_reason, reply.text) == ("context_overflow", "")
