"""The webhooks role. HTTP client and consumer start with the first record of `polar.webhooks`; until then the process only watches the
topic.

Group `<namespace>.webhooks`. In: `polar.webhooks`. Out: `polar.webhooks`; dead letters. All state is on the log. Any number of processes
share the partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from consumers.metrics import Metrics
from consumers.webhooks import GROUP
from consumers.webhooks.pending import PendingDeliveries
from topics import webhooks
from topics.environment import webhook_signing as signing
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.waiting.first_done import first_done


async def run_webhooks(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Deliver until `stop`. Raises NotReadyError without Kafka, its topics, or a secret."""
    signing.read_secrets(settings.webhook_secret_path)
    worker_id = new_worker_id(GROUP)
    heart = HeartbeatSender(settings, lambda: HeartbeatSender.heartbeat(worker_id, GROUP, leaving=stop.is_set()))
    pending = PendingDeliveries()
    results: Counter[str] = Counter()
    metrics = metrics or Metrics()
    metrics.heart(GROUP, heart)
    metrics.gauge(
        "polar_webhooks_owed", "Finished groups whose webhook is still to be delivered", (), lambda: len(pending)
    )
    metrics.counter("polar_webhooks_tries", "Delivery attempts by result", ("became",), lambda: results)
    heart.start()
    try:
        await _first_record(settings, stop)
        if not stop.is_set():
            # Imported here, because a process without deliveries is 15 MB smaller without aiohttp and FastStream.
            from consumers.webhooks.consumer import deliver

            await deliver(settings, stop, pending, results)
    finally:
        await asyncio.to_thread(heart.stop)


async def _first_record(settings: Settings, stop: asyncio.Event) -> None:
    """Return when the topic holds a record, or at `stop`."""
    found = asyncio.Event()
    follower = Follower(settings, webhooks.TOPIC, lambda *_: found.set(), since=Since.BEGINNING, committed=True)
    starting = follower.start()
    try:
        if starting in await first_done(starting, stop):
            await first_done(found, stop, follower.failed)
    finally:
        await follower.stop()
