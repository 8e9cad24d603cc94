"""Old readers and new writers side by side, and the bytes of every record, which decode for ever."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.specimens import RECORDS, TOPICS, any_of, full, tag
from topics import control, events
from topics.contract.codec import Codec, DecodeError, UnknownRecord, encode
from topics.contract.topic import Topic

GOLDEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "golden.json").read_text())
"""By record type: the bytes that each version of it wrote, in hex, oldest first. Entries are added, never changed."""


def codec_of(record: type[msgspec.Struct]) -> Codec[Any]:
    return Codec(*next(topic for topic in TOPICS if record in topic.records).records)


def keeps(now: Any, then: Any) -> bool:
    """Whether all that old bytes said is still said."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and keeps(now[key], value) for key, value in then.items())
    if isinstance(then, list):
        # A struct that is an array on the wire grows at its end.
        return isinstance(now, list) and len(now) >= len(then) and all(map(keeps, now, then))
    return bool(now == then)


@pytest.mark.parametrize("record", RECORDS, ids=tag)
def test_bytes_of_every_version_decode_and_lose_nothing(record: type[msgspec.Struct]) -> None:
    assert GOLDEN[tag(record)], "no golden bytes"
    for written in map(bytes.fromhex, GOLDEN[tag(record)]):
        decoded = codec_of(record).decode(written)
        assert type(decoded) is record
        assert keeps(msgspec.msgpack.decode(encode(decoded)), msgspec.msgpack.decode(written))


@pytest.mark.parametrize("record", RECORDS, ids=tag)
def test_what_is_written_today_is_the_newest_golden_entry(record: type[msgspec.Struct]) -> None:
    written = encode(full(record)).hex()
    assert written == GOLDEN[tag(record)][-1], f"{tag(record)} is written in a new way: append {written} to golden.json"


def test_no_golden_entry_is_of_a_type_that_was_removed() -> None:
    assert set(GOLDEN) == {tag(record) for record in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=tag)
def test_any_record_comes_back_equal(record: type[msgspec.Struct]) -> None:
    codec = codec_of(record)

    @settings(max_examples=40, deadline=None)
    @given(any_of(record))
    def comes_back(made: msgspec.Struct) -> None:
        assert codec.decode(encode(made)) == made

    comes_back()


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.records], ids=lambda topic: topic.name)
def test_any_bytes_are_a_record_or_unknown_or_a_decode_error(topic: Topic) -> None:
    codec: Codec[Any] = Codec(*topic.records)

    @settings(max_examples=40, deadline=None)
    @given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(msgspec.msgpack.encode))
    def is_one_of_three(data: bytes) -> None:
        with suppress(DecodeError):
            assert isinstance(codec.decode(data), (*topic.records, UnknownRecord))

    is_one_of_three()


@pytest.mark.parametrize("record", RECORDS, ids=tag)
def test_a_record_with_a_changed_byte_is_a_record_or_unknown_or_a_decode_error(record: type[msgspec.Struct]) -> None:
    """Also where the byte was a part of a text's UTF-8, in a field or in the type's name."""
    codec, written = codec_of(record), encode(full(record))
    for place in range(len(written)):
        for bits in (0x01, 0x80, 0xFF):
            changed = bytearray(written)
            changed[place] ^= bits
            with suppress(DecodeError):
                codec.decode(bytes(changed))


@pytest.mark.parametrize(
    "start", [b"\x82\xa4type\xa5drain\xa1x", b"\x82\xa4type\xa5other\xa1x"], ids=["known", "unknown"]
)
def test_endless_nesting_is_a_decode_error(start: bytes) -> None:
    with pytest.raises(DecodeError):
        control.CODEC.decode(start + b"\x91" * 200_000 + b"\x01")


def test_a_newer_writers_field_is_skipped() -> None:
    newer = msgspec.msgpack.decode(encode(control.Drain("w1"))) | {"patience_s": 3}
    assert control.CODEC.decode(msgspec.msgpack.encode(newer)) == control.Drain("w1")


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.records], ids=lambda topic: topic.name)
def test_a_newer_writers_type_is_named_and_no_error(topic: Topic) -> None:
    newer = {"type": "hibernate", "worker_id": "w1"}
    assert Codec(*topic.records).decode(msgspec.msgpack.encode(newer)) == UnknownRecord("hibernate")


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"type": "claimed", "fact_id": 7}, r"claimed: .*fact_id"),
        ({"type": "task_submitted"}, r"task_submitted: .*fact_id"),
    ],
    ids=["wrong", "missing"],
)
def test_an_invalid_field_is_named(record: dict[str, object], named: str) -> None:
    with pytest.raises(DecodeError, match=named):
        events.CODEC.decode(msgspec.msgpack.encode(record))


@pytest.mark.parametrize("data", [b"", b"{}", b"not msgpack", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({})])
def test_bytes_without_a_type_are_no_record(data: bytes) -> None:
    with pytest.raises(DecodeError, match="not a record"):
        events.CODEC.decode(data)
