"""What holds of all topics, and of where their records lie."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.specimens import TOPICS, full, tag
from topics import completions, events, fleet, sessions, trajectories, workers
from topics.contract import catalogue
from topics.contract.topic import MIB, Topic
from topics.log.partition import partition_of_session, partition_of_task
from topics.sessions import Position
from topics.types.session import Phase, SessionState, Stage, TaskState, session_id_of, task_id_of

named = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "abc": 479470107,
}
"""What the Java client's hash gives, as Kafka's own tests have it."""


@named
def test_a_segment_is_closed_within_a_quarter_of_the_retention(topic: Topic) -> None:
    config = topic.broker_config(min_insync=2)
    if topic.retention_ms is not None:
        assert int(config["segment.ms"]) * 4 <= int(config["retention.ms"])
    assert config["min.insync.replicas"] == "2"
    assert config["unclean.leader.election.enable"] == "false"


@named
def test_record_types_of_a_topic_are_told_apart_by_their_tags(topic: Topic) -> None:
    tags = [tag(record) for record in topic.records]
    assert len(set(tags)) == len(tags)
    assert all(record.__struct_config__.tag_field == "type" for record in topic.records)


def test_copartitioned_topics_have_one_partition_count() -> None:
    together = [topic for topic in TOPICS if topic.copartitioned]
    assert {topic.name for topic in together} >= {"events", "sessions", "completions", "trajectories"}
    assert {(topic.partitions, topic.embedded_partitions) for topic in together} == {(12, 4)}


def test_names_are_unique_and_namespaced() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    assert events.TOPIC.full_name("lab") == "lab.events"
    assert trajectories.topic("eval").name == "trajectories.eval"
    assert [topic.name for topic in catalogue.of_pool("gpu")] == [f"stage.{stage.value}.gpu" for stage in Stage]


def test_only_calls_and_trajectories_may_be_large() -> None:
    large = {topic.name for topic in TOPICS if topic.max_bytes > 8 * MIB}
    assert large == {"completions", "trajectories", "trajectories.eval", "dead-letters"}
    assert completions.TOPIC.broker_config(1)["max.message.bytes"] == str(32 * MIB)


def test_tables_are_compacted_and_heartbeats_are_in_the_brokers_time() -> None:
    assert {topic.name for topic in TOPICS if topic.broker_config(1)["cleanup.policy"] == "compact"} == {
        sessions.TOPIC.name,
        fleet.TOPIC.name,
    }
    stamped = {topic.name for topic in TOPICS if topic.broker_config(1)["message.timestamp.type"] == "LogAppendTime"}
    assert stamped == {workers.TOPIC.name}


@pytest.mark.parametrize(("task_id", "hashed"), MURMUR2.items())
def test_a_task_lies_where_the_java_client_would_put_its_key(task_id: str, hashed: int) -> None:
    for partitions in (1, 4, 12):
        assert partition_of_task(task_id, partitions) == (hashed & 0x7FFFFFFF) % partitions


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", fullmatch=True), st.integers(0, 1023), st.integers(1, 64))
def test_a_session_lies_with_its_task(task_id: str, sample_index: int, partitions: int) -> None:
    session_id = session_id_of(task_id, sample_index)
    assert task_id_of(session_id) == task_id
    assert partition_of_session(session_id, partitions) == partition_of_task(task_id, partitions)
    assert 0 <= partition_of_task(task_id, partitions) < partitions


@pytest.mark.parametrize("record", events.RECORDS, ids=tag)
def test_every_fact_knows_its_task_and_key(record: type[events.Fact]) -> None:
    ids = {"session_id": "t.3", "task_id": "t"}
    named_by = ids.keys() & record.__struct_fields__
    fact: Any = msgspec.structs.replace(full(record), **{name: ids[name] for name in named_by})
    assert events.task_of(fact) == "t"
    assert events.key_of(fact) == ("t.3" if "session_id" in named_by else "t")


def test_a_cancel_of_a_whole_task_is_keyed_by_the_task() -> None:
    assert events.key_of(events.CancelRequested("f", "t")) == "t"


def test_rows_of_the_table_are_keyed_by_kind() -> None:
    assert sessions.key_of(TaskState("t")) == "task:t"
    assert sessions.key_of(SessionState("t.3", "t", 3, Phase.QUEUED, 0)) == "session:t.3"
    assert sessions.key_of(Position(7, 9)) == "offset"
