"""The SQL box: one reading query at a time over the lake, with a deadline and a bounded answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from analytics.live.session_rows import RowError, SessionRow
from polar.page import sql_query
from polar.page.answers import Column, SqlAnswer
from polar.page.sql_query import ANSWER, REQUEST, Found, Request
from proxy.control.api import ControlError
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

DEADLINE_S = 10.0
ROWS = 10_000
MEMORY_BYTES = 8 * 1024**3
START_S = 60.0
"""For the query's process to start; its deadline begins then."""
SESSIONS = """
    SELECT
        s.session_id, s.task_id, s.sample_index, tasks.num_samples, s.run, s.label, s.harness, s.status, s.reward, s.attempt,
        s.error_stage, s.error_kind, s.error_code, s.error_message, epoch_ms(s.submitted_at), epoch_ms(s.ended_at),
        t.calls, t.sampled_tokens, t.trainable_tokens, t.sampled_tokens - t.trainable_tokens
    FROM (SELECT * FROM sessions WHERE ({condition}
    )) AS s
    LEFT JOIN trajectories AS t USING (session_id)
    LEFT JOIN tasks ON tasks.task_id = s.task_id
    ORDER BY s.ended_at DESC NULLS FIRST, s.session_id
    LIMIT {limit} OFFSET {offset}
"""
"""A condition ends its line, so that a comment in it ends there."""


class SqlBox:
    """Runs the queries of all pages, one at a time, each in a process of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running = False

    async def ask(self, sql: str, limit: int) -> SqlAnswer:
        """At most `limit` rows. Raises NotReadyError without a lake, and ControlError: 400 for wrong SQL, 409 if another query runs."""
        began = time.monotonic()
        found = await self._run(sql, limit)
        ms = round((time.monotonic() - began) * 1000)
        return SqlAnswer([Column(*column) for column in found.columns], found.rows, found.cut, ms)

    async def sessions(self, condition: str, limit: int, offset: int) -> list[SessionRow]:
        """Sessions of the lake for which an SQL condition over the view `sessions` holds, those without an end first, then the newest."""
        sql = SESSIONS.format(condition=condition or "true", limit=limit, offset=offset)
        return [_row(values) for values in (await self._run(sql, limit)).rows]

    async def _run(self, sql: str, limit: int) -> Found:
        if self._running:
            raise ControlError(409, "busy", "another query is running; a query takes at most 10 s")
        self._running = True
        try:
            # The process puts what doesn't fit into its memory there as well. It goes with the process.
            with TemporaryDirectory(prefix="polar-sql-") as folder:
                return await self._asked(sql, limit, Path(folder))
        finally:
            self._running = False

    async def _asked(self, sql: str, limit: int, folder: Path) -> Found:
        """The answer of a child process, which doesn't outlive the request."""
        place = self._settings.lake_address
        lake = str(place.absolute() if isinstance(place, Path) else place)
        data = str(self._settings.data.absolute())
        request = Request(lake, data, self._settings.namespace, sql, limit, MEMORY_BYTES, DEADLINE_S)
        (folder / REQUEST).write_bytes(msgspec.json.encode(request))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", sql_query.__name__, str(folder)),
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(START_S + DEADLINE_S):
                await process.wait()
        except TimeoutError:
            raise NotReadyError(f"the query's process hasn't started within {START_S:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return _checked(folder / ANSWER, process.returncode)


def _checked(file: Path, code: int | None) -> Found:
    """A process's answer. Raises ControlError for the errors that it reports, and without an answer."""
    if code == -signal.SIGALRM:
        raise ControlError(400, "timeout", f"the query took longer than {DEADLINE_S:g} s and was ended", field="sql")
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError):
        gib = MEMORY_BYTES // 1024**3
        raise ControlError(
            400,
            "failed",
            f"the query ended without an answer (exit {code}); it may use {gib} GiB of memory",
            field="sql",
        ) from None
    if found.error is None:
        return found
    if found.field is None:
        raise NotReadyError(found.error)
    raise ControlError(400, "bad_input", found.error, field=found.field)


def _row(values: list[Any]) -> SessionRow:
    *head, stage, kind, code, message, submitted, ended, calls, sampled, trainable, masked = values
    session_id, task_id, index, samples, run, label, harness, status, reward, attempt = head
    return SessionRow(
        session_id, task_id, index, samples, run, label, harness, "ended" if status else "unknown", status, reward, attempt,
        None, None if stage is None else RowError(stage, kind, code, message), submitted, ended or submitted or 0, ended,
        calls, sampled, trainable, masked,
    )  # fmt: skip
