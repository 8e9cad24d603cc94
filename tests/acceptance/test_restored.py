"""The data folder of a stopped `polar up` is restored from a copy: Kafka's part, the lake's part, all of it. Nothing is lost or doubled.

A new Kafka isn't a restored one: `polar up` refuses the other one's lake.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.up.running import STOP_S, Up
from tests.waiting import until
from topics import completions
from topics.environment import settings
from topics.log.owner import read_back
from topics.types.completion import Completion

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

CALL = """\
curl -sf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
-d '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
"""
CUT = f"sleep 10\n{CALL}"
SAMPLES = 3
LAKE_S = 60.0
COUNTS = """
SELECT 'trajectory' AS what, session_id AS id, count(*) AS number FROM trajectories GROUP BY ALL
UNION ALL SELECT 'ended', session_id, count(*) FROM sessions WHERE ended_at IS NOT NULL GROUP BY ALL
UNION ALL SELECT 'call', call_id, count(*) FROM lake.completions GROUP BY ALL
"""


@contextmanager
def running(folder: Path) -> Iterator[Up]:
    """`polar up`, stopped in order at the end."""
    up = Up(folder)
    try:
        yield up
        up.process.terminate()
        assert up.process.wait(STOP_S) == 0, up.output.read_text()
    finally:
        up.process.kill()
        up.process.wait()


def test_what_was_restored_goes_on_without_losing_or_doubling_anything(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with running(tmp_path) as up:
        finish(up, "kept")
        # `polar up` stops before it ends, so it ends once in each past.
        assert up.submit("cut", CUT).returncode == 0
    shutil.copytree(data, copy)
    with running(tmp_path) as up:
        finish(up, "cut", CUT, samples=1)
        finish(up, "lost")
        check(up, "kept", "cut", "lost")
    known = ["kept", "cut"]
    for part in ("kafka", "lake", ""):
        shutil.rmtree(data / part)
        shutil.copytree(copy / part, data / part)
        known = known if part else ["kept", "cut"]
        with running(tmp_path) as up:
            if part != "lake":
                finish(up, "cut", CUT, samples=1)
            # As many as were lost, and more: the log grows past the positions that were recorded.
            added = [f"{part or 'all'}-{number}" for number in range(2)]
            for task_id in added:
                finish(up, task_id)
            known += added
            check(up, *known)
    shutil.rmtree(data / "kafka")
    with pytest.raises(AssertionError, match="has the records of the Kafka cluster"):
        Up(tmp_path)


def finish(up: Up, task_id: str, command: str = CALL, samples: int = SAMPLES) -> None:
    done = up.submit(task_id, command, "--wait", num_samples=samples)
    assert done.returncode == 0, done.stderr


def check(up: Up, *task_ids: str) -> None:
    """The log has these tasks' sessions and no other, each with one trajectory. The lake has them, and all calls of the log, once."""
    lines = up.polar("trajectories", "--format", "jsonl").stdout.splitlines()
    sessions = sorted(json.loads(line)["session_id"] for line in lines)
    counts = {task_id: 1 if task_id == "cut" else SAMPLES for task_id in task_ids}
    assert sessions == sorted(f"{task_id}.{index}" for task_id, count in counts.items() for index in range(count))
    calls = asyncio.run(logged_calls(up.data))
    assert len(calls) >= len(sessions)
    expected = {("trajectory", each) for each in sessions} | {("ended", each) for each in sessions}
    expected |= {("call", each) for each in calls}
    until(lambda: expected <= lake_counts(up).keys(), LAKE_S, every_s=1.0)
    assert {what: number for what, number in lake_counts(up).items() if number != 1} == {}


async def logged_calls(data: Path) -> set[str]:
    found, topic = settings.load(data), completions.TOPIC
    return {
        decoded.call_id
        for partition in range(topic.embedded_partitions)
        async for record in read_back(found, topic.full_name(found.namespace), partition)
        if isinstance(decoded := completions.CODEC.decode(record.value or b""), Completion)
    }


def lake_counts(up: Up) -> dict[tuple[str, str], int]:
    """The number of rows for each id."""
    answer = up.polar("sql", COUNTS, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    return {(row["what"], row["id"]): row["number"] for row in json.loads(answer.stdout)}
