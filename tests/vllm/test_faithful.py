"""Token faithful, by vLLM's own word: agents of all four dialects work through `polar up`, and vLLM scores every trace again.

Real: the server and its weights, Kafka, proxy, builder, the providers' clients. The model is tiny and trained to call tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import polar
from examples.vllm_cpu.serve import Server
from polar.verification.distribution import ALL, Floats, sampled_logprobs
from tests.acceptance.up.running import Up
from tests.vllm.agents import AGENTS, Agent, Settings
from tests.vllm.scoring import Agreement, rows, scores
from tests.vllm.work import Work
from topics import trajectories
from topics.environment import settings as environment_settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.completion import Sampling
from topics.types.tokens import pack_ids, unpack_ids
from topics.types.trajectory import ROOT, Trajectory

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    # How Google's client makes its own sessions of aiohttp.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

SESSIONS = 6
"""Of each dialect."""
AT_ONCE = 8
LIMIT = 1e-3
"""Nats: p99 of what `polar verify` accepts of float32."""
CHANGED = 3
"""Place of a token in the first message."""
OTHERS = {
    "cooler": Settings(temperature=0.7),
    "top_p": Settings(temperature=1.0, top_p=0.9),
    "top_k": Settings(temperature=1.3, top_k=8),
    "all": Settings(temperature=1.2, top_p=0.95, top_k=20),
}
"""Sampling that isn't the plain distribution; only `--mode eval` leaves it to the agent."""


@dataclass(frozen=True)
class Session:
    """What an agent had, and what came of it."""

    answers: int
    traces: list[Trace]


@dataclass(frozen=True)
class Trace:
    """A trace as `polar trajectories --format jsonl` writes it."""

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    calls: list[dict[str, Any]]

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Where the mask is 1."""
        return np.array(self.loss_mask, bool)

    def deltas(self, scored: Floats) -> Floats:
        """Of the trained tokens: recorded less scored."""
        differences: Floats = (np.array(self.logprobs) - scored)[self.trained]
        return differences


@pytest.fixture(scope="module", params=["chat", "tokens"])
def up(request: pytest.FixtureRequest, vllm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A system in each mode."""
    running = Up(tmp_path_factory.mktemp(request.param), "--engine", vllm_server.url, "--mode", request.param)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait()


@pytest.fixture(scope="module")
def plain(up: Up) -> dict[str, list[Session]]:
    """Sessions by dialect, sampled as training does: temperature 1, nothing truncated."""
    runs = [(name, Settings(), seed) for name in AGENTS for seed in range(SESSIONS)]
    sessions = worked(up, runs, mode="train")
    return {name: sessions[at * SESSIONS : (at + 1) * SESSIONS] for at, name in enumerate(AGENTS)}


def worked(up: Up, runs: Sequence[tuple[str, Settings, int]], *, mode: Literal["train", "eval"]) -> list[Session]:
    """A session for each agent, settings and seed of the work; what came out of each."""

    def work(one: tuple[str, Settings, int]) -> tuple[str, int]:
        name, settings, seed = one
        agent: Agent = AGENTS[name]
        with polar.Session.open(up.data, mode=mode, ttl_s=300) as session:
            return session.session_id, agent(session.env, Work(seed), settings)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(work, runs))
    topic = ["--topic", "eval"] if mode == "eval" else []
    lines = up.polar("trajectories", *topic, "--format", "jsonl").stdout.splitlines()
    found = {line["session_id"]: line["traces"] for line in map(json.loads, lines)}
    return [
        Session(answers, [trace_of(trajectory) for trajectory in found[session_id]]) for session_id, answers in ended
    ]


def trace_of(trajectory: Mapping[str, Any]) -> Trace:
    return Trace(*(trajectory[name] for name in ("token_ids", "loss_mask", "logprobs", "calls")))


def traces_of(sessions: Mapping[str, Sequence[Session]]) -> list[Trace]:
    return [trace for group in sessions.values() for session in group for trace in session.traces]


@pytest.mark.parametrize("dialect", AGENTS)
def test_sessions_with_tools_become_traces_that_hold_every_call(
    plain: dict[str, list[Session]], dialect: str, tell: Any
) -> None:
    sessions = plain[dialect]
    for session in sessions:
        calls = [call["call_id"] for trace in session.traces for call in trace.calls]
        assert len(set(calls)) == session.answers
    longest = max(len(trace.calls) for session in sessions for trace in session.traces)
    answers, traces = sum(one.answers for one in sessions), sum(len(one.traces) for one in sessions)
    tell(f"{dialect}: {len(sessions)} sessions, {answers} answers, {traces} traces, the longest of {longest} calls")
    assert longest >= 3, "no conversation with tools was merged"


def test_vllm_scores_every_trace_as_it_was_recorded(
    vllm_server: Server, plain: dict[str, list[Session]], tell: Any
) -> None:
    traces = traces_of(plain)
    agreement = Agreement.of(np.concatenate([trace.deltas(scores(vllm_server, trace.token_ids)) for trace in traces]))
    tell(f"{len(traces)} traces: {agreement}")
    assert agreement.is_faithful


