"""One session for the page: its document, row, timeline and flags, and the tokens of its traces under a lens.

Stories of ended sessions are kept, since a person goes from one view of a session to the next, and each reads the log.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np

from analytics import health
from analytics.live.session_rows import SessionRow, SessionRows, StageTime
from polar.diagnosis import reader as diagnosis
from polar.diagnosis.table import Finding, diagnose
from polar.page.answers import Artifact, FlaggedCalls, Session, Token, Tokens
from polar.page.following import Looking
from polar.page.token_texts import TokenTexts
from polar.show.document import document
from polar.show.reading import Rows, read_rows, read_story
from polar.show.runs import ELSEWHERE
from polar.show.story import Story
from proxy.control.api import ControlError
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.session import WAITING_STAGES, Phase
from topics.types.tokens import unpack_ids, unpack_logprobs
from topics.types.trajectory import Trace, Trajectory, path

KEPT = 8
"""Stories kept: a long session takes tens of megabytes."""


class Stories:
    """Reads sessions for requests, each at most once at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: OrderedDict[str, tuple[int, Rows, Story]] = OrderedDict()
        """With the time of the session's newest row."""
        self._reading = asyncio.Lock()
        self._texts = TokenTexts(settings)

    async def session(self, session_id: str, looking: Looking) -> dict[str, Any]:
        """The answer of `GET /api/sessions/<id>`. Raises ControlError (404)."""
        rows, story = await self._story(session_id)
        found = await asyncio.to_thread(document, story, self._settings, with_texts=False, with_tokens=False)
        row = looking.sessions.one(session_id) or _row(rows, story)
        stages = looking.sessions.timeline(session_id)
        if not stages:
            stages = await asyncio.to_thread(_timeline, self._settings, session_id)
        more = Session(row, [*stages, *current_wait(row)], await asyncio.to_thread(_flags, story))
        return found | {name: getattr(more, name) for name in more.__struct_fields__}

    async def tokens(self, session_id: str, trace: int, start: int, limit: int) -> Tokens:
        """Tokens `[start, start + limit)` of a trace, by its number from 0. Raises ControlError (404)."""
        _, story = await self._story(session_id)
        trajectory = story.trajectory
        if trajectory is None:
            raise ControlError(
                404, "no_trajectory", f"{session_id} has no trajectory on Kafka: {'; '.join(story.notes)}"
            )
        if trace >= len(trajectory.traces):
            raise ControlError(
                404, "unknown", f"{session_id} has {len(trajectory.traces)} traces, numbered from 0", field="trace"
            )
        chosen = trajectory.traces[trace]
        scored = await asyncio.to_thread(_scored, self._settings, chosen.trace_id)
        found, total = lens(story, trajectory, chosen, start, limit, scored)
        texts, no_text = await asyncio.to_thread(self._texts.of, {token.id for token in found})
        shown = [msgspec.structs.replace(token, text=texts.get(token.id)) for token in found]
        return Tokens(chosen.trace_id, total, first_trained(trajectory, chosen), shown, no_text)

    async def artifact(self, session_id: str, name: str, limit: int) -> Artifact:
        """The first `limit` bytes of an artifact as text. Raises ControlError (404)."""
        _, story = await self._story(session_id)
        if name not in story.artifacts:
            named = ", ".join(sorted(story.artifacts)) or "none"
            raise ControlError(
                404, "unknown", f"{session_id} has no artifact {name[:80]!r}; there are: {named}", field="name"
            )
        try:
            content = await asyncio.to_thread(blob_store.of(self._settings).get, story.artifacts[name])
        except (OSError, ValueError) as error:
            raise ControlError(404, "gone", f"this blob store doesn't have {name}: {error}", field="name") from None
        return Artifact(name, content[:limit].decode(errors="replace"), len(content), len(content) > limit)

    async def why(self, session_id: str) -> list[Finding]:
        """The causes of a session's wait or end. Raises ControlError (404)."""
        task_id, sample = _parsed(session_id)
        async with self._reading:
            [facts] = await diagnosis.read(self._settings, task_id, sample)
        if facts.session is None and facts.system.kafka is None:
            raise _unknown(session_id)
        return diagnose(facts)

    async def _story(self, session_id: str) -> tuple[Rows, Story]:
        task_id, sample = _parsed(session_id)
        async with self._reading:
            rows = await read_rows(self._settings, task_id)
            if rows.task is None or sample not in rows.sessions:
                raise _unknown(session_id)
            written_at = rows.written_at[sample]
            known = self._kept.pop(session_id, None)
            if known is None or known[0] != written_at or known[2].trajectory is None:
                known = written_at, rows, await read_story(self._settings, rows, sample)
            if rows.sessions[sample].phase is Phase.ENDED:
                self._kept[session_id] = known
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return known[1], known[2]


