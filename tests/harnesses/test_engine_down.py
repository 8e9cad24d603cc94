"""Every preset's real CLI in a whole system whose engine answers one call of each and is then down for good.

The CLIs have their default settings. Some give up after seconds, some still try again when the time of their run is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from polar.trainer.groups import trained
from tests.acceptance.up.running import STOP_S, Up, environment, trajectory
from tests.clients.installing import of_preset
from tests.consumers.harnesses.specimens import PI, PRESETS, Specimen
from tests.serving import free_port
from tests.waiting import until
from topics.types.errors import Kind
from topics.types.session import Status
from topics.types.trajectory import Trajectory

pytestmark = [pytest.mark.harnesses, pytest.mark.timeout(1200)]

RUN_S = 100
"""pi, opencode and mini-swe-agent give up before it is over; Claude Code, Gemini CLI and Qwen Code don't."""
BEGUN_S = 300.0
ENDED_S = 600.0
HEAD = 8
"""Lines of `polar show` that a person reads first."""
OVERLOADED = ({"kind": "slow"}, {"kind": "status", "status": 503, "times": 1_000_000})
"""Faults: one whole answer, then none."""


class Outage:
    """A `polar up` and the engine behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._record = folder / "record.jsonl"
        (folder / "scripts.yaml").write_text("\n---\n".join(json.dumps(_script(each)) for each in PRESETS))
        with self.engine():
            self.up = Up(folder, "--engine", f"http://{self.address}")

    @contextmanager
    def engine(self, *faults: dict[str, Any]) -> Iterator[None]:
        """Serves while the context lasts, and is then killed."""
        self._record.unlink(missing_ok=True)
        ready = self._folder / "engine"
        ready.unlink(missing_ok=True)
        options = ["--port", self.address.partition(":")[2], "--ready-file", str(ready), "--record", str(self._record)]
        options += [word for fault in faults for word in ("--fault", json.dumps(fault))]
        command = [sys.executable, "-m", "polar.scripted", *options, "--scripts", str(self._folder / "scripts.yaml")]
        process = subprocess.Popen(command, env=environment())
        try:
            until(ready.exists, BEGUN_S)
            yield
        finally:
            process.kill()
            process.wait()

    def submit(self, name: str, specimen: Specimen, **more: Any) -> str:
        """The id of a new session, which would get a reward if its CLI's exit were all that counted."""
        task = {
            "task_id": name,
            "instruction": _instruction(specimen),
            "agent": {"harness": specimen.harness},
            "evaluator": {"strategy": "session_completed"},
            "timeouts": {"run": RUN_S},
            **more,
        }
        submitted = self.up.polar("submit", "-", stdin=json.dumps(task))
        assert submitted.returncode == 0, submitted.stderr
        return f"{name}.0"

    def await_first_call(self, *sessions: str) -> None:
        until(lambda: self._answered() >= set(sessions), BEGUN_S, every_s=0.5)

    def await_end(self, session_id: str) -> None:
        until(lambda: self._has_ended(session_id), ENDED_S, every_s=3.0)

    def _answered(self) -> set[str]:
        if not self._record.exists():
            return set()
        return {
            json.loads(line)["session_id"]
            for line in self._record.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        }

    def _has_ended(self, session_id: str) -> bool:
        shown = self.up.polar("show", session_id, "--format", "json")
        return shown.returncode == 0 and json.loads(shown.stdout)["phase"] == "ended"


def _instruction(specimen: Specimen) -> str:
    return f"Mend the text with {specimen}."


def _script(specimen: Specimen) -> dict[str, Any]:
    """One answer, and a second one that doesn't come before the engine is killed."""
    turns = [specimen.turns[0], {"text": "Too late.", "delay_s": 1000}]
    return {"name": specimen.harness, "match": _instruction(specimen), "variants": [{"turns": turns}]}


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    made = Outage(tmp_path_factory.mktemp("outage"))
    try:
        yield made
    finally:
        made.up.process.terminate()
        made.up.process.wait(STOP_S)


@pytest.fixture(scope="module")
def killed(outage: Outage) -> dict[str, str]:
    """The session of each preset, whose engine is gone after its first answer, and for a second attempt."""
    for each in PRESETS:
        of_preset(str(each))(False)  # not in the time of their sessions
    with outage.engine():
        sessions = {str(each): outage.submit(f"gone-{each}", each, max_attempts=2) for each in PRESETS}
        outage.await_first_call(*sessions.values())
    return sessions


@pytest.mark.parametrize("specimen", PRESETS, ids=str)
def test_an_engine_that_is_gone_for_good_is_no_fault_of_the_agent(
    specimen: Specimen, outage: Outage, killed: dict[str, str]
) -> None:
    session_id = killed[str(specimen)]
    outage.await_end(session_id)
    ended = assert_failed_by_the_model(
        outage.up, session_id, f"(unreachable): no connection to the engine at {outage.address}:"
    )
    assert ended.attempt == 2
    assert ended.stats.trainable_tokens == 0


def test_a_call_that_was_answered_before_trains_nothing(outage: Outage) -> None:
    with outage.engine(*OVERLOADED):
        session_id = outage.submit("overloaded", PI, max_attempts=1)
        outage.await_end(session_id)
    ended = assert_failed_by_the_model(outage.up, session_id, "(overloaded, HTTP status 503):")
    assert ended.calls[0].outcome == "answered"
    assert trained(ended) == []


def assert_failed_by_the_model(up: Up, session_id: str, reason: str) -> Trajectory:
    ended = trajectory(up, session_id)
    shown = up.polar("show", session_id).stdout
    assert (ended.status, ended.reward, ended.error and ended.error.kind) == (Status.FAILED, None, Kind.INFRA), shown
    head = "\n".join(shown.splitlines()[:HEAD])
    assert "no reward" in head
    assert "run infra/model_failed:" in head
    assert f"the harness's last model call failed {reason}" in " ".join(head.split())
    return ended
