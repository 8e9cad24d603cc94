"""A run's position per step: which one a process resumes at, and what happens to a file that is none."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from polar.trainer.step_positions import StepPositions
from tests.polar.trainer.sessions import Sessions
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import InputError
from topics.types.task import TaskRequest


def test_a_run_resumes_at_the_last_position_up_to_a_step(tmp_path: Path) -> None:
    positions = StepPositions(tmp_path / "polar")
    before = Sessions()
    for step in (1, 2, 4):
        before.requests += [TaskRequest.model_construct()] * step
        positions.keep(before, step)
    (tmp_path / "polar" / "notes.json").write_text("[]")
    for last, requested in ((0, None), (1, 1), (3, 3), (4, 7), (9, 7)):
        resumed = Sessions()
        positions.load(resumed, last)
        assert resumed.loaded == (None if requested is None else {"run": "r1", "requested": requested})


@pytest.mark.parametrize("content", [b"", b'{"run": "r1"', b"\xff"])
def test_a_damaged_position_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "3.json").write_bytes(content)
    with pytest.raises(InputError, match=r"3\.json: not a position: .*; without this file the run resumes"):
        StepPositions(tmp_path).load(Sessions(), 3)


@pytest.mark.parametrize("state", [[], {"run": "r2"}, {"run": "r1"}])
async def test_a_position_of_another_run_leaves_no_connection_open(
    kafka: str, namespace: str, tmp_path: Path, state: object
) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    (tmp_path / "3.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"the checkpoint is of the run|not a state_dict"):
        StepPositions(tmp_path).connected(settings, "r1", 3)
    assert "training_run" not in {thread.name for thread in threading.enumerate()}
