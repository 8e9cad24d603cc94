"""What the proxy adds to a call, alone and under load, and whether its memory stays.

    python -m benchmarks.proxy [--quick] [--soak N] [--scripted] [--format table|json]

Kafka and `polar proxy` before an engine that answers at once (`stub_engine.py`; with `--scripted` Polar's own scripted engine, which has
a tokenizer and takes a millisecond or two), every call acknowledged on the log before its answer leaves. One at a time, calls to the engine
and through the proxy alternate, so that both see the same machine; so do, where it can be installed, calls through the LiteLLM proxy, which
captures nothing. The engine is asked plainly when it is asked directly: token ids and logprobs are part of what capture costs. Added p50 is
between the two medians; added p99 is of the proxied calls' 99th percentile over the engine's median, a stalled machine included. CPU is
that of all the proxy's processes and threads. Under load the proxies take turns. Sizes are of a request's body: `1 kB` and `60 kB` come in
sessions of 25 calls of which no two are alike, so that each is written to the log whole; `to 60 kB` is conversations that grow, each
call's prompt beginning with the one before it. At the end the log is counted, and memory is that of the proxy as sessions come and end.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from benchmarks import litellm, report
from benchmarks.alone import Alone, Family, alone
from benchmarks.cases import SESSION_CALLS, Asking, Case, at_once, one_by_one
from benchmarks.conversation import CHAT
from benchmarks.load import Caller, Window, loaded, timed
from benchmarks.report import Figure, say
from benchmarks.stub_engine import MODEL
from benchmarks.system import child, written
from topics import control
from topics.control import CloseKey
from topics.log.producer import LogProducer

ENGINE_S = 30.0
WARM_UP_S = 3.0
WARM_UP = 30
"""Calls of each kind."""
CONCURRENCY = (16, 64)
LITELLM_EVERY = 4
"""One call in so many goes through LiteLLM, too, which takes longer than all the rest."""
ENGINE_ALONE_S = 1.0
SOAK_STEPS = 10
LONG = {"name": "long", "match": ".", "variants": [{"turns": [{"text": "the fox sees all " * 400}] * 100}]}
"""What the scripted engine says: more than any call asks for, so that each answer is cut to its tokens."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    calls: int = 300
    """Of a kind, one at a time."""
    window_s: float = 3.0
    """Under load, twice."""
    soak: int = 8_000
    has_litellm: bool = True
    is_scripted: bool = False


@dataclass
class Measured:
    """One server's answers in a case."""

    requests: Iterator[bytes]
    caller: Caller
    family: Family | None = None
    latencies: list[float] = field(default_factory=list)
    _cpu: float = 0.0

    def begin(self) -> None:
        """What was before doesn't count."""
        self.latencies = []
        self._cpu = 0.0 if self.family is None else self.family.cpu()

    async def call(self) -> None:
        """One more."""
        self.latencies.append(await timed(self.caller, next(self.requests)))

    def figures(self, name: str, alone_s: float, wanted_ms: float | None = None) -> list[Figure]:
        """What it added to the engine's own median, and used."""
        assert self.family is not None, "a proxy"
        p50, p99 = statistics.median(self.latencies), statistics.quantiles(self.latencies, n=100)[98]
        spent = (self.family.cpu() - self._cpu) / len(self.latencies)
        is_ours = wanted_ms is not None
        return [
            Figure(f"{name}: added, p50", (p50 - alone_s) * 1e3, "ms", wanted=f"≤ {wanted_ms:g}" if is_ours else ""),
            Figure(f"{name}: added, p99", (p99 - alone_s) * 1e3, "ms", wanted="≤ 10" if is_ours else ""),
            Figure(f"{name}: CPU a call", spent * 1e3, "ms"),
        ]


