"""Generations of aiokafka producers, through which `LogProducer` sends.

aiokafka's idempotent producer fails every later send to a partition once one has failed there (protocol 19). A generation that failed a
record, or left one unacknowledged, is therefore replaced: its successor takes all new records, while it finishes those in flight and is
then stopped or cut off. Invariant: there is one newest generation, and every older one ends.
"""

from __future__ import annotations

import asyncio

import structlog

from topics import dead_letters
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import connection_refusal, refusal

STOP_S = 5.0
CUT_OFF_S = 2.0
"""Time that `kafka.stop` may take beyond its deadline."""
CONNECT_S = 10.0
RETIRE_LOOK_S = 1.0
"""How soon a retiring generation notices that a sender gave up."""
RETRY_S = 0.2
"""Between two tries to connect."""

log = structlog.get_logger()


class ProducerGeneration:
    """One aiokafka producer and its records in flight."""

    def __init__(self, producer: kafka.Producer) -> None:
        self.producer = producer
        self.in_flight: set[asyncio.Future[kafka.RecordMetadata]] = set()
        self.awaited: set[asyncio.Future[kafka.RecordMetadata]] = set()
        """Records in flight whose sender still waits."""

    async def retire(self, deadline_s: float) -> None:
        """Wait for awaited records, each until its sender's deadline; then stop and cut off the remaining ones."""
        try:
            while self.awaited:
                await asyncio.wait(self.awaited, timeout=RETIRE_LOOK_S)
        finally:
            await kafka.stop(self.producer, deadline_s)
            for future in self.in_flight.copy():
                future.cancel()


class ProducerGenerations:
    """The newest generation, connecting or connected, and the older ones that retire."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._newest: asyncio.Task[ProducerGeneration] | None = None
        self.trouble = ""
        """Reason why the last try to connect failed."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._was_connected = False

    def open(self) -> asyncio.Task[ProducerGeneration]:
        """The newest generation, which connects until a broker answers, or `close`. The first raises if the brokers refuse this client."""
        if self._newest is None:
            self._newest = asyncio.create_task(self._connect(), name="log-producer-connect")
        return self._newest

    def replace(self, generation: ProducerGeneration) -> None:
        """Start a generation's successor, unless it has one."""
        newest = self._newest
        if newest is None or not newest.done() or newest.cancelled():
            return
        if newest.exception() is not None or newest.result() is not generation:
            return
        log.warning("producer replaced", action="producer.replaced", in_flight=len(generation.in_flight))
        self._retire(generation)
        self._newest = None
        self.open()

    async def close(self, deadline_s: float) -> None:
        """Stop all generations, each within `deadline_s` and two seconds."""
        waiting = list(self._retiring)
        for task in waiting:
            task.cancel()
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.cancel()
            await asyncio.wait([newest])
            if not newest.cancelled() and newest.exception() is None:
                newest.result().awaited.clear()
                self._retire(newest.result(), deadline_s)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=max(deadline_s, STOP_S) + CUT_OFF_S)

    def _retire(self, generation: ProducerGeneration, deadline_s: float = STOP_S) -> None:
        task = asyncio.create_task(generation.retire(deadline_s), name="log-producer-retire")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _connect(self) -> ProducerGeneration:
        while True:
            producer = kafka.producer(self._settings, max_bytes=dead_letters.TOPIC.max_bytes)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await producer.start()
                    self._was_connected = True
                    return ProducerGeneration(producer)
            except BaseException as error:
                await kafka.stop(producer, 0.0)
                if not isinstance(error, kafka.KafkaError | OSError | TimeoutError):
                    raise
                refused = refusal(self._settings, error) or await connection_refusal(self._settings)
                self.trouble = str(refused or repr(error))
                if refused is not None and not self._was_connected:
                    raise refused from None
                log.info("no broker", action="producer.no_broker", reason=self.trouble)
            await asyncio.sleep(RETRY_S)
