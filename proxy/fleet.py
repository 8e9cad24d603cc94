"""The fleet's state as this proxy follows it: paused or running, and the weights that each engine serves.

Invariant: no call starts at an engine in a pause. Calls under way go on, or are ended and asked again after the pause, as the pause
demands; `calls` counts them, so that a pause knows when the fleet is idle. The fleet proves a call's weights only if they can't have
changed during it: nothing was published for its engine, and no pause ended. An engine's cache is salted with the publication that is
current when the call reaches it, so that no call reuses what other weights computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from proxy.engines.process import Process
from proxy.errors import Refusal, RefusalError
from topics.fleet import FleetState, FleetView, PolicyVersion, Publication

HELD_S = 1_800.0
"""How long a call may be held in all. Streams survive that by keep-alives; docs/fleet.md describes other requests."""
RETRY_AFTER_S = 10


class FleetPausedError(Exception):
    """A pause keeps a call from its engine, or has ended it there: try again when the fleet runs."""


class Weights(NamedTuple):
    """Identifies the weights of an engine."""

    publication: Publication | None
    """None: nothing was published."""
    resumes: int
    """Number of pauses that have ended: each may have changed the weights."""

    @property
    def salt(self) -> str | None:
        """For an engine's prefix cache: no two publications share one, whatever they call their versions. None: nothing was published."""
        return None if self.publication is None else f"policy-{self.publication.version}-{self.publication.offset}"


class Fleet:
    """The state on `polar.fleet`, and the calls under way at engines."""

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
        """Generation of the last state read; heartbeats repeat it."""
        return self._view.generation

    @property
    def paused(self) -> bool:
        """Whether new calls wait."""
        return self._view.paused

    @property
    def calls(self) -> int:
        """Number of calls under way at engines."""
        return len(self._under_way)

    def weights(self, engine: str) -> Weights:
        """The weights of a call that starts at an engine now."""
        return Weights(self._view.policy(engine), self._resumes)

    def apply(self, record: FleetState | PolicyVersion, offset: int, written_ms: int) -> None:
        """Applies a record of `polar.fleet`, written at a Unix time in ms."""
        before = self._view.state
        self._view.take(record, offset=offset, written_ms=written_ms)
        if self._view.state is not before:
            self._become(before, self._view.state)
        if isinstance(record, PolicyVersion):
            for call in self._under_way:
                call.published()
        self._on_change()

    async def runs(self, until: float) -> bool:
        """Returns when the fleet runs: whether it was paused. Raises RefusalError at `until`, by the loop's clock."""
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
        """Adds a call at its engine. Raises FleetPausedError in a pause."""
        if self.paused:
            raise FleetPausedError
        self._under_way.add(call)

    def ended(self, call: EngineCall) -> None:
        """Removes a call that has left its engine."""
        self._under_way.discard(call)
        if self.paused and not self._under_way:
            self._on_change()

    def _become(self, before: FleetState, state: FleetState) -> None:
        # A generation that wasn't read may have ended a pause.
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
        self._served: list[Publication] = []
        """Publications that were current at a moment of the call, in order."""
        self.proven: Publication | None = None
        """After exit: the only weights that a server which has all updates can have sampled the call with; None if unknown."""
        self.process: Process | None = None
        """The process that answered; None: none did, or its start can't be read now."""

    @property
    def salt(self) -> str | None:
        """Salt of the engine's cache for a call that starts now."""
        return self._fleet.weights(self._engine).salt

    def publication_of(self, version: int) -> Publication | None:
        """The publication of weights that the engine names by this version, if the server has all updates.

        None unless exactly one publication of the version was current during the call: others may have been loaded before their number was
        used again, or will be published after the call.
        """
        named = [publication for publication in self._served if publication.version == version]
        return named[0] if len(named) == 1 else None

    def published(self) -> None:
        """Applies a publication that came during the call; it may be for another engine."""
        publication = self._fleet.weights(self._engine).publication
        if publication is not None and publication not in self._served:
            self._served.append(publication)

    def halt(self) -> None:
        """Ends the call soon."""
        if not self._halted:
            self._halted = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        self._fleet.began(self)
        self._weights = self._fleet.weights(self._engine)
        if self._weights.publication is not None:
            self._served.append(self._weights.publication)
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.ended(self)
        if self._fleet.weights(self._engine) == self._weights:
            self.proven = self._weights.publication
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise FleetPausedError from None
