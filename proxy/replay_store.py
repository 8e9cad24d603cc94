"""Stores what engines sent for trainers to replay, before the call's record names it.

A value that can't be stored costs the call nothing but the value: the record has the reason, and it is counted.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from proxy.blob_writer import Batch, BlobWriter, UnstoredError
from proxy.chat import Answer, ReplayValue
from proxy.metrics import ProxyMetrics
from topics.types.replay import ReplayError

log = structlog.get_logger(__name__)


class ReplayStore:
    """Values to replay of a proxy whose engines capture something."""

    def __init__(self, writer: BlobWriter, metrics: ProxyMetrics) -> None:
        self._writer = writer
        self._metrics = metrics

    async def stored(self, call_id: str, answer: Answer, batch: Batch) -> Answer:
        """The answer with references to what it brought, or the reasons why there are none. Raises nothing of its own."""
        refs = await asyncio.gather(*(self._ref(call_id, value, batch) for value in answer.replay))
        lost = answer.uncaptured | {
            value.field: reason for value, (ref, reason) in zip(answer.replay, refs, strict=True) if ref is None
        }
        for field, reason in lost.items():
            self._metrics.uncaptured.labels(field, reason).inc()
        stored = {value.field: ref for value, (ref, _) in zip(answer.replay, refs, strict=True) if ref is not None}
        return replace(answer, replay=(), stored=stored, uncaptured=lost)

    async def _ref(self, call_id: str, value: ReplayValue, batch: Batch) -> tuple[str | None, str]:
        """The reference, or the reason for having none."""
        try:
            return await self._writer.put(value.size, value.encode, batch), ""
        except UnstoredError as error:
            return None, error.reason
        except ReplayError as error:
            log.warning(
                "a value was not captured", action="uncaptured", call_id=call_id, field=value.field, reason=str(error)
            )
            return None, "malformed"
