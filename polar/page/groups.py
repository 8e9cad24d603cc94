"""A group side by side: the calls of all samples of a task, and how long they were alike."""

from __future__ import annotations

from typing import Any

import msgspec

from analytics.live.session_rows import SessionRow, SessionRows
from polar.page.answers import CallSummary, Group
from polar.page.following import Looking
from polar.show.reading import Rows, read_calls, read_rows
from polar.show.story import MAIN, CallStory, Story
from polar.show.texts import texts_of
from proxy.control.api import ControlError
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.session import TaskState

SAMPLES = 64
"""Samples whose calls are read."""
TEXT = 300
"""Characters of an answer."""
_sorted = msgspec.json.Encoder(order="deterministic")


async def read_group(settings: Settings, task_id: str, looking: Looking) -> Group:
    """The answer of `GET /api/tasks/<id>`. Raises ControlError (404)."""
    rows = await read_rows(settings, task_id)
    if rows.task is None or not rows.sessions:
        raise ControlError(404, "unknown", f"no coordinator knows a task {task_id[:200]!r}; older ones are in the lake")
    samples = sorted(rows.sessions)
    stories = await read_calls(settings, rows, samples[:SAMPLES])
    calls = {story.session.sample_index: [_summary(story, call) for call in story.calls] for story in stories}
    plan = rows.task.plan
    return Group(
        task_id=task_id,
        num_samples=rows.task.num_samples,
        harness=None if plan is None else plan.harness,
        run=None if plan is None else plan.run,
        instruction=_instruction(settings, rows.task) or _first_words(stories),
        sessions=[_session(rows, sample, looking) | {"calls": calls.get(sample)} for sample in samples],
        common_calls=common_calls(stories),
    )


def common_calls(stories: list[Story]) -> int:
    """How many first main calls have equal messages in all stories that have main calls; 0 for fewer than two."""
    main = [(story, [call for call in story.calls if call.call.kind == MAIN]) for story in stories]
    told = [(story, calls) for story, calls in main if calls]
    if len(told) < 2:
        return 0
    alike = 0
    for calls in zip(*(calls for _, calls in told), strict=False):
        if len({_asked(story, call) for (story, _), call in zip(told, calls, strict=True)}) > 1:
            break
        alike += 1
    return alike


def _asked(story: Story, call: CallStory) -> bytes:
    """The messages of a call's request."""
    return _sorted.encode([story.messages[index].body for index in story.path(call.asked)])


def _summary(story: Story, call: CallStory) -> CallSummary:
    body = {} if call.said is None else story.messages[call.said].body
    text = "\n".join(texts_of(body.get("content"))) or str(body.get("reasoning") or "")
    return CallSummary(
        call.number,
        call.call.kind,
        call.call.finish_reason,
        call.call.sampled_tokens,
        text[:TEXT],
        story.tool_calls(call),
    )


def _instruction(settings: Settings, task: TaskState) -> str | None:
    """The task's instruction while its body is known; None afterwards."""
    body = task.body
    if body is None and task.body_ref is not None:
        try:
            body = blob_store.of(settings).get(task.body_ref)
        except (OSError, ValueError):
            return None
    try:
        found = msgspec.json.decode(body or b"{}").get("instruction")
    except (msgspec.DecodeError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _first_words(stories: list[Story]) -> str | None:
    """The first message of a user, which has the instruction after the task's body is gone."""
    for story in stories:
        for message in story.messages:
            if message.body.get("role") == "user":
                return "\n".join(texts_of(message.body.get("content"))) or None
    return None


def _session(rows: Rows, sample: int, looking: Looking) -> dict[str, Any]:
    session = rows.sessions[sample]
    row: SessionRow | None = looking.sessions.one(session.session_id)
    if row is None:
        fold = SessionRows()
        assert rows.task is not None, "the caller has checked it"
        fold.row(rows.task, 0)
        fold.row(session, rows.written_at[sample])
        row = fold.one(session.session_id)
    found: dict[str, Any] = msgspec.to_builtins(row)
    return found
