"""`polar fleet` and `polar policy` against a real Kafka; proxies and workers are heartbeats that lie there, where no test runs them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from msgspec.structs import replace

from tests.polar.cli.commands import polar, rows, write
from topics import control, fleet, workers
from topics.control import CODEC, Drain
from topics.environment.settings import Settings
from topics.fleet import FleetState
from topics.log.owner import read_back
from topics.types.session import Phase, SessionState, Stage
from topics.workers import Heartbeat, StageSlots

SLOTS = [StageSlots(Stage.RUN, "default", 8, 7, [0], ["claim"])]


def beats(found: Settings, *told: Heartbeat) -> None:
    write(found, *((workers.TOPIC, beat.worker_id, beat) for beat in told))


def test_a_fleet_without_proxies_is_still_at_once_and_runs_again(settings: Settings) -> None:
    assert polar("fleet", "status")[1].splitlines()[0] == "the fleet runs (generation 0); policy version not known"
    code, stdout, _ = polar("fleet", "pause", "--format", "json")
    told = json.loads(stdout)
    assert (code, told["generation"], told["proxies"]) == (0, 1, [])
    assert 0 < told["took_s"] < 30
    code, _, stderr = polar("fleet", "pause")
    assert code == 1
    assert stderr.startswith("polar: the fleet is paused by fleet-")
    assert stderr.endswith("(generation 1): `polar fleet resume` ends the pause, force takes it over\n")
    assert polar("fleet", "pause", "--force")[1].endswith(
        "0 proxies (generation 2); `polar fleet resume` ends the pause\n"
    )
    standing = json.loads(polar("fleet", "status", "--format", "json")[1])
    assert (standing["paused"], standing["generation"], standing["by"].split("-")[0]) == (True, 2, "fleet")
    assert polar("fleet", "resume")[:2] == (0, "the fleet runs again\n")
    assert polar("fleet", "resume")[1] == "the fleet runs already\n"


def test_a_proxy_that_does_not_answer_is_named_and_the_fleet_runs_on(settings: Settings) -> None:
    beats(
        settings, Heartbeat("proxy-deaf", "proxy", "far", 7, address="http://far:1"), Heartbeat("w", "worker", "far", 8)
    )
    code, _, stderr = polar("fleet", "pause", "--timeout", "2")
    assert code == 1
    assert "after 2 s, and runs again: proxy-deaf (pid 7 on far) hasn't read of the pause. Allow more time" in stderr
    status = polar("fleet", "status")[1].splitlines()
    assert status[0] == "the fleet runs (generation 2); policy version not known"
    assert [line.split()[:2] for line in status[4:6]] == [["proxy-deaf", "proxy"], ["w", "worker"]]


def test_versions_are_published_shown_and_go_forward(settings: Settings) -> None:
    assert polar("policy", "show")[1] == "not known\n"
    assert polar("policy", "publish", "7")[:2] == (0, "all engines serve policy version 7\n")
    assert polar("policy", "publish", "9", "--engine", "small")[1] == "engine small serves policy version 9\n"
    assert polar("policy", "show")[1] == "7, small 9\n"
    code, _, stderr = polar("policy", "publish", "6")
    assert (code, "the fleet is at 7 already" in stderr) == (2, True)
    code, stdout, _ = polar("policy", "publish", "6", "--force", "--format", "json")
    assert (code, json.loads(stdout)) == (0, {"version": 6, "engine": None})
    assert json.loads(polar("policy", "show", "--format", "json")[1]) == [{"engine": None, "version": 6}]
    assert polar("policy", "publish", "--", "-1")[0] == 2
    assert polar("policy", "publish", "8", "--engine", "No such")[0] == 2


def test_draining_says_what_is_in_hand_until_nothing_is(settings: Settings) -> None:
    beats(settings, Heartbeat("w", "worker", "far", 8, SLOTS))
    code, _, stderr = polar("fleet", "drain", "--timeout", "1")
    assert code == 1
    assert stderr.splitlines()[0] == "polar: 1 sessions active"
    assert "1 sessions are still active after 1 s; no new one begins" in stderr
    assert "is draining since" in polar("fleet", "status")[1]
    beats(settings, Heartbeat("w", "worker", "far", 8))
    assert polar("fleet", "drain", "--timeout", "30")[:2] == (
        0,
        "no session is active, and none starts; `polar fleet resume` ends the drain\n",
    )
    assert polar("fleet", "resume")[0] == 0


def test_a_ticket_that_is_out_is_in_hand_for_draining_however_long_nobody_claims_it(settings: Settings) -> None:
    """A stage's group that rebalances takes nothing for seconds, and then all that lies there."""
    waiting = SessionState("t.0", "t", 0, Phase.QUEUED, 0, releases=1)
    write(settings, *rows(replace(waiting, ticket_released_at=5)))
    assert polar("fleet", "drain", "--timeout", "5")[0] == 1
    write(settings, *rows(waiting))
    assert polar("fleet", "drain", "--timeout", "30")[0] == 0


def test_named_processes_are_told_to_end_and_waited_for(settings: Settings) -> None:
    code, _, stderr = polar("fleet", "drain", "nobody")
    assert (code, "no such process lives; there are: none" in stderr) == (2, True)
    beats(settings, Heartbeat("w", "worker", "far", 8, SLOTS), Heartbeat("v", "worker", "far", 9))
    code, _, stderr = polar("fleet", "drain", "w", "--timeout", "0.5")
    assert (code, "w still live after 0.5 s" in stderr) == (1, True)
    assert polar("fleet", "drain", "w", "--timeout", "30")[:2] == (0, "ended: w\n"), "its lease has ended"
    assert asyncio.run(told(settings)) == [Drain("w"), Drain("w")]


def test_what_heeds_no_drain_is_refused_by_name_before_anyone_is_told(settings: Settings) -> None:
    beats(settings, Heartbeat("w", "worker", "far", 8), Heartbeat("b", "builder", "far", 9))
    code, _, stderr = polar("fleet", "drain", "w", "b", "--timeout", "30")
    assert (code, "'b'" in stderr, "is a builder" in stderr, "SIGTERM" in stderr) == (2, True, True, True)
    assert asyncio.run(told(settings)) == []


async def told(found: Settings) -> Sequence[object]:
    name = control.TOPIC.full_name(found.namespace)
    return [CODEC.decode(record.value or b"") async for record in read_back(found, name, 0)]


def test_a_state_that_anyone_wrote_is_shown(settings: Settings) -> None:
    write(settings, (fleet.TOPIC, "state", FleetState(4, paused=True, draining=True)))
    assert polar("fleet", "status")[1].startswith("the fleet is paused and is draining since 20")
