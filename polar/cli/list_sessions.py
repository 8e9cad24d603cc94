"""`polar list` lists tasks, or sessions, that run or ended lately, from the coordinator's table."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import Data, Format, OnlyRun, Output, checked_run
from polar.cli.output import ago, counted, note, one_line, print_json, show
from polar.show.fields import picked
from topics.environment import settings
from topics.types.errors import InputError
from topics.types.session import Phase, Status

if TYPE_CHECKING:
    from analytics.live.session_rows import SessionRow

READ_S = 300.0
"""Deadline for reading the whole table: a million sessions take about a minute."""
STATUSES = [*(status.value for status in Status), *(phase.value for phase in Phase if phase is not Phase.ENDED)]
ERROR_WIDTH = 120
"""Characters of an error's message in a table."""


def list_sessions(
    sessions: Annotated[bool, typer.Option("--sessions", help="List sessions instead of tasks.")] = False,
    run: OnlyRun = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only what has a session that ended so, or is in this phase.")
    ] = None,
    harness: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this harness does.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Show at most N.")] = 50,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """List tasks that run or ended lately: first the unfinished ones, each by its last change.

    Looks at the 10,000 sessions that changed last. A task is listed if one of its sessions matches.
    """
    checked_run(run)
    wanted = None if status is None else _checked_status(status)
    rows = asyncio.run(_read(settings.load(data)))

    def matches(row: SessionRow) -> bool:
        return run in (None, row.run) and harness in (None, row.harness) and wanted in (None, row.phase, row.status)

    if sessions:
        found = [_of_session(row) for row in rows if matches(row)]
    else:
        found = [_of_task(group) for group in _by_task(rows) if any(map(matches, group))]
    found.sort(key=lambda one: one["is_over"])  # stable: both parts stay in the order of their changes
    shown, more = found[:limit], len(found) - limit
    if output is Format.JSON:
        print_json(shown)
    elif sessions:
        columns = ["session", "run", "harness", "state", ">reward", ">attempt", ">changed", "error"]
        show(columns, map(_session_cells, shown))
    else:
        columns = ["task", "run", "harness", ">samples", "ended as", "others are", ">mean reward", ">changed"]
        show(columns, map(_task_cells, shown))
    if more > 0:
        note(f"{more} more; --limit shows them")


def _checked_status(name: str) -> str:
    """The status or phase of this name, in any case. Raises InputError."""
    for known in STATUSES:
        if known.lower() == name.lower():
            return known
    raise InputError("--status", name, f"expected one of {', '.join(STATUSES)}")


async def _read(found: settings.Settings) -> list[SessionRow]:
    """The sessions that changed last, the newest change first. Raises NotReadyError."""
    from analytics.live.session_rows import LIMIT, SessionRows
    from polar.table import require_topic
    from topics import sessions
    from topics.log.follow import Follower, Since

    fold = SessionRows()
    await require_topic(found, sessions.TOPIC)
    follower = Follower(
        found,
        sessions.TOPIC,
        lambda row, envelope: fold.row(row, envelope.timestamp),
        since=Since.BEGINNING,
        on_tombstone=lambda record: fold.tombstone((record.key or b"").decode(errors="replace")),
        committed=True,
    )
    await follower.start(READ_S)
    await follower.stop()
    return fold.rows(LIMIT)


def _of_session(row: SessionRow) -> dict[str, Any]:
    fields = "session_id task_id run harness label phase status reward attempt changed_at error"
    return picked(row, fields) | {"is_over": row.phase == Phase.ENDED.value}


def _by_task(rows: Iterable[SessionRow]) -> Iterable[list[SessionRow]]:
    """The sessions of each task, in the order of its newest session."""
    tasks: dict[str, list[SessionRow]] = {}
    for row in rows:
        tasks.setdefault(row.task_id, []).append(row)
    return tasks.values()


def _of_task(group: list[SessionRow]) -> dict[str, Any]:
    rewards = [row.reward for row in group if row.reward is not None]
    ended = [row for row in group if row.phase == Phase.ENDED.value]
    return {
        **picked(group[0], "task_id run harness"),
        "num_samples": group[0].group_size,
        "ended": len(ended),
        "statuses": dict(Counter(row.status for row in ended if row.status)),
        "phases": dict(Counter(row.phase for row in group if row.phase != Phase.ENDED.value)),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "changed_at": group[0].changed_at,
        "is_over": len(ended) == len(group),
    }


def _session_cells(one: dict[str, Any]) -> list[object]:
    error = one["error"]
    words = f"{error['stage']} {error['kind']}/{error['code']}: {one_line(error['message'])}" if error else None
    state = one["status"] if one["is_over"] else one["phase"]
    cells = [one["session_id"], one["run"], one["harness"], state, one["reward"], one["attempt"], _changed(one)]
    return [*cells, None if words is None else words[:ERROR_WIDTH]]


def _task_cells(one: dict[str, Any]) -> list[object]:
    return [
        one["task_id"],
        one["run"],
        one["harness"],
        one["num_samples"],
        counted(one["statuses"]),
        counted(one["phases"]),
        one["mean_reward"],
        _changed(one),
    ]


def _changed(one: dict[str, Any]) -> str:
    """Time since the last change."""
    return ago(int(time.time() * 1000) - one["changed_at"])
