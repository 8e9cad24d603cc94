"""Reads dead letters, and sends them to their topics again.

A replay sends the record's unchanged bytes, key and headers. Then it writes to `polar.dead-letters` that the letter was sent, so that the
next replay doesn't send it again. A crash in between may send a letter twice, which its readers tolerate: a task keeps its id and body, a
fact its id, and webhooks are delivered at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from topics import dead_letters, events, tasks, webhooks
from topics.dead_letters import TOPIC, Letter, Replay
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError
from topics.types.errors import InputError, NotReadyError

REPLAYABLE = {topic.name: topic for topic in (tasks.TOPIC, events.TOPIC, webhooks.TOPIC)}
"""Records of other topics are stale by now, or a part of a state that has moved on."""
SEND_S = 30.0
"""Deadline of one acknowledgement: longer than an election of a partition's leader."""
READ_S = 300.0
"""Limit for reading the topic: dead letters of 30 days, up to 33 MiB each."""
FIELD = "LETTER"
"""Field of errors about ids."""


@dataclass(frozen=True)
class Replayed:
    """The outcome of a replay for one letter."""

    id: int
    sent_to: str
    """`topic[partition]@offset`."""
    is_new: bool
    """False if the letter was replayed before, and was left alone."""


async def read(
    settings: Settings, keeps: Callable[[Letter], bool], since: Since = Since.BEGINNING
) -> tuple[list[Letter], dict[int, Replay]]:
    """The letters that `keeps` accepts, oldest first, and all replays by letter id. Raises NotReadyError."""
    letters: list[Letter] = []
    replays: dict[int, Replay] = {}

    def on_record(_: bytes, record: kafka.Record) -> None:
        match dead_letters.parse(record):
            case Letter() as letter if keeps(letter):
                letters.append(letter)
            case Replay() as replay:
                replays[replay.id] = replay

    await admin.partition_count(settings, TOPIC.full_name(settings.namespace), reach_s=0)
    follower = Follower(settings, TOPIC, on_record, since=since)
    await follower.start(READ_S)
    await follower.stop()
    return letters, replays


async def find(settings: Settings, ids: Collection[int]) -> tuple[list[Letter], dict[int, Replay]]:
    """These letters, oldest first, and all replays. Raises InputError for an id that no letter has, and NotReadyError."""
    letters, replays = await read(settings, lambda letter: letter.id in ids)
    if missing := set(ids) - {letter.id for letter in letters}:
        raise InputError(FIELD, min(missing), "no such dead letter (`polar dead-letters list`)")
    return letters, replays


async def replay(settings: Settings, ids: Collection[int]) -> list[Replayed]:
    """Send letters to their topics again, oldest first; letters that were sent before are left alone.

    Raises InputError, before anything is sent, for an id that no letter has and for a letter that can't be sent again. Raises NotReadyError
    if Kafka doesn't acknowledge a letter.
    """
    letters, replays = await find(settings, ids)
    partitions = {letter.id: await _partition(settings, letter) for letter in letters}
    outcomes: list[Replayed] = []
    producer = LogProducer(settings)
    await producer.start()
    try:
        for letter in letters:
            past = replays.get(letter.id)
            sent_to = past.sent_to if past else await _send(settings, producer, letter, partitions[letter.id])
            outcomes.append(Replayed(letter.id, sent_to, is_new=past is None))
    finally:
        await producer.stop()
    return outcomes


async def _send(settings: Settings, producer: LogProducer, letter: Letter, partition: int | None) -> str:
    try:
        ack = await producer.send_bytes(
            letter.topic,
            letter.value,
            key=letter.key,
            headers=letter.headers,
            partition=partition,
            deadline_s=SEND_S,
        )
        sent_to = f"{letter.topic}[{ack.partition}]@{ack.offset}"
        await producer.send_bytes(
            TOPIC.full_name(settings.namespace),
            b"",
            key=letter.key,
            headers=dead_letters.replay_headers(letter.id, sent_to),
            deadline_s=SEND_S,
        )
    except (UnacknowledgedError, RecordTooLargeError) as error:
        raise NotReadyError(f"letter {letter.id} may not have been sent: {error}; replay it again") from None
    return sent_to


async def _partition(settings: Settings, letter: Letter) -> int | None:
    """The partition to send to; None lets the key decide. Raises InputError for a letter that can't be sent again."""
    topic = REPLAYABLE.get(letter.topic.removeprefix(f"{settings.namespace}."))
    if topic is None or letter.topic != topic.full_name(settings.namespace):
        names = ", ".join(REPLAYABLE)
        raise InputError(
            FIELD, letter.id, f"is of {letter.topic or 'no topic'}; only records of {names} can be sent again"
        )
    if not topic.copartitioned:
        return None
    count = await admin.partition_count(settings, letter.topic, reach_s=0)
    if letter.partition is None or letter.partition >= count:
        raise InputError(
            FIELD, letter.id, f"names no partition of {letter.topic}, whose reader would miss it elsewhere"
        )
    return letter.partition
