"""The documented HTTP surface, driven with generated requests that fit and that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from turngym.server.app import create_app
from turngym.server.settings import HubSettings

ENVS = ("bandit", "frozen-lake", "odd-inline")


@pytest.fixture(scope="module")
def hub(start_hub: Any) -> Iterator[Any]:
    with start_hub(envs=ENVS, max_sessions=500, step_timeout_s=10.0) as running:
        yield running


# A schema cannot say that n session ids belong to a group of n, or that task excludes index.
RELATED = {("POST", "/v1/group"), ("POST", "/{env}/reset")}
schema = schemathesis.openapi.from_dict(create_app(HubSettings(envs=ENVS)).openapi())


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_every_documented_route_keeps_its_document(case: Any, hub: Any) -> None:
    excluded = [positive_data_acceptance] if (case.method, case.path) in RELATED else []
    case.call_and_validate(base_url=hub.url, timeout=20, excluded_checks=excluded)
