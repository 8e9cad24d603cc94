"""Waits until the processes of a `polar up` serve. Every wait has a deadline; the error at its end names what didn't answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from topics import workers
from topics.contract import catalogue
from topics.environment import http_json
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done
from topics.workers import Heartbeat

POLL_S = 0.05
REQUEST_S = 2.0


async def file(path: Path, name: str, *, deadline_s: float) -> str:
    """Wait for a ready file, which its writer renames into place, and return its text. Raises NotReadyError."""
    deadline = time.monotonic() + deadline_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise NotReadyError(f"{name} didn't answer within {deadline_s:.0f} s; see its log")
        await asyncio.sleep(POLL_S)
    return path.read_text()


async def http(url: str, name: str, *, deadline_s: float) -> None:
    """Wait until a GET is answered with 200. Raises NotReadyError."""
    deadline = time.monotonic() + deadline_s
    while (answer := await asyncio.to_thread(_get, url)) != "200":
        if time.monotonic() > deadline:
            raise NotReadyError(f"{name} isn't ready after {deadline_s:.0f} s ({url}: {answer}); see its log")
        await asyncio.sleep(POLL_S)


async def heartbeats(settings: Settings, needed: Sequence[str], *, deadline_s: float) -> None:
    """Wait for heartbeats of all `needed`: roles, or stages of the default pool whose whole queue is assigned. Raises NotReadyError."""
    missing = set(needed)
    all_seen = asyncio.Event()

    def on_record(record: object, _: object) -> None:
        if isinstance(record, Heartbeat):
            missing.difference_update(_shown(record))
            if not missing:
                all_seen.set()

    follower = Follower(settings, workers.TOPIC, on_record, since=Since.END)
    await follower.start()
    try:
        if not await first_done(all_seen, timeout_s=deadline_s):
            raise NotReadyError(f"no heartbeat of {', '.join(sorted(missing))} within {deadline_s:.0f} s; see its log")
    finally:
        await follower.stop()


def _shown(beat: Heartbeat) -> set[str]:
    """The role and the stages that a heartbeat shows to be at work."""
    working = {slots.stage.value for slots in beat.stages if slots.partitions and slots.pool == catalogue.DEFAULT_POOL}
    return {beat.role} | working


def _get(url: str) -> str:
    try:
        return str(http_json.send(url, timeout_s=REQUEST_S).status)
    except http_json.NoAnswerError as error:
        return str(error)