def test_verify_scores_every_session_and_tells_every_prompt_with_one_changed_token(
    vllm_server: Server, up: Up, plain: dict[str, list[Session]], tell: Any
) -> None:
    count = sum(map(len, plain.values()))
    command = ("verify", "--sample", "100%", "--engine", vllm_server.url, "--limit", str(LIMIT), "--format", "json")
    done = up.polar(*command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["engines"]["default"]
    tell(f"verify: {count} sessions, {found['tokens']} tokens, p99 {found['p99']:.1e}, max {found['max']:.1e}")
    assert found["tokens"] == sum(int(trace.trained.sum()) for trace in traces_of(plain))
    assert (found["traces_over"], found["unscored"]) == ([], {})
    planted = asyncio.run(with_other_prompts(up, "planted"))
    done = up.polar(*command, "--topic", "planted")
    assert done.returncode == 1
    told = json.loads(done.stdout)["engines"]["default"]["traces_over"]
    tell(f"one token of each prompt changed: {len(told)} of {planted} traces are told, least p99 {told[-1]['p99']:.1e}")
    assert len(told) == planted


async def with_other_prompts(up: Up, output: str) -> int:
    """Writes all trajectories once more, to this output, each with another token in its prompts; how many traces these are."""
    found = environment_settings.load(up.data)
    topic = trajectories.topic(output)
    made: list[Trajectory] = []
    follower = Follower(
        found, trajectories.TOPIC, lambda record, _: made.append(record), since=Since.BEGINNING, committed=True
    )
    await follower.start()
    await follower.stop()
    await admin.apply(found, [topic], embedded=True)
    producer = LogProducer(found)
    await producer.start()
    changed = [other_prompt(each) for each in made if isinstance(each, Trajectory)]
    for each in changed:
        await producer.send(topic, each, key=each.session_id, task_id=each.task_id)
    await producer.stop()
    return sum(len(each.traces) for each in changed)


def other_prompt(trajectory: Trajectory) -> Trajectory:
    """In each root of the tree a token of the request is its neighbour in the vocabulary."""
    nodes = [
        msgspec.structs.replace(node, tokens=with_other_token(node.tokens)) if node.parent == ROOT else node
        for node in trajectory.nodes
    ]
    return msgspec.structs.replace(trajectory, nodes=nodes)


def with_other_token(tokens: bytes) -> bytes:
    ids = unpack_ids(tokens).tolist()
    ids[CHANGED] += 1
    return pack_ids(ids)


@pytest.mark.parametrize("tampering", ["tokens shifted by one", "neighbours swapped", "logprobs shifted by one"])
def test_the_score_shows_what_is_wrong(
    vllm_server: Server, plain: dict[str, list[Session]], tampering: str, tell: Any
) -> None:
    traces = [tampered(trace, tampering) for trace in traces_of(plain)[:: SESSIONS // 2]]
    deltas = [trace.deltas(scores(vllm_server, trace.token_ids)) for trace in traces]
    found, together = [Agreement.of(one) for one in deltas], Agreement.of(np.concatenate(deltas))
    tell(f"{tampering}, {len(traces)} traces: {together}; least {min(found, key=lambda one: one.p99)}")
    assert not any(agreement.is_faithful for agreement in found)
    assert together.largest > 1.0


def tampered(trace: Trace, how: str) -> Trace:
    """Each call's sampled tokens, or their logprobs, moved within the call; mask and prompt stay."""
    ids, logprobs = list(trace.token_ids), list(trace.logprobs)
    for call in trace.calls:
        start, end = call["start"], call["end"]
        match how:
            case "tokens shifted by one":
                ids[start:end] = [*ids[start + 1 : end], ids[start]]
            case "neighbours swapped":
                at = next((one for one in range(start, end - 1) if ids[one] != ids[one + 1]), None)
                if at is not None:
                    ids[at], ids[at + 1] = ids[at + 1], ids[at]
            case _:
                logprobs[start:end] = [*logprobs[start + 1 : end], logprobs[start]]
    return Trace(ids, trace.loss_mask, logprobs, trace.calls)


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_other_sampling_agrees_after_the_same_transform(
    vllm_server: Server, up: Up, settings: Settings, tell: Any
) -> None:
    sessions = worked(up, [(name, settings, 100) for name in AGENTS], mode="eval")
    deltas, unlike = [], []
    for trace in (trace for session in sessions for trace in session.traces):
        plain = rows(vllm_server, trace.token_ids, ALL)
        unlike.append(trace.deltas(plain[:, 0]))
        for call in trace.calls:
            span = slice(call["start"], call["end"])
            expected = sampled_logprobs(plain[span], msgspec.convert(call["sampling"], Sampling))
            deltas.append((np.array(trace.logprobs[span]) - expected)[trace.trained[span]])
    agreement = Agreement.of(np.concatenate(deltas))
    tell(f"{settings}: {agreement}")
    assert agreement.is_faithful
    assert not Agreement.of(np.concatenate(unlike)).is_faithful, "without the transform they would agree, too"
