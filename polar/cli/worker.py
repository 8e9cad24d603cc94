"""`polar worker STAGE…`: consumers, one or several in a process. `polar up` starts its own with this very command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from polar.cli import logs, running
from polar.cli.options import Data
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import Stage
from topics.types.task import POOL_NAME
from topics.waiting.first_done import first_done

if TYPE_CHECKING:
    from consumers.metrics import Metrics

POOL = re.compile(POOL_NAME)
STAGES = "stages"
"""What init, run and evaluate are in a process: one worker."""
LEAVE_S = 8.0
"""For a consumer to leave, Kafka or not; a client's own end takes 2 s more."""

log = structlog.get_logger()


class Role(StrEnum):
    """What a worker process can do."""

    FANOUT = "fanout"
    COORDINATOR = "coordinator"
    INIT = "init"
    RUN = "run"
    EVALUATE = "evaluate"
    BUILDER = "builder"
    ANALYTICS = "analytics"
    WEBHOOKS = "webhooks"


def worker(
    roles: Annotated[list[Role], typer.Argument(metavar="STAGE", help="One or more; they share the process.")],
    pool: Annotated[str, typer.Option(help="Of the stage workers.")] = "default",
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sessions at once, of each stage; else init 4, run 8, evaluate 4.", show_default=False
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Of the stage workers: on SIGTERM what they have in hand may take so long, then it is handed back. "
            "A second signal hands it back at once.",
        ),
    ] = 0.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /metrics, /healthz and /readyz there; 0: any free one, which the log tells.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics, which ask for no token.")] = "127.0.0.1",
    data: Data = None,
) -> None:
    """Run consumers until SIGINT or SIGTERM; start more to scale."""
    logs.for_service()
    if POOL.fullmatch(pool) is None:
        raise InputError("--pool", pool, "a pool's name is lower-case letters, digits and dashes, at most 63")
    found = settings.load(data)

    hurry = asyncio.Event()
    asked = _Stages([stage for stage in Stage if stage.value in roles], pool, concurrency, grace)

    async def main(stop: asyncio.Event) -> None:
        from consumers.metrics import Metrics

        metrics = Metrics()
        async with AsyncExitStack() as doors:
            if metrics_port is not None:
                # Imported only here: aiohttp takes some 15 MB.
                from consumers.metrics_http import serve_metrics

                await doors.enter_async_context(serve_metrics(metrics, metrics_host, metrics_port))
            await _together(_start(found, set(roles), asked, stop, hurry, metrics), stop, hurry)

    running.serve(main, hurry if grace else None)


@dataclass(frozen=True)
class _Stages:
    """What the flags ask of the stage workers."""

    stages: list[Stage]
    pool: str
    concurrency: int | None
    grace_s: float


def _start(
    found: Settings, roles: set[Role], asked: _Stages, stop: asyncio.Event, hurry: asyncio.Event, metrics: Metrics
) -> dict[str, Awaitable[None]]:
    """The consumers, by name. What each needs is imported only where it runs."""
    started: dict[str, Awaitable[None]] = {}
    if Role.FANOUT in roles:
        from consumers.fanout import run_fanout

        started["fanout"] = run_fanout(found, stop, metrics)
    if Role.COORDINATOR in roles:
        from consumers.coordinator.coordinator import run_coordinator

        started["coordinator"] = run_coordinator(found, stop, metrics)
    if Role.BUILDER in roles:
        from consumers.building.builder import run_builder

        started["builder"] = run_builder(found, stop, metrics)
    if Role.ANALYTICS in roles:
        from analytics.writing.writer import run_analytics

        started["analytics"] = run_analytics(found, stop, metrics)
    if Role.WEBHOOKS in roles:
        from consumers.webhooks.worker import run_webhooks

        started["webhooks"] = run_webhooks(found, stop, metrics)
    if asked.stages:
        from consumers.stages.worker import run_worker

        started[STAGES] = run_worker(
            found,
            asked.stages,
            pool=asked.pool,
            concurrency=asked.concurrency,
            stop=stop,
            grace_s=asked.grace_s,
            hurry=hurry,
            metrics=metrics,
        )
    return started


async def _together(consumers: dict[str, Awaitable[None]], stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Run all; when one ends, the others are stopped too, and its error is the process's."""
    running: dict[asyncio.Future[None], str] = {asyncio.ensure_future(one): name for name, one in consumers.items()}
    try:
        await first_done(*running, stop)
    finally:
        if not stop.is_set():
            hurry.set()  # the sooner is the whole started again
        stop.set()
        await _left(running)
    for task in running:
        if not task.cancelled():
            task.result()


async def _left(running: dict[asyncio.Future[None], str]) -> None:
    """Wait until all have left; stage workers bound that themselves. The others may hang on a Kafka that answers nothing: cut off, they
    lose no more than a crash would."""
    bounded = [task for task, name in running.items() if name != STAGES]
    if bounded:
        _, hanging = await asyncio.wait(bounded, timeout=LEAVE_S)
        for task in hanging:
            log.warning("cut off", action="worker.cut_off", consumer=running[task])
            task.cancel()
    await asyncio.wait(running)
