"""Claim keys: only the holder of a ticket makes a MAC that verifies, and only for its session, attempt, stage and ticket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from topics.environment.claim_keys import (
    HEADER,
    ClaimKeys,
    headers,
    is_of_wait,
    mac,
    new_claim_id,
    ticket_id,
    ticket_of,
)
from topics.environment.keys import add_key, read_keys_file, retire_key, use_key
from topics.types.session import Stage

TICKET: dict[str, Any] = {"session_id": "t.0", "attempt": 1, "stage": Stage.EVALUATE, "ticket": "1a2b.1"}
VALUE = b"a fact about a claim"
SUBJECTS = st.fixed_dictionaries(
    {
        "session_id": st.text(max_size=20),
        "attempt": st.integers(0, 2**31),
        "stage": st.sampled_from(Stage),
        "ticket": st.text(max_size=20),
    }
)


@pytest.fixture(scope="module")
def keys() -> Iterator[ClaimKeys]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"old": "o" * 32, "new": "n" * 32}))
        yield ClaimKeys(path)


def signed(keys: ClaimKeys, subject: dict[str, Any] = TICKET, value: bytes = VALUE) -> list[tuple[str, bytes]]:
    return headers(keys.key(**subject), value)


@given(SUBJECTS, st.binary(max_size=200))
def test_what_the_holder_of_a_ticket_signs_is_verified(keys: ClaimKeys, subject: dict[str, Any], value: bytes) -> None:
    assert keys.verifies(signed(keys, subject, value), value, **subject)


@given(SUBJECTS, SUBJECTS, st.binary(max_size=200))
@example(TICKET, TICKET | {"attempt": 2}, VALUE)
@example(TICKET, TICKET | {"stage": Stage.RUN}, VALUE)
@example(TICKET, TICKET | {"session_id": "t.1"}, VALUE)
@example(TICKET, TICKET | {"ticket": "1a2b.2"}, VALUE)
@example(
    {"session_id": "a|1", "attempt": 2, "stage": Stage.RUN, "ticket": "x"},
    {"session_id": "a", "attempt": 1, "stage": Stage.RUN, "ticket": "2|run|x"},
    VALUE,
)
def test_a_key_of_one_ticket_signs_nothing_for_another(
    keys: ClaimKeys, own: dict[str, Any], other: dict[str, Any], value: bytes
) -> None:
    assume(own != other)
    assert not keys.verifies(signed(keys, own, value), value, **other)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_no_changed_byte_of_value_or_mac_is_verified(keys: ClaimKeys, value: bytes, data: st.DataObject) -> None:
    [(name, found)] = signed(keys, value=value)
    assert not keys.verifies([(name, found)], _changed(value, data), **TICKET)
    assert not keys.verifies([(name, _changed(found, data))], value, **TICKET)
    assert not keys.verifies([(name, found[: data.draw(st.integers(0, 31))])], value, **TICKET)


def _changed(value: bytes, data: st.DataObject) -> bytes:
    place, bits = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(1, 255))
    return value[:place] + bytes([value[place] ^ bits]) + value[place + 1 :]


def test_a_fact_without_the_header_or_with_a_stranger_s_key_is_not_verified(keys: ClaimKeys) -> None:
    assert not keys.verifies([], VALUE, **TICKET)
    assert not keys.verifies([("claim", mac(keys.key(**TICKET), VALUE))], VALUE, **TICKET)
    assert not keys.verifies([(HEADER, mac(b"n" * 32, VALUE))], VALUE, **TICKET), (
        "the fleet's secret itself is no claim key"
    )
    assert not keys.verifies([(HEADER, None)], VALUE, **TICKET), "a header without a value"
    assert headers(None, VALUE) == [], "a ticket without a key makes facts without a MAC"


def test_a_key_outlives_a_new_secret_until_its_own_is_retired(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"old": "o" * 32}))
    issuing, other = ClaimKeys(path), ClaimKeys(path)
    before = signed(issuing)
    new = add_key(path)
    use_key(path, new)
    fresh = ClaimKeys(path)
    assert fresh.verifies(before, VALUE, **TICKET)
    assert other.verifies(signed(fresh), VALUE, **TICKET), "a secret that is newer than the last look at the file"
    retire_key(path, "old")
    assert list(read_keys_file(path)) == [new]
    assert not ClaimKeys(path).verifies(before, VALUE, **TICKET)


def test_coordinators_with_other_secrets_verify_nothing_of_each_other(keys: ClaimKeys, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"new": "x" * 32}))
    assert not ClaimKeys(path).verifies(signed(keys), VALUE, **TICKET)


@given(st.sampled_from(Stage), st.integers(0, 2**53), st.integers(1, 2**31))
def test_a_claim_names_its_stage_and_ticket_and_a_ticket_its_wait(stage: Stage, since: int, releases: int) -> None:
    ticket = ticket_id(since, releases)
    assert ticket_of(new_claim_id(stage, ticket)) == (stage, ticket)
    assert is_of_wait(ticket, since)
    assert not is_of_wait(ticket, since + 1)


def test_claims_without_a_ticket_s_id_name_none() -> None:
    for claim_id in (
        new_claim_id(Stage.RUN, None),
        "o-0123456789abcdef",
        "",
        "x-1.1-0123456789abcdef",
        "r1",
        "r-a-b-c",
    ):
        assert ticket_of(claim_id) is None, claim_id
