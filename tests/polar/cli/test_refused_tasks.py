"""`polar submit` tells whoever waits that a task can't run: the system lacks what the submitter has, or nobody serves its pool."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.fanout import run_fanout
from tests.polar.cli.commands import polar
from topics.environment.settings import Settings

pytestmark = pytest.mark.contract

TOLD_S = 10.0
"""Wanted of a refusal; the command's own start comes on top."""
START_S = 5.0
PLUG_IN = """
class Mine:
    def __init__(self, agent):
        pass
"""
BODY: dict[str, Any] = {"task_id": "t", "instruction": "mend it", "agent": {"harness": "mine"}}


@pytest.fixture
def plug_ins(tmp_path: Path) -> Path:
    """A folder with a package that brings the harness `mine`."""
    (tmp_path / "mine.py").write_text(PLUG_IN)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[polar.harness]\nmine = mine:Mine\n")
    return tmp_path


@contextmanager
def fanout(settings: Settings) -> Iterator[None]:
    """Fanout, in a thread of its own."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run_fanout(settings, stop)))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_a_plug_in_that_only_the_submitter_has_is_told_to_who_waits_within_seconds(
    settings: Settings, plug_ins: Path
) -> None:
    paths = os.pathsep.join([str(plug_ins), *filter(None, [os.environ.get("PYTHONPATH")])])
    with fanout(settings):
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "polar.cli", "submit", "--wait", "-"],
            input=json.dumps(BODY),
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        took_s = time.monotonic() - began
    assert ended.returncode == 2, ended.stderr
    assert "polar: t: fanout refused it: agent.harness: no such harness" in ended.stderr
    assert "(`polar dead-letters show 0`)" in ended.stderr
    assert took_s < TOLD_S + START_S
    code, stdout, _ = polar("dead-letters", "list", "--format", "json")
    assert (code, [one["key"] for one in json.loads(stdout)]) == (0, ["t"])


def test_a_pool_without_workers_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.client.ANSWER_S", 0.5)
    shell = {"harness": "shell", "custom_shell": {"command": "true"}}
    body = BODY | {"agent": shell, "runtime": {"pool": "gpu"}}
    said = (
        "polar: pool gpu has no live worker for init run evaluate; sessions wait for one "
        "(`polar worker init run evaluate --pool gpu`)"
    )
    code, _, stderr = polar("submit", "-", stdin=json.dumps(body))
    assert code == 0
    assert said in stderr
    other = json.dumps(body | {"task_id": "u"})
    code, _, stderr = polar("submit", "--max-in-flight", "4", "-", stdin=other + "\n" + json.dumps(body))
    assert code == 0
    assert stderr.count(said) == 1
