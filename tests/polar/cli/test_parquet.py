"""Trajectories as Parquet: a row says what the line of JSON says, with types."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polar.cli import parquet
from polar.show.trajectory import fields, line
from tests.analytics.story import story
from topics.types.completion import Medium, Sampling
from topics.types.trajectory import Stats, Trajectory

DEFAULTS = msgspec.structs.asdict(Sampling())
TRAJECTORIES = [record for _, record in story() if isinstance(record, Trajectory)]


def written(*trajectories: Trajectory) -> Any:
    out = io.BytesIO()
    with parquet.TrajectoryFile(out) as file:
        for trajectory in trajectories:
            file.add(fields(trajectory, msgspec.structs.asdict))
    return pq.read_table(io.BytesIO(out.getvalue()))


def test_a_row_holds_what_the_line_of_json_holds() -> None:
    many = msgspec.structs.replace(
        TRAJECTORIES[0], stats=Stats(calls=3, masked_tokens={"fork": 4}, branches={"fork": 1})
    )
    first, *nodes = TRAJECTORIES[0].nodes
    image = Medium("00ff", position=0, blob="blob:sha256/00ff", unproven=True)
    seen = msgspec.structs.replace(TRAJECTORIES[0], nodes=[msgspec.structs.replace(first, media=[image]), *nodes])
    for trajectory in (*TRAJECTORIES, many, seen):
        [row] = written(trajectory).to_pylist(maps_as_pydicts="strict")
        said = json.loads(msgspec.json.encode(line(trajectory)))
        row["metadata"] = json.loads(row["metadata"])
        # JSON leaves out what has its default, also where that is a number or a map.
        row["stats"] = {name: value for name, value in row["stats"].items() if value}
        for trace in row["traces"]:
            media = [medium.items() for medium in trace["media"]]
            trace["media"] = [{name: value for name, value in one if value not in (None, "image")} for one in media]
            for call in trace["calls"]:
                call["sampling"] = {
                    name: value for name, value in call["sampling"].items() if value and value != DEFAULTS[name]
                }
        if row["error"] and not row["error"]["retryable"]:
            del row["error"]["retryable"]
        assert row == said


def test_tokens_have_the_types_of_the_log() -> None:
    trace: Any = written(*TRAJECTORIES).schema.field("traces").type.value_type
    assert trace.field("token_ids").type == pa.list_(pa.int32())
    assert trace.field("loss_mask").type == pa.list_(pa.uint8())
    assert trace.field("logprobs").type == pa.list_(pa.float32())


def test_no_trajectories_are_a_file_with_columns() -> None:
    empty = written()
    assert empty.num_rows == 0
    assert empty.schema.equals(written(*TRAJECTORIES).schema)


def test_many_are_written_in_groups_and_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    found = written(*TRAJECTORIES)
    assert found["session_id"].to_pylist() == [one.session_id for one in TRAJECTORIES]
