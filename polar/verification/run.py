"""Verifies trajectories: scores their traces at the engines that sampled them, and writes each result to `polar.verifications`.

Invariant: a difference is reported only if the engine served one version of weights from before the request until after it, by its own
word and by the fleet's, and the fleet wasn't paused meanwhile. At most `concurrency` prompts are scored at a time, each with a deadline;
while the fleet is paused, none is begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import structlog

from polar.verification.agreement import Agreement
from polar.verification.distribution import ALL, Floats
from polar.verification.plan import Plan, Served, Unscored, Weights, plans
from polar.verification.report import Comparison, Report, compared, unscored
from polar.verification.scoring import Scorer
from proxy.engines.pool import api_key_of
from proxy.errors import EngineError
from topics import fleet, verifications
from topics.environment.settings import EngineSettings, Settings
from topics.fleet import FleetRecord, FleetView
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.tokens import LOGPROBS
from topics.types.trajectory import ExpandedTrace, Trajectory, expand
from topics.verifications import Verification
from topics.waiting.first_done import first_done

ENTRIES = 1_500_000
"""Most logprobs in one answer, some 79 bytes each: an engine's answer may have 128 MiB."""
TOO_MANY = ("refused", "too_large")
"""Codes of an EngineError for more alternatives than the server's --max-logprobs, and for a longer answer than expected."""
ACK_S = 30.0
VLLM = ("chat", "tokens", "vllm_chat", "vllm_tokens")
"""Modes of engines whose servers are vLLM's: no other returns prompt_logprobs."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Options:
    """How to verify."""

    limit: float
    """Nats: the p99 that is accepted."""
    concurrency: int
    longest: int
    """Tokens that one request may hold."""
    output: str | None
    """Suffix of the trajectories topic."""


class FleetWatch:
    """The weights that the fleet has published, kept up to date."""

    def __init__(self, settings: Settings) -> None:
        self._view = FleetView()
        self._runs = asyncio.Event()
        self._runs.set()
        self._follower = Follower(settings, fleet.TOPIC, self._take, since=Since.BEGINNING)

    async def start(self) -> None:
        """Read what the topic holds. Raises NotReadyError."""
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()

    async def runs(self) -> None:
        """Return while the fleet isn't paused."""
        await self._runs.wait()

    @property
    def generation(self) -> int:
        """Number of the fleet's state."""
        return self._view.generation

    async def has_run_since(self, generation: int) -> bool:
        """Whether the fleet runs and its state has this number still: it wasn't paused meanwhile. Raises TimeoutError without Kafka."""
        await self._follower.caught_up()
        return self.generation == generation and not self._view.paused

    def weights(self, engine: str) -> Weights:
        """The weights that were published last for an engine."""
        policy = self._view.policy(engine)
        return Weights() if policy is None else Weights(policy.version, policy.offset)

    def _take(self, record: FleetRecord, envelope: kafka.Record) -> None:
        self._view.take(record, offset=envelope.offset, written_ms=envelope.timestamp)
        (self._runs.clear if self._view.paused else self._runs.set)()


class _Engine:
    """An engine whose servers score in turn."""

    def __init__(self, name: str, engine: EngineSettings) -> None:
        assert engine.model is not None, "set by probe.with_models"
        self.model = engine.model
        key = api_key_of(name, engine)
        self.servers = [Scorer(url, engine.model, key) for url in engine.urls]
        self.scorers = cycle(self.servers)


