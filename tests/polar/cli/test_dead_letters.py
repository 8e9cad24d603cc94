"""`polar dead-letters` lists, shows and replays what could not be processed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.cli.dead_letters import readable
from tests.polar.cli.commands import polar
from topics import completions, dead_letters, events, tasks
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.events import TaskSubmitted
from topics.log import kafka
from topics.log.producer import LogProducer
from topics.types.session import Plan

PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}")
FACT = TaskSubmitted("f", "t", 1, "hash", PLAN, body=b'{"instruction": "mend"}')


def bury(settings: Settings, topic: Topic, value: bytes, reason: str, *, partition: int = 0, **more: Any) -> None:
    """A dead letter, as a process writes it of a record with the header `trace`."""

    async def send() -> None:
        producer = LogProducer(settings)
        await producer.start()
        headers = dead_letters.headers(
            reason=reason,
            field=more.get("field"),
            process=more.get("process", "fanout"),
            topic=topic.full_name(settings.namespace),
            partition=partition,
            offset=9,
            kept=[("trace", b"1")],
        )
        name = dead_letters.TOPIC.full_name(settings.namespace)
        await producer.send_bytes(name, value, key=b"t", headers=headers)
        await producer.stop()

    asyncio.run(send())


def records(settings: Settings, topic: Topic) -> list[kafka.Record]:
    """All records of a topic."""

    async def fetch() -> list[kafka.Record]:
        name = topic.full_name(settings.namespace)
        partitions = [kafka.TopicPartition(name, number) for number in range(topic.embedded_partitions)]
        found: list[kafka.Record] = []
        async with kafka.started(kafka.consumer(settings), 5) as reader:
            reader.assign(partitions)
            ends = await reader.end_offsets(partitions)
            while len(found) < sum(ends.values()):
                for batch in (await reader.getmany(timeout_ms=500)).values():
                    found += batch
        return found

    return asyncio.run(asyncio.wait_for(fetch(), 30))


def listed(*arguments: str) -> list[dict[str, Any]]:
    code, stdout, stderr = polar("dead-letters", "list", "--format", "json", *arguments)
    assert (code, stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(stdout)
    return found


def test_letters_are_listed_by_topic_reason_and_time(settings: Settings) -> None:
    bury(settings, tasks.TOPIC, b"{", "isn't JSON", field="task")
    bury(settings, events.TOPIC, b"\xff", "Not a record", process="coordinator")
    assert [(one["letter"], one["topic"], one["process"]) for one in listed()] == [
        (0, f"{settings.namespace}.tasks", "fanout"),
        (1, f"{settings.namespace}.events", "coordinator"),
    ]
    assert [one["letter"] for one in listed("--topic", "events")] == [1]
    assert [one["letter"] for one in listed("--topic", f"{settings.namespace}.tasks")] == [0]
    assert [one["letter"] for one in listed("--reason", "NOT A")] == [1]
    assert [one["letter"] for one in listed("--since", "1h")] == [0, 1]
    assert listed("--since", "2999-01-01T00:00") == []
    code, stdout, _ = polar("dead-letters", "list")
    assert code == 0
    assert "task: isn't JSON" in stdout


def test_an_empty_list_says_so(settings: Settings) -> None:
    assert polar("dead-letters", "list") == (0, "", "polar: no dead letters\n")
    bury(settings, tasks.TOPIC, b"{", "isn't JSON")
    nothing = (0, "", "polar: no dead letters match these options\n")
    assert polar("dead-letters", "list", "--topic", "events") == nothing
    assert polar("dead-letters", "list", "--topic", f"{settings.namespace}.stage.run.gpu") == nothing


def test_one_is_shown_whole_with_its_record_decoded(settings: Settings) -> None:
    bury(settings, events.TOPIC, encode(FACT), "id in use", partition=2, process="coordinator", field="task_id")
    code, stdout, _ = polar("dead-letters", "show", "0", "--format", "json")
    assert code == 0
    shown = json.loads(stdout)
    assert (shown["partition"], shown["offset"], shown["key"], shown["field"]) == (2, 9, "t", "task_id")
    assert (shown["record"]["type"], shown["record"]["body"]) == ("task_submitted", {"instruction": "mend"})
    assert "reason: id in use" in polar("dead-letters", "show", "0")[1]


def test_a_replay_sends_a_letter_as_it_was_and_only_once(settings: Settings) -> None:
    bury(settings, tasks.TOPIC, b'{"task_id": "t"}', "no such harness")
    bury(settings, events.TOPIC, encode(FACT), "id in use", partition=3)
    code, stdout, _ = polar("dead-letters", "replay", "1", "0", "--format", "json")
    assert code == 0
    outcomes = json.loads(stdout)
    assert [(one["letter"], one["sent"]) for one in outcomes] == [(0, True), (1, True)]
    (task,), (fact,) = records(settings, tasks.TOPIC), records(settings, events.TOPIC)
    assert (task.value, task.key, list(task.headers)) == (b'{"task_id": "t"}', b"t", [("trace", b"1")])
    assert (fact.value, fact.partition) == (encode(FACT), 3)
    assert [one["replayed_to"] for one in listed()] == [one["sent_to"] for one in outcomes]
    code, stdout, stderr = polar("dead-letters", "replay", "0")
    assert (code, stdout) == (0, "")
    assert f"letter 0 was replayed before, to {outcomes[0]['sent_to']}: not sent again" in stderr
    assert len(records(settings, tasks.TOPIC)) == 1


def test_nothing_is_sent_where_one_letter_cannot_be(settings: Settings) -> None:
    bury(settings, tasks.TOPIC, b"{}", "no such harness")
    bury(settings, completions.TOPIC, b"\xff", "not a record", process="builder")
    bury(settings, events.TOPIC, b"\xff", "not a record", partition=99)
    for bad, said in (
        ("1", "completions; only records of tasks, events, webhooks can be sent again"),
        ("2", "names no partition of"),
        ("7", "no such dead letter"),
    ):
        code, stdout, stderr = polar("dead-letters", "replay", "0", bad)
        assert (code, stdout) == (2, ""), bad
        assert said in stderr
    assert records(settings, tasks.TOPIC) == []


@pytest.mark.parametrize("arguments", [("show", "0"), ("replay", "0"), ("list", "--since", "yesterday")])
def test_what_isnt_there_is_bad_input(settings: Settings, arguments: tuple[str, ...]) -> None:
    assert polar("dead-letters", *arguments)[0] == 2


@given(st.binary(max_size=60))
def test_any_bytes_can_be_shown(value: bytes) -> None:
    json.dumps(readable(value))


def test_bytes_are_shown_as_what_they_hold() -> None:
    assert readable(b'{"a": 1}') == {"a": 1}
    assert readable(b"plain") == "plain"
    assert readable(b"\xff\xfe") == {"base64": "//4="}
    assert readable(encode(FACT))["task_id"] == "t"