def _timeline(settings: Settings, session_id: str) -> list[StageTime]:
    try:
        from polar.page import from_lake  # DuckDB, only where it is needed
    except ImportError:
        return []
    return from_lake.timeline(settings, session_id)


def _scored(settings: Settings, trace_id: str) -> list[float] | None:
    try:
        from polar.page import from_lake
    except ImportError:
        return None
    return from_lake.scored_logprobs(settings, trace_id)


def lens(
    story: Story,
    trajectory: Trajectory,
    trace: Trace,
    start: int,
    limit: int,
    scored: list[float] | None,
) -> tuple[list[Token], int]:
    """Tokens `[start, start + limit)` of a trace, without texts, and the number of all. `scored`: logprobs of the tokens that it trains."""
    found: list[Token] = []
    trained = set(trace.trains)
    at = trained_before = first = 0
    sampler: int | None = None
    numbers = {call.call.call_id: call.number for call in story.calls}
    for index in path(trajectory, trace.leaf):
        node = trajectory.nodes[index]
        ids = unpack_ids(node.tokens)
        if node.call != sampler:
            first, sampler = at, node.call
        low, high = max(start - at, 0), min(start + limit - at, len(ids))
        if low < high:
            is_trained = index in trained
            call = None if node.call is None else trajectory.calls[node.call]
            logprobs = None if node.logprobs is None else unpack_logprobs(node.logprobs)
            versions = _versions(trajectory, node.call, at - first, len(ids))
            reason = None if call is None or is_trained else node.masked or ELSEWHERE
            number = None if call is None else numbers.get(call.call_id)
            for n in range(low, high):
                score = (
                    scored[trained_before + n] if scored and is_trained and trained_before + n < len(scored) else None
                )
                logprob = None if logprobs is None else float(logprobs[n])
                found.append(Token(int(ids[n]), None, is_trained, reason, logprob, versions[n], _finite(score), number))
        trained_before += len(ids) if index in trained else 0
        at += len(ids)
    return found, at


def first_trained(trajectory: Trajectory, trace: Trace) -> int | None:
    """The position of the first token that a trace trains; None: it trains none."""
    at = 0
    trained = set(trace.trains)
    for index in path(trajectory, trace.leaf):
        count = len(unpack_ids(trajectory.nodes[index].tokens))
        if count and index in trained:
            return at
        at += count
    return None


def _versions(trajectory: Trajectory, call: int | None, start: int, count: int) -> list[int | None]:
    """The policy version of each of `count` tokens that begin at `start` of what the call sampled."""
    found: list[int | None] = [None] * count
    if call is not None:
        for run in trajectory.calls[call].weights(start, start + count):
            found[run.start - start : run.end - start] = [run.version] * (run.end - run.start)
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(np.float32(value))


def current_wait(row: SessionRow) -> list[StageTime]:
    """The wait for a slot that a session is in, if any; no fact tells of it before it is over."""
    stage = WAITING_STAGES.get(Phase(row.phase))
    return [] if stage is None else [StageTime(row.attempt, stage.value, row.changed_at, None, None, None, None)]


def _parsed(session_id: str) -> tuple[str, int]:
    """Task id and sample index. Raises ControlError (404)."""
    task_id, _, index = session_id.rpartition(".")
    if not task_id or not index.isdecimal():
        raise ControlError(
            404, "unknown", f"no session is called {session_id[:200]!r}: expected <task id>.<sample index>"
        )
    return task_id, int(index)


def _unknown(session_id: str) -> ControlError:
    return ControlError(404, "unknown", f"no coordinator knows a session {session_id}; older ones are in the lake")


def _row(rows: Rows, story: Story) -> SessionRow:
    """The row of a session that isn't among the newest."""
    fold = SessionRows()
    sample = story.session.sample_index
    fold.row(story.task, 0)
    fold.row(story.session, rows.written_at[sample])
    if story.trajectory is not None:
        fold.trajectory(story.trajectory, rows.written_at[sample])
    row = fold.one(story.session.session_id)
    assert row is not None, "its row was passed to the fold"
    return row


def _flags(story: Story) -> list[FlaggedCalls] | None:
    if story.trajectory is None and story.session.phase is Phase.ENDED:
        return None  # its calls alone would make it look healthier than it was
    late = [call.call.call_id for call in story.calls if call.is_late]
    calls = [call.call for call in story.calls]
    found = health.of_session(story.session, story.trajectory, calls=calls, late=late)
    numbers = {call.call.call_id: call.number for call in story.calls}
    return [
        FlaggedCalls(
            flag.value, health.MEANINGS[flag], [numbers[call_id] for call_id in call_ids if call_id in numbers]
        )
        for flag, call_ids in found.items()
    ]
