"""Whose word on an answer's weights stands."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from proxy.chat import Answer, Doubt, Message, Usage
from proxy.metrics import ProxyMetrics
from proxy.policy import VersionAttribution
from topics.types.completion import PolicySpan

SAMPLED = Answer(Message("assistant", "hi"), "stop", Usage(1, 2), b"\1\0\0\0", b"\2\0\0\0" * 2, b"\0" * 8, "m")
SPANS = (PolicySpan(8, 0, 1), PolicySpan(9, 1, 2))
LATE = {"policy_version": 4, "policy_doubt": "late"}
"""Named after sampling: weights that changed within the answer would be named for all of it."""


@pytest.mark.parametrize(
    ("reported", "fleet", "version", "spans", "doubt"),
    [
        ({}, 7, 7, (), None),
        ({"policy_version": 8}, 7, 8, (), None),
        ({"policy_version": 8, "policy_spans": SPANS}, 7, 8, SPANS, None),
        ({"policy_version": 8, "policy_spans": SPANS[:1]}, 7, None, (), "gaps"),
        ({"policy_doubt": "not_ours"}, 7, 7, (), "not_ours"),
        ({"policy_doubt": "mixed"}, 7, None, (), "mixed"),
        ({"policy_doubt": "gaps"}, 7, None, (), "gaps"),
        (LATE, 4, 4, (), None),
        (LATE, 3, None, (), "late"),
        (LATE, None, None, (), "late"),
    ],
    ids=str,
)
def test_what_an_engine_proves_goes_before_what_the_fleet_proves(
    reported: dict[str, Any], fleet: int | None, version: int | None, spans: tuple[PolicySpan, ...], doubt: str | None
) -> None:
    metrics = ProxyMetrics()
    told = VersionAttribution(metrics).attribute("default", replace(SAMPLED, **reported), fleet)
    assert (told.policy_version, told.policy_spans) == (version, spans)
    counted = {reason: metrics.doubted.labels(reason)._value.get() for reason in get_args(Doubt)}
    assert counted == {reason: int(reason == doubt) for reason in get_args(Doubt)}


def test_a_server_that_names_no_version_any_more_was_started_anew() -> None:
    """Of weights that never had a version for a name the fleet's word stands; of these nobody's does."""
    policies = VersionAttribution(ProxyMetrics())
    unnamed, named = replace(SAMPLED, policy_doubt="not_ours"), replace(SAMPLED, policy_version=7)
    assert policies.attribute("default", unnamed, 7).policy_version == 7
    assert policies.attribute("default", named, 7).policy_version == 7
    assert policies.attribute("default", unnamed, 7).policy_version is None
    assert policies.attribute("other", unnamed, 7).policy_version == 7, "another engine's names are its own"
    assert policies.attribute("default", replace(named, policy_version=8), 8).policy_version == 8
