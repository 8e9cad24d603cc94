"""Whose word on an answer's weights stands."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.chat import Answer, Message, Usage
from proxy.metrics import ProxyMetrics
from proxy.policy import VersionAttribution


@pytest.mark.parametrize(
    ("fleet", "stands", "doubted"), [(4, 4, 0), (3, None, 1), (None, None, 1)], ids=["same", "other", "unproven"]
)
def test_a_version_that_was_named_after_sampling_stands_where_the_fleet_proves_it(
    fleet: int | None, stands: int | None, doubted: int
) -> None:
    """Weights that changed within the answer would be named for all of it."""
    metrics = ProxyMetrics()
    tokens = (b"\1\0\0\0", b"\2\0\0\0", b"\0" * 4)
    late = Answer(Message("assistant", "hi"), "stop", Usage(1, 1), *tokens, "m", policy_version=4, policy_doubt="late")
    told = VersionAttribution(metrics).attribute("default", late, fleet)
    assert (told.policy_version, told.policy_spans) == (stands, ())
    assert metrics.doubted.labels("late")._value.get() == doubted


def test_a_server_that_names_no_version_any_more_was_started_anew() -> None:
    """Of weights that never had a version for a name the fleet's word stands; of these nobody's does."""
    policies = VersionAttribution(ProxyMetrics())
    sampled = Answer(Message("assistant", "hi"), "stop", Usage(1, 1), b"\1\0\0\0", b"\2\0\0\0", b"\0" * 4, "m")
    unnamed, named = replace(sampled, policy_doubt="not_ours"), replace(sampled, policy_version=7)
    assert policies.attribute("default", unnamed, 7).policy_version == 7
    assert policies.attribute("default", named, 7).policy_version == 7
    assert policies.attribute("default", unnamed, 7).policy_version is None
    assert policies.attribute("other", unnamed, 7).policy_version == 7, "another engine's names are its own"
    assert policies.attribute("default", replace(named, policy_version=8), 8).policy_version == 8
