"""A story out of records: the fold over a session's log, the tree of its messages, and what the builder says of each call.

Pure: records in, `Story` out. Which calls count, `topics/calls/claim_records.py` decides.
"""

from __future__ import annotations

from typing import Any

import msgspec

from consumers.token_tree.assembly import call_of
from consumers.token_tree.branches import PlacedCall
from consumers.token_tree.placement import place_calls
from polar.show.story import CallStory, Message, Story
from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.calls.resolver import Conversations, DeltaError, Resolver
from topics.completions import CallRecord, Emitted, Open, RefusedRequest
from topics.types.completion import Completion
from topics.types.session import Phase, SessionState, TaskState
from topics.types.token_tree import Branch
from topics.types.trajectory import ROOT, Call, Trajectory

MESSAGES_LIMIT = 1_000_000
"""Of messages that left the log: more than any conversation has. A damaged record must not use up the memory."""
_sorted = msgspec.json.Encoder(order="deterministic")


class Log:
    """One session's records, taken in log order from its `Open` on."""

    def __init__(self, claim_id: str | None, *, is_open: bool = False) -> None:
        """`claim_id`: whose calls count; `is_open`: its `Open` was met, so no call is missing."""
        self.calls: dict[str, Completion] = {}
        """By call id, in log order."""
        self.late: set[str] = set()
        self.others = 0
        """Calls of other claims."""
        self.refused: list[RefusedRequest] = []
        """The claim's refused requests, in log order."""
        self.is_open = is_open
        self.emitted_at: int | None = None
        """When its trajectory was written, unix ms on the builder's clock."""
        self._records = ClaimRecords(claim_id or "", attempt=1)

    @property
    def disowned(self) -> dict[str, str]:
        """Reason by call id."""
        return self._records.disowned

    def take(self, record: CallRecord, written_at: int) -> Log:
        """The log with one record more: this one, or after an `Open` a new one. `written_at`: its timestamp, unix ms."""
        if isinstance(record, Open):
            return Log(record.claim_id, is_open=True)
        standing = self._records.take(record)
        match record:
            case Completion() if standing is CallStanding.OTHER_CLAIM:
                self.others += 1
            case Completion() if standing is not CallStanding.REPEATED:
                self.calls[record.call_id] = record
                if standing is CallStanding.LATE:
                    self.late.add(record.call_id)
            case RefusedRequest() if record.claim_id == self._records.claim_id:
                self.refused.append(record)
            case Emitted():
                self.emitted_at = written_at
        return self


def assemble(task: TaskState, session: SessionState, log: Log, trajectory: Trajectory | None) -> Story:
    records = list(log.calls.values())
    judged = {call.call_id: call for call in trajectory.calls} if trajectory else {}
    lost = [call for call in judged.values() if call.call_id not in log.calls]
    masked = _masked(trajectory) if trajectory else {}
    resolver, tree = Resolver(), MessageTree()
    calls = [CallStory(n, call, None, ROOT, None, [], masked.get(call.call_id)) for n, call in enumerate(lost, 1)]
    for record, place in zip(records, place_calls(records, log.disowned.keys()), strict=True):
        asked, said = tree.add(record, len(calls))
        call = CallStory(
            number=len(calls) + 1,
            call=judged.get(record.call_id) or _call(record, place),
            record=record,
            asked=asked,
            said=said,
            tools=tree.tools[record.call_id],
            masked=masked.get(record.call_id),
            disowned=log.disowned.get(record.call_id),
            is_late=record.call_id in log.late,
            gap=_gap(resolver, record),
        )
        calls.append(call)
    notes = _notes(session, log, trajectory, len(lost))
    return Story(task, session, calls, tree.messages, trajectory, notes, log.refused)


class MessageTree:
    """The messages of all calls, each once: a conversation that only grows is one path, an edit makes a branch."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: dict[str, list[str]] = {}
        """Names of the tools offered, by call id."""
        self._known: dict[tuple[int, int, bytes], int] = {}
        self._paths: Conversations[int] = Conversations()
        """Indices of each call's messages and answer; ROOT for messages that left the log with their call."""

    def add(self, record: Completion, index: int) -> tuple[int, int | None]:
        """Where a call's request ends, and its answer. What a missing base had is left out: the rest starts a conversation."""
        try:
            path = self._paths.shared(record)
        except DeltaError:
            path = [ROOT] * min(record.messages.shared, MESSAGES_LIMIT)
        for body in msgspec.json.decode(record.messages.rest):
            self._append(path, body, index)
        asked = path[-1] if path else ROOT
        if record.answer:
            self._append(path, msgspec.json.decode(record.answer), index)
        self._paths.add(record.call_id, path)
        self.tools[record.call_id] = self._offered(record)
        return asked, path[-1] if record.answer else None

    def _append(self, path: list[int], body: dict[str, Any], index: int) -> None:
        """Add the next message of a conversation, which may be known from another call."""
        parent = path[-1] if path else ROOT
        key = (parent, len(path), _sorted.encode(body))
        if key not in self._known:
            self._known[key] = len(self.messages)
            self.messages.append(Message(parent, body, index))
        path.append(self._known[key])

    def _offered(self, record: Completion) -> list[str]:
        if record.tools is None:
            return self.tools.get(record.messages.base or "", [])
        return [tool["function"]["name"] for tool in msgspec.json.decode(record.tools)]


def _call(record: Completion, place: PlacedCall | Branch) -> Call:
    """The call as a trajectory would list it."""
    if isinstance(place, Branch):
        return call_of(record, len(record.media), None, place)
    parent = None if place.parent is None else place.parent.call.call_id
    return call_of(record, len(place.media), parent, place.branch)


def _gap(resolver: Resolver, record: Completion) -> str | None:
    """Why a call can't be expanded, and proven to be what was written."""
    try:
        resolver.add(record)
    except DeltaError as error:
        return str(error)
    return None


def _masked(trajectory: Trajectory) -> dict[str, str]:
    """Reason by id of the calls whose sampled tokens are trained nowhere."""
    return {
        trajectory.calls[node.call].call_id: node.masked
        for node in trajectory.nodes
        if node.call is not None and node.masked is not None
    }


def _notes(session: SessionState, log: Log, trajectory: Trajectory | None, lost: int) -> list[str]:
    notes = []
    if trajectory is None and session.phase is not Phase.ENDED:
        notes.append(f"it is {session.phase.value}: this is what there is so far; traces come with its trajectory")
    elif trajectory is None:
        notes.append(f"its trajectory has left Kafka; the lake keeps it: {_sql('trajectories', session)}")
    if session.log_offset is not None and not log.is_open:
        notes.append("its first records have left polar.completions: messages of earlier calls are missing")
    if lost:
        notes.append(f"{lost} of its calls have left polar.completions; what the trajectory says of them is here")
    if log.others:
        notes.append(f"{log.others} calls of another claim stand between them on the log and don't count")
    if session.attempt > 1:
        notes.append(_earlier(session))
    return notes


def _earlier(session: SessionState) -> str:
    before = session.attempt - 1
    attempts = "1 earlier attempt" if before == 1 else f"{before} earlier attempts"
    if not session.past_claims:
        return f"{attempts} ended before a harness ran"
    return f"{attempts}; their calls are in the lake: {_sql('calls', session, f' AND attempt < {session.attempt}')}"


def _sql(view: str, session: SessionState, more: str = "") -> str:
    """The command that asks the lake."""
    query = f"SELECT * FROM {view} WHERE session_id = '{session.session_id}'{more}"  # noqa: S608 - for people, of a checked id
    return f'polar sql "{query}"'
