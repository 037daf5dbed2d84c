"""The stock OpenEnv package against the hub: its clients, its validator, its manifest parser.

It weighs half a gigabyte, so these tests run in a virtual environment of their own: ``make conformance``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

openenv_core = pytest.importorskip("openenv.core", reason="the stock OpenEnv package: make conformance")

from openenv.core.mcp_client import MCPToolClient  # noqa: E402
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser  # noqa: E402

from turngym.envs.registry import make, specs  # noqa: E402

pytestmark = pytest.mark.conformance
ENVS = sorted(specs())
KEY = "conformance-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def hub_process(key: str, *arguments: str) -> Iterator[str]:
    """Run ``turngym serve`` and yield its URL."""
    environment = {**os.environ, "TURNGYM_API_KEY": key}
    command = [sys.executable, "-m", "turngym.cli", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            match = re.search(r"http://\S+", process.stdout.readline())
            assert match, "the hub did not start"
            yield match[0]
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.fixture(scope="module")
def open_hub() -> Iterator[str]:
    yield from hub_process("")


@pytest.fixture(scope="module")
def locked_hub() -> Iterator[str]:
    yield from hub_process(KEY)


@pytest.fixture(params=["open", "locked"])
def hub(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """A hub's URL and the headers it asks for: without and with an API key."""
    locked = request.param == "locked"
    return request.getfixturevalue(f"{request.param}_hub"), HEADERS if locked else {}


def arguments(index: int) -> dict[str, Any]:
    return {"seed": 7, "episode_id": f"episode-{index}", "split": "test", "index": index}


@pytest.mark.parametrize("env_id", ENVS)
async def test_the_async_client_plays_an_episode(hub: tuple[str, dict[str, str]], env_id: str) -> None:
    url, headers = hub
    local = make(env_id)
    async with openenv_core.GenericEnvClient(base_url=f"{url}/{env_id}", headers=headers) as client:
        for index in range(2):
            text, info = local.reset(seed=7, options={"task": f"test/{index}"})
            result = await client.reset(**arguments(index))
            assert result.observation["text"] == text
            assert (result.reward, result.done) == (None, False)
            assert result.metadata["task"] == info["task"]
            steps = 0
            while not result.done and steps < 200:
                action = local.expert_action() or info["admissible"][0]
                text, reward, terminated, truncated, info = local.step(action)
                result = await client.step({"action": action})
                steps += 1
                assert (result.observation["text"], result.reward) == (text, reward)
                assert result.done == (terminated or truncated)
            state = await client.state()
            assert (state["episode_id"], state["step_count"]) == (f"episode-{index}", steps)
        with pytest.raises(RuntimeError, match=r"temperature.*VALIDATION_ERROR"):
            await client.reset(temperature=1)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            await client.step({"text": "Up"})
        child = await client.new_session()
        assert (await child.reset(seed=1)).done is False


@pytest.mark.parametrize("env_id", ENVS)
def test_the_sync_client_plays_an_episode(hub: tuple[str, dict[str, str]], env_id: str) -> None:
    url, headers = hub
    local = make(env_id)
    with openenv_core.GenericEnvClient(base_url=f"{url}/{env_id}", headers=headers).sync() as client:
        text, info = local.reset(seed=7, options={"task": "test/3"})
        result = client.reset(**arguments(3))
        steps = 0
        while not result.done and steps < 200:
            assert result.observation["text"] == text
            action = local.expert_action() or info["admissible"][0]
            text, *_, info = local.step(action)
            result = client.step({"action": action})
            steps += 1
        assert client.state()["step_count"] == steps
        with pytest.raises(RuntimeError, match="EXECUTION_ERROR"):
            client.step({"action": "Up"})


@pytest.mark.parametrize("env_id", ENVS)
async def test_the_mcp_client_plays_with_tools(hub: tuple[str, dict[str, str]], env_id: str) -> None:
    url, headers = hub
    async with MCPToolClient(base_url=f"{url}/{env_id}", headers=headers) as client:
        assert [tool.name for tool in await client.list_tools()] == ["start", "act", "look"]
        started = await client.call_tool("start", **arguments(1))
        seen = started["structuredContent"]
        assert seen["metadata"]["task"] == "test/1"
        acted = await client.call_tool("act", action=seen["observation"]["admissible"][0])
        assert acted["structuredContent"]["metadata"]["step"] == 1
        # The HTTP session and the WebSocket are one.
        assert (await client.state()).step_count == 1


