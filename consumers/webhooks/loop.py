"""The webhooks role: a heart, and a look at `polar.webhooks`; the parts that deliver are started by a first task that wants to be told of.

Group `<namespace>.webhooks`. In: `polar.webhooks`. Out: `polar.webhooks`; dead letters. Keeps no state that the log doesn't hold; any
number of processes share the partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from consumers.metrics import Metrics
from consumers.webhooks import GROUP
from consumers.webhooks.debts import Debts
from topics import webhooks
from topics.environment import webhook_signing as signing
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.log.heartbeat import Heart, new_worker_id
from topics.waiting.first_done import first_done


async def run_webhooks(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Tell endpoints until `stop`. Raises NotReady without Kafka, its topics, or a secret."""
    signing.read_secrets(settings.webhook_secret_path)
    worker_id = new_worker_id(GROUP)
    heart = Heart(settings, lambda: Heart.describe(worker_id, GROUP, leaving=stop.is_set()))
    debts = Debts()
    tries: Counter[str] = Counter()
    metrics = metrics or Metrics()
    metrics.heart(GROUP, heart)
    metrics.gauge(
        "polar_webhooks_owed", "Finished groups that their endpoint hasn't been told of", (), lambda: len(debts)
    )
    metrics.counter(
        "polar_webhooks_tries", "Tries to tell an endpoint, by what they came to", ("became",), lambda: tries
    )
    heart.start()
    try:
        await _first_debt(settings, stop)
        if not stop.is_set():
            # Here, since a process that tells nobody is 15 MB smaller without aiohttp and FastStream.
            from consumers.webhooks.member import deliver

            await deliver(settings, stop, debts, tries)
    finally:
        await asyncio.to_thread(heart.stop)


async def _first_debt(settings: Settings, stop: asyncio.Event) -> None:
    """Return when anything lies on the topic, or at `stop`."""
    found = asyncio.Event()
    follower = Follower(settings, webhooks.TOPIC, lambda *_: found.set(), since=Since.BEGINNING, committed=True)
    starting = follower.start()
    try:
        if starting in await first_done(starting, stop):
            await first_done(found, stop, follower.failed)
    finally:
        await follower.stop()
