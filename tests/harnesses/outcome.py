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
from tests.consumers.harnesses.conftest import Model
from tests.consumers.token_tree.transcripts import build_record
from topics.types.completion import Completion
from topics.types.tokens import common_prefix, unpack_ids, unpack_logprobs
from topics.types.trajectory import Trajectory

SHOWN = 300
"""Characters."""


@dataclass(frozen=True)
class Outcome:
    """One session."""

    calls: list[Completion]
    trajectory: Trajectory
    samples: list[dict[str, Any]]
    """The scripted engine's record."""

    def playing(self, script: str) -> list[Completion]:
        """The calls whose answers came from a script, in order."""
        said = [sample["token_ids"] for sample in self.samples if (sample["script"] or "").startswith(f"{script}/")]
        return [each for each in self.calls if unpack_ids(each.sampled).tolist() in said]

    @property
    def kinds(self) -> Counter[str]:
        """Of calls that aren't the main agent's."""
        return Counter(each.kind for each in self.calls if each.kind != "main")

    @property
    def merge_rate(self) -> float:
        """1 where all calls are one trace, 0 where each is one of its own."""
        return 1 - (len(self.trajectory.traces) - 1) / max(len(self.calls) - 1, 1)


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


def assert_one_trace(outcome: Outcome, calls: list[Completion]) -> None:
    """Just these calls are one of the session's traces, which trains what they sampled, in order."""
    ids = [each.call_id for each in calls]
    found = [each for each in outcome.trajectory.expanded() if [span.call.call_id for span in each.spans] == ids]
    assert len(found) == 1, partings(outcome)
    (trace,) = found
    trained = [(list(trace.token_ids[s.start : s.end]), list(trace.logprobs[s.start : s.end])) for s in trace.spans]
    assert trained == [_sampled(each) for each in calls]


def assert_traces(outcome: Outcome, *traces: list[Completion]) -> None:
    """As `assert_one_trace` for each; the session has no others."""
    for calls in traces:
        assert_one_trace(outcome, calls)
    assert len(outcome.trajectory.traces) == len(traces)


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