@pytest.mark.parametrize("env_id", ENVS)
def test_the_validator_passes_a_running_environment(open_hub: str, env_id: str, tmp_path: Path) -> None:
    # `openenv validate` sends no headers: it can only look at a hub that asks for no key.
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "openenv.cli", "validate", "--url", f"{open_hub}/{env_id}"]
    done = subprocess.run([*command, "--output", str(report)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["passed"]
    assert found["summary"]["passed_count"] == found["summary"]["total_count"] == 6
    assert (found["standard_profile"], found["mode"]) == ("openenv-http/1.x", "simulation")


@pytest.mark.parametrize("env_id", ENVS)
def test_the_manifest_parses_and_tells_the_truth(open_hub: str, env_id: str, tmp_path: Path) -> None:
    (tmp_path / "openenv.yaml").write_text(httpx.get(f"{open_hub}/{env_id}/openenv.yaml").raise_for_status().text)
    manifest = OpenEnvYamlParser().parse(tmp_path)
    local = make(env_id)
    assert manifest.name == env_id
    assert manifest.reward.range == tuple(local.reward_range)
    assert manifest.capabilities.declared_task_count == dict(local.splits)
    assert manifest.capabilities.task_api
    assert manifest.capabilities.declared_tools == ["start", "act", "look"]


@pytest.mark.parametrize("env_id", ENVS)
def test_the_validators_own_graders_pass_a_recorded_episode(open_hub: str, env_id: str, tmp_path: Path) -> None:
    """Rewards, observation schema and state, as the runtime level of ``openenv validate`` grades them."""
    from openenv.validation.graders.runtime import basic
    from openenv.validation.runtime.contracts import RuntimeEvidence, WireExchange
    from websockets.sync.client import connect

    (tmp_path / "openenv.yaml").write_text(httpx.get(f"{open_hub}/{env_id}/openenv.yaml").text)
    schema = httpx.get(f"{open_hub}/{env_id}/schema").json()
    exchanges = []
    with connect(f"{open_hub.replace('http', 'ws', 1)}/{env_id}/ws") as socket:

        def say(operation: str, data: dict[str, Any] | None = None) -> Any:
            request = json.dumps({"type": operation} | ({} if data is None else {"data": data}))
            socket.send(request)
            response = str(socket.recv(20))
            exchanges.append(WireExchange(operation, request, response))  # type: ignore[arg-type]
            return json.loads(response)["data"]

        seen = say("reset", arguments(0))
        for _ in range(20):
            if seen["done"]:
                break
            seen = say("step", {"action": seen["observation"]["admissible"][0]})
            say("state")

    class Subject:
        manifest = OpenEnvYamlParser().parse(tmp_path)
        runtime_evidence = RuntimeEvidence(
            exchanges=tuple(exchanges),
            observation_schema_json=json.dumps(schema["observation"]),
            reset_observation_schema_json=json.dumps(schema["reset_observation"]),
        )

    for grader in (basic.RewardWellFormedGrader(), basic.ObservationSchemaGrader(), basic.StateContractGrader()):
        result = grader.run(Subject())
        assert result.status.value == "pass", (result.check_id, result.evidence)


def test_no_room_is_told_to_the_client() -> None:
    for url in hub_process("", "--max-sessions", "1"):
        with openenv_core.GenericEnvClient(base_url=f"{url}/bandit").sync() as first:
            first.reset()
            second = openenv_core.GenericEnvClient(base_url=f"{url}/bandit").sync()
            with second, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                second.reset()
            assert first.state()["step_count"] == 0


def test_without_the_key_no_client_gets_in(locked_hub: str) -> None:
    with pytest.raises(ConnectionError, match="401"):
        openenv_core.GenericEnvClient(base_url=f"{locked_hub}/bandit").sync().connect()