class Verifier:
    """One run."""

    def __init__(self, settings: Settings, engines: Mapping[str, EngineSettings], options: Options) -> None:
        """`engines`: each with its `model`; those whose servers can't score prompts are left out."""
        self._settings = settings
        self._options = options
        self._engines = {name: _Engine(name, each) for name, each in engines.items() if each.mode in VLLM}
        self._widths: dict[str, int] = {}
        """Tokens of the vocabulary by server, ENTRIES if it doesn't return the logprobs of all."""
        self._fleet = FleetWatch(settings)
        self._producer = LogProducer(settings)
        self.report = Report(options.limit)

    async def start(self) -> None:
        """Connect to Kafka, and create the topic if it is missing. Raises NotReadyError."""
        await admin.apply(self._settings, [verifications.TOPIC], embedded=self._settings.replication == 1)
        await self._producer.start()
        await self._fleet.start()

    async def close(self) -> None:
        await self._fleet.stop()
        await self._producer.stop()
        for engine in self._engines.values():
            for server in engine.servers:
                server.stop()

    async def run(
        self, trajectories: Sequence[Trajectory], stop: asyncio.Event, show: Callable[[int, int], None]
    ) -> None:
        """Verify the trajectories' traces, or as many as are done before `stop`; `show` gets the traces done and their number."""
        self.report.sessions = len(trajectories)
        total = sum(len(each.traces) for each in trajectories)
        done = 0
        waiting = _traces(trajectories)

        async def work() -> None:
            nonlocal done
            for session_id, trace in waiting:
                await self._verify(session_id, trace)
                done += 1
                show(done, total)

        async def work_all() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.concurrency):
                    group.create_task(work(), name="verify")

        await first_done(stop, work_all())
        self.report.remaining = total - done

    async def _verify(self, session_id: str, trace: ExpandedTrace) -> None:
        await self._fleet.runs()
        generation = self._fleet.generation
        scorers = {name: next(engine.scorers) for name, engine in self._engines.items() if _samples(trace, name)}
        served = {
            name: Served(self._engines[name].model, await self._weights(name, scorer))
            for name, scorer in scorers.items()
        }
        for plan in plans(trace, served, self._options.longest):
            engine = plan.engine
            if engine not in scorers:
                self.report.of_engine(engine).add(unscored(plan), self._options.limit)
                continue
            comparison = await self._compare(plan, scorers[engine], served[engine].weights, generation)
            agreement = self.report.of_engine(engine).add(comparison, self._options.limit)
            if agreement is not None:
                await self._write(session_id, comparison, agreement, scorers[engine].url, served[engine].weights)

    async def _weights(self, engine: str, scorer: Scorer) -> Weights:
        """The weights that the server names; if it names none, those that the fleet has published."""
        published = self._fleet.weights(engine)
        try:
            version = await scorer.version()
        except EngineError:
            version = None  # the prompt will fail as well, and is counted then
        if version in (None, published.version):
            return published
        return Weights(version)

    async def _compare(self, plan: Plan, scorer: Scorer, weights: Weights, generation: int) -> Comparison:
        """`weights`, and the fleet's `generation`: those from before the request."""
        try:
            plan, rows = await self._score(plan, scorer)
        except EngineError as fault:
            log.warning("not scored", action="unscored", server=scorer.url, code=fault.code, reason=fault.message)
            too_long = fault.code == "context_length"
            return unscored(plan.refused(Unscored.TOO_LONG if too_long else Unscored.FAILED))
        try:
            has_run = await self._fleet.has_run_since(generation)
        except TimeoutError as error:
            log.warning("not scored", action="unscored", server=scorer.url, code="kafka", reason=str(error))
            return unscored(plan.refused(Unscored.FAILED))
        if not has_run or await self._weights(plan.engine, scorer) != weights:
            return unscored(plan.refused(Unscored.WEIGHTS_CHANGED))
        return compared(plan, rows)

    async def _score(self, plan: Plan, scorer: Scorer) -> tuple[Plan, Floats]:
        """The rows of what the server scores, and the plan of it. Raises EngineError."""
        width = await self._width(plan, scorer) if plan.alternatives == ALL else plan.alternatives + 1
        if width * plan.length > ENTRIES:
            plan = plan.within(ENTRIES // plan.length - 1)
        try:
            return plan, await _rows(plan, scorer)
        except EngineError as fault:
            if fault.code not in TOO_MANY or plan.alternatives == 0:
                raise
        plan = plan.within(0)
        return plan, await _rows(plan, scorer)

    async def _width(self, plan: Plan, scorer: Scorer) -> int:
        """Tokens of the server's vocabulary, or too many if it doesn't return all; found by two tokens of a trace. Raises EngineError."""
        if scorer.url not in self._widths:
            try:
                self._widths[scorer.url] = (await scorer.rows(plan.trace.token_ids[:2], ALL)).shape[1]
            except EngineError as fault:
                if fault.code not in TOO_MANY:
                    raise
                self._widths[scorer.url] = ENTRIES
        return self._widths[scorer.url]

    async def _write(
        self, session_id: str, comparison: Comparison, agreement: Agreement, server: str, weights: Weights
    ) -> None:
        plan = comparison.plan
        record = Verification(
            session_id=session_id,
            trace_id=plan.trace.trace.trace_id,
            engine=plan.engine,
            server=server,
            verified_at=int(time.time() * 1000),
            tokens=agreement.tokens,
            median=agreement.median,
            p99=agreement.p99,
            largest=agreement.largest,
            limit=self._options.limit,
            over=int((comparison.deltas > self._options.limit).sum()),
            logprobs=comparison.scored.astype(LOGPROBS).tobytes(),
            policy_version=weights.version,
            publication=weights.publication,
            unscored=dict(plan.unscored),
            output=self._options.output,
        )
        try:
            await self._producer.send(verifications.TOPIC, record, key=session_id, deadline_s=ACK_S)
        except UnacknowledgedError as error:
            self.report.unrecorded += 1
            log.warning("a result isn't recorded", action="verification_lost", trace=record.trace_id, reason=str(error))


async def _rows(plan: Plan, scorer: Scorer) -> Floats:
    """As `Scorer.rows`; no rows if nothing is to be scored."""
    if not plan.pieces:
        return np.empty((0, 1))
    return await scorer.rows(plan.trace.token_ids[: plan.length], plan.alternatives)


def _samples(trace: ExpandedTrace, engine: str) -> bool:
    """Whether the engine sampled trained tokens of the trace."""
    return any(span.call.engine == engine for span in trace.spans)


def _traces(trajectories: Sequence[Trajectory]) -> Iterator[tuple[str, ExpandedTrace]]:
    """Each trace with its session's id, expanded when its turn comes."""
    for trajectory in trajectories:
        for trace in trajectory.traces:
            yield trajectory.session_id, expand(trajectory, trace)
