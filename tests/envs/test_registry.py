"""The registry: ids, errors, plug-ins."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

import turngym.envs  # noqa: F401 - registers the gymnasium ids
from turngym import make
from turngym.envs.registry import EnvSpec, get_spec, register, specs
from turngym.errors import InvalidRequest, UnknownEnvironment


def test_unknown_id_names_the_nearest() -> None:
    with pytest.raises(UnknownEnvironment, match="'bandit'"):
        make("bandits")


def test_gymnasium_ids_are_derived() -> None:
    assert get_spec("frozen-lake").gymnasium_id == "turngym/FrozenLake-v0"
    env = gymnasium.make("turngym/FrozenLake-v0", disable_env_checker=True)
    assert env.reset(seed=0)[0] == make("frozen-lake").reset(seed=0)[0]


def test_row_settings_yield_to_the_callers() -> None:
    assert make("bandit-reversed").reversed  # type: ignore[attr-defined]
    assert not make("bandit-reversed", reversed=False).reversed  # type: ignore[attr-defined]


def test_ids_are_kebab_case_and_unique() -> None:
    with pytest.raises(InvalidRequest, match="kebab"):
        register(EnvSpec("Not_Kebab", "x:Y"))
    with pytest.raises(InvalidRequest, match="taken"):
        register(EnvSpec("bandit", "x:Y"))
    assert list(specs()) == sorted(specs())


def test_entry_points_of_other_packages(tmp_path) -> None:  # type: ignore[no-untyped-def]
    info = tmp_path / "third_party-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[turngym.envs]\nmy-lake = my_lake:MyLake\n")
    (tmp_path / "my_lake.py").write_text(
        "from turngym.envs.frozen_lake import FrozenLake\nclass MyLake(FrozenLake):\n    '''A lake.'''\n"
    )
    code = (
        "import gymnasium, turngym, turngym.envs; print(turngym.make('my-lake', size=5).reset(seed=0)[0]); "
        "gymnasium.make('turngym/MyLake-v0').reset(seed=0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 5


def test_a_bad_entry_point_is_left_out_with_a_warning(tmp_path) -> None:  # type: ignore[no-untyped-def]
    info = tmp_path / "third_party-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[turngym.envs]\nMy_Lake = a:B\nbandit = a:C\n")
    code = "from turngym.envs.registry import specs, get_spec; print(len(specs()), get_spec('bandit').entry)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{len(specs())} {get_spec('bandit').entry}\n", done.stderr
    assert "My_Lake" in done.stderr and "'bandit' is taken" in done.stderr
