"""The token of a request, and live workers as NVIDIA's nodes. Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from polar.rest.answers import has_token
from polar.rest.fleet_routes import node
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

TOKEN = "s3cret"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("headers", "is_valid"),
    [
        ({"Authorization": f"Bearer {TOKEN}"}, True),
        ({"Authorization": f"bearer {TOKEN}"}, True),
        ({"Authorization": basic(f"polar:{TOKEN}")}, True),
        ({"Authorization": basic(f":{TOKEN}")}, True),
        ({"X-Polar-Control-Token": TOKEN}, True),
        ({}, False),
        ({"Authorization": ""}, False),
        ({"Authorization": TOKEN}, False),
        ({"Authorization": f"Bearer {TOKEN}x"}, False),
        ({"Authorization": "Basic !"}, False),
        ({"Authorization": "Basic /w=="}, False),
        ({"Authorization": "Basic \udcff"}, False),
        ({"Authorization": basic(TOKEN)}, False),
        ({"Authorization": f"Digest {TOKEN}"}, False),
        ({"X-Polar-Control-Token": "\udcff"}, False),
    ],
)
def test_only_the_token_is_the_token(headers: dict[str, str], is_valid: bool) -> None:
    assert has_token(headers, TOKEN) is is_valid


def test_a_worker_is_a_node_with_its_slots() -> None:
    slots = [
        StageSlots(Stage.INIT, "default", 4, 3, []),
        StageSlots(Stage.RUN, "default", 8, 2, []),
        StageSlots(Stage.RUN, "gpu", 2, 2, []),
    ]
    found = node(Heartbeat("w-1", "worker", "host", 1, slots, leaving=True), datetime(2026, 1, 1, tzinfo=UTC))
    assert (found["max_init_workers"], found["max_run_workers"], found["max_postrun_workers"]) == (4, 10, 0)
    assert (found["metrics"]["init_inflight"], found["metrics"]["run_inflight"]) == (1, 6)
    assert (found["node_id"], found["healthy"], found["draining"]) == ("w-1", True, True)
    assert found["last_heartbeat"] == "2026-01-01T00:00:00+00:00"
