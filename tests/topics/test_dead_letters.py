"""What a dead letter says of its record is what was written, and nothing that a stranger writes there breaks a reader."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from topics import dead_letters
from topics.dead_letters import KEPT_LIMIT, Header, Letter, Replay
from topics.log import kafka

TEXT = st.text(max_size=20)
HEADERS = st.lists(st.tuples(TEXT, st.binary(max_size=20)), max_size=5)


@dataclass
class Envelope:
    """A record as a consumer gets it."""

    headers: kafka.Headers
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    topic: str = "polar.dead-letters"
    partition: int = 0
    offset: int = 17
    timestamp: int = 1_000


@given(TEXT, TEXT, TEXT, TEXT, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), HEADERS)
def test_a_letter_says_why_whence_and_with_which_headers(
    reason: str, field: str, process: str, topic: str, partition: int, offset: int, kept: list[Header]
) -> None:
    written = dead_letters.headers(
        reason=reason, field=field, process=process, topic=topic, partition=partition, offset=offset, kept=kept
    )
    assert dead_letters.parse(Envelope(written)) == Letter(
        17, 1_000, b"key", b"value", reason, field, process, topic, partition, offset, tuple(kept)
    )


@given(st.integers(0, 2**63 - 1), TEXT)
def test_a_replay_names_its_letter(letter_id: int, sent_to: str) -> None:
    found = dead_letters.parse(Envelope(dead_letters.replay_headers(letter_id, sent_to), value=b""))
    assert found == Replay(letter_id, sent_to, 1_000)


@given(
    st.lists(
        st.tuples(st.sampled_from(["reason", "source-offset", "replayed", "record.", "x"]), st.binary()), max_size=8
    )
)
def test_any_headers_are_read(headers: list[Header]) -> None:
    found = dead_letters.parse(Envelope(headers, value=None, key=None))
    assert isinstance(found, Letter | Replay)


def test_a_number_past_64_bits_is_none() -> None:
    """No column of the lake holds it."""
    for number, found in (("9223372036854775807", 2**63 - 1), ("9223372036854775808", None), ("9" * 19, None)):
        letter = dead_letters.parse(Envelope([("source-offset", number.encode())]))
        assert isinstance(letter, Letter)
        assert letter.offset == found
        told = dead_letters.parse(Envelope([("replayed", number.encode())]))
        assert isinstance(told, Letter) == (found is None)


def test_headers_without_a_value_are_empty_and_too_large_ones_are_left_out() -> None:
    def kept(*own: tuple[str, bytes | None]) -> tuple[Header, ...]:
        written = dead_letters.headers(reason="", field="", process="", topic="", partition=0, offset=0, kept=own)
        found = dead_letters.parse(Envelope(written))
        assert isinstance(found, Letter)
        return found.headers

    assert kept(("null", None)) == (("null", b""),)
    assert kept(("large", b"x" * KEPT_LIMIT)) == ()
    assert kept(*[("", b"")] * KEPT_LIMIT) == ()


def test_a_record_without_headers_is_a_letter_without_an_origin() -> None:
    assert dead_letters.parse(Envelope([])) == Letter(17, 1_000, b"key", b"value", "", "", "", "", None, None)
