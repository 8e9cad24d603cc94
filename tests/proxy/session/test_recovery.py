"""What a new owner reads of a claim on the log, real Kafka beneath."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.errors import Refusal, RefusalError
from proxy.metrics import ProxyMetrics
from proxy.session.recovery import Recovery
from tests.proxy.conftest import Bench
from topics import completions
from topics.completions import Build, CallRecord, Disowned, Open
from topics.environment.keys import KeyClaims
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.partition import partition_of_session
from topics.log.producer import LogProducer
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.session import Status

SESSION = "t.0"
PARTITION = partition_of_session(SESSION, completions.TOPIC.embedded_partitions)


def key(claim_id: str = "c1", attempt: int = 1, session_id: str = SESSION) -> KeyClaims:
    return KeyClaims(session_id, attempt, claim_id, 2**31, 0, namespace="polar", log_partition=PARTITION)


def call(call_id: str, claim_id: str = "c1", session_id: str = SESSION) -> Completion:
    return Completion(
        call_id, session_id, 1, claim_id, CallOutcome.ANSWERED, "openai_chat", "e", 0, 0, TokenDelta(b""), MessageDelta(b"[]")
    )  # fmt: skip


def build(attempt: int = 1) -> Build:
    return Build(SESSION, "t", 0, 1, attempt, "c1", Status.COMPLETED, "prefix_merging", b"{}", "shell")


@pytest.fixture
async def log(bench: Bench) -> AsyncIterator[Log]:
    log = Log(bench.settings)
    await log.producer.start()
    yield log
    await log.producer.stop()


class Log:
    """One partition of `polar.completions`."""

    def __init__(self, settings: Settings) -> None:
        self.producer = LogProducer(settings)

    async def write(self, *records: CallRecord, session_id: str = SESSION) -> int:
        """The last one's offset."""
        for record in records:
            ack = await self.producer.send(completions.TOPIC, record, key=session_id, partition=PARTITION)
        return ack.offset


async def test_a_claims_own_calls_are_read_and_no_others(bench: Bench, log: Log) -> None:
    await log.write(call("a", session_id="t.1", claim_id="c1"), session_id="t.1")
    await log.write(Open(SESSION, 1, "c0"), call("b", "c0"), Open(SESSION, 1, "c1"), call("c"), call("d"))
    end = await log.write(Disowned("d", SESSION, "c1", "hung_up"), Disowned("b", SESSION, "c0", "closed"))
    read = await Recovery(bench.settings, ProxyMetrics()).read_back(key(), 0)
    assert [one.call_id for one in read.calls] == ["c", "d"]
    assert (read.disowned, read.next_offset, read.is_over) == (frozenset({"d"}), end + 1, False)


async def test_reading_on_begins_where_it_ended(bench: Bench, log: Log) -> None:
    recovery = Recovery(bench.settings, ProxyMetrics())
    await log.write(call("a"))
    first = await recovery.read_back(key(), 0)
    await log.write(call("b"))
    more = await recovery.read_back(key(), first.next_offset)
    nothing = await recovery.read_back(key(), more.next_offset)
    assert [one.call_id for one in more.calls] == ["b"]
    assert (list(nothing.calls), nothing.next_offset) == ([], more.next_offset)
    assert [one.call_id for one in first.then(more).calls] == ["a", "b"]


@pytest.mark.parametrize(
    ("record", "is_over"),
    [
        (build(), True),
        (build(attempt=2), True),
        (Open(SESSION, 2, "c2"), True),
        (Open(SESSION, 1, "c1"), False),
        (Open("t.1", 2, "c2"), False),
    ],
)
async def test_a_claim_is_over_with_its_build_or_a_newer_open(
    bench: Bench, log: Log, record: Build | Open, is_over: bool
) -> None:
    await log.write(record, session_id=record.session_id)
    assert (await Recovery(bench.settings, ProxyMetrics()).read_back(key(), 0)).is_over == is_over


async def test_an_earlier_attempts_build_ends_no_later_one(bench: Bench, log: Log) -> None:
    await log.write(build())
    assert not (await Recovery(bench.settings, ProxyMetrics()).read_back(key(attempt=2), 0)).is_over


async def test_all_that_ask_together_share_a_pass(bench: Bench, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = kafka.consumer

    def counted(settings: Settings, *, committed: bool = True) -> kafka.Consumer:
        nonlocal made
        made += 1
        return real(settings, committed=committed)

    monkeypatch.setattr(kafka, "consumer", counted)
    sessions = [f"t.{number}" for number in range(20)]
    for session in sessions:
        await log.write(call(f"call-{session}", session_id=session), session_id=session)
    recovery = Recovery(bench.settings, ProxyMetrics())
    read = await asyncio.gather(*(recovery.read_back(key(session_id=session), 0) for session in sessions))
    assert [one.call_id for log in read for one in log.calls] == [f"call-{session}" for session in sessions]
    assert made == 1


async def test_who_goes_away_leaves_the_others_their_pass(bench: Bench, log: Log) -> None:
    await log.write(call("a"))
    recovery = Recovery(bench.settings, ProxyMetrics())
    gone = asyncio.ensure_future(recovery.read_back(key(), 0))
    stays = asyncio.ensure_future(recovery.read_back(key(), 0))
    await asyncio.sleep(0)
    gone.cancel()
    assert [one.call_id for one in (await stays).calls] == ["a"]
    assert gone.cancelled()


async def test_a_log_that_cannot_be_read_is_a_refusal_that_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.session.recovery.DEADLINE_S", 0.5)
    away = bench.settings.model_copy(update={"kafka": "127.0.0.1:9"})
    with pytest.raises(RefusalError) as refused:
        await Recovery(away, ProxyMetrics()).read_back(key(), 0)
    assert (refused.value.refusal, refused.value.retry_after_s) == (Refusal.UNAVAILABLE, 5)
