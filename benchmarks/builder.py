"""Building a trajectory by prefix merging: time and memory.

    python -m benchmarks.builder [--format table|json]

One process, no Kafka; calls of random ids, 300 tokens new and 100 sampled in each, as records hold them. `growing` is one conversation,
`drifting` leaves each answer after its tenth token (as a harness that rewrites history does), `in full` has every prompt whole, as after
a proxy's restart. Time is the best of three, memory the peak of what the build allocates.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from benchmarks import report
from benchmarks.report import Figure
from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from polar.types.session import Status
from polar.types.tokens import IDS, Ids, pack_ids, pack_logprobs
from topics.completions import Build

READ = 300
SAMPLED = 100
DRIFT = 10
"""Tokens of an answer that a drifting conversation keeps."""
VOCABULARY = 150_000
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
    cases: list[tuple[str, Callable[[int], list[Completion]], int]] = [
        ("growing", growing, 50),
        ("growing", growing, 1000),
        ("drifting", drifting, 1000),
        ("in full", in_full, 300),
    ]
    figures: list[Figure] = []
    for name, make, turns in cases:
        source = BuiltFrom(BUILD, make(turns))
        figures += [
            Figure(f"{turns} turns, {name}: time", fastest(source) * 1e3, "ms"),
            Figure(f"{turns} turns, {name}: memory", peak(source) / 1e6, "MB"),
        ]
    return figures


def growing(turns: int) -> list[Completion]:
    """Each prompt is the one before it, its answer, and 300 tokens more."""
    return conversation(turns, SAMPLED)


def drifting(turns: int) -> list[Completion]:
    """Each prompt has the first tokens of the last answer only."""
    return conversation(turns, DRIFT)


def conversation(turns: int, kept: int) -> list[Completion]:
    """Deltas against the call before, of whose answer `kept` tokens stay."""
    random = np.random.default_rng(0)
    calls: list[Completion] = []
    shared = 0
    for turn in range(turns):
        base = f"c{turn - 1}" if turn else None
        calls.append(call(random, turn, TokenDelta(pack_ids(ids(random, READ)), shared=shared, base=base)))
        shared += READ + kept
    return calls


def in_full(turns: int) -> list[Completion]:
    """A growing conversation without deltas."""
    random = np.random.default_rng(0)
    calls: list[Completion] = []
    history: Ids = np.empty(0, IDS)
    for turn in range(turns):
        prompt = np.concatenate((history, ids(random, READ)))
        answer = ids(random, SAMPLED)
        calls.append(call(random, turn, TokenDelta(pack_ids(prompt)), answer))
        history = np.concatenate((prompt, answer))
    return calls


def call(random: np.random.Generator, turn: int, prompt: TokenDelta, answer: Ids | None = None) -> Completion:
    """An answered call; a random answer where none is given."""
    return Completion(
        call_id=f"c{turn}",
        session_id=BUILD.session_id,
        attempt=BUILD.attempt,
        claim_id=BUILD.claim_id,
        outcome=CallOutcome.ANSWERED,
        dialect="openai_chat",
        engine="default",
        received_at=turn,
        completed_at=turn,
        prompt=prompt,
        messages=MessageDelta(rest=b"[]"),
        sampled=pack_ids(ids(random, SAMPLED) if answer is None else answer),
        logprobs=pack_logprobs(-random.random(SAMPLED, np.float32)),
        finish_reason="stop",
    )


def ids(random: np.random.Generator, count: int) -> Ids:
    """Random token ids, int32 [count]."""
    return random.integers(0, VOCABULARY, count, dtype=IDS)


def fastest(source: BuiltFrom) -> float:
    """Seconds, the best of three."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        PrefixMerging().build(source)
        times.append(time.perf_counter() - began)
    return min(times)


def peak(source: BuiltFrom) -> int:
    """The most bytes that a build holds, its result included."""
    tracemalloc.start()
    PrefixMerging().build(source)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


if __name__ == "__main__":
    report.main(__doc__, run)
