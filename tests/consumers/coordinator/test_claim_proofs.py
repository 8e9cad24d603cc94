"""Which facts about claims count: those that the worker with the claim has signed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consumers.coordinator.claim_proofs import is_proven
from topics.contract.codec import DecodeError, UnknownRecord, encode
from topics.environment.claim_keys import ClaimKeys, headers, new_claim_id, ticket_id
from topics.events import (
    CODEC,
    Claimed,
    ClaimFact,
    Evaluated,
    HandedBack,
    InitFinished,
    RunFinished,
    Stopped,
)
from topics.log import kafka
from topics.types.session import Phase, SessionState, Stage, Status

TICKET = ticket_id(7_000, 1)
ROW = SessionState("t.0", "t", 0, Phase.EVALUATING, 7_500, releases=1, claim_id="held", worker_id="w")


@dataclass
class Envelope:
    """A record as a consumer gets it."""

    value: bytes | None
    headers: kafka.Headers = ()
    topic: str = "polar.events"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None


@dataclass
class Worker:
    """The holder of one ticket, and the facts that it signs."""

    keys: ClaimKeys
    stage: Stage
    attempt: int = 1
    session_id: str = "t.0"
    claim_id: str = field(init=False)
    claim_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.claim_id = new_claim_id(self.stage, TICKET)
        self.claim_key = self.keys.key(self.session_id, self.attempt, self.stage, TICKET)

    def facts(self) -> list[ClaimFact]:
        about = ("f", self.session_id, self.attempt, self.claim_id)
        results: dict[Stage, ClaimFact] = {
            Stage.INIT: InitFinished(*about, runtime={"id": "x"}),
            Stage.RUN: RunFinished(*about, Status.COMPLETED, 0),
            Stage.EVALUATE: Evaluated(*about, reward=0.25, reason="half of the tests"),
        }
        claimed = Claimed("f", self.session_id, self.attempt, self.stage, self.claim_id, "w")
        return [claimed, results[self.stage], Stopped(*about), HandedBack(*about)]

    def signed(self, fact: ClaimFact) -> Envelope:
        value = encode(fact)
        return Envelope(value, headers(self.claim_key, value))


@pytest.fixture(scope="module")
def keys() -> Iterator[ClaimKeys]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"one": "s" * 32}))
        yield ClaimKeys(path)


def counts(envelope: Envelope, keys: ClaimKeys, row: SessionState | None = ROW) -> bool:
    fact = CODEC.decode(envelope.value or b"")
    assert isinstance(fact, ClaimFact)
    return is_proven(fact, envelope, row, keys)


@pytest.mark.parametrize("stage", Stage)
def test_each_fact_of_the_worker_with_the_ticket_counts_whatever_the_row_says(stage: Stage, keys: ClaimKeys) -> None:
    worker = Worker(keys, stage)
    for fact in worker.facts():
        assert counts(worker.signed(fact), keys), fact
        assert counts(worker.signed(fact), keys, None), "whether the session is known is the table's to decide"


def test_a_newer_worker_s_fields_are_signed_too_and_verified_unread(keys: ClaimKeys) -> None:
    worker = Worker(keys, Stage.EVALUATE)
    value = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(worker.facts()[1])) | {"colour": "green"})
    assert counts(Envelope(value, headers(worker.claim_key, value)), keys)
    assert not counts(Envelope(encode(worker.facts()[1]), headers(worker.claim_key, value)), keys)


@given(st.sampled_from(Stage), st.integers(0, 3), st.data())
def test_no_fact_with_a_changed_byte_counts(keys: ClaimKeys, stage: Stage, nth: int, data: st.DataObject) -> None:
    worker = Worker(keys, stage)
    envelope = worker.signed(worker.facts()[nth])
    value = envelope.value or b""
    place, bits = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(1, 255))
    changed = value[:place] + bytes([value[place] ^ bits]) + value[place + 1 :]
    try:
        fact = CODEC.decode(changed)
    except DecodeError:
        return
    if not isinstance(fact, UnknownRecord):
        assert isinstance(fact, ClaimFact)
        assert not is_proven(fact, Envelope(changed, envelope.headers), ROW, keys)


@pytest.mark.parametrize("stage", Stage)
def test_a_fact_that_is_written_anew_for_another_session_attempt_or_claim_does_not_count(
    stage: Stage, keys: ClaimKeys
) -> None:
    """The stranger has seen a signed fact, and puts its MAC on one of their own."""
    worker = Worker(keys, stage)
    for fact in worker.facts():
        mac = worker.signed(fact).headers
        others = (
            replace(fact, session_id="t.1"),
            replace(fact, attempt=2),
            replace(fact, claim_id=new_claim_id(stage, TICKET)),
            replace(fact, claim_id=new_claim_id(stage, ticket_id(9_000, 1))),
            replace(fact, claim_id="held"),
        )
        for other in others:
            row = replace(ROW, claim_id=other.claim_id) if other.claim_id != "held" else replace(ROW, claim_id="e1")
            assert not counts(Envelope(encode(other), mac), keys, row), other


def test_the_ticket_of_one_stage_or_attempt_signs_nothing_for_another(keys: ClaimKeys) -> None:
    run, evaluate = Worker(keys, Stage.RUN), Worker(keys, Stage.EVALUATE)
    forged = Evaluated("f", "t.0", 1, evaluate.claim_id, reward=1.0)
    assert not counts(run.signed(forged), keys, replace(ROW, claim_id=evaluate.claim_id))
    assert not counts(run.signed(replace(forged, claim_id=run.claim_id)), keys, replace(ROW, claim_id=run.claim_id))
    assert not counts(run.signed(Claimed("f", "t.0", 1, Stage.EVALUATE, run.claim_id, "w")), keys)
    assert not counts(Worker(keys, Stage.EVALUATE, attempt=2).signed(forged), keys)
    assert counts(evaluate.signed(forged), keys), "and the worker with the ticket may say it"


def test_a_claim_that_an_older_coordinator_granted_ends_and_none_like_it_is_granted(keys: ClaimKeys) -> None:
    """Facts of a claim whose ticket had no key have no MAC. They count while the row holds that claim, and no other does."""
    old = new_claim_id(Stage.EVALUATE, None)
    held = replace(ROW, claim_id=old)
    finished = Envelope(encode(Evaluated("f", "t.0", 1, old, reward=0.5)))
    assert counts(finished, keys, held)
    assert not counts(finished, keys)
    assert not counts(finished, keys, None)
    claimed = Envelope(encode(Claimed("f", "t.0", 1, Stage.EVALUATE, old, "w")))
    assert counts(claimed, keys, held), "asked again for the Grant"
    waiting = replace(ROW, phase=Phase.RAN, claim_id=None, worker_id=None)
    assert not counts(claimed, keys, waiting)
