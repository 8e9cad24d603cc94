"""What counts of a claim's records, compared with the rule read off the whole log at once (protocol 23)."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.specimens import full
from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.completions import Build, CallRecord, Disowned, Emitted, Open
from topics.types.completion import Completion

CALL, BUILD = full(Completion), full(Build)
CLAIMS = [("a", 1), ("b", 2), ("", 2)]
"""Claim id and attempt."""


@st.composite
def records(draw: st.DrawFn) -> CallRecord:
    """Few claims and call ids, so that they meet."""
    claim_id, attempt = draw(st.sampled_from(CLAIMS))
    call_id = draw(st.sampled_from("xyz"))
    made: list[msgspec.Struct] = [
        msgspec.structs.replace(CALL, call_id=call_id, claim_id=claim_id),
        Disowned(call_id, "t.0", claim_id, draw(st.sampled_from(["closed", "hung_up"]))),
        Open("t.0", attempt, claim_id),
        msgspec.structs.replace(BUILD, attempt=attempt, claim_id=claim_id),
        Emitted("t", "t.0"),
    ]
    record = draw(st.sampled_from(made))
    assert isinstance(record, CallRecord)
    return record


@given(st.lists(records(), max_size=12), st.sampled_from(CLAIMS))
def test_what_counts_is_what_the_whole_log_says(log: list[CallRecord], claim: tuple[str, int]) -> None:
    claim_id, attempt = claim
    fold = ClaimRecords.of(Open("t.0", attempt, claim_id))
    standings = [fold.take(record) for record in log]

    builds = [at for at, record in enumerate(log) if isinstance(record, Build) and record.claim_id == claim_id]
    end = min(builds, default=len(log))
    ids = [r.call_id if isinstance(r, Completion) and r.claim_id == claim_id else None for r in log]
    for at, record in enumerate(log):
        if not isinstance(record, Completion):
            assert standings[at] is None
        elif record.claim_id != claim_id:
            assert standings[at] is CallStanding.OTHER_CLAIM
        elif at > end:
            assert standings[at] is CallStanding.LATE
        else:
            assert standings[at] is (CallStanding.REPEATED if record.call_id in ids[:at] else CallStanding.COUNTS)
    given_up = [r for r in log[:end] if isinstance(r, Disowned) and r.claim_id == claim_id]
    assert fold.disowned == {r.call_id: r.reason for r in reversed(given_up)}
    assert fold.build == (log[end] if builds else None)
    assert fold.is_over == any(
        (isinstance(r, Build) and r.attempt >= attempt) or (isinstance(r, Open) and r.attempt > attempt) for r in log
    )
