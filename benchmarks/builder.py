"""Building trajectories: time and memory, a retry in mid-session, and rows under both strategies.

    python -m benchmarks.builder [--format table|json]

One process, no Kafka; calls of random ids as the proxy's records hold them, hash chains included: 300 tokens new and 100 sampled in each.
`growing` is one conversation, `drifting` leaves each answer after its tenth token (as a harness that rewrites history does), `in full` has
every prompt whole, as after a proxy's restart, `independent` calls share a system prompt and have 12 tokens new and 20 sampled each. Time
is the best of three, memory the peak of what the build allocates. NVIDIA's algorithm (`benchmarks.nvidia_merging`) runs at 100 and 200
turns; 1,000 are extrapolated by the square, which is how it grows.
"""

from __future__ import annotations

import functools
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import report
from benchmarks.nvidia_merging import Asked, Merged, merged
from benchmarks.report import Figure
from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from topics import completions
from topics.calls.delta import PromptIndex
from topics.completions import Build
from topics.contract.codec import encode
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.session import Status
from topics.types.tokens import IDS, Ids, pack_ids, pack_logprobs
from topics.types.trajectory import Trajectory, expand

READ = 300
SAMPLED = 100
DRIFT = 10
"""Tokens of an answer that a drifting conversation keeps."""
END_OF_TURN = 1
"""Every answer's last token: their algorithm splits there, ours has no need of it."""
VOCABULARY = 150_000
TURNS = 1000
THEIRS = (100, 200)
SESSIONS = 200
SESSION_TURNS = 50
GROUP = 16
ROW_BYTES = 9
"""A token of a row written out: int32 id, float32 logprob, uint8 mask."""
BUILD = Build(
    session_id="t.0",
    task_id="t",
    sample_index=0,
    num_samples=1,
    attempt=1,
    claim_id="claim",
    status=Status.COMPLETED,
    builder="prefix_merging",
    builder_config=b"{}",
    harness="shell",
    reward=1.0,
)


def run() -> list[Figure]:
    """All figures."""
    return [*ours(), *theirs(), *retried(), sessions_a_second(), *group()]


