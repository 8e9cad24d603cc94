"""`polar why` on records as a system leaves them on Kafka. Which facts have which cause, tests/polar/diagnosis says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.polar.cli.commands import Write, polar, rows, write
from tests.polar.show.recording import TASK, a_session, row
from topics import completions, events, fleet, trajectories, workers
from topics.completions import Open, RefusedRequest
from topics.environment.settings import Settings
from topics.events import RunFinished
from topics.fleet import FleetState
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Stage, Status
from topics.workers import Heartbeat, StageSlots


def beat(role: str, *stages: Stage) -> Write:
    slots = [StageSlots(stage, "default", 2, 1, [0]) for stage in stages]
    return workers.TOPIC, role, Heartbeat(role, role, "host", 1, slots)


def why(settings: Settings, *arguments: str) -> tuple[int, str, str]:
    """The command while all roles are alive: their heartbeats were sent just before."""
    write(settings, *map(beat, ("fanout", "coordinator", "proxy", "builder")), beat("worker", *Stage))
    return polar("why", *arguments)


def causes(settings: Settings, name: str) -> dict[str, list[str]]:
    """Causes by session."""
    _, stdout, _ = why(settings, name, "--format", "json")
    found: list[dict[str, Any]] = json.loads(stdout)
    return {one["name"]: [cause["cause"] for cause in one["causes"]] for one in found}


def test_each_session_of_a_task_has_its_cause_and_equal_ones_stand_together(settings: Settings) -> None:
    failed = SessionError("run", Kind.AGENT, "exit_code", "the harness ended with exit code 3")
    again = RunFinished("f", "t.1", 1, "k", Status.FAILED, error=SessionError("run", Kind.INFRA, "lost", "gone"))
    waiting = [SessionState(f"t.{index}", "t", index, Phase.READY, 0) for index in (2, 3)]
    write(
        settings,
        *rows(
            replace(TASK, num_samples=4),
            row(status=Status.FAILED, error=failed),
            SessionState("t.1", "t", 1, Phase.QUEUED, 0, attempt=2),
            *waiting,
        ),
        (events.TOPIC, "t.1", again),
    )
    found = causes(settings, "t")
    assert found == {"t.0": ["harness_failed"], "t.1": ["attempt_failed"], "t.2": ["next"], "t.3": ["next"]}
    code, stdout, stderr = why(settings, "t")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines()[0] == "t.0  FAILED"
    assert stdout.splitlines()[1] == "  The harness failed: the harness ended with exit code 3."
    assert "t.1  queued\n  It is in attempt 2: the attempt before ended with run infra/lost: gone." in stdout
    assert "t.2, t.3  ready\n" in stdout
    write(settings, (fleet.TOPIC, "state", FleetState(1, draining=True)))
    assert causes(settings, "t.2") == {"t.2": ["draining"]}


def test_a_running_session_s_calls_and_a_finished_one_s_trajectory_are_read(settings: Settings) -> None:
    refused = RefusedRequest("t.0", 1, "claim", 0, "POST", "/v2/chat", 404, "not_found", "no such path", requests=3)
    (offset,) = write(settings, (completions.TOPIC, "t.0", Open("t.0", 1, "claim")))
    running = row(Phase.RUNNING, status=None, reward=None, log_offset=offset)
    write(settings, *rows(TASK, running), (completions.TOPIC, "t.0", refused))
    _, stdout, _ = why(settings, "t.0")
    assert "the proxy refused 3 of its requests, the last one POST /v2/chat: no such path." in stdout
    recording = a_session()
    first, *others = recording.calls
    calls = [replace(first, logprobs_mode="raw", sampling=replace(first.sampling, temperature=0.5)), *others]
    write(
        settings,
        *((completions.TOPIC, "t.0", call) for call in calls),
        (trajectories.TOPIC, "t.0", recording.build()),
        *rows(row(log_offset=offset, calls=3, trainable_tokens=9)),
    )
    (found,) = causes(settings, "t.0").values()
    assert {"forked", "raw_logprobs"} <= set(found)


def test_a_task_s_completed_sessions_are_not_called_flawless_unread(settings: Settings) -> None:
    ended: dict[str, Any] = {"status": Status.COMPLETED, "calls": 3, "trainable_tokens": 9}
    other = SessionState("t.1", "t", 1, Phase.ENDED, 0, reward=0.0, reward_reason="2 of 3 tests failed", **ended)
    write(settings, *rows(TASK, row(reward=1.0, **ended), other))
    code, stdout, stderr = why(settings, "t")
    assert (code, stderr) == (0, "")
    assert stdout.splitlines() == [
        "t.0  COMPLETED",
        "  It completed with reward 1. Its calls were not read.",
        "  → `polar why t.0` reads them, and says if something is wrong with them.",
        "t.1  COMPLETED",
        "  It completed with reward 0 (2 of 3 tests failed). Its calls were not read.",
        "  → `polar why t.1` reads them, and says if something is wrong with them.",
    ]


def test_the_details_of_one_session_are_not_given_as_those_of_others(settings: Settings) -> None:
    first, second = (SessionError("run", Kind.AGENT, "exit_code", f"exit code {code}") for code in (3, 4))
    other = SessionState("t.1", "t", 1, Phase.ENDED, 0, status=Status.FAILED, error=second)
    write(settings, *rows(TASK, row(status=Status.FAILED, error=first), other))
    _, stdout, _ = why(settings, "t")
    assert stdout.startswith("t.0, t.1  FAILED\n  The harness failed: exit code 3.\n")
    assert stdout.endswith("  Details are those of t.0; `polar why SESSION` gives another's.\n")


def test_nobody_knows_it(settings: Settings) -> None:
    code, stdout, _ = why(settings, "nobody")
    assert code == 2
    assert "No coordinator shows this task, and nobody refused it." in stdout


def test_a_sample_that_is_none_is_an_error(settings: Settings) -> None:
    write(settings, *rows(TASK, row()))
    code, _, stderr = why(settings, "t.7")
    assert code == 2
    assert "no such sample; t has 0 to 1" in stderr


@pytest.mark.contract
def test_without_kafka_that_is_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = polar("why", "t")
    assert code == 3
    assert stdout.startswith("t\n  Kafka can't be read (Kafka at 127.0.0.1:9 doesn't answer")
