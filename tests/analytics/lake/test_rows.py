"""From records to rows to Parquet and back: nothing that a record holds is missing in the lake."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import duckdb
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.lake import files, records, rows
from analytics.lake.rows import Row
from analytics.lake.schema import TABLES
from tests.polar.trainer.trees import trees
from tests.topics.specimens import any_of, full, tag
from topics import completions, events
from topics.completions import Disowned, RefusedRequest
from topics.dead_letters import Letter, Replay
from topics.fleet import EngineProcess, FleetState, PolicyVersion, Rollback
from topics.types.completion import (
    CallOutcome,
    Completion,
    Medium,
    MessageDelta,
    PolicySpan,
    Sampling,
    TokenDelta,
)
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Stage, Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Call, GroupFinished, Node, Stats, Trace, Trajectory, expand
from topics.verifications import Verification
from topics.workers import Heartbeat, Probe, StageSlots

ORIGIN: Row = {"log_partition": 3, "log_offset": 2**40, "logged_at": 1_700_000_000_123}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT = ORIGIN | {"logged_at": EPOCH + timedelta(milliseconds=ORIGIN["logged_at"])}
"""The columns of every row, as they are read back."""
LOGPROBS = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(pack_logprobs)
KEPT = (*events.RECORDS, Completion, Disowned, RefusedRequest, GroupFinished, Trajectory, Verification)
WORDS = st.binary(max_size=5).map(lambda data: np.frombuffer(data * 4, "<i4").tobytes())
"""Packed values: any, but whole ones."""


def stored(record: object, folder: Path, output: str | None = None) -> dict[str, list[Row]]:
    """What the lake holds of a record: rows by table, as pyarrow reads them back."""
    made: dict[str, list[Row]] = {}
    for name, row in rows.of_record(record, ORIGIN, output):
        made.setdefault(name, []).append(row)
    read = {}
    for number, (name, kept) in enumerate(made.items()):
        table, unfit = files.arrow(TABLES[name], kept)
        assert unfit == []
        path = folder / f"{number}.parquet"
        path.unlink(missing_ok=True)
        assert files.write(path, table) == path.stat().st_size
        again = pq.read_table(path)
        assert again.schema.equals(TABLES[name].arrow)
        read[name] = cast("list[Row]", again.to_pylist(maps_as_pydicts="strict"))
    return read


def instant(ms: int) -> datetime | None:
    return EPOCH + timedelta(milliseconds=ms) if 0 <= ms <= files.LAST_MS else None


@pytest.mark.parametrize("record", KEPT, ids=tag)
def test_a_row_has_every_column_and_says_where_it_is_from(record: type[msgspec.Struct], tmp_path: Path) -> None:
    if record is Trajectory:
        made: msgspec.Struct = TRAJECTORY
    else:
        packed = {"sampled": pack_ids([1, 2]), "logprobs": pack_logprobs([-1, -2]), "prompt": TokenDelta(pack_ids([7]))}
        changed: dict[type, dict[str, Any]] = {
            Completion: packed,
            GroupFinished: {"rebuilt": False},
            Verification: {"logprobs": pack_logprobs([-1, math.nan]), "output": "eval"},
        }
        made = msgspec.structs.replace(full(record), **changed.get(record, {}))
    for name, read in stored(made, tmp_path, "eval").items():
        for row in read:
            assert row.keys() == {column.name for column in TABLES[name].columns}
            assert (row["log_partition"], row["log_offset"]) == (3, 2**40)
            assert row["logged_at"] == instant(ORIGIN["logged_at"])
            assert row.get("output", "eval") == "eval"


@pytest.mark.parametrize("record", [completions.Open, completions.Build, completions.CloseGroup, completions.Emitted])
def test_what_steers_the_builder_has_no_row(record: type[msgspec.Struct]) -> None:
    assert list(rows.of_record(full(record), ORIGIN)) == []


@settings(deadline=None, max_examples=50)
@given(st.one_of(*(any_of(record) for record in events.RECORDS)))
def test_a_fact_is_in_its_row_whole(tmp_path_factory: pytest.TempPathFactory, fact: Any) -> None:
    (row,) = stored(fact, tmp_path_factory.getbasetemp())["events"]
    told = json.loads(msgspec.json.encode(fact))
    told.pop("body", None)
    detail = json.loads(row["detail"])
    for name in {"metadata", "builder_config"} & told.get("plan", {}).keys():
        plan = detail["plan"]
        if plan[name] != told["plan"][name]:
            assert plan.pop(name) == msgspec.json.decode(getattr(fact.plan, name))
            del told["plan"][name]
    assert detail == told
    assert row["fact"] == tag(type(fact))
    assert row["task_id"] == events.task_of(fact)
    for name in fact.__struct_fields__:
        if name in row and name not in ("stage", "detail"):
            assert row[name] == getattr(fact, name), name
    error = getattr(fact, "error", None)
    assert (row["error_code"], row["error_kind"]) == ((error.code, error.kind) if error else (None, None))


@settings(deadline=None, max_examples=50)
@given(any_of(Completion), WORDS, WORDS, LOGPROBS, st.integers(0, 2**40), st.text())
def test_a_call_can_be_made_again_from_its_row(
    tmp_path_factory: pytest.TempPathFactory, drawn: Completion, rest: bytes, sampled: bytes, logprobs: bytes, shared: int, said: str,
) -> None:  # fmt: skip
    call = msgspec.structs.replace(
        drawn,
        prompt=msgspec.structs.replace(drawn.prompt, rest=rest, shared=shared),
        messages=msgspec.structs.replace(drawn.messages, rest=said.encode()),
        sampled=sampled,
        logprobs=logprobs,
        answer=said.encode(),
        tools=None if drawn.tools is None else said.encode(),
        # It comes from JSON, which has no infinity.
        sampling=msgspec.structs.replace(drawn.sampling, logit_bias={"1": 0.5} if drawn.sampling.logit_bias else {}),
        received_at=abs(drawn.received_at) % files.LAST_MS,
        completed_at=abs(drawn.completed_at) % files.LAST_MS,
    )
    (row,) = stored(call, tmp_path_factory.getbasetemp())["completions"]
    assert row["task_id"] == call.session_id.rpartition(".")[0]
    assert row["prompt_tokens"] == shared + len(rest) // 4
    assert row["sampled_tokens"] == len(sampled) // 4
    assert records.completion(row) == call


TRAJECTORY = Trajectory(
    session_id="t.1",
    task_id="t",
    sample_index=1,
    num_samples=2,
    attempt=1,
    status=Status.FAILED,
    builder="prefix_merging",
    harness="shell",
    reward=0.5,
    error=SessionError("run", Kind.AGENT, "exit_code", "it ended with 3", retryable=True),
    nodes=[
        Node(-1, pack_ids([1, 2, 3])),
        Node(0, pack_ids([4, 5]), pack_logprobs([-0.5, -0.25]), call=0, media=[Medium("00ff", position=1)]),
        Node(1, pack_ids([6]), pack_logprobs([-1]), call=0, masked="drift"),
        Node(1, pack_ids([7, 8])),
        Node(3, pack_ids([9]), pack_logprobs([0]), call=1),
    ],
    calls=[
        Call(
            "c0", "main", "answered", "openai_chat", 1_000, 2_000, 3, 3, finish_reason="stop", sampling=Sampling(top_k=5),
            policy_version=3, policy_spans=[PolicySpan(3, 0, 1, 17), PolicySpan(4, 1, 3)], realigned=2,
            engine="policy", logprobs_mode="raw", publication=17, prompt_doubt="count", media=3,
            routed_experts="blob:sha256/01", sampling_mask="blob:sha256/02",
        ),
        Call("c1", "main", "answered", "openai_chat", 3_000, 2**60, 7, 1, parent="c0", branch="edited", reward=1.0, policy_version=4),
    ],
    traces=[Trace("t.1/0", 2, [1]), Trace("t.1/1", 4, [1, 4], kind="main", reward=0.5, finish_reason="stop")],
    stats=Stats(2, 2, 2, 9, 4, 3, {"drift": 1}, {"edited": 1}, {"FORK": 1}, 1),
    accounting=Accounting(1, 2, 3, 4, 5, 6, 7),
    artifacts={"agent_log": "blob:sha256/00"},
    metadata=b'{"user": {"name": "na\xc3\xafve"}}',
    mode="eval",
    reward_reason="1 of 2 tests differ: näive",
    run="night",
)  # fmt: skip


def test_a_trajectory_is_in_four_tables_whole(tmp_path: Path) -> None:
    read = stored(TRAJECTORY, tmp_path, "eval")
    (whole,) = read["trajectories"]
    assert records.trajectory(
        whole, read["trajectory_calls"], read["nodes"], read["traces"]
    ) == msgspec.structs.replace(
        TRAJECTORY, calls=[TRAJECTORY.calls[0], msgspec.structs.replace(TRAJECTORY.calls[1], completed_at=0)]
    ), "an instant past the year 9999 is null"
    assert [(row["tokens"], row["trainable_tokens"], row["calls"]) for row in read["traces"]] == [(6, 2, 1), (8, 3, 2)]
    assert [row["call_id"] for row in read["nodes"]] == [None, "c0", "c0", None, "c1"]
    assert [row["answer_offset"] for row in read["nodes"]] == [None, 0, 2, None, 0]
    assert [(row["path"], row["starts"]) for row in read["traces"]] == [
        ([0, 1, 2], [0, 3, 5]),
        ([0, 1, 3, 4], [0, 3, 5, 7]),
    ]


@pytest.mark.parametrize(
    ("parents", "leaf"), [([0], 0), ([1, 0], 1), ([-2], 0), ([-1, 2, 0], 0), ([-1], 1), ([-1], -1)]
)
def test_a_trajectory_that_is_no_tree_has_no_rows(parents: list[int], leaf: int) -> None:
    """Parents that come before their nodes make no cycle, whose path would have no end."""
    nodes = [Node(parent, pack_ids([1]), call=0 if index else None) for index, parent in enumerate(parents)]
    broken = msgspec.structs.replace(TRAJECTORY, nodes=nodes, traces=[Trace("t.1/0", leaf, [0])])
    with pytest.raises(ValueError, match=r"has the (parent|leaf) -?\d"):
        list(rows.of_record(broken, ORIGIN))


@settings(deadline=None)
@given(trees())
def test_a_trace_s_path_and_starts_place_its_tokens_where_it_has_them(
    tmp_path_factory: pytest.TempPathFactory, trajectory: Trajectory
) -> None:
    read = stored(trajectory, tmp_path_factory.getbasetemp())
    for trace, row in zip(trajectory.traces, read.get("traces", []), strict=True):
        found = np.concatenate([read["nodes"][node]["tokens"] for node in row["path"]])
        assert found.tolist() == expand(trajectory, trace).token_ids.tolist()
        sizes = [len(read["nodes"][node]["tokens"]) for node in row["path"]]
        assert row["starts"] == [sum(sizes[:number]) for number in range(len(sizes))]


def test_what_was_rebuilt_has_no_rows_beside_those_of_the_same_sessions() -> None:
    for record in (TRAJECTORY, full(GroupFinished)):
        mark = {"rebuilt": True} if isinstance(record, GroupFinished) else {"rebuilt_with": b"{}"}
        assert list(rows.of_record(msgspec.structs.replace(record, **mark), ORIGIN, "again")) == []


@settings(deadline=None, max_examples=50)
@given(any_of(GroupFinished), any_of(Disowned))
def test_a_group_and_a_disowned_call_are_in_their_rows(
    tmp_path_factory: pytest.TempPathFactory, group: Any, call: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (row,) = stored(msgspec.structs.replace(group, rebuilt=False), folder)["groups"]
    assert all(row[name] == getattr(group, name) for name in GroupFinished.__struct_fields__ if name != "rebuilt")
    (row,) = stored(call, folder)["disowned"]
    assert all(row[name] == getattr(call, name) for name in Disowned.__struct_fields__)


def test_a_refused_request_is_in_its_row(tmp_path: Path) -> None:
    request = RefusedRequest("t.0", 2, "claim", 1000, "POST", "/foo", 404, "not_found", "nothing", "curl/8", 20)
    (row,) = stored(request, tmp_path)["refused_requests"]
    assert row["task_id"] == "t"
    assert row["refused_at"] == EPOCH + timedelta(seconds=1)
    assert all(row[name] == getattr(request, name) for name in RefusedRequest.__struct_fields__ if name != "refused_at")


def test_a_publication_is_in_its_row_and_the_fleet_s_state_has_none(tmp_path: Path) -> None:
    known = Rollback(3, 5, offset=7)
    assert stored(PolicyVersion(9, "large", [known]), tmp_path) == {
        "publications": [AT | {"policy_version": 9, "engine": "large", "is_rollback": False}]
    }
    [back] = stored(PolicyVersion(4, rollbacks=[known, Rollback(4, 9)]), tmp_path)["publications"]
    assert (back["policy_version"], back["engine"], back["is_rollback"]) == (4, None, True)
    for record in (FleetState(1), EngineProcess("large", "http://a")):
        assert stored(record, tmp_path) == {}


def test_a_heartbeat_is_in_its_row_and_a_probe_has_none(tmp_path: Path) -> None:
    slots = [StageSlots(Stage.RUN, "gpu", 8, 3, [1, 2], ["claim"])]
    beat = Heartbeat("w-1", "worker", "host", 7, slots, "http://a", leaving=True, calls=2, obstacle="no engine")
    assert stored(beat, tmp_path)["heartbeats"] == [
        AT | {
            "worker_id": "w-1", "role": "worker", "host": "host", "pid": 7, "address": "http://a", "leaving": True, "in_flight": 2,
            "slots": [{"stage": "run", "pool": "gpu", "slots": 8, "free": 3}], "obstacle": "no engine",
        }
    ]  # fmt: skip
    [bare] = stored(Heartbeat("p", "fanout", "host", 7), tmp_path)["heartbeats"]
    assert (bare["slots"], bare["address"], bare["obstacle"]) == ([], None, None)
    assert stored(Probe("c"), tmp_path) == {}


def test_a_dead_letter_and_its_replay_are_in_their_rows_without_the_record_s_bytes(tmp_path: Path) -> None:
    letter = Letter(
        4, 0, b"t\xff", b"{bad}", "no such harness", "harness", "fanout", "polar.tasks", 0, 5, (("a", b"b"),)
    )
    assert stored(letter, tmp_path)["dead_letters"] == [
        AT | {
            "record_key": "t\ufffd", "bytes": 5, "reason": "no such harness", "field": "harness", "process": "fanout",
            "source_topic": "polar.tasks", "source_partition": 0, "source_offset": 5,
        }
    ]  # fmt: skip
    [bare] = stored(Letter(4, 0, None, b"", "", "", "", "", None, None), tmp_path)["dead_letters"]
    assert {name for name, value in bare.items() if value is None} == {
        "record_key", "field", "source_topic", "source_partition", "source_offset"
    }  # fmt: skip
    assert stored(Replay(4, "polar.tasks[0]@9", 0), tmp_path)["dead_letter_replays"] == [
        AT | {"letter_id": 4, "sent_to": "polar.tasks[0]@9"}
    ]


def disowned(call_id: str = "c", **more: Any) -> Row:
    ((_, row),) = rows.of_record(Disowned(call_id, "t.0", "claim", "closed"), ORIGIN)
    return row | more


def completion(**more: Any) -> Row:
    call = Completion("c", "t.0", 1, "a", CallOutcome.ANSWERED, "d", "e", 0, 0, TokenDelta(b""), MessageDelta(b"[]"))
    ((_, row),) = rows.of_record(call, ORIGIN)
    return row | more


@pytest.mark.parametrize(
    "bad",
    [{"attempt": 2**63}, {"sampled": b"\0\0\0"}, {"call_id": 7}],
    ids=["an integer past 64 bits", "half a token", "a number for a text"],
)
def test_a_value_that_fits_no_column_costs_its_own_row_only(bad: Row) -> None:
    kept = [completion(call_id=str(number)) for number in range(20)]
    mixed = [*kept[:7], completion(**bad), *kept[7:13], completion(**bad), *kept[13:]]
    table, unfit = files.arrow(TABLES["completions"], mixed)
    assert table.column("call_id").to_pylist() == [str(number) for number in range(20)]
    assert [{name: row[name] for name in bad} for row in unfit] == [bad, bad]


def test_text_that_is_no_utf_8_is_marked_where_it_is_not() -> None:
    table, unfit = files.arrow(TABLES["completions"], [completion(answer=b'"\xff"')])
    assert (table.column("answer").to_pylist(), unfit) == (['"\ufffd"'], [])


def test_duckdb_reads_what_was_written(tmp_path: Path) -> None:
    ids, logprobs = pack_ids([1, 2**31 - 1, -1]), pack_logprobs([-0.5, float("-inf"), 0])
    made = completion(sampled=ids, logprobs=logprobs, lineage={"agent": "a"}, received_at=1_700_000_000_123)
    table, _ = files.arrow(TABLES["completions"], [made, completion()])
    files.write(tmp_path / "one.parquet", table)
    asked = (
        f"select sampled, logprobs, lineage['agent'], epoch_ms(received_at), prompt_rest from '{tmp_path}/one.parquet'"
    )
    found = duckdb.connect().execute(asked).fetchall()
    assert found == [
        ([1, 2**31 - 1, -1], [-0.5, float("-inf"), 0.0], "a", 1_700_000_000_123, []),
        ([], [], None, 0, []),
    ]


def test_a_file_is_never_written_over_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    table, _ = files.arrow(TABLES["disowned"], [disowned()])
    path = tmp_path / "one.parquet"
    files.write(path, table)
    with pytest.raises(FileExistsError):
        files.write(path, table)
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "nowhere" / "one.parquet", table)
    assert pq.read_table(path).equals(table)
