"""Topics are deleted under a running system: it says which at once, and goes on once they are made again.

Of `polar.sessions` the rows are made again from the log, and until then nobody works on a table that lacks decisions.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from polar.table import SessionTable
from tests.acceptance import chaos
from tests.acceptance.fleet import fleet
from tests.lost_topics import delete
from tests.waiting import eventually
from topics import completions, control, events, sessions, stages, tasks, trajectories, workers
from topics import fleet as fleet_topic
from topics.contract import catalogue
from topics.log import admin
from topics.types.session import Stage
from topics.types.trajectory import Trajectory

WORKERS = ("fanout-1", "coordinator-1", "builder-1", "init-1", "run-1", "evaluate-1")
TURNS = 12
READERS = (
    (tasks.TOPIC, ("fanout-1",)),
    (events.TOPIC, ("fanout-1", "coordinator-1", "run-1")),
    (control.TOPIC, ("coordinator-1", "proxy", "init-1")),
    (completions.TOPIC, ("coordinator-1", "builder-1", "proxy")),
    (fleet_topic.TOPIC, ("coordinator-1", "run-1")),
    (workers.TOPIC, ("coordinator-1", "proxy")),
    (stages.topic(Stage.RUN, catalogue.DEFAULT_POOL), ("run-1",)),
)
"""Processes that name a topic when it is lost."""
NAMED_S = 40.0
"""Some 3 s on an idle machine."""
NOTICED_S = 60.0
ENDED_S = 240.0


@pytest.mark.timeout(500)
async def test_a_table_that_was_deleted_stops_its_partitions_and_is_rebuilt_without_a_second_trajectory(
    tmp_path: Path,
) -> None:
    async with fleet(tmp_path / "data", WORKERS) as system:
        first, second = ([f"{word}{n}" for n in range(2)] for word in ("before", "during"))
        for names, pause_s in ((first, 0.0), (second, 1.0)):
            bodies = [system.task(name, TURNS, chaos.SAMPLES, pause_s=pause_s) for name in names]
            code, _, error = await system.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies)))
            assert code == 0, error
            if names is first:
                async with SessionTable(system.settings) as table:
                    assert await table.until(lambda: all(map(table.is_finished, first)), ENDED_S)
        await eventually(lambda: any(a["session_id"].startswith("during") for a in system.answered()), ENDED_S)
        await delete(system.settings, sessions.TOPIC)
        await admin.apply(system.settings, [sessions.TOPIC], embedded=True)
        log = tmp_path / "data" / "logs" / "coordinator-1.log"
        await eventually(lambda: "is older than its events" in log.read_text(), NOTICED_S)
        code, out, error = await system.polar("topics", "rebuild-table", "--format", "json")
        assert code == 0, error
        report = json.loads(out)
        assert report["partitions"] > 0
        assert report["ended"] >= len(first) * chaos.SAMPLES
        assert report["again"] > 0
        async with SessionTable(system.settings) as table:
            assert await table.until(lambda: all(map(table.is_finished, [*first, *second])), ENDED_S)
        await chaos.check(system, [*first, *second])
        _, out, _ = await system.polar("topics", "rebuild-table", "--format", "json")
        assert json.loads(out)["partitions"] == 0, "what lacks nothing is left alone"


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_deleted_topic_is_named_at_once_and_work_goes_on_when_it_is_made_again(tmp_path: Path) -> None:
    async with fleet(tmp_path / "data", WORKERS) as system:
        ended: list[str] = []

        async def ends(task_id: str) -> None:
            code, _, error = await system.polar("submit", "-", stdin=json.dumps(system.task(task_id, 2, chaos.SAMPLES)))
            assert code == 0, error
            async with SessionTable(system.settings) as table:
                assert await table.until(lambda: table.is_finished(task_id), ENDED_S)
            ended.append(task_id)

        await ends("before")
        for topic, readers in READERS:
            name = topic.full_name(system.settings.namespace)
            await delete(system.settings, topic)
            logs = [system.data / "logs" / f"{reader}.log" for reader in readers]
            await eventually(partial(_all_say, logs, f"Kafka has no topic {name}; `polar topics apply"), NAMED_S)
            code, _, error = await system.polar("topics", "apply")
            assert code == 0, error
            await ends(f"after-{topic.name.replace('.', '-')}")
        names = [output.session_id for output in await system.outputs() if isinstance(output, Trajectory)]
        assert sorted(names) == sorted(f"{task_id}.{sample}" for task_id in ended for sample in range(chaos.SAMPLES))
        await delete(system.settings, trajectories.TOPIC)
        log = system.data / "logs" / "builder-1.log"
        await eventually(partial(_all_say, [log], "Kafka has no topic polar.trajectories"), NAMED_S)


def _all_say(logs: list[Path], words: str) -> bool:
    return all(words in log.read_text() for log in logs)
