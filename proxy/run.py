"""`polar proxy`: one proxy until SIGTERM, SIGINT or a `Drain`."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

import structlog

from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.dialects.base import dialects
from proxy.engines.pool import Engines
from topics.contract import acl
from topics.environment.settings import Settings
from topics.log.topic_watch import watching_topics
from topics.waiting.first_done import first_done

log = structlog.get_logger()

COLLECT_AFTER = (10_000, 20, 50)
"""Allocations between looks for cycles, looks between those at what survived, and those between looks at everything. Python's own
(700, 10, 10) takes a fifth of a busy proxy's CPU, a full look tens of milliseconds; and calls and sessions leave no cycles behind
(`tests/proxy/test_memory.py`)."""


async def serve(
    settings: Settings,
    calls: Binding,
    controls: Binding,
    *,
    peers: Binding | None = None,
    advertise: str | None = None,
    ready: Callable[[str, str], None],
) -> None:
    """Serves `settings.engines` until SIGTERM, SIGINT or a `Drain`, then drains.

    `ready` is called with the URLs of both ports once calls are served; `peers` and `advertise` as for `Proxy`. Raises NotReadyError,
    InputError, OSError if a port is in use, FileNotFoundError for a missing keys file.
    """
    engines = Engines.of(settings.engines)
    proxy = Proxy(settings, engines, dialects(), calls, controls, peers=peers, advertise=advertise)
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop_requested.set)
    try:
        async with watching_topics(settings, acl.topics_of(["proxy"]), log.error):
            await first_done(_run(proxy, ready), stop_requested)
    finally:
        await proxy.stop()


async def _run(proxy: Proxy, ready: Callable[[str, str], None]) -> None:
    await proxy.start()
    gc.freeze()  # what is there by now stays
    gc.set_threshold(*COLLECT_AFTER)
    ready(proxy.url, proxy.control_url)
    await proxy.left()
