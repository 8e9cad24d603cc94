"""What a lake needs beside writing: few files, none too many, and a DuckDB file beside it that shows the newest manifest.

Runs in each writer's process, in threads, and costs the writer nothing but time: what fails is said once and tried again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from analytics.asking import views
from analytics.lake import compaction
from analytics.lake.manifest import Lake, Writing
from analytics.writing.trouble import Trouble

PUBLISH_S = 3.0
TIDY_S = 10.0


async def run(lake: Lake, writing: Writing, stop: asyncio.Event) -> None:
    """Until `stop`, which is to come after the last commit; a merge that is under way then is given up."""
    halt = threading.Event()
    shown: list[int] = []

    def publish() -> None:
        newest = lake.newest()
        if shown != [newest.version]:
            views.write_database(lake.folder.with_name(f"{lake.folder.name}.duckdb"), lake.folder, newest)
            shown[:] = [newest.version]

    def tidy() -> None:
        compaction.tidy(lake, writing, halt)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_repeat(publish, PUBLISH_S, stop, Trouble("writing the lake's DuckDB file")), name="publish")
        tasks.create_task(_repeat(tidy, TIDY_S, stop, Trouble("merging the lake's files")), name="tidy")
        try:
            await stop.wait()
        finally:
            halt.set()


async def _repeat(work: Callable[[], None], seconds: float, stop: asyncio.Event, trouble: Trouble) -> None:
    """A last time after `stop`: the newest manifest is then the last."""
    while True:
        is_last, wait_s = stop.is_set(), seconds
        try:
            await asyncio.to_thread(work)
            trouble.over()
        except Exception as error:
            # Whatever it is, a damaged file included: readers and the writer don't need this to go on.
            wait_s = max(seconds, trouble.met(error))
        if is_last:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await stop.wait()
