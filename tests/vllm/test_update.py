"""Weights change on the disk of a real vLLM in the middle of sessions, and each token's version is proven by vLLM's own score of it.

A token that says version v has the logprob that the weights of v give it after what stands before it, and not the one that others do: the
version is right, then, and no prefix was gone on from that other weights had computed. The server is this module's own: its weights change.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from openai import AsyncOpenAI

import polar
from examples.vllm_cpu.serve import Server, serving
from polar.sessions import Session
from polar.verification.distribution import Floats
from tests.acceptance.up.running import Up
from tests.vllm.agents import AGENTS, Settings
from tests.vllm.scoring import Agreement, scores
from tests.vllm.weights import Served, asking, load, post
from tests.vllm.work import Work
from tests.waiting import until
from topics.environment import settings

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    # How Google's client makes its own sessions of aiohttp.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

AT_ONCE = 4
BETWEEN_TOKENS = 300
"""Some fifteen answers."""
SAMPLING_S = 240.0
UPDATES = ("finish", "abort", "finish")
LONG_TOKENS = 1500
TRIES = 5
LAKE_S = 60.0


@pytest.fixture(scope="module")
def served(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served") / "model", model_dir)


@pytest.fixture(scope="module")
def server(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(served.folder, log=tmp_path_factory.mktemp("updated") / "server.log") as server:
        yield server


@pytest.fixture(scope="module")
def up(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up"), "--engine", server.url, "--mode", "tokens")
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait()


class Gate:
    """What threads pass while it is open, and wait at while it is closed."""

    def __init__(self) -> None:
        self._waiting = threading.Semaphore(0)
        self._opened = threading.Event()
        self._opened.set()

    def close(self) -> None:
        self._waiting = threading.Semaphore(0)
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def await_one(self) -> None:
        """Until a thread waits."""
        assert self._waiting.acquire(timeout=SAMPLING_S), "nobody came to the closed gate"

    def go_through(self) -> None:
        if not self._opened.is_set():
            self._waiting.release()
            assert self._opened.wait(SAMPLING_S), "the gate was never opened again"


class Gated(Work):
    """Its first tool goes through a gate: who waits there has had an answer, and goes on to the next."""

    def __init__(self, seed: int, gate: Gate) -> None:
        super().__init__(seed)
        self._gate: Gate | None = gate

    def answer(self, name: str, arguments: str | dict[str, Any]) -> str:
        if self._gate:
            self._gate.go_through()
            self._gate = None
        return super().answer(name, arguments)


class Talk:
    """Agents that work one session after another until told to stop."""

    def __init__(self, up: Up) -> None:
        self.answers: dict[str, int] = {}
        """That each session's agent got."""
        self._up = up
        self._is_over = False
        self.gate = Gate()

    async def run(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(self._work, number) for number in range(AT_ONCE)))

    def stop(self) -> None:
        self._is_over = True
        self.gate.open()

    def _work(self, number: int) -> None:
        names = list(AGENTS)
        while not self._is_over:
            with Session.open(self._up.data, ttl_s=300) as session:
                agent = AGENTS[names[(number + len(self.answers)) % len(names)]]
                work = Gated(len(self.answers), self.gate)
                self.answers[session.session_id] = agent(session.env, work, Settings())


async def test_tokens_of_all_versions_are_scored_by_their_own_weights(
    server: Server, served: Served, up: Up, tell: Any
) -> None:
    talk = Talk(up)
    async with polar.Fleet(settings.load(up.data)) as controls, asking(server.url) as http:
        await load(http, 0)
        await controls.publish(0)
        talking = asyncio.create_task(talk.run())
        try:
            for version, in_flight in enumerate(UPDATES, 1):
                await more_sampled(http, BETWEEN_TOKENS, talking)
                # Sessions that take as many tokens as an update waits for may all end just before it.
                talk.gate.close()
                await asyncio.to_thread(talk.gate.await_one)
                async with controls.paused(in_flight=in_flight) as pause:  # type: ignore[arg-type] # one of the two
                    talk.gate.open()
                    served.write(version)
                    # Without /reset_prefix_cache: what is cached is of other salts.
                    await load(http, version)
                    await pause.publish(version)
            await more_sampled(http, BETWEEN_TOKENS, talking)
        finally:
            talk.stop()
            await talking
        traces = traces_of(up, list(talk.answers))
        for session_id, answers in talk.answers.items():
            calls = {call["call_id"] for trace in traces[session_id] for call in trace["calls"]}
            assert len(calls) == answers, "an answer is in no trace"
        all_traces = [trace for group in traces.values() for trace in group]
        versions = range(len(UPDATES) + 1)
        assert {call["policy_version"] for trace in all_traces for call in trace["calls"]} == {*versions}
        crossed = {new for trace in all_traces for _, new in pairwise(trace["policy_versions"])}
        assert crossed == {*versions[1:]}, "an update that no session went on across"
        for version in versions:
            served.write(version)
            await load(http, version)
            await post(http, "/reset_prefix_cache")
            same_version, others = await asyncio.to_thread(compared, server, all_traces, version)
            tell(f"version {version}: its own {same_version}; of others {others}")
            assert same_version.is_faithful
            assert not others.is_faithful, "these weights are too much like the others to tell"