def ours() -> list[Figure]:
    """Prefix merging by shape of the session."""
    cases: list[tuple[str, Session, str, str]] = [
        ("50 turns, growing", growing(50), "", ""),
        (f"{TURNS // 2} turns, growing", growing(TURNS // 2), "", ""),
        (f"{TURNS} turns, growing", growing(TURNS), "< 300", "linear in unique tokens"),
        (f"{TURNS} turns, drifting", drifting(TURNS), "", ""),
        ("300 turns, in full", growing(300, in_full=True), "", ""),
        ("400 calls, independent", independent(400), "", ""),
        (f"{TURNS} calls, independent", independent(TURNS), "< 300", ""),
    ]
    figures: list[Figure] = []
    for name, session, in_time, in_memory in cases:
        build = functools.partial(PrefixMerging().build, BuiltFrom(BUILD, session.calls))
        figures += [
            Figure(f"{name}: time", fastest(build) * 1e3, "ms", in_time),
            Figure(f"{name}: memory", peak(build) / 1e6, "MB", in_memory),
        ]
    return figures


def theirs() -> list[Figure]:
    """NVIDIA's algorithm on the same growing sessions, and what the largest says of `TURNS`."""
    figures: list[Figure] = []
    for turns in THEIRS:
        asked = growing(turns).as_asked()
        build = functools.partial(merged, asked)
        took, held = fastest(build, tries=1), peak(build)
        figures += [
            Figure(f"{turns} turns, growing, NVIDIA's: time", took * 1e3, "ms"),
            Figure(f"{turns} turns, growing, NVIDIA's: memory", held / 1e6, "MB"),
        ]
    square = (TURNS / turns) ** 2
    return [
        *figures,
        Figure(f"{TURNS} turns, growing, NVIDIA's, extrapolated: time", took * square * 1e3, "ms"),
        Figure(f"{TURNS} turns, growing, NVIDIA's, extrapolated: memory", held * square / 1e6, "MB"),
    ]


def retried() -> list[Figure]:
    """A session whose client asked one question twice, in the middle, and went on from the second answer."""
    session = growing(100, retry_at=50)
    built = PrefixMerging().build(BuiltFrom(BUILD, session.calls))
    used = built.stats.sampled_tokens - SAMPLED  # the first answer went unused
    return [
        Figure("one retry in 100 turns: of what was used, trained", built.stats.trainable_tokens / used, "", "1"),
        Figure("one retry in 100 turns, NVIDIA's", trained_of(merged(session.as_asked())) / used, ""),
    ]


def trained_of(traces: Sequence[Merged]) -> int:
    return sum(trace.trained for trace in traces)


def sessions_a_second() -> Figure:
    """Whole builds, from records as bytes to a trajectory as bytes, by CPU time: what one core does."""
    sessions = [[encode(call) for call in growing(SESSION_TURNS, seed=seed).calls] for seed in range(SESSIONS)]
    began = time.process_time()
    for records in sessions:
        calls = [call for call in map(completions.CODEC.decode, records) if isinstance(call, Completion)]
        encode(PrefixMerging().build(BuiltFrom(BUILD, calls)))
    rate = SESSIONS / (time.process_time() - began)
    return Figure(f"sessions of {SESSION_TURNS} turns", rate, "a second of one core", "≥ 200")


def group() -> list[Figure]:
    """A group of 16 samples, of 20 to 50 turns each, an edit in the middle of every fourth."""
    random = np.random.default_rng(0)
    sources = []
    for index in range(GROUP):
        turns = int(random.integers(20, 51))
        session = growing(turns, seed=index, edit_at=turns // 2 if index % 4 == 0 else None)
        sources.append(BuiltFrom(BUILD, session.calls))
    figures: list[Figure] = []
    for name, builder in (("per_request", PerRequest()), ("prefix_merging", PrefixMerging())):
        built = [builder.build(source) for source in sources]
        tokens = sum(len(expand(one, trace).token_ids) for one in built for trace in one.traces)
        figures += [
            Figure(f"group of {GROUP}, {name}: rows", sum(len(one.traces) for one in built), "rows"),
            Figure(f"group of {GROUP}, {name}: tokens in rows", tokens, "tokens"),
            Figure(f"group of {GROUP}, {name}: rows written out", tokens * ROW_BYTES / 1e6, "MB"),
            Figure(f"group of {GROUP}, {name}: on Kafka, before compression", on_kafka(built) / 1e6, "MB"),
        ]
    return figures


def on_kafka(built: Sequence[Trajectory]) -> int:
    """Bytes of their records: the tree has each token once, whatever the traces."""
    return sum(len(encode(one)) for one in built)


class Session:
    """Calls as they are made: each prompt's delta is the proxy's own, chain included."""

    def __init__(self, seed: int, *, in_full: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        self._index = PromptIndex()
        self._in_full = in_full
        self._prompts: list[Ids] = []
        self.calls: list[Completion] = []

    def ask(self, history: Ids) -> Ids:
        """A call with 300 tokens more than `history`; prompt and answer."""
        prompt = np.concatenate((history, self._random.integers(2, VOCABULARY, READ, dtype=IDS)))
        return self.ask_again(prompt)

    def ask_again(self, prompt: Ids, sampled: int = SAMPLED) -> Ids:
        answer = self._random.integers(2, VOCABULARY, sampled, dtype=IDS)
        answer[-1] = END_OF_TURN
        written = self._index.encode(prompt)
        if self._in_full:
            written = TokenDelta(pack_ids(prompt), chain=written.chain)
        call_id = f"c{len(self.calls)}"
        logprobs = -self._random.random(sampled, np.float32)
        self.calls.append(call(call_id, len(self.calls), written, answer, pack_logprobs(logprobs)))
        self._index.add(call_id, prompt, answer)
        self._prompts.append(prompt)
        return np.concatenate((prompt, answer))

    def as_asked(self) -> list[Asked]:
        """The same as their algorithm gets it."""
        return [
            Asked(
                prompt.tolist(), np.frombuffer(one.sampled, IDS).tolist(), np.frombuffer(one.logprobs, "<f4").tolist()
            )
            for prompt, one in zip(self._prompts, self.calls, strict=True)
        ]


def growing(
    turns: int, *, seed: int = 0, in_full: bool = False, retry_at: int | None = None, edit_at: int | None = None
) -> Session:
    """Each prompt is the one before it, its answer, and 300 tokens more; `edit_at` keeps ten tokens of that turn's answer."""
    session = Session(seed, in_full=in_full)
    history: Ids = np.empty(0, IDS)
    for turn in range(turns):
        full = session.ask(history)
        if turn == retry_at:
            full = session.ask_again(full[:-SAMPLED])
        history = full[: -SAMPLED + DRIFT] if turn == edit_at else full
    return session


def drifting(turns: int) -> Session:
    """Each prompt has the first tokens of the last answer only."""
    session = Session(0)
    history: Ids = np.empty(0, IDS)
    for _ in range(turns):
        history = session.ask(history)[: -SAMPLED + DRIFT]
    return session


def independent(calls: int) -> Session:
    """A system prompt, and short questions that have nothing else in common."""
    session = Session(0)
    random = np.random.default_rng(1)
    system = random.integers(2, VOCABULARY, READ, dtype=IDS)
    for _ in range(calls):
        session.ask_again(np.concatenate((system, random.integers(2, VOCABULARY, 12, dtype=IDS))), sampled=20)
    return session


def call(call_id: str, turn: int, prompt: TokenDelta, answer: Ids, logprobs: bytes) -> Completion:
    """An answered call."""
    return Completion(
        call_id=call_id,
        session_id=BUILD.session_id,
        attempt=BUILD.attempt,
        claim_id=BUILD.claim_id,
        outcome=CallOutcome.ANSWERED,
        dialect="openai_chat",
        engine="default",
        received_at=2 * turn,
        completed_at=2 * turn + 1,
        prompt=prompt,
        messages=MessageDelta(rest=b"[]"),
        sampled=pack_ids(answer),
        logprobs=logprobs,
        finish_reason="stop",
    )


def fastest(build: Callable[[], object], tries: int = 3) -> float:
    """Seconds, the best of `tries`."""
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        build()
        times.append(time.perf_counter() - began)
    return min(times)


def peak(build: Callable[[], object]) -> int:
    """The most bytes that a build holds, its result included."""
    tracemalloc.start()
    kept = build()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return most


if __name__ == "__main__":
    report.main(__doc__, run)
