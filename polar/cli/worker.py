"""`polar worker STAGE…` runs one or several consumers in a process. `polar up` starts its consumers with the same command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from enum import StrEnum
from importlib import import_module
from typing import Annotated

import structlog
import typer

from polar.cli import process
from polar.cli.options import Data, MetricsHost, MetricsPort, TrustTasks, trusting
from topics.environment import private_files, redaction, settings
from topics.log import logins
from topics.types.errors import InputError
from topics.types.runtime import POOL_NAME
from topics.types.session import Stage
from topics.waiting.first_done import first_done

POOL = re.compile(POOL_NAME)
STAGES = "stages"
"""Name of the one worker that runs init, run and evaluate in a process."""
LEAVE_S = 8.0
"""Time that a consumer has to stop, with or without Kafka; stopping a Kafka client takes another 2 s."""

log = structlog.get_logger()


class Role(StrEnum):
    FANOUT = "fanout"
    COORDINATOR = "coordinator"
    INIT = "init"
    RUN = "run"
    EVALUATE = "evaluate"
    BUILDER = "builder"
    ANALYTICS = "analytics"
    WEBHOOKS = "webhooks"


MODULES = {
    Role.FANOUT: "consumers.fanout",
    Role.COORDINATOR: "consumers.coordinator.coordinator",
    Role.BUILDER: "consumers.building.builder",
    Role.ANALYTICS: "analytics.writing.writer",
    Role.WEBHOOKS: "consumers.webhooks.worker",
}
"""The modules with a function `run_<role>`; stage workers have their own."""


def worker(
    roles: Annotated[list[Role], typer.Argument(metavar="STAGE", help="One or more, in one process.")],
    pool: Annotated[str, typer.Option(help="Pool of the stage workers.")] = "default",
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sessions per stage at a time.  [default: init 4, run 8, evaluate 4]", show_default=False
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Stage workers: time that sessions have to finish after SIGTERM before they are handed back. A second signal "
            "hands them back at once.",
        ),
    ] = 0.0,
    trust_tasks: TrustTasks = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    data: Data = None,
) -> None:
    """Run consumers until SIGINT or SIGTERM; start more to scale."""
    process.log_events()
    if POOL.fullmatch(pool) is None:
        raise InputError("--pool", pool, "a pool's name has at most 63 lower-case letters, digits and dashes")
    found = logins.of_roles(trusting(settings.load(data), trust_tasks), roles)
    redaction.cover(found)

    hurry = asyncio.Event()
    stages = [stage for stage in Stage if stage.value in roles]
    if stages or "analytics" in roles:
        private_files.make_folder(found.data)

    async def main(stop: asyncio.Event) -> None:
        from consumers.metrics import Metrics
        from topics import stages as queues
        from topics.contract import acl
        from topics.log.topic_watch import watching_topics

        metrics = Metrics()
        async with AsyncExitStack() as doors:
            if metrics_port is not None:
                # Imported only here: aiohttp takes some 15 MB.
                from consumers.metrics_http import serve_metrics

                await doors.enter_async_context(serve_metrics(metrics, metrics_host, metrics_port))
            watched = [*acl.topics_of(roles), *(queues.topic(stage, pool) for stage in stages)]
            await doors.enter_async_context(watching_topics(found, watched, log.error))
            # Each consumer's module is imported only where it runs.
            consumers: dict[str, Awaitable[None]] = {
                role.value: getattr(import_module(module), f"run_{role.value}")(found, stop, metrics)
                for role, module in MODULES.items()
                if role in roles
            }
            if stages:
                from consumers.stages.worker import run_worker

                consumers[STAGES] = run_worker(
                    found,
                    stages,
                    pool=pool,
                    concurrency=concurrency,
                    stop=stop,
                    grace_s=grace,
                    hurry=hurry,
                    metrics=metrics,
                )
            await _together(consumers, stop, hurry)

    process.serve(main, hurry if grace else None)


async def _together(consumers: dict[str, Awaitable[None]], stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Run all consumers. When one ends, stop the others; its error ends the process."""
    running: dict[asyncio.Future[None], str] = {asyncio.ensure_future(one): name for name, one in consumers.items()}
    try:
        await first_done(*running, stop)
    finally:
        if not stop.is_set():
            hurry.set()  # one consumer has failed: the whole process must restart soon
        stop.set()
        await _stopped(running)
    for task in running:
        if not task.cancelled():
            task.result()


async def _stopped(running: dict[asyncio.Future[None], str]) -> None:
    """Wait until all consumers have stopped. Stage workers limit that time themselves; the others may hang on a silent Kafka.

    A consumer that is cancelled after LEAVE_S loses no more than in a crash.
    """
    bounded = [task for task, name in running.items() if name != STAGES]
    if bounded:
        _, hanging = await asyncio.wait(bounded, timeout=LEAVE_S)
        for task in hanging:
            log.warning("cut off", action="worker.cut_off", consumer=running[task])
            task.cancel()
    await asyncio.wait(running)
