"""`polar.dead-letters`: records that could not be processed: their unchanged bytes, with reason and origin as headers.

Any process writes it; people, those who submitted a task, and analytics read it. Key: the record's own. One partition. A letter's id is
its offset.
`polar dead-letters replay` sends a letter to its origin again, and then writes an empty record whose header names the letter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topics.contract.topic import DAY_MS, MIB, Topic
from topics.log import kafka

TOPIC = Topic(
    name="dead-letters",
    records=(),
    key="the record's own",
    writers="any",
    readers="people, submitters, analytics",
    retention_ms=30 * DAY_MS,
    partitions=1,
    embedded_partitions=1,
    max_bytes=33 * MIB,
)

KEPT_LIMIT = 64 * 1024
"""Bytes of the record's own headers; larger ones aren't kept."""
LAST_OFFSET = 2**63 - 1
"""Kafka's offsets are signed and 64 bits wide."""
HEADER_OVERHEAD = 16
"""Upper bound of a header's framing."""

Header = tuple[str, bytes]

_KEPT = "record."
"""Prefix of the record's own headers."""
_REPLAYED = "replayed"
_SENT_TO = "sent-to"


@dataclass(frozen=True)
class Letter:
    """A dead letter. Anyone may write any headers, so each text may be empty and each number may be missing."""

    id: int
    written_ms: int
    """Unix ms."""
    key: bytes | None
    value: bytes
    """The record's unchanged bytes."""
    reason: str
    field: str
    """Invalid field of the record; empty if none is to blame."""
    process: str
    """Who could not process it."""
    topic: str
    """Full name of the topic that the record was read from."""
    partition: int | None
    offset: int | None
    headers: tuple[Header, ...] = ()
    """The record's own."""


@dataclass(frozen=True)
class Replay:
    """A letter was sent again."""

    id: int
    sent_to: str
    """`topic[partition]@offset`."""
    at_ms: int
    """Unix ms."""


def headers(
    *,
    reason: str,
    field: str | None,
    process: str,
    topic: str,
    partition: int,
    offset: int,
    kept: Iterable[tuple[str, bytes | None]] = (),
) -> list[Header]:
    """The headers of a dead letter: a `reason` for people, the invalid `field` if there is one, the record's origin and its own headers."""
    fields = {
        "reason": reason,
        "field": field or "",
        "process": process,
        "source-topic": topic,
        "source-partition": str(partition),
        "source-offset": str(offset),
    }
    # A foreign producer may write null, or so many headers that the letter would be too large.
    own = [(_KEPT + name, value or b"") for name, value in kept]
    if sum(HEADER_OVERHEAD + len(name) + len(value) for name, value in own) > KEPT_LIMIT:
        own = []
    return [(name, value.encode()) for name, value in fields.items()] + own


def replay_headers(letter_id: int, sent_to: str) -> list[Header]:
    """The headers of the record that tells of a replay."""
    return [(_REPLAYED, str(letter_id).encode()), (_SENT_TO, sent_to.encode())]


def parse(record: kafka.Record) -> Letter | Replay:
    """The letter, or the replay of one, in a record of this topic."""
    texts = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    if (replayed := _number(texts.get(_REPLAYED))) is not None:
        return Replay(replayed, texts.get(_SENT_TO, ""), record.timestamp)
    return Letter(
        record.offset,
        record.timestamp,
        record.key,
        record.value or b"",
        texts.get("reason", ""),
        texts.get("field", ""),
        texts.get("process", ""),
        texts.get("source-topic", ""),
        _number(texts.get("source-partition")),
        _number(texts.get("source-offset")),
        tuple((name.removeprefix(_KEPT), value) for name, value in record.headers if name.startswith(_KEPT)),
    )


def _number(text: str | None) -> int | None:
    """Plain digits only, of a number that fits 64 bits: `int` accepts more, and raises for thousands of digits."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(LAST_OFFSET)):
        return None
    return number if (number := int(text)) <= LAST_OFFSET else None
