"""The command: finds the named session and prints it in the requested form."""

from __future__ import annotations

import asyncio
import shlex
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import session_ids
from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, say
from polar.cli.show.overview import draw_artifacts, draw_calls, draw_head, draw_traces
from polar.cli.show.page import Page
from polar.cli.show.refused import draw_refused
from polar.cli.show.tokens import draw_tokens
from polar.cli.show.transcript import draw_call, draw_transcript
from polar.show.document import call_document, document
from polar.show.story import CallStory, Story
from topics.environment import blob_store, settings
from topics.environment.blobs import BlobStoreError
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.session import SessionState

if TYPE_CHECKING:
    from polar.show.reading import Rows

FIELD = "SESSION"
NAMED = 8
"""Most existing names that an error lists."""


def show(
    session: Annotated[str, typer.Argument(metavar=FIELD, help="<task>.<sample>, from `polar status TASK`.")],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also show each trace's tokens as text, trained ones marked.")
    ] = False,
    call: Annotated[
        str | None, typer.Option("--call", metavar="N|ID", help="Show only this call in full, by number or id.")
    ] = None,
    artifact: Annotated[
        str | None, typer.Option("--artifact", metavar="NAME", help="Write the bytes of this artifact to stdout.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Don't shorten text.")] = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Show what happened in one session: its calls, transcript, traces, artifacts.

    Reads Kafka alone. The session may still run.
    """
    from polar.show.reading import read_story

    found = settings.load(data)
    rows, row = asyncio.run(_read_rows(found, session))
    if artifact is not None:
        _write_artifact(found, row, artifact)
        return
    story = asyncio.run(read_story(found, rows, row.sample_index))
    if call is not None:
        _show_call(story, _find_call(story, call), output)
    elif output is Format.JSON:
        print_json(document(story, found, with_texts=tokens))
    else:
        again = shlex.join(["polar", "show", session, *([] if data is None else ["--data", str(data)])])
        _draw(Page(is_full=full), story, found, again, with_tokens=tokens)


def _draw(page: Page, story: Story, found: Settings, again: str, *, with_tokens: bool) -> None:
    draw_head(page, story)
    draw_calls(page, story)
    draw_refused(page, story.refused)
    draw_transcript(page, story)
    if with_tokens:
        draw_tokens(page, story, found)
    draw_traces(page, story)
    draw_artifacts(page, story, blob_store.of(found), again)


async def _read_rows(found: Settings, name: str) -> tuple[Rows, SessionState]:
    """The rows of the task and of the session. Raises InputError if `name` names no session."""
    from polar.show.reading import read_rows

    target = session_ids.parse(name)
    rows = await read_rows(found, target.task_id)
    if rows.task is None:
        raise InputError(FIELD, name, f"no coordinator knows a task {target.task_id}; {await _tasks(found, target)}")
    target.check(rows.task)
    if target.sample is None:
        raise InputError(FIELD, name, f"that is a task; {_sessions(rows)}")
    if target.sample not in rows.sessions:
        raise InputError(FIELD, name, f"there is no such session yet; {_sessions(rows)}")
    return rows, rows.sessions[target.sample]


async def _tasks(found: Settings, target: session_ids.Target) -> str:
    """The existing tasks, similar names first."""
    from polar.table import SessionTable

    async with SessionTable(found) as table:
        known = sorted(table.tasks)
    alike = get_close_matches(target.task_id, known, NAMED, cutoff=0.5)
    named = [*alike, *(name for name in known if name not in alike)][:NAMED]
    more = f" and {len(known) - len(named)} more" if len(known) > len(named) else ""
    there_are = f"{', '.join(named)}{more} (`polar status`)" if named else "none"
    return f"there are: {there_are}; what was forgotten is in the lake (`polar sql`)"


def _sessions(rows: Rows) -> str:
    known = sorted(rows.sessions.items())
    named = ", ".join(f"{row.session_id} ({_phase(row)})" for _, row in known[:NAMED])
    return f"its sessions: {named or 'none'}{', …' if len(known) > NAMED else ''}"


def _phase(row: SessionState) -> str:
    return row.status.value if row.phase == "ended" and row.status else row.phase.value


def _find_call(story: Story, name: str) -> CallStory:
    """The call with this number, id or part of an id. Raises InputError."""
    matching = [call for call in story.calls if name in (str(call.number), call.call.call_id)]
    if not matching and len(name) >= 4:
        matching = [call for call in story.calls if name in call.call.call_id]
    if len(matching) != 1:
        there = f"it has calls 1 to {len(story.calls)}" if story.calls else "it has no calls"
        found = f"{len(matching)} calls have that in their id" if matching else "no such call"
        raise InputError("--call", name, f"{found}; {there} (`polar show {story.session.session_id}`)")
    return matching[0]


def _show_call(story: Story, call: CallStory, output: Format) -> None:
    if output is Format.TABLE:
        draw_call(Page(is_full=True), story, call)
        return
    messages = [story.messages[index].body for index in story.path(call.asked)]
    answer = None if call.said is None else story.messages[call.said].body
    print_json(call_document(call) | {"messages": messages, "answer": answer})


def _write_artifact(found: Settings, row: SessionState, name: str) -> None:
    """Write the bytes unchanged, but escaped on a terminal. Raises InputError, NotReadyError."""
    artifacts = row.artifacts or {}
    if name not in artifacts:
        raise InputError("--artifact", name, f"no such artifact; there are: {', '.join(sorted(artifacts)) or 'none'}")
    ref = artifacts[name]
    blobs = blob_store.of(found)
    try:
        data = blobs.get(ref)
    except FileNotFoundError:
        raise NotReadyError(
            f"{ref} isn't in {blobs.place}; set POLAR_BLOBS to the store of the workers that made it"
        ) from None
    except (BlobStoreError, ValueError) as error:
        raise NotReadyError(str(error)) from None
    if not data:
        note(f"{name} is empty")
    elif sys.stdout.isatty():
        say(data.decode(errors="replace"))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