class Benchmark:
    """A run: the engine, the proxy before it, and LiteLLM where it is."""

    def __init__(self, engine: str, proxy: Alone, rival: litellm.LiteLLM | None, effort: Effort) -> None:
        self._engine = engine
        self._proxy = proxy
        self._rival = rival
        self._effort = effort
        self._proxied = 0

    async def figures(self) -> list[Figure]:
        """Everything."""
        await self._warm_up()
        found = []
        for case in one_by_one():
            say(case.name)
            found += await self._one_by_one(case)
        for callers in CONCURRENCY:
            for case in at_once():
                say(f"{callers} at once: {case.name}")
                found += await self._at_once(case, callers)
        found += await self._soak()
        recorded = await self._proxy.recorded()
        return [*found, Figure("proxied calls on the log", 100 * recorded / self._proxied, "%", wanted="100")]

    async def _warm_up(self) -> None:
        """A broker that has just started compiles its code as it is used; the first case shouldn't pay for it."""
        window = await loaded(self._proxy.url, CONCURRENCY[0], self._ours(Case()).session, WARM_UP_S)
        self._proxied += len(window.latencies)

    async def _one_by_one(self, case: Case) -> list[Figure]:
        direct = Measured(self._plain(case).sessions(), await Caller.connect(self._engine))
        proxied = Measured(self._ours(case).sessions(), await Caller.connect(self._proxy.url), self._proxy.proxy)
        servers, rival = [direct, proxied], None
        if self._rival is not None and case.beside_litellm:
            rival = Measured(self._theirs(case).sessions(), await Caller.connect(self._rival.url), self._rival.process)
            servers.append(rival)
        for number in range(WARM_UP + self._effort.calls):
            if number == WARM_UP:
                for server in servers:
                    server.begin()
            await direct.call()
            await proxied.call()
            if rival is not None and number % LITELLM_EVERY == 0:
                await rival.call()
        self._proxied += WARM_UP + self._effort.calls
        alone_s = statistics.median(direct.latencies)
        found = [Figure(f"{case.name}: engine alone, p50", alone_s * 1e3, "ms")]
        found += proxied.figures(case.name, alone_s, case.wanted_ms)
        if rival is not None:
            found += rival.figures(f"LiteLLM {case.name}", alone_s)
        for server in servers:
            server.caller.close()
        return found

    async def _at_once(self, case: Case, callers: int) -> list[Figure]:
        ours, theirs = [], []
        direct = await loaded(self._engine, callers, self._plain(case).session, ENGINE_ALONE_S)
        asking, spent = self._ours(case), [0.0, 0.0]
        for _ in range(2):
            before = self._proxy.proxy.cpu(), self._proxy.broker.cpu()
            ours.append(await loaded(self._proxy.url, callers, asking.session, self._effort.window_s))
            spent[0] += self._proxy.proxy.cpu() - before[0]
            spent[1] += self._proxy.broker.cpu() - before[1]
            if self._rival is not None and case.beside_litellm:
                session = self._theirs(case).session
                theirs.append(await loaded(self._rival.url, callers, session, self._effort.window_s))
        calls = sum(len(window.latencies) for window in ours)
        self._proxied += calls
        name = f"{callers} at once, {case.name}"
        is_wanted = case.is_short and callers == CONCURRENCY[0]
        return [
            Figure(f"{name}: engine alone", direct.rate, "calls/s"),
            *_rates(name, ours, wanted="≥ 450" if is_wanted else ""),
            Figure(f"{name}: CPU a call", spent[0] / calls * 1e3, "ms", wanted="≤ 1.2" if is_wanted else ""),
            Figure(f"{name}: Kafka's CPU a call", spent[1] / calls * 1e3, "ms"),
            *(_rates(f"{callers} at once, LiteLLM {case.name}", theirs) if theirs else ()),
        ]

    async def _soak(self) -> list[Figure]:
        """Sessions that end, 16 at once, and the memory after each tenth of them."""
        closing = LogProducer(self._proxy.settings)
        await closing.start()
        asking, found, calls = self._ours(Case()), [], 0
        sessions = max(1, self._effort.soak // (SOAK_STEPS * CONCURRENCY[0] * SESSION_CALLS))
        for step in range(SOAK_STEPS):
            say(f"sessions that end: step {step + 1} of {SOAK_STEPS}")
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY[0]):
                    group.create_task(self._sessions(sessions, asking, closing))
            calls += sessions * CONCURRENCY[0] * SESSION_CALLS
            memory = self._proxy.proxy.rss() / 2**20
            found.append(Figure(f"memory after {calls:,} calls in sessions that end", memory, "MiB"))
        self._proxied += calls
        await closing.stop()
        return found

    async def _sessions(self, count: int, asking: Asking, closing: LogProducer) -> None:
        caller = await Caller.connect(self._proxy.url)
        for _ in range(count):
            claims, key = self._proxy.key()
            for request in asking.session_of(key):
                await caller.call(request)
            await closing.send(control.TOPIC, CloseKey(claims.session_id, claims.claim_id), key=claims.session_id)
        caller.close()

    def _plain(self, case: Case) -> Asking:
        return Asking(self._engine, case, lambda: "none", CHAT)

    def _ours(self, case: Case) -> Asking:
        return Asking(self._proxy.url, case, lambda: self._proxy.key()[1])

    def _theirs(self, case: Case) -> Asking:
        assert self._rival is not None, "looked at by the caller"
        return Asking(self._rival.url, case, lambda: litellm.KEY)


def _rates(name: str, windows: list[Window], wanted: str = "") -> list[Figure]:
    latencies = [latency for window in windows for latency in window.latencies]
    rate = len(latencies) / sum(window.seconds for window in windows)
    return [
        Figure(name, rate, "calls/s", wanted=wanted),
        Figure(f"{name}: whole call, p50", statistics.median(latencies) * 1e3, "ms"),
        Figure(f"{name}: whole call, p99", statistics.quantiles(latencies, n=100)[98] * 1e3, "ms"),
    ]


@asynccontextmanager
async def _engine(*, is_scripted: bool) -> AsyncIterator[str]:
    """An engine of a process of its own, by its URL."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        ready = Path(folder, "engine")
        command = ["-m", "benchmarks.stub_engine"]
        if is_scripted:
            script = Path(folder, "long.json")
            script.write_text(json.dumps(LONG))
            command = ["-m", "polar.scripted", "--model", MODEL, "--scripts", str(script)]
        with child(*command, "--ready-file", str(ready)):
            yield json.loads(await written(ready, ENGINE_S))["url"]


async def measure(effort: Effort) -> list[Figure]:
    """Starts everything and measures it."""
    folder = await asyncio.to_thread(litellm.environment) if effort.has_litellm else None
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(_engine(is_scripted=effort.is_scripted))
        rival = await stack.enter_async_context(litellm.serving(folder, engine)) if folder is not None else None
        proxy = await stack.enter_async_context(alone(engine))
        return await Benchmark(engine, proxy, rival, effort).figures()


def run(effort: Effort | None = None) -> list[Figure]:
    """All figures."""
    return uvloop.run(measure(effort or Effort()))


def main() -> None:
    """From the command line."""
    parser = report.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls, and without LiteLLM")
    parser.add_argument("--scripted", action="store_true", help="before the scripted engine")
    parser.add_argument("--soak", type=int, metavar="N", help="calls in sessions that end")
    given = parser.parse_args()
    effort = Effort(is_scripted=given.scripted)
    if given.quick:
        effort = replace(effort, calls=60, window_s=1.0, soak=4_000, has_litellm=False)
    if given.soak is not None:
        effort = replace(effort, soak=given.soak)
    before = report.machine()
    report.show(before, {report.heading(__doc__): run(effort)}, given.format)


if __name__ == "__main__":
    main()
