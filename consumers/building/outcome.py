"""The trajectory of a session whose `Build` has come, however its build ends; shared by the builder and `polar rebuild`.

Invariant: each session has one trajectory, under the names that its `Build` has. A session that can't be built is FAILED
`<kind>/<code>`, with the Build's other fields but without a reward; it never raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

import structlog
from msgspec.structs import replace

from consumers.builders.base import BuiltFrom
from consumers.building.open_sessions import OpenSession
from consumers.building.running import off_loop
from consumers.token_tree.assembly import empty
from topics import completions
from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.completions import Build
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log.owner import LogGapError, read_back
from topics.log.producer import RECORD_OVERHEAD
from topics.types.completion import CallOutcome, Completion
from topics.types.errors import InputError, Kind, SessionError
from topics.types.session import Status
from topics.types.trajectory import Stats, Trajectory

BUILD_S = 60.0
"""A build's budget (protocol 26)."""
GONE = "its first call has left the log; keep polar.completions for longer"
NO_CALL = "no call was answered, so the reward of the close doesn't count; a forced close would keep it"
LOST = "acknowledged calls are missing from the log: a broken disk can cause this with one broker, but not with three copies"

log = structlog.get_logger()


async def outcome(session: OpenSession, settings: Settings, partition: int) -> Trajectory:
    """Build a session's trajectory off the event loop, reading calls that aren't in memory from the log. Raises OwnershipLostError."""
    build = session.build
    assert build is not None, "only due sessions are built"
    calls: Sequence[Completion] = session.calls
    if session.is_gap:
        return failed(build, "log_gap", GONE, 0)
    if session.is_spilled:
        try:
            calls = await _read_again(session, settings, partition)
        except LogGapError:
            return failed(build, "log_gap", GONE, 0)
    if missing := bases_missing(calls):
        return failed(build, "log_gap", f"{len(missing)} {LOST} (one of them: {missing[0]})", len(calls))
    disowned = frozenset(session.records.disowned)
    if build.reward_needs_call and not _has_answer(calls, disowned):
        build = replace(build, reward=None, reward_reason=NO_CALL if build.reward is not None else None)
    source = BuiltFrom(build, calls, disowned, session.late)
    try:
        async with asyncio.timeout(BUILD_S):
            return _named(await off_loop(source), build)
    except TimeoutError:
        return failed(build, "builder_timeout", f"the builder took longer than {BUILD_S:.0f} s", len(calls))
    except InputError as error:
        return failed(build, "builder_input", str(error), len(calls), Kind.INPUT)
    except Exception as error:
        log.exception("build failed", action="builder.build_failed", session=build.session_id)
        return failed(build, "builder", f"{type(error).__name__}: {error}", len(calls))


def _has_answer(calls: Sequence[Completion], disowned: Set[str]) -> bool:
    """Whether a client may have received an answer."""
    return any(call.outcome is CallOutcome.ANSWERED and call.call_id not in disowned for call in calls)


def _named(trajectory: Trajectory, build: Build) -> Trajectory:
    """The trajectory under the Build's names: a builder can't decide whose trajectory it is, nor who built it."""
    return replace(
        trajectory,
        session_id=build.session_id,
        task_id=build.task_id,
        sample_index=build.sample_index,
        num_samples=build.num_samples,
        attempt=build.attempt,
        builder=build.builder,
        run=build.run,
        label=build.label,
    )


async def _read_again(session: OpenSession, settings: Settings, partition: int) -> list[Completion]:
    calls: list[Completion] = []
    records = ClaimRecords.of(session.opened)
    topic = completions.TOPIC.full_name(settings.namespace)
    async for record in read_back(settings, topic, partition, session.offset):
        # What can't be decoded became a dead letter when it was first read.
        decoded = completions.CODEC.known(record.value) if record.key == session.opened.session_id.encode() else None
        if decoded is not None and records.take(decoded) is CallStanding.COUNTS:
            assert isinstance(decoded, Completion), "only calls have a standing"
            calls.append(decoded)
        if records.is_over:
            break
    return calls


def bases_missing(calls: Sequence[Completion]) -> list[str]:
    """Ids of base calls that don't stand before the call that names them. Each was acknowledged (protocol 21), so the log has lost it."""
    known: set[str] = set()
    missing: dict[str, None] = {}
    for call in calls:
        bases = (call.prompt.base, call.messages.base)
        missing |= dict.fromkeys(base for base in bases if base is not None and base not in known)
        known.add(call.call_id)
    return list(missing)


def encoded(trajectory: Trajectory, build: Build, topic: Topic) -> tuple[Trajectory, bytes]:
    """The trajectory to write and its bytes.

    If a record of `topic` can't hold it, it is written without calls and tokens, with the error `agent/too_large`, and COMPLETED becomes
    FAILED. The reward stays: the agent chose what fills its calls, and could otherwise turn a bad reward into none.
    """
    value = encode(trajectory)
    if len(value) + RECORD_OVERHEAD > topic.max_bytes:
        message = f"{len(value)} bytes; a record holds {topic.max_bytes}"
        trajectory = replace(
            empty(build),
            status=Status.FAILED if build.status is Status.COMPLETED else build.status,
            error=SessionError("build", Kind.AGENT, "too_large", message),
            stats=Stats(calls=trajectory.stats.calls),
            rebuilt_with=trajectory.rebuilt_with,
        )
        value = encode(trajectory)
    return trajectory, value


def failed(build: Build, code: str, message: str, calls: int, kind: Kind = Kind.INFRA) -> Trajectory:
    """The trajectory of a session that couldn't be built: FAILED `<kind>/<code>`, no traces, no reward."""
    error = SessionError("build", kind, code, message)
    return replace(
        empty(build), status=Status.FAILED, reward=None, reward_reason=None, error=error, stats=Stats(calls=calls)
    )
