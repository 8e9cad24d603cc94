"""Faults planted on a running system: `polar why` names each, with a way out.

Faults that a shared system can't have are planted elsewhere. A Kafka that is gone: tests/polar/cli/test_why.py. A wrong clock, another
keys file, a full disk, missing programs and harnesses that can't be installed: tests/polar/cli/test_doctor.py. Every other cause:
tests/polar/diagnosis.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from polar.cli.session_ids import parse
from polar.diagnosis import reader
from polar.diagnosis.causes import Cause
from polar.diagnosis.table import Finding, diagnose
from polar.fleet import Fleet
from tests.acceptance.up.conftest import IMAGE_AWAY
from tests.acceptance.up.running import Up
from tests.acceptance.up.test_up import CALL
from tests.waiting import until
from topics import tasks
from topics.environment import http_json, settings
from topics.log.producer import LogProducer

NAMED_S = 90.0
SLEEP = {"harness": "shell", "custom_shell": {"command": "sleep 600"}}
DONE = {"harness": "shell", "custom_shell": {"command": "true"}}
FAULTS: Mapping[str, tuple[Cause, dict[str, Any]]] = {
    "harness-exits": (
        Cause.HARNESS_FAILED,
        {"agent": {"harness": "shell", "custom_shell": {"command": "echo out of ideas; exit 3"}}},
    ),
    "harness-missing": (Cause.PLUG_IN_MISSING, {"agent": {"harness": "nobody_s_package:Harness"}}),
    "evaluator-raises": (Cause.EVALUATOR_RAISED, {"agent": DONE, "evaluator": {"strategy": "json:JSONDecoder"}}),
    "pool-empty": (Cause.NO_WORKERS, {"agent": DONE, "runtime": {"pool": "mars"}}),
    "budget-over": (Cause.OUT_OF_TIME, {"agent": SLEEP, "timeouts": {"run": 1}}),
    "prepare-fails": (
        Cause.PREPARE_FAILED,
        {"agent": DONE, "runtime": {"prepare": [{"type": "exec", "command": "exit 4"}]}, "max_attempts": 1},
    ),
    "image-refused": (Cause.BAD_INPUT, {"agent": DONE, "runtime": {"image": "localhost:1/none:1"}}),
    "image-away": (Cause.IMAGE_UNAVAILABLE, {"agent": DONE, "runtime": {"image": IMAGE_AWAY}, "max_attempts": 1}),
    "no-calls": (Cause.NO_CALLS, {"agent": DONE}),
    "at-work": (Cause.WORKS, {"agent": SLEEP}),
}
"""Cause by task, and the fields of the task that bring it about."""


def findings(up: Up, name: str) -> list[Finding]:
    """The findings on a session, or on a task that has none."""
    target = parse(name)
    (facts,) = asyncio.run(reader.read(settings.load(up.data), target.task_id, target.sample))
    return diagnose(facts)


def named(up: Up, name: str, cause: Cause) -> Finding:
    """The finding of this cause; it may take the system some seconds to meet the fault."""
    found = until(lambda: next((one for one in findings(up, name) if one.cause is cause), None), NAMED_S, every_s=0.2)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def _planted(up: Up) -> None:
    bodies = [{"task_id": f"why-{name}", "instruction": "x"} | fields for name, (_, fields) in FAULTS.items()]
    done = up.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies)))
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("_planted")
@pytest.mark.parametrize("name", FAULTS)
def test_a_task_s_fault_is_named(up: Up, name: str) -> None:
    found = named(up, f"why-{name}.0", FAULTS[name][0])
    assert found.sentence
    assert found.way_out


@pytest.mark.usefixtures("_planted")
def test_the_command_says_it_with_the_way_out(up: Up) -> None:
    named(up, "why-harness-exits.0", Cause.HARNESS_FAILED)
    printed = up.polar("why", "why-harness-exits")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout.splitlines() == [
        "why-harness-exits.0  FAILED",
        "  The harness failed: the harness ended with exit code 3 (artifact agent_log); its output ends with: out of ideas.",
        "  → `polar show why-harness-exits.0` has the agent's log and patch.",
    ]


def test_a_refused_task_s_letter_is_named(up: Up) -> None:
    async def send() -> None:
        producer = LogProducer(settings.load(up.data))
        await producer.start()
        body = json.dumps({"task_id": "why-refused", "instruction": "x", "agent": {"harness": "nobody_s"}})
        topic = tasks.TOPIC.full_name(settings.load(up.data).namespace)
        await producer.send_bytes(topic, body.encode(), key=b"why-refused")
        await producer.stop()

    asyncio.run(send())
    found = named(up, "why-refused", Cause.REFUSED)
    assert found.sentence.startswith("fanout refused the task: agent.harness: no such harness")
    assert re.search(r"`polar dead-letters replay \d+`", found.way_out)


@pytest.mark.usefixtures("_planted")
def test_a_paused_fleet_is_named(up: Up) -> None:
    named(up, "why-at-work.0", Cause.WORKS)

    async def causes_in_a_pause() -> list[Cause]:
        found = settings.load(up.data)
        async with Fleet(found) as fleet, fleet.paused():
            (facts,) = await reader.read(found, "why-at-work", 0)
            return [one.cause for one in diagnose(facts)]

    assert asyncio.run(causes_in_a_pause()) == [Cause.PAUSED]
    assert up.polar("cancel", "why-at-work").returncode == 0
    named(up, "why-at-work.0", Cause.CANCELLED)


def test_an_engine_without_token_ids_is_named_while_the_session_runs_and_afterwards(up: Up) -> None:
    (engine,) = re.findall(r"^engine .*(http://\S+)", up.output.read_text(), re.MULTILINE)
    faults = f"{engine}/scripted/faults"
    http_json.send(faults, {"kind": "garbage", "form": "no_token_ids", "times": 1000}, timeout_s=10)
    try:
        harness = {"harness": "shell", "custom_shell": {"command": f"{CALL}\nsleep 4; exit 1"}}
        body = {"task_id": "why-no-tokens", "instruction": "x", "agent": harness, "max_attempts": 1}
        assert up.polar("submit", "-", stdin=json.dumps(body)).returncode == 0
        running = named(up, "why-no-tokens.0", Cause.ANSWER_UNUSABLE)
        assert "no_token_ids" in running.sentence
        assert "`polar doctor --engine URL`" in running.way_out
        assert "no_token_ids" in named(up, "why-no-tokens.0", Cause.MODEL_FAILED).sentence
    finally:
        http_json.send(faults, method="DELETE", timeout_s=10)


def test_an_engine_without_a_tool_parser_is_named(up: Up) -> None:
    """The message is vLLM's (tests/proxy/engines/recorded.py)."""
    (engine,) = re.findall(r"^engine .*(http://\S+)", up.output.read_text(), re.MULTILINE)
    message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    fault = {"kind": "status", "status": 400, "message": message}
    http_json.send(f"{engine}/scripted/faults", fault, timeout_s=10)
    done = up.submit("why-no-parser", f"{CALL}\nsleep 600")
    assert done.returncode == 0, done.stderr
    found = named(up, "why-no-parser.0", Cause.NO_TOOL_PARSER)
    assert message in found.sentence
    assert [one.cause for one in findings(up, "why-no-parser.0")] == [Cause.NO_TOOL_PARSER]
    assert up.polar("cancel", "why-no-parser").returncode == 0


