"""Shared by all tests: what a machine may lack, what is run only on request, and which skips are allowed.

``@pytest.mark.needs("chromium")`` skips a test, with the line that installs the need, where it is missing. With
``TURNGYM_STRICT_SKIPS=1`` (``.ci/run``) a skip for any reason but those in ``MAY_BE_MISSING`` fails the run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Small models run best on one thread, and tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs ignore interrupts, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How fast an example runs says more about the machine than about the code.
settings.register_profile("turngym", deadline=None)
settings.load_profile("turngym")


def _engine() -> bool:
    return (
        shutil.which("docker") is not None
        and subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode == 0
    )


def _oracles() -> bool:
    folder = os.environ.get("TURNGYM_ORACLES")
    return bool(folder) and Path(str(folder)).is_dir()


# name -> (is it there?, what to do when it is not). The reason of the skip is "name: what to do".
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "chromium": (
        lambda: bool((shutil.which("chromium") or shutil.which("google-chrome")) and shutil.which("chromedriver")),
        "sudo apt-get install -y chromium chromium-driver",
    ),
    "java": (lambda: shutil.which("java") is not None, "sudo apt-get install -y default-jre-headless"),
    "git": (lambda: shutil.which("git") is not None, "sudo apt-get install -y git"),
    "engine": (_engine, "start a container engine and name it in DOCKER_HOST"),
    "oracles": (_oracles, "set TURNGYM_ORACLES to the folder of the reference vectors"),
    "gpu": (lambda: shutil.which("nvidia-smi") is not None, "run on a machine with an NVIDIA GPU"),
}
# Skips for these reasons never fail a run; "data" stands for data sets that are not shipped.
MAY_BE_MISSING = ("data", "engine", "gpu", "oracles")
# Run only when `-m` names them: they need minutes and gigabytes.
ON_REQUEST = ("browser_contract", "hosted", "pretrained")

# The stock OpenEnv client lives in an environment of its own: `make conformance`.
collect_ignore = [] if importlib.util.find_spec("openenv") else ["conformance"]

_strict = os.environ.get("TURNGYM_STRICT_SKIPS") == "1"
_forbidden: list[str] = []


@functools.cache
def _lacking(env_id: str) -> str:
    """Return why a registered environment cannot be made here; tests over the registry call their argument env_id."""
    from turngym.envs.registry import is_registered, unmet
    from turngym.errors import DataMissing

    missing = unmet(env_id) if is_registered(env_id) else None
    return "" if missing is None else f"{'data' if isinstance(missing, DataMissing) else 'extra'}: {missing}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on request only, and skip tests whose needs are missing."""
    expression = str(config.option.markexpr)
    left_out = [
        item
        for item in items
        if any(mark not in expression and item.get_closest_marker(mark) is not None for mark in ON_REQUEST)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    known: dict[str, bool] = {}
    for item in items:
        env_id = getattr(item, "callspec", None) and item.callspec.params.get("env_id")
        if isinstance(env_id, str) and (reason := _lacking(env_id)):
            item.add_marker(pytest.mark.skip(reason=reason))
        for name in (str(arg) for marker in item.iter_markers("needs") for arg in marker.args):
            if name not in NEEDS:
                raise pytest.UsageError(f"{item.nodeid} needs {name!r}; known: {', '.join(NEEDS)}.")
            there, advice = NEEDS[name]
            if name not in known:
                known[name] = there()
            if not known[name]:
                item.add_marker(pytest.mark.skip(reason=f"{name}: {advice}"))


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not (_strict and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if reason.partition(":")[0] not in MAY_BE_MISSING:
        _forbidden.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a skipped test."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a skipped module."""
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a strict run with a skip that is not allowed."""
    if _forbidden and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skips that failed a strict run."""
    if _forbidden:
        terminalreporter.section("skips that TURNGYM_STRICT_SKIPS does not allow", red=True)
        for line in _forbidden:
            terminalreporter.line(line)
