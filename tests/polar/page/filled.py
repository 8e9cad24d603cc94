"""A Kafka and a lake with as many sessions as wanted, of the last three hours, in records as a builder and a coordinator leave them.

`python -m tests.polar.page.filled --sessions 10000 --port 8420` starts a broker of its own, fills it, and serves the page until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer

from analytics.health import Flag
from polar.embedded import Broker
from polar.page.access import with_token
from polar.page.service import serve
from proxy.addresses import Binding
from tests.analytics.flagged import PROVOKED
from tests.analytics.story import NOON, write
from tests.polar.show.recording import Recording, calls_tool, says
from topics import completions, events, fleet, sessions, trajectories, workers
from topics.completions import Emitted, Open
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, InitFinished, RunFinished, TaskSubmitted
from topics.log import admin
from topics.log.partition import partition_of_task
from topics.types.completion import CallError, Completion
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState
from topics.types.trajectory import GroupFinished, Trajectory
from topics.workers import Heartbeat, StageSlots

SAMPLES = 4
SPAN_MS = 170 * 60_000
"""The sessions are spread over this time, up to now."""
HARNESSES = ("pi", "codex", "claude_code", "mini_swe_agent")
RUNS = ("night", "day")
PATCH = "--- a/clock.py\n+++ b/clock.py\n@@ -1,3 +1,3 @@\n def now():\n-    return 0\n+    return time()\n"
Written = tuple[Topic, str, msgspec.Struct, int]
"""Topic, key, record and timestamp (Unix ms)."""


@dataclass(frozen=True)
class Template:
    """A session that others repeat under their own names."""

    calls: list[Completion]
    trajectory: Trajectory
    error: SessionError | None = None


@cache
def templates() -> list[Template]:
    """A solved session, a failed one, one with a fork and a side call, and one for each health flag."""
    broken = SessionError("run", Kind.AGENT, "exit_code", "the harness ended with <b>exit code</b> 3")
    found = []
    for reward, error in ((1.0, None), (0.0, None), (0.5, None), (None, broken)):
        recording = conversation(with_fork=reward == 0.5)
        status = Status.COMPLETED if error is None else Status.FAILED
        reason = "all tests passed" if reward == 1.0 else None
        made = recording.build(reward=reward, reward_reason=reason, status=status, error=error, num_samples=SAMPLES)
        found.append(Template(recording.calls, made, error))
    return found


@cache
def flagged() -> list[Template]:
    return [Template([], msgspec.structs.replace(PROVOKED[flag](), num_samples=len(Flag))) for flag in Flag]


def conversation(*, with_fork: bool) -> Recording:
    """A few turns with tools, one of whose results looks like HTML."""
    recording = Recording()
    facts: dict[str, Any] = {"policy_version": 7, "tools": ("bash", "edit")}
    system, task = says("system", "be brief"), says("user", "mend the clock")
    look = calls_tool("bash", '{"command": "ls -la"}', reasoning="first look around")
    result = says(
        "tool", "<script>alert(1)</script>\n" + "\n".join(f"file {n}" for n in range(40)), tool_call_id="tool-1"
    )
    done = says("assistant", "mended <img src=x onerror=alert(1)>")
    recording.call("c1", [system, task], look, prompt="be brief mend it", sampled="look around", **facts)
    recording.call("c2", [says("user", "a title")], says("assistant", "Mending"), prompt="a title", sampled="Mending",
                   kind="title", kind_rule="asks for a title", policy_version=7)  # fmt: skip
    recording.call(
        "c3",
        [system, task, look, result],
        done,
        prompt="be brief mend it look around files",
        sampled="mended it",
        **facts,
    )
    if with_fork:
        recording.call("c4", [system, task, says("assistant", "looked"), says("user", "again")], says("assistant", "again"),
                       prompt="be brief mend it looked again", sampled="mended again", **facts)  # fmt: skip
        recording.failed("c5", [system, task, look, result, done], CallError("bad_engine", "it fell over", 500))
    return recording


def named(template: Template, task_id: str, index: int, *, version: int, **fields: Any) -> Template:
    """The template as a session of this task; its calls get ids of their own."""
    session_id = f"{task_id}.{index}"
    prefix = f"{session_id}-"

    def call_id(name: str | None) -> str | None:
        return None if name is None else prefix + name

    def renamed(call: Completion) -> Completion:
        replaced = msgspec.structs.replace
        return replaced(
            call,
            session_id=session_id,
            call_id=prefix + call.call_id,
            prompt=replaced(call.prompt, base=call_id(call.prompt.base)),
            messages=replaced(call.messages, base=call_id(call.messages.base)),
            policy_version=call.policy_version and version,
        )

    made = template.trajectory
    calls = [
        msgspec.structs.replace(
            call,
            call_id=prefix + call.call_id,
            parent=call_id(call.parent),
            policy_version=call.policy_version and version,
        )
        for call in made.calls
    ]
    traces = [
        msgspec.structs.replace(trace, trace_id=f"{session_id}/{prefix}{trace.trace_id.partition('/')[2]}")
        for trace in made.traces
    ]
    names = {
        "session_id": session_id,
        "task_id": task_id,
        "sample_index": index,
        "calls": calls,
        "traces": traces,
        "label": None,
    }
    return Template(
        [renamed(call) for call in template.calls], msgspec.structs.replace(made, **(names | fields)), template.error
    )


def story(session_count: int, now_ms: int, artifacts: dict[str, str]) -> Iterator[Written]:
    """All records: tasks of four samples, the last ones still at work, and the task `flags` with a sample for each health flag."""
    chance = random.Random(29)
    count = max(1, session_count // SAMPLES)
    for number in range(count):
        at = now_ms - SPAN_MS + SPAN_MS * (number + 1) // count
        plan = _plan(HARNESSES[number % len(HARNESSES)], RUNS[number % len(RUNS)])
        version = 1 + 20 * number // count
        picked = [templates()[0]] * SAMPLES if number % 5 == 0 else chance.choices(templates(), k=SAMPLES)
        fields = {"harness": plan.harness, "run": plan.run, "artifacts": artifacts}
        made = [named(one, f"task-{number:05}", index, version=version, **fields) for index, one in enumerate(picked)]
        is_running = number >= count - max(1, count // 50)
        yield from _task(f"task-{number:05}", plan, made, at, is_running=is_running)
    plan = _plan("pi", "faults")
    made = [named(one, "flags", n, version=20, harness="pi", run="faults") for n, one in enumerate(flagged())]
    yield from _task("flags", plan, made, now_ms - 60_000, is_running=False)
    yield fleet.TOPIC, "policy", fleet.PolicyVersion(20), now_ms
    slots = [StageSlots(stage, "default", 8, 5, []) for stage in Stage]
    yield workers.TOPIC, "w", Heartbeat("w", "worker", "host", 1, slots), now_ms


def _task(task_id: str, plan: Plan, made: list[Template], at: int, *, is_running: bool) -> Iterator[Written]:
    body = msgspec.json.encode({"task_id": task_id, "instruction": "mend the clock"})
    state = TaskState(task_id, len(made), "hash", body=body, plan=plan, ended=0 if is_running else len(made))
    yield sessions.TOPIC, f"task:{task_id}", state, at
    submitted = TaskSubmitted(f"{task_id}-f", task_id, len(made), "hash", plan)
    yield events.TOPIC, task_id, submitted, at - 40_000
    for index, one in enumerate(made):
        yield from _session(f"{task_id}.{index}", one, at + index, is_running=is_running and index % 2 == 0)
    if not is_running:
        rewards = [one.trajectory.reward for one in made]
        ids = [one.trajectory.session_id for one in made]
        statuses = [one.trajectory.status for one in made]
        yield (
            trajectories.TOPIC,
            task_id,
            GroupFinished(task_id, len(made), ids, rewards, statuses, run=plan.run),
            at + 900,
        )


def _session(name: str, one: Template, at: int, *, is_running: bool) -> Iterator[Written]:
    made = one.trajectory
    for offset, fact in (
        (-30_000, Claimed(f"{name}-1", name, 1, Stage.INIT, f"{name}-i", "worker-1")),
        (-28_000, InitFinished(f"{name}-2", name, 1, f"{name}-i", duration_ms=2000)),
        (-20_000, Claimed(f"{name}-3", name, 1, Stage.RUN, f"{name}-r", "worker-2")),
    ):
        yield events.TOPIC, name, fact, at + offset
    # Not the template's claim: its calls are of `claim`.
    yield completions.TOPIC, name, Open(name, 1, "claim"), at - 20_000
    for call in one.calls:
        yield completions.TOPIC, name, call, at - 10_000
    evaluation = made.error if made.error is not None and made.error.stage == "evaluate" else None
    if is_running:
        state = SessionState(name, made.task_id, made.sample_index, Phase.RUNNING, 0, run_claim_id="claim")
        yield sessions.TOPIC, f"session:{name}", state, at
        return
    yield (
        events.TOPIC,
        name,
        RunFinished(f"{name}-4", name, 1, f"{name}-r", made.status, error=one.error, duration_ms=9000),
        at - 5000,
    )
    yield events.TOPIC, name, Claimed(f"{name}-5", name, 1, Stage.EVALUATE, f"{name}-e", "worker-1"), at - 3000
    yield events.TOPIC, name, Evaluated(f"{name}-6", name, 1, f"{name}-e", made.reward, error=evaluation), at - 1000
    yield trajectories.TOPIC, name, made, at
    yield completions.TOPIC, name, Emitted(made.task_id, name), at
    state = SessionState(
        name, made.task_id, made.sample_index, Phase.ENDED, 0, run_claim_id="claim", status=made.status, error=one.error,
        reward=made.reward, calls=made.stats.calls, trainable_tokens=made.stats.trainable_tokens, artifacts=made.artifacts,
        reward_reason=made.reward_reason, evaluation_error=evaluation,
    )  # fmt: skip
    yield sessions.TOPIC, f"session:{name}", state, at


def _plan(harness: str, run: str) -> Plan:
    return Plan("default", 0, 3, 600, 3600, 600, harness, "prefix_merging", b"{}", None, "train", b"{}", run=run)


async def fill(settings: Settings, session_count: int) -> None:
    """Write the story to Kafka and to the lake; the topics exist. Sessions keep the offset of their `Open`."""
    blobs = blob_store.of(settings)
    artifacts = {"patch": blobs.put(PATCH.encode()).ref, "agent_log": blobs.put(b"it ran\n" * 50).ref}
    now_ms = round(time.time() * 1000)
    partitions = await admin.partition_count(settings, sessions.TOPIC.full_name(settings.namespace))
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap, linger_ms=20, max_batch_size=1 << 20, max_request_size=1 << 23
    )
    await producer.start()

    async def send(topic: Topic, key: str, record: msgspec.Struct, at: int) -> Any:
        partition = partition_of_task(_task_id(record), partitions) if topic.copartitioned else 0
        name = topic.full_name(settings.namespace)
        return await producer.send(name, encode(record), key=key.encode(), partition=partition, timestamp_ms=at)

    opened: dict[str, Any] = {}
    rows: list[tuple[str, SessionState, int]] = []
    told: list[tuple[float, object]] = []
    for topic, key, record, at in story(session_count, now_ms, artifacts):
        told.append(((at - NOON) / 1000, record))
        if isinstance(record, SessionState):
            rows.append((key, record, at))
            continue
        sent = await send(topic, key, record, at)
        if isinstance(record, Open):
            opened[record.session_id] = sent
    for key, row, at in rows:
        offset = (await opened[row.session_id]).offset
        await send(sessions.TOPIC, key, msgspec.structs.replace(row, log_offset=offset), at)
    await producer.flush()
    await producer.stop()
    in_lake = (events.TOPIC, completions.TOPIC, trajectories.TOPIC)
    kinds = tuple(kind for topic in in_lake for kind in topic.records)
    write(settings.lake_folder, [(at, record) for at, record in told if isinstance(record, kinds)])


def _task_id(record: Any) -> str:
    return str(getattr(record, "task_id", None) or record.session_id.rpartition(".")[0])


async def main(session_count: int, port: int, folder: Path, bootstrap: str) -> None:
    token = folder / "control.token"
    token.write_text("secret")
    settings = Settings(
        kafka=bootstrap, namespace="filled", replication=1, min_insync=1, data=folder / "data", control_token_file=token
    )
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    began = time.monotonic()
    await fill(settings, session_count)
    print(f"filled in {time.monotonic() - began:.1f} s")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(
        settings,
        Binding("127.0.0.1", port),
        stop=stop,
        ready=lambda url: print(f"the page is at {with_token(url, settings)}", flush=True),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--port", type=int, default=8420)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="polar-filled-") as place, Broker(Path(place) / "kafka", announce=print) as broker:
        asyncio.run(main(arguments.sessions, arguments.port, Path(place), broker.bootstrap))
