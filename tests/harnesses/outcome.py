"""What came of a run: the log's calls, the trajectory that the builder makes of them, and whether it says what the engine sampled."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.scripted.tokenizer import Tokenizer
from polar.types.completion import Completion
from polar.types.tokens import common_prefix, unpack_ids, unpack_logprobs
from polar.types.trajectory import ExpandedTrace, Trajectory
from tests.consumers.builders.transcripts import build_record
from tests.consumers.harnesses.conftest import Model

MAIN = ("main", "compaction")
"""Kinds of calls that are the main agent's own work."""
SHOWN = 300
"""Characters."""


@dataclass(frozen=True)
class Outcome:
    """One session."""

    calls: list[Completion]
    trajectory: Trajectory
    samples: list[dict[str, Any]]
    """The scripted engine's record."""

    @property
    def main(self) -> list[Completion]:
        return [each for each in self.calls if each.kind in MAIN]

    @property
    def main_traces(self) -> list[ExpandedTrace]:
        return [each for each in self.trajectory.expanded() if each.trace.kind in MAIN]

    @property
    def side(self) -> Counter[str]:
        return Counter(each.kind for each in self.calls if each.kind not in MAIN)

    @property
    def merge_rate(self) -> float:
        """How many of the main calls that could go on from another do: 1 where all are one trace."""
        return 1 - (len(self.main_traces) - 1) / max(len(self.main) - 1, 1)


async def outcome_of(served: Model) -> Outcome:
    """Once all calls are on the log: one for each that the engine sampled."""
    samples = served.samples()
    calls = await served.bench.calls(len(samples))
    session = BuiltFrom(build_record(claim_id="c1"), calls)
    return Outcome(calls, PrefixMerging().build(session), samples)


def assert_captured(outcome: Outcome, dialect: str) -> None:
    """Every call is on the log in its dialect, token for token and logprob for logprob as the engine sampled it."""
    assert {each.dialect for each in outcome.calls} == {dialect}
    assert {each.outcome.value for each in outcome.calls} == {"answered"}
    sampled = [(sample["token_ids"], sample["logprobs"]) for sample in outcome.samples]
    logged = [_sampled(each) for each in outcome.calls]
    assert sorted(logged) == sorted(sampled)


def assert_one_trace(outcome: Outcome) -> None:
    """All main calls are one trace, which trains just what they sampled, in order."""
    assert len(outcome.main_traces) == 1, partings(outcome)
    (trace,) = outcome.main_traces
    assert [span.call.call_id for span in trace.spans] == [each.call_id for each in outcome.main]
    trained = [(list(trace.token_ids[s.start : s.end]), list(trace.logprobs[s.start : s.end])) for s in trace.spans]
    assert trained == [_sampled(each) for each in outcome.main]


def partings(outcome: Outcome) -> str:
    """For people: where the engine's prompts stop to be continuations of the one before."""
    tokenizer = Tokenizer()
    found = []
    for before, after in itertools.pairwise(outcome.samples):
        known = before["prompt_token_ids"] + before["token_ids"]
        at = common_prefix(np.array(known, np.int32), np.array(after["prompt_token_ids"], np.int32))
        if at < len(known):
            was, came = tokenizer.decode(known[at:]), tokenizer.decode(after["prompt_token_ids"][at:])
            lead = tokenizer.decode(known[max(at - 40, 0) : at])
            found.append(f"call {after['call']} after …{lead!r}\n  had {was[:SHOWN]!r}\n  has {came[:SHOWN]!r}")
    return "\n".join(found)


def _sampled(each: Completion) -> tuple[list[int], list[float]]:
    return unpack_ids(each.sampled).tolist(), unpack_logprobs(each.logprobs).tolist()
