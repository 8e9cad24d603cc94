"""Maintains the lake beside the writer: merges and removes files, and writes a DuckDB file that shows the newest manifest of a folder.

Runs in threads of each writer's process. A failure is logged once and tried again, and doesn't stop the writer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from analytics.lake import compaction
from analytics.lake.manifest import Lake, Writing
from analytics.queries import views
from analytics.writing.retries import Retries
from topics.waiting.first_done import first_done

PUBLISH_S = 3.0
"""How old the DuckDB file may be; `polar sql` reads the manifest itself."""
TIDY_S = 10.0
"""A flush a second for ten seconds: at most ten new files per table."""


async def run(lake: Lake, writing: Writing, stop: asyncio.Event) -> None:
    """Run until `stop`, which must follow the last commit; a merge in progress is then cancelled."""
    halt = threading.Event()
    shown: list[int] = []

    def publish() -> None:
        database = lake.store.database
        if database is not None and shown != [(newest := lake.newest()).version]:
            views.write_database(database, lake.folder, newest)
            shown[:] = [newest.version]

    def tidy() -> None:
        compaction.tidy(lake, writing, halt)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_repeat(publish, PUBLISH_S, stop, Retries("writing the lake's DuckDB file")), name="publish")
        tasks.create_task(_repeat(tidy, TIDY_S, stop, Retries("merging the lake's files")), name="tidy")
        try:
            await stop.wait()
        finally:
            halt.set()


async def _repeat(work: Callable[[], None], seconds: float, stop: asyncio.Event, retries: Retries) -> None:
    """Repeat `work`, and run it once more after `stop`, when the newest manifest is final."""
    while True:
        is_last, wait_s = stop.is_set(), seconds
        try:
            await asyncio.to_thread(work)
            retries.succeeded()
        except Exception as error:
            # Any error, such as a damaged file: readers and the writer don't depend on this.
            wait_s = max(seconds, retries.failed(error))
        if is_last:
            return
        await first_done(stop, timeout_s=wait_s)
