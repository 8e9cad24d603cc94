"""A small lake with a story in it, made of records as the writer makes it, without a broker: what the views must tell is known.

`mend` (pi, 4 samples): 0 solved, its run lost once before; 1 failed to, with a side call, a call given up and one unanswered;
2 ran out of time; 3 still runs. `parse` (shell, 2 samples, of the run `night`): both solved. `own` (opened, 2 samples): one done, one
never asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analytics.lake import rows
from analytics.lake.manifest import Lake
from analytics.lake.rows import Row
from analytics.writing.flush import flush
from topics.completions import Disowned, RefusedRequest
from topics.dead_letters import Letter, Replay
from topics.events import Claimed, Evaluated, InitFinished, RunFinished, SessionOpenRequested, TaskSubmitted
from topics.fleet import PolicyVersion
from topics.types.completion import CallError, CallOutcome, Completion, MessageDelta, Sampling, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Plan, Stage, Status
from topics.types.tokens import count, pack_ids, pack_logprobs
from topics.types.trajectory import Call, GroupFinished, Node, Stats, Trace, Trajectory
from topics.verifications import Verification
from topics.workers import Heartbeat

NOON = 1_790_000_000_000
"""Unix ms; all times of the story are seconds after it."""
Told = tuple[float, object]
"""Seconds after NOON at which the log took a record, and the record."""


def write(folder: Path, told: Iterable[Told]) -> Lake:
    """Make a lake of records, in this order, as if all lay in partition 0 of their topics."""
    lake = Lake(folder)
    lake.prepare()
    made: dict[str, list[Row]] = {}
    offsets: Counter[tuple[str, int]] = Counter()
    for seconds, record in told:
        source = (_topic(record), 0)
        at = {"log_partition": 0, "log_offset": offsets[source], "logged_at": NOON + round(seconds * 1000)}
        offsets[source] += 1
        for table, row in rows.of_record(record, at):
            made.setdefault(table, []).append(row)
    with lake.writing() as writing:
        assert flush(lake, writing, made, dict.fromkeys(offsets), offsets) == 0
    return lake


def _topic(record: object) -> str:
    match record:
        case Trajectory() | GroupFinished():
            return "trajectories"
        case Verification():
            return "verifications"
        case Completion() | Disowned() | RefusedRequest():
            return "completions"
        case PolicyVersion():
            return "fleet"
        case Heartbeat():
            return "workers"
        case Letter() | Replay():
            return "dead-letters"
        case _:
            return "events"


def story() -> list[Told]:
    return sorted([*_mend(), *_parse(), *_own()], key=lambda one: one[0])


def submitted(task_id: str, samples: int, harness: str = "pi", run: str | None = None) -> TaskSubmitted:
    metadata = b'{"repository": "demo"}'
    plan = Plan("default", 0, 3, 1.0, 1.0, 1.0, harness, "prefix_merging", b"{}", None, "train", metadata, run=run)
    return TaskSubmitted(f"{task_id}-submitted", task_id, samples, "hash", plan)


def stages(session_id: str, start: float, attempt: int = 1, init: bool = True) -> Iterator[Told]:
    """An attempt that goes well: 1 s in the queue of each stage, 2 s of init, 10 s of run, 3 s of evaluation."""
    at = start
    for stage, took, finished in (
        (Stage.INIT, 2, InitFinished),
        (Stage.RUN, 10, partial(RunFinished, status=Status.COMPLETED, exit_code=0)),
        (Stage.EVALUATE, 3, partial(Evaluated, reward=1.0)),
    ):
        claim = f"{session_id}-{attempt}-{stage.value}"
        at += 1
        yield at, Claimed(f"{claim}-claimed", session_id, attempt, stage, claim, "worker-1")
        at += took
        yield at, finished(f"{claim}-done", session_id, attempt, claim, duration_ms=took * 1000)


def call(
    session_id: str, turn: int, at: float, base: str | None = None, attempt: int = 1, **more: Any
) -> tuple[float, Completion]:
    """A call of 20 new prompt tokens and 10 sampled ones that took 0.5 s; with a base, 30 tokens shared for each turn before."""
    ids = np.arange(20, dtype=np.int32)
    fields: dict[str, Any] = {
        "call_id": f"{session_id}-{attempt}-{turn}",
        "session_id": session_id,
        "attempt": attempt,
        "claim_id": f"{session_id}-{attempt}-run",
        "outcome": CallOutcome.ANSWERED,
        "dialect": "openai_chat",
        "engine": "default",
        "received_at": NOON + round(at * 1000) - 500,
        "completed_at": NOON + round(at * 1000),
        "prompt": TokenDelta(pack_ids(ids), 30 * turn if base else 0, base),
        "messages": MessageDelta(b'[{"role": "user", "content": "go on"}]'),
        "sampled": pack_ids(ids[:10]),
        "logprobs": pack_logprobs(np.full(10, -0.5, np.float32)),
        "answer": b'{"role": "assistant", "content": "on"}',
        "finish_reason": "stop",
        "model_requested": "model",
        "model_served": "model",
        "policy_version": 7,
        "sampling": Sampling(temperature=1.0),
    }
    return at, Completion(**fields | more)


def conversation(session_id: str, start: float, turns: int, attempt: int = 1) -> list[tuple[float, Completion]]:
    """Calls that each go on from the one before, a second apart."""
    return [
        call(session_id, turn, start + turn, f"{session_id}-{attempt}-{turn - 1}" if turn else None, attempt)
        for turn in range(turns)
    ]


def yielded(
    session_id: str,
    samples: int,
    calls: list[tuple[float, Completion]],
    status: Status,
    reward: float | None,
    **more: Any,
) -> Trajectory:
    """A trajectory of these calls as one conversation, all of it trained."""
    made: list[Call] = []
    nodes: list[Node] = []
    for index, (_, one) in enumerate(calls):
        tree: dict[str, Any] = {"parent": made[-1].call_id} if made else {"branch": "root"}
        tokens = one.prompt.shared + count(one.prompt.rest), count(one.sampled)
        facts = {"policy_version": one.policy_version, "publication": one.publication, "engine": one.engine}
        made.append(
            Call(
                one.call_id,
                one.kind,
                one.outcome,
                one.dialect,
                one.received_at,
                one.completed_at,
                *tokens,
                **tree | facts,
            )
        )
        nodes.append(Node(len(nodes) - 1, one.prompt.rest))
        nodes.append(Node(len(nodes) - 1, one.sampled, one.logprobs, index))
    trace = Trace(f"{session_id}/{made[-1].call_id}", len(nodes) - 1, list(range(1, len(nodes), 2)), reward=reward)
    task_id, _, sample = session_id.rpartition(".")
    total = len(made)
    fields: dict[str, Any] = {
        "harness": "pi",
        "attempt": 1,
        "stats": Stats(total, total, 1, 30 * total, 10 * total, 10 * total),
        "metadata": b'{"repository": "demo"}',
        "artifacts": {"agent_log": "blob:sha256/00"},
    }
    return Trajectory(
        session_id=session_id, task_id=task_id, sample_index=int(sample), num_samples=samples, status=status, reward=reward,
        builder="prefix_merging", nodes=nodes, calls=made, traces=[trace], **fields | more,
    )  # fmt: skip


def _mend() -> Iterator[Told]:
    yield 0, submitted("mend", 4)
    yield 0.1, submitted("mend", 4)  # sent again
    # 0: its first run's worker was killed
    yield 1, Claimed("lost", "mend.0", 1, Stage.INIT, "mend.0-1-init", "worker-0")
    yield 3, InitFinished("lost-init", "mend.0", 1, "mend.0-1-init", duration_ms=2000)
    yield 4, Claimed("lost-run", "mend.0", 1, Stage.RUN, "mend.0-1-run", "worker-0")
    yield call("mend.0", 0, 5)
    yield from stages("mend.0", 20, attempt=2)
    solved = conversation("mend.0", 25, 3, attempt=2)
    yield from solved
    yield 25.6, solved[0][1]  # the same record, late, and once more
    yield 38, yielded("mend.0", 4, solved, Status.COMPLETED, 1.0, attempt=2)
    # 1
    yield from stages("mend.1", 0)
    failed = conversation("mend.1", 5, 2)
    yield from failed
    yield call("mend.1", 2, 7.5, kind="title", kind_rule="short")
    yield call("mend.1", 3, 8, "mend.1-1-1")
    yield 8.5, Disowned("mend.1-1-3", "mend.1", "mend.1-1-run", "hung_up")
    yield call(
        "mend.1", 4, 9, outcome=CallOutcome.FAILED, sampled=b"", logprobs=b"", answer=b"", finish_reason=None,
        error=CallError("overloaded", "the engine is busy", 503),
    )  # fmt: skip
    error = SessionError("run", Kind.AGENT, "exit_code", "the harness exited with 1")
    stats = Stats(5, 4, 1, 60, 40, 20, {"side_call": 10, "undelivered": 10})
    yield (
        18,
        yielded("mend.1", 4, failed, Status.FAILED, 0.0, error=error, stats=stats, reward_reason="1 of 2 tests differ"),
    )
    # 2
    yield from stages("mend.2", 0.5)
    slow = conversation("mend.2", 6, 4)
    yield from slow
    timeout = SessionError("run", Kind.BUDGET, "timeout", "its 10 s are over")
    yield 19, yielded("mend.2", 4, slow, Status.TIMED_OUT, None, error=timeout)
    # 3
    yield 30, Claimed("c3", "mend.3", 1, Stage.INIT, "mend.3-1-init", "worker-1")
    yield 33, InitFinished("i3", "mend.3", 1, "mend.3-1-init", duration_ms=3000)
    yield 35, Claimed("r3", "mend.3", 1, Stage.RUN, "mend.3-1-run", "worker-1")
    yield from conversation("mend.3", 36, 1)


def _parse() -> Iterator[Told]:
    yield 40, submitted("parse", 2, harness="shell", run="night")
    for sample in range(2):
        session_id = f"parse.{sample}"
        yield from stages(session_id, 40 + sample)
        calls = conversation(session_id, 46 + sample, 2)
        yield from calls
        yield 60 + sample, yielded(session_id, 2, calls, Status.COMPLETED, 1.0, harness="shell", run="night")
    yield 62, GroupFinished("parse", 2, ["parse.0", "parse.1"], [1.0, 1.0], [Status.COMPLETED] * 2, run="night")


def _own() -> Iterator[Told]:
    yield 70, SessionOpenRequested("o1", "own", "claim-0", 60_000, num_samples=2)
    yield 71, SessionOpenRequested("o1", "own", "claim-0", 60_000, num_samples=2)
    calls = conversation("own.0", 72, 1)
    yield from calls
    yield 80, yielded("own.0", 2, calls, Status.COMPLETED, 0.5, harness="external")