def test_a_session_of_an_older_policy_is_named(up: Up) -> None:
    async def publish(version: int) -> None:
        async with Fleet(settings.load(up.data)) as fleet:
            await fleet.publish(version, force=True)

    asyncio.run(publish(5))
    done = up.submit("why-old-policy", CALL, "--wait")
    assert done.returncode == 0, done.stderr
    assert Cause.OLD_POLICY not in [one.cause for one in findings(up, "why-old-policy.0")]
    asyncio.run(publish(9))
    assert "version 5, 4 behind the published one" in named(up, "why-old-policy.0", Cause.OLD_POLICY).sentence


@pytest.mark.hard
def test_an_engine_that_hangs_and_a_worker_that_is_killed_are_named(up: Up) -> None:
    body = {"task_id": "why-killed", "instruction": "x", "agent": SLEEP, "max_attempts": 1}
    assert up.polar("submit", "-", stdin=json.dumps(body)).returncode == 0
    named(up, "why-killed.0", Cause.WORKS)
    (engine,) = up.parts("polar.scripted")
    os.kill(engine, signal.SIGSTOP)
    try:
        assert "default" in named(up, "why-killed.0", Cause.ENGINE_DOWN).sentence
    finally:
        os.kill(engine, signal.SIGCONT)
    (worker,) = up.parts("evaluate")
    os.kill(worker, signal.SIGKILL)
    assert "its worker is gone" in named(up, "why-killed.0", Cause.WORKER_LOST).sentence
