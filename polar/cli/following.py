"""Runs an export with `--follow`, and serves its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from polar.cli import process


def follow(
    export: Callable[[asyncio.Event], Awaitable[None]],
    counts: Mapping[str, Callable[[], int]],
    failures: Callable[[], int],
    port: int | None,
    host: str,
) -> None:
    """Run until SIGINT or SIGTERM. `counts`: what was written, by its unit; `failures`: looks in a row that failed.

    `port` and `host`: where metrics are served; without a port nowhere. Raises what the export does, and NotReadyError if the port is
    in use.
    """

    async def main(stop: asyncio.Event) -> None:
        async with AsyncExitStack() as doors:
            if port is not None:
                from consumers.metrics import Metrics
                from consumers.metrics_http import serve_metrics

                metrics = Metrics(lambda: "its last look failed; its log says why" if failures() else None)
                role = ("role",)
                for unit, value in counts.items():
                    written = f"{unit.capitalize()} written or sent"
                    metrics.counter(f"polar_export_{unit}", written, role, partial(_by_role, value))
                failed = "Looks in a row that failed"
                metrics.gauge("polar_export_failures", failed, role, partial(_by_role, failures))
                await doors.enter_async_context(serve_metrics(metrics, host, port))
            await export(stop)

    process.log_events()
    process.serve(main)


def _by_role(value: Callable[[], int]) -> dict[str, float]:
    return {"export": value()}
