"""What the trainer says of the fleet: paused or running, and which weights are served.

Invariant: in a pause no call begins at an engine. Those under way go on, or are ended there and asked anew after it, as the pause says;
`calls` counts them, so that a pause knows when the fleet is still. A call's policy version is told only where the weights can't have
changed under it: nothing was published for its engine meanwhile, and no pause ended. An engine's cache is salted with what was published
when the call reaches it, so that no call goes on from what other weights computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from proxy.errors import Refusal, RefusalError
from topics.fleet import FleetRecord, FleetState, FleetView

HELD_S = 1_800.0
"""How long after it came a call may still be held. Streams bear that, by their keep-alives; what other requests do, docs/fleet.md tells."""
RETRY_AFTER_S = 10


class FleetPausedError(Exception):
    """A pause keeps the call from its engine, or has ended it there: it is to be asked when the fleet runs again."""


class Weights(NamedTuple):
    """What a call is sampled with, for comparing."""

    version: int | None
    publication: int
    """The offset of the record that told the version, the same for all proxies."""
    resumes: int
    """Pauses that have ended: each may have changed the weights."""

    @property
    def salt(self) -> str | None:
        """For an engine's prefix cache: no two publications share one, whatever they call their versions. None: nothing was published."""
        return None if self.publication < 0 else f"policy-{self.version}-{self.publication}"


class Fleet:
    """The state that `polar.fleet` tells."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the heartbeat has news: another generation, or the last call under way in a pause has ended."""
        self._on_change = on_change
        self._view = FleetView()
        self._running = asyncio.Event()
        self._running.set()
        self._resumes = 0
        self._under_way: set[EngineCall] = set()

    @property
    def generation(self) -> int:
        """Of the last state seen; heartbeats echo it."""
        return self._view.generation

    @property
    def paused(self) -> bool:
        """Whether new calls wait."""
        return self._view.paused

    @property
    def calls(self) -> int:
        """Under way at engines."""
        return len(self._under_way)

    def weights(self, engine: str) -> Weights:
        """What a call that begins now at an engine is sampled with."""
        version, publication = self._view.policies.get(engine) or self._view.policies.get(None) or (None, -1)
        return Weights(version, publication, self._resumes)

    def apply(self, record: FleetRecord, offset: int) -> None:
        """Takes in a record of `polar.fleet`; its `offset` there."""
        before = self._view.state
        self._view.take(record, offset=offset)
        if self._view.state is not before:
            self._become(before, self._view.state)
        self._on_change()

    async def runs(self, until: float) -> bool:
        """Returns when the fleet runs: whether it didn't. Raises RefusalError once the loop's clock says `until`."""
        if self._running.is_set():
            return False
        try:
            async with asyncio.timeout_at(until):
                await self._running.wait()
        except TimeoutError:
            raise RefusalError(
                Refusal.OVERLOADED, "the model is paused for an update; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        return True

    def call(self, engine: str) -> EngineCall:
        """One try of a call at an engine."""
        return EngineCall(self, engine)

    def began(self, call: EngineCall) -> None:
        """A call is at its engine from now on. Raises FleetPausedError while the fleet is paused."""
        if self.paused:
            raise FleetPausedError
        self._under_way.add(call)

    def ended(self, call: EngineCall) -> None:
        """It is no more."""
        self._under_way.discard(call)
        if self.paused and not self._under_way:
            self._on_change()

    def _become(self, before: FleetState, state: FleetState) -> None:
        # Of generations that weren't seen one may have ended a pause.
        if (before.paused and not state.paused) or state.generation > before.generation + 1:
            self._resumes += 1
        if not state.paused:
            self._running.set()
            return
        self._running.clear()
        if state.in_flight == "abort":
            for call in self._under_way:
                call.halt()


class EngineCall:
    """A call is at its engine while in this context. Raises FleetPausedError on entry in a pause, on exit if a pause ended the call."""

    def __init__(self, fleet: Fleet, engine: str) -> None:
        self._fleet = fleet
        self._engine = engine
        self._scope = asyncio.timeout(None)
        self._halted = False
        self.version: int | None = None
        """Afterwards: the policy version that sampled it, None where that can't be told."""

    @property
    def salt(self) -> str | None:
        """For its engine's cache, if it is asked now."""
        return self._fleet.weights(self._engine).salt

    def halt(self) -> None:
        """End it soon."""
        if not self._halted:
            self._halted = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        self._fleet.began(self)
        self._weights = self._fleet.weights(self._engine)
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.ended(self)
        if self._fleet.weights(self._engine) == self._weights:
            self.version = self._weights.version
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise FleetPausedError from None