async def test_an_answer_that_spans_an_update_says_where_the_new_weights_begin(
    server: Server, served: Served, up: Up, tell: Any
) -> None:
    """vLLM keeps the call across its own pause, and Polar's fleet isn't paused."""
    async with polar.Fleet(settings.load(up.data)) as controls, asking(server.url) as http:
        version = 100
        await updated(controls, http, served, version)
        for _ in range(TRIES):
            with Session.open(up.data, ttl_s=300) as session:
                answering = asyncio.create_task(long_answer(session.env))
                await more_sampled(http, 20, answering)
                version += 1
                await updated(controls, http, served, version, mode="keep")
                await answering
            [trace] = traces_of(up, [session.session_id])[session.session_id]
            if len(trace["calls"]) == 2:
                break
        first, second = trace["calls"]
        assert (first["call_id"], first["end"]) == (second["call_id"], second["start"])
        assert (first["policy_version"], second["policy_version"]) == (version - 1, version)
        served.write(version - 1, is_vague=True)
        await load(http, version - 1)
        await post(http, "/reset_prefix_cache")
        scored = await asyncio.to_thread(scores, server, trace["token_ids"])
        same_version, others = Agreement.of(deltas(trace, scored, first)), Agreement.of(deltas(trace, scored, second))
        tell(f"before the update {same_version}; after it {others}")
        assert same_version.is_faithful
        assert not others.is_faithful
        until(lambda: bool(rows_of(up, session.session_id)), LAKE_S)
        [row] = rows_of(up, session.session_id)
        assert row == {"policy_version": version - 1, "policy_versions": [version - 1, version]}


async def test_a_reload_without_a_publication_is_found_and_one_with_a_name_alone_is_told(
    server: Server, served: Served, up: Up, tell: Any
) -> None:
    version = 200
    async with polar.Fleet(settings.load(up.data)) as controls, asking(server.url) as http:
        served.write(version)
        await load(http, version)
        await controls.publish(version)
        tasks = await asyncio.to_thread(worked, up)
        code, found = await asyncio.to_thread(verified, up, server, tasks)
        assert (code, found["traces_over"], found["unscored"]) == (0, [], {})
        tokens = found["tokens"]
        served.write(version + 1)
        await post(http, "/collective_rpc", {"method": "reload_weights"})
        code, found = await asyncio.to_thread(verified, up, server, tasks)
        tell(
            f"reloaded without a publication: p99 {found['p99']:.1e}, {len(found['traces_over'])} traces over the limit"
        )
        assert (code, len(found["traces_over"])) == (1, found["traces"])
        await load(http, version + 1)
        code, found = await asyncio.to_thread(verified, up, server, tasks)
        assert (code, found["unscored"]) == (0, {"weights_changed": tokens}), "outdated (docs/vllm.md), and said so"


def worked(up: Up) -> list[str]:
    """The tasks of a session in each dialect."""
    tasks = []
    for seed, agent in enumerate(AGENTS.values()):
        with Session.open(up.data, ttl_s=300) as session:
            agent(session.env, Work(seed), Settings())
        tasks.append(session.session_id.rpartition(".")[0])
    return tasks


def verified(up: Up, server: Server, tasks: list[str]) -> tuple[int, dict[str, Any]]:
    """What `polar verify` says of these tasks: its exit code, and its report on the engine."""
    done = up.polar("verify", *tasks, "--engine", server.url, "--limit", "1e-3", "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)["engines"]["default"]
    return done.returncode, report


def rows_of(up: Up, session_id: str) -> list[dict[str, Any]]:
    """A session's calls in the lake, which is some seconds behind."""
    request_fields = f"SELECT policy_version, policy_versions FROM calls WHERE session_id = '{session_id}'"
    found: list[dict[str, Any]] = json.loads(up.polar("sql", request_fields, "--format", "json").stdout)
    return found


async def updated(
    controls: polar.Fleet, http: aiohttp.ClientSession, served: Served, version: int, mode: str = "abort"
) -> None:
    """An update by vLLM's own pause, told to the fleet as it runs."""
    served.write(version, is_vague=True)
    await post(http, f"/pause?mode={mode}")
    await load(http, version)
    await post(http, "/resume")
    await controls.publish(version)


async def long_answer(env: dict[str, str]) -> None:
    async with AsyncOpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0) as client:
        await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "go on for long"}], max_tokens=LONG_TOKENS
        )


async def more_sampled(http: aiohttp.ClientSession, tokens: int, work: asyncio.Task[None]) -> None:
    """Until the server has sampled so many more, or the work that asks for them has ended."""
    before = await sampled_tokens(http)
    async with asyncio.timeout(SAMPLING_S):
        while not work.done() and await sampled_tokens(http) < before + tokens:
            await asyncio.sleep(0.05)


async def sampled_tokens(http: aiohttp.ClientSession) -> float:
    """By the server, since its start."""
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def traces_of(up: Up, sessions: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Of these sessions, as `polar trajectories --format jsonl` writes them."""
    lines = up.polar("trajectories", "--format", "jsonl").stdout.splitlines()
    found = {reported["session_id"]: reported["traces"] for reported in map(json.loads, lines)}
    return {session: found[session] for session in sessions}


def compared(server: Server, traces: list[dict[str, Any]], version: int) -> tuple[Agreement, Agreement]:
    """What the weights served now say of the tokens of this version, and of all others."""
    found: defaultdict[bool, list[Floats]] = defaultdict(list)
    for trace in traces:
        scored = scores(server, trace["token_ids"])
        for call in trace["calls"]:
            found[call["policy_version"] == version].append(deltas(trace, scored, call))
    return Agreement.of(np.concatenate(found[True])), Agreement.of(np.concatenate(found[False]))


def deltas(trace: dict[str, Any], scored: Floats, span: dict[str, Any]) -> Floats:
    """Of a span's tokens: recorded less scored."""
    at = slice(span["start"], span["end"])
    return np.asarray(trace["logprobs"][at]) - scored[at]
