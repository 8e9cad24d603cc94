"""Commands against a real Kafka; what a coordinator and a builder would have written is written here, where no test runs them."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from consumers.fanout import plan_of
from polar.cli.app import app
from tests.polar.cli.commands import polar, rows, write
from topics import events, fleet, sessions, tasks, trajectories, workers
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.events import CancelRequested
from topics.fleet import FleetState
from topics.log import kafka as clients
from topics.types.completion import Sampling
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Phase, SessionState, Stage, Status, TaskState
from topics.types.task import body_hash, parse
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Call, GroupFinished, Node, Stats, Trace, Trajectory
from topics.workers import Heartbeat, StageSlots

BODY: dict[str, Any] = {
    "task_id": "t",
    "instruction": "mend it",
    "num_samples": 2,
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}


def write_rows(settings: Settings, *found: sessions.Row) -> None:
    write(settings, *rows(*found))


def read(settings: Settings, topic: Topic) -> list[clients.Record]:
    """All records of a topic."""

    async def fetch() -> list[clients.Record]:
        name = topic.full_name(settings.namespace)
        partitions = [clients.TopicPartition(name, number) for number in range(topic.embedded_partitions)]
        found: list[clients.Record] = []
        async with clients.started(clients.consumer(settings), 5) as reader:
            reader.assign(partitions)
            ends = await reader.end_offsets(partitions)
            while len(found) < sum(ends.values()):
                for records in (await reader.getmany(timeout_ms=500)).values():
                    found += records
        return found

    return asyncio.run(asyncio.wait_for(fetch(), 30))


def task_row(body: dict[str, Any] = BODY, **more: Any) -> TaskState:
    task = parse(body)
    return TaskState(task.task_id, task.num_samples, body_hash(task.canonical()), **more)


def session_row(index: int, phase: Phase = Phase.ENDED, **more: Any) -> SessionState:
    return SessionState(f"t.{index}", "t", index, phase, since=0, **more)


def test_submit_without_a_coordinator_says_so_and_leaves_the_task_on_kafka(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.client.ANSWER_S", 0.5)
    code, stdout, stderr = polar("submit", "-", stdin=json.dumps(BODY))
    assert (code, stdout) == (0, "t\n")
    assert "no coordinator has shown t within" in stderr
    (record,) = read(settings, tasks.TOPIC)
    assert record.key == b"t"
    assert record.value == parse(BODY).canonical()


def test_a_task_of_several_megabytes_is_taken_and_one_past_the_topic_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.client.ANSWER_S", 0.5)

    def large(task_id: str, variables: int) -> str:
        env = {f"V{number}": "y" * 100_000 for number in range(variables)}
        return json.dumps(BODY | {"task_id": task_id, "runtime": {"env": env}})

    assert polar("submit", "-", stdin=large("t", 80))[0] == 0
    code, _, stderr = polar("submit", "-", stdin=large("u", 90))
    assert code == 2
    assert "u: a task has at most 8323072 bytes" in stderr
    assert len(read(settings, tasks.TOPIC)) == 1


def test_a_used_id_with_another_body_is_refused_and_nothing_of_the_invocation_sent(settings: Settings) -> None:
    write_rows(settings, task_row(BODY | {"instruction": "another"}))
    code, stdout, stderr = polar("submit", "-", stdin="\n".join(json.dumps(BODY | {"task_id": name}) for name in "st"))
    assert (code, stdout) == (2, "")
    assert "task_id: already used with another body; choose a new id (got 't')" in stderr
    assert read(settings, tasks.TOPIC) == []


def test_an_equal_body_is_the_same_task_and_its_end_is_not_waited_for_again(settings: Settings) -> None:
    error = SessionError("run", Kind.AGENT, "exit_code", "ended with 3:\nno key")
    failed = session_row(1, status=Status.FAILED, reward=0.0, error=error)
    write_rows(settings, task_row(), session_row(0, status=Status.COMPLETED, reward=1.0), failed)
    code, stdout, stderr = polar("submit", "--wait", "-", stdin=json.dumps(BODY))
    assert (code, stdout) == (0, "t\n")
    assert "2 of 2 sessions have ended: 1 COMPLETED, 1 FAILED; mean reward 0.5" in stderr
    assert stderr.splitlines()[-1] == "polar: t.1 FAILED: run agent/exit_code: ended with 3: no key"


@pytest.mark.parametrize("kind", [Kind.INFRA, Kind.INPUT])
def test_wait_ends_with_1_where_a_session_failed_for_what_is_not_the_agents_doing(
    settings: Settings, kind: Kind
) -> None:
    failed = session_row(1, status=Status.FAILED, error=SessionError("init", kind, "broken", "no such thing"))
    write_rows(settings, task_row(), session_row(0, status=Status.COMPLETED), failed)
    code, stdout, stderr = polar("submit", "--wait", "--format", "json", "-", stdin=json.dumps(BODY))
    assert code == 1
    assert f"t.1 FAILED: init {kind.value}/broken: no such thing" in stderr
    statuses = {"COMPLETED": 1, "FAILED": 1}
    ended = {
        "task_id": "t",
        "run": None,
        "num_samples": 2,
        "ended": 2,
        "phases": {},
        "statuses": statuses,
        "mean_reward": None,
    }
    assert json.loads(stdout) == [ended]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.TIMED_OUT])
def test_wait_ends_with_1_where_an_evaluation_failed_however_the_run_ended(settings: Settings, status: Status) -> None:
    raised = SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "ZeroDivisionError: division by zero")
    of_run = SessionError("run", Kind.AGENT, "exit_code", "ended with 3")
    error = raised if status is Status.COMPLETED else of_run
    ended = Status.FAILED if status is Status.COMPLETED else status
    row = session_row(1, status=ended, error=error, evaluation_error=raised)
    write_rows(settings, task_row(), session_row(0, status=Status.COMPLETED, reward=0.0), row)
    code, _, stderr = polar("submit", "--wait", "-", stdin=json.dumps(BODY))
    assert code == 1
    told = f"polar: t.1 {ended}: evaluate evaluation/evaluator_raised: ZeroDivisionError: division by zero"
    assert stderr.splitlines().count(told) == 1
    assert ("ended with 3" in stderr) is (status is Status.FAILED)


@pytest.mark.parametrize("target", ["t", "t.3"])
def test_cancel_writes_the_fact_where_the_task_lies(settings: Settings, target: str) -> None:
    write_rows(settings, task_row(BODY | {"num_samples": 4}), session_row(3, Phase.RUNNING))
    assert polar("cancel", target) == (0, f"requested the end of {target}\n", "")
    (record,) = read(settings, events.TOPIC)
    fact = events.CODEC.decode(record.value or b"")
    assert isinstance(fact, CancelRequested)
    assert (fact.task_id, fact.session_id) == ("t", None if target == "t" else target)
    assert record.key == target.encode()
    assert {row.partition for row in read(settings, sessions.TOPIC)} == {record.partition}


@pytest.mark.parametrize("target", ["t", "t.3"])
@pytest.mark.parametrize("rows", [[], [TaskState("t", cancelled=True)]], ids=["unheard", "cancelled"])
def test_the_end_of_what_is_not_known_yet_is_asked_for_and_said_to_come_later(
    settings: Settings, target: str, rows: list[TaskState]
) -> None:
    write_rows(settings, *rows)
    code, stdout, stderr = polar("cancel", target)
    assert (code, stdout) == (0, f"requested the end of {target}\n")
    assert f"{target} is not known yet; if it is submitted later under this id, it is cancelled at once" in stderr
    assert len(read(settings, events.TOPIC)) == 1


def test_what_has_ended_already_is_not_cancelled_again(settings: Settings) -> None:
    write_rows(settings, task_row(), session_row(0, status=Status.COMPLETED), session_row(1, Phase.RUNNING))
    assert polar("cancel", "t.0") == (0, "", "polar: t.0 has ended already\n")
    write_rows(settings, session_row(1, status=Status.COMPLETED))
    assert polar("cancel", "t") == (0, "", "polar: t has ended already\n")
    assert read(settings, events.TOPIC) == []


@pytest.mark.parametrize("command", ["cancel", "status"])
def test_a_sample_that_a_task_does_not_have_is_refused(settings: Settings, command: str) -> None:
    write_rows(settings, task_row(), session_row(0), session_row(1))
    code, stdout, stderr = polar(command, "t.2")
    assert (code, stdout) == (2, "")
    assert "no such sample; t has 0 to 1 (got 't.2')" in stderr
    assert read(settings, events.TOPIC) == []


def test_status_shows_tasks_and_sessions_and_knows_tombstones(settings: Settings) -> None:
    timed_out = SessionError("run", Kind.BUDGET, "timeout", "ran for 60 s")
    ended = session_row(1, status=Status.TIMED_OUT, error=timed_out)
    write_rows(settings, task_row(), session_row(0, Phase.RUNNING, attempt=2), ended)
    code, stdout, _ = polar("status")
    assert code == 0
    assert next(line.split() for line in stdout.splitlines() if line.strip().startswith("t "))[:3] == ["t", "2", "1"]
    assert json.loads(polar("status", "--format", "json")[1])[0]["phases"] == {"running": 1}
    code, stdout, _ = polar("status", "t")
    assert code == 0
    assert "run budget/timeout: ran for 60 s" in stdout
    shown = json.loads(polar("status", "t", "--format", "json")[1])
    assert [(row["session_id"], row["phase"], row["attempt"], row["status"]) for row in shown] == [
        ("t.0", "running", 2, None),
        ("t.1", "ended", 1, "TIMED_OUT"),
    ]
    assert json.loads(polar("status", "t.1", "--format", "json")[1]) == shown[1:]
    for target in ("nosuch", "nosuch.0"):
        code, _, stderr = polar("status", target)
        assert code == 2
        assert (
            f"no coordinator knows this task; it may have been refused: `polar dead-letters list` (got '{target}')"
            in stderr
        )


def test_status_tells_who_lives_what_is_ready_and_that_the_fleet_is_paused(settings: Settings) -> None:
    assert polar("status")[1].splitlines()[0] == "alive: no process; 0 sessions READY"
    write_rows(settings, task_row(), session_row(0, Phase.READY), session_row(1, Phase.READY))
    write(settings, (fleet.TOPIC, "state", FleetState(1, paused=True)))
    slots = [StageSlots(Stage.INIT, "default", 4, 4, [0]), StageSlots(Stage.RUN, "gpu", 8, 5, [0])]
    beats = [Heartbeat("w", "worker", "host", 1, slots), Heartbeat("p", "proxy", "host", 2)]
    write(settings, *((workers.TOPIC, beat.worker_id, beat) for beat in beats))
    code, stdout, _ = polar("status")
    assert code == 0
    alive = (
        "alive: 1 proxy, 1 worker; slots busy: init 0/4, run of gpu 3/8; 2 sessions READY; the fleet is paused since "
    )
    assert stdout.splitlines()[0].startswith(alive)
    assert stdout.splitlines()[0].endswith(" (generation 1): `polar fleet resume` ends this")
    assert [row["task_id"] for row in json.loads(polar("status", "--format", "json")[1])] == ["t"]


def test_status_names_what_waits_for_a_person(settings: Settings) -> None:
    write_rows(settings, task_row())
    why = "no session begins here: the disk of /data has less than 256 MB free, its reserve; make room"
    beats = [Heartbeat(f"w{n}", "worker", "host", n, obstacle=why) for n in range(2)]
    write(settings, *((workers.TOPIC, beat.worker_id, beat) for beat in beats))
    assert polar("status")[1].splitlines()[:2] == ["alive: 2 worker; 0 sessions READY", f"host: {why}"]


def test_status_of_a_task_tells_how_long_each_stage_took_where_there_is_room(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = Accounting(init_ms=1500, run_ms=61_000)
    write_rows(settings, task_row(), session_row(0, status=Status.COMPLETED, accounting=took))
    header, _, row = polar("status", "t")[1].splitlines()
    assert "init s  run s  evaluate s" in header
    assert row.split()[-4:] == ["1.5", "61.0", "–", "–"]
    (shown,) = json.loads(polar("status", "t", "--format", "json")[1])
    assert (shown["accounting"]["run_ms"], shown["accounting"]["evaluate_ms"]) == (61_000, 0)
    monkeypatch.setattr("polar.cli.output.PIPE_WIDTH", 80)
    assert "init s" not in polar("status", "t")[1]


def test_waiting_tells_each_groups_rewards_when_it_has_ended(settings: Settings) -> None:
    write_rows(
        settings, task_row(), session_row(0, status=Status.COMPLETED, reward=1.0), session_row(1, status=Status.FAILED)
    )
    assert "t: rewards 1 –, mean 1  █·\n" in polar("submit", "--wait", "-", stdin=json.dumps(BODY))[2]


def a_trajectory(index: int) -> Trajectory:
    """Read 1 2, sampled 3 4 (trained), read 5, sampled 6 (masked)."""
    call = ("main", "answered", "openai_chat", 0, 1)
    nodes = [
        Node(-1, pack_ids([1, 2])),
        Node(0, pack_ids([3, 4]), pack_logprobs([-0.1, -2.5]), call=0),
        Node(1, pack_ids([5])),
        Node(2, pack_ids([6]), pack_logprobs([-1.0]), call=1, masked="undelivered"),
    ]
    calls = [
        Call(
            "c0",
            *call,
            policy_version=7,
            publication=40,
            sampling=Sampling(temperature=1.0),
            engine="large",
            logprobs_mode="raw",
            media=2,
        ),
        Call("c1", *call),
    ]
    trace = Trace(f"t.{index}/c1", leaf=3, trains=[1], reward=0.5, finish_reason="stop")
    stats = Stats(calls=2, answered=2, traces=1, tokens=6, sampled_tokens=3, trainable_tokens=2)
    return Trajectory(
        f"t.{index}", "t", index, 2, 1, Status.COMPLETED, "prefix_merging", "shell",
        reward=0.5, nodes=nodes, calls=calls, traces=[trace], stats=stats, metadata=b'{"who":"me"}',
    )  # fmt: skip


def test_trajectories_are_written_out_as_programs_expect(settings: Settings) -> None:
    finished = GroupFinished("t", 2, ["t.0", "t.1"], [0.5, 0.5], [Status.COMPLETED] * 2)
    topic = trajectories.TOPIC
    write(settings, (topic, "t.1", a_trajectory(1)), (topic, "t.0", a_trajectory(0)), (topic, "t", finished))
    code, stdout, _ = polar("trajectories", "--format", "jsonl")
    assert code == 0
    first, second = map(json.loads, stdout.splitlines())
    assert [first["session_id"], second["session_id"]] == ["t.1", "t.0"]
    (trace,) = second.pop("traces")
    logprobs = trace.pop("logprobs")
    assert np.array_equal(np.array(logprobs, np.float32), np.array([0, 0, -0.1, -2.5, 0, 0], np.float32))
    assert trace == {
        "trace_id": "t.0/c1",
        "token_ids": [1, 2, 3, 4, 5, 6],
        "loss_mask": [0, 0, 1, 1, 0, 0],
        "policy_versions": [7],
        "calls": [
            {
                "call_id": "c0",
                "start": 2,
                "end": 4,
                "policy_version": 7,
                "publication": 40,
                "sampling": {"temperature": 1.0},
                "engine": "large",
                "logprobs_mode": "raw",
                "has_media": True,
                "plain": False,
            }
        ],
        "kind": "main",
        "reward": 0.5,
        "finish_reason": "stop",
        "media": [],
    }
    assert second == {
        "session_id": "t.0",
        "task_id": "t",
        "sample_index": 0,
        "num_samples": 2,
        "attempt": 1,
        "status": "COMPLETED",
        "reward": 0.5,
        "error": None,
        "builder": "prefix_merging",
        "harness": "shell",
        "stats": {"calls": 2, "answered": 2, "traces": 1, "tokens": 6, "sampled_tokens": 3, "trainable_tokens": 2},
        "metadata": {"who": "me"},
        "run": None,
        "label": None,
        "side_calls": 0,
    }


def test_what_belongs_to_one_run_is_shown_alone(settings: Settings) -> None:
    named = BODY | {"task_id": "named", "run": "night"}
    write_rows(settings, task_row(), task_row(named, plan=plan_of(parse(named))))
    assert [row["run"] for row in json.loads(polar("status", "--format", "json")[1])] == ["night", None]
    assert "night" in polar("status")[1]
    shown = json.loads(polar("status", "--run", "night", "--format", "json")[1])
    assert [row["task_id"] for row in shown] == ["named"]
    write(
        settings,
        (trajectories.TOPIC, "t.0", a_trajectory(0)),
        (trajectories.TOPIC, "t.1", msgspec.structs.replace(a_trajectory(1), run="night")),
    )
    code, stdout, stderr = polar("trajectories", "--run", "night", "--format", "jsonl")
    assert (code, stderr) == (0, "")
    assert [(one["session_id"], one["run"]) for one in map(json.loads, stdout.splitlines())] == [("t.1", "night")]
    assert "no trajectory yet of run day" in polar("trajectories", "--run", "day")[2]


@pytest.mark.parametrize("command", [["submit", "-"], ["trajectories"], ["status"], ["status", "t"]])
def test_a_name_that_no_run_can_have_is_refused(settings: Settings, command: list[str]) -> None:
    code, _, stderr = polar(*command, "--run", "a b", stdin=json.dumps(BODY))
    assert (code, "--run: must match [A-Za-z0-9]" in stderr) == (2, True)


@pytest.mark.parametrize("more", [[], ["--max-in-flight", "9"]])
def test_submit_gives_tasks_a_run(settings: Settings, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    monkeypatch.setattr("polar.client.ANSWER_S", 0.5)
    stdin = "\n".join(json.dumps(BODY | {"task_id": name, "run": run}) for name, run in (("a", "day"), ("b", None)))
    assert polar("submit", "-", "--run", "night", *more, stdin=stdin)[0] == 0
    assert {json.loads(record.value or b"")["run"] for record in read(settings, tasks.TOPIC)} == {"night"}


def test_trajectories_as_parquet_are_one_file(settings: Settings) -> None:
    write(settings, *((trajectories.TOPIC, f"t.{index}", a_trajectory(index)) for index in (1, 0)))
    result = CliRunner().invoke(app, ["trajectories", "--format", "parquet"])
    assert result.exit_code == 0
    table: Any = pq.read_table(io.BytesIO(result.stdout_bytes))
    lines = [json.loads(said) for said in polar("trajectories", "--format", "jsonl")[1].splitlines()]
    assert table["session_id"].to_pylist() == [line["session_id"] for line in lines]
    tokens = [[trace["token_ids"] for trace in row] for row in table["traces"].to_pylist()]
    assert tokens == [[trace["token_ids"] for trace in line["traces"]] for line in lines]


def test_reading_trajectories_that_takes_long_shows_how_far_it_is_and_not_in_the_results(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.cli.progress.QUICK_S", 0.0)
    write(settings, (trajectories.TOPIC, "t.0", a_trajectory(0)))
    code, stdout, stderr = polar("trajectories", "--format", "jsonl")
    assert (code, json.loads(stdout)["session_id"]) == (0, "t.0")
    assert stderr.startswith("polar: reading trajectories: 0 of ")


def test_trajectories_as_a_table_are_in_order_and_of_the_task_asked_for(settings: Settings) -> None:
    write(settings, *((trajectories.EVAL, f"t.{index}", a_trajectory(index)) for index in (1, 0)))
    for topic in ("eval", "trajectories.eval", f"{settings.namespace}.trajectories.eval"):
        code, stdout, _ = polar("trajectories", "--topic", topic, "--task", "t")
        assert code == 0
        rows = [line.split() for line in stdout.splitlines() if line.strip().startswith("t.")]
        assert [row[:8] for row in rows] == [[f"t.{i}", "COMPLETED", "0.5", "2", "0", "3", "2", "1"] for i in (0, 1)]
    assert "t." not in polar("trajectories", "--topic", "eval", "--task", "other")[1]


def test_an_output_topic_that_is_not_there_is_told_and_which_are(settings: Settings) -> None:
    code, _, stderr = polar("trajectories", "--topic", "nosuch")
    assert code == 3
    assert f"no output topic {settings.namespace}.trajectories.nosuch; there are: eval (" in stderr


def test_topics_apply_makes_a_pools_queues_and_changes_nothing_the_second_time(settings: Settings) -> None:
    queue = f"{settings.namespace}.stage.run.gpu"
    applied = [line.split() for line in polar("topics", "apply", "--pool", "gpu")[1].splitlines()]
    assert [queue, "created"] in applied
    assert [f"{settings.namespace}.events", "unchanged"] in applied
    assert "created" not in polar("topics", "apply", "--pool", "gpu")[1]
    listed = {one["name"]: one for one in json.loads(polar("topics", "list", "--format", "json")[1])}
    assert listed[queue]["partitions"] == 8
    assert listed[f"{settings.namespace}.sessions"]["config"]["cleanup.policy"] == "compact"
