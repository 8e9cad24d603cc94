"""Converts a group into rows to train: one row per trace, with an advantage and a weight for every token.

Invariant: each trained token is in exactly one row. The weights of a session sum to 1 over all its rows (`weigh="session"`), or each token
has weight 1; in both cases the number of traces has no influence. Sessions without a reward give no rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polar.trainer.advantages import Baseline, baselines
from polar.trainer.groups import Group, trained
from topics.types.completion import Medium
from topics.types.tokens import Ids, Logprobs, count
from topics.types.trajectory import Call, Trace, Trajectory, expand, path

Floats = NDArray[np.float32]
Versions = NDArray[np.int64]
UNKNOWN = -1
"""The policy version of a token that isn't trained, or whose version isn't known."""


@dataclass(frozen=True)
class Row:
    """A sequence to train; all arrays have the same length n."""

    session_id: str
    trace: int
    """Index into the trajectory's traces."""
    token_ids: Ids
    """int32 [n]"""
    loss_mask: NDArray[np.uint8]
    """uint8 [n], 1 where trained"""
    logprobs: Logprobs
    """float32 [n], of the policy that sampled the token. Logprobs, advantages and weights are 0 where the mask is 0."""
    advantages: Floats
    """float32 [n]"""
    weights: Floats
    """float32 [n]"""
    policy_versions: Versions
    """int64 [n], -1 where the mask is 0 or the version isn't known"""
    publications: Versions
    """int64 [n], offsets of the records that published these versions; -1 where the mask is 0 or the publication isn't known"""
    media: list[Medium] = field(default_factory=list)
    """The images and sounds among its tokens, in order; `position` is an index into `token_ids`. `media.MediaReader` reads their bytes."""

    def __len__(self) -> int:
        return len(self.token_ids)


def grpo(
    group: Group,
    *,
    by_deviation: bool = True,
    leave_one_out: bool = False,
    weigh: Literal["session", "token"] = "session",
) -> list[Row]:
    """The rows of all sessions with a reward, in the group's order. Traces without a trained token or without a reward give no row.

    A token's reward is that of its call if the evaluator gave one, otherwise that of its trace. `advantages.baselines` explains the
    baseline and its options. `weigh="session"` spreads a weight of 1 evenly over a session's tokens; `weigh="token"` gives each token
    weight 1, for a mean over tokens.
    """
    of_calls = [[call.reward for call in one.calls if call.reward is not None] for one in group.trajectories]
    found = baselines(group.rewards, of_calls=of_calls, by_deviation=by_deviation, leave_one_out=leave_one_out)
    return [
        row
        for trajectory, baseline in zip(group.trajectories, found, strict=True)
        if baseline is not None
        for row in _rows(trajectory, baseline, weigh)
    ]


def _rows(trajectory: Trajectory, baseline: Baseline, weigh: Literal["session", "token"]) -> Iterator[Row]:
    credited = trained(trajectory)
    tokens = sum(count(trajectory.nodes[node].tokens) for trace in credited for node in trace.trains)
    weight = 1 / tokens if weigh == "session" and tokens else 1.0
    for trace in credited:
        yield _row(trajectory, trajectory.traces.index(trace), trace, baseline, weight)


def _row(trajectory: Trajectory, index: int, trace: Trace, baseline: Baseline, weight: float) -> Row:
    expanded = expand(trajectory, trace)
    size = len(expanded.token_ids)
    advantages = np.zeros(size, dtype=np.float32)
    policy_versions = np.full(size, UNKNOWN, dtype=np.int64)
    publications = np.full(size, UNKNOWN, dtype=np.int64)
    trained = set(trace.trains)
    start = 0
    for node in path(trajectory, trace.leaf):
        end = start + count(trajectory.nodes[node].tokens)
        if node in trained:
            call = trajectory.nodes[node].call
            assert call is not None, "a trained node has a call"
            advantages[start:end] = baseline.advantage(reward_of(trajectory.calls[call], trace))
        start = end
    for span in expanded.spans:
        if span.policy_version is not None:
            policy_versions[span.start : span.end] = span.policy_version
        if span.publication is not None:
            publications[span.start : span.end] = span.publication
    return Row(
        trajectory.session_id,
        index,
        expanded.token_ids,
        expanded.loss_mask,
        expanded.logprobs,
        advantages,
        expanded.loss_mask * np.float32(weight),
        policy_versions,
        publications,
        expanded.media,
    )


def reward_of(call: Call, trace: Trace) -> float:
    """The reward of the call's tokens in a trace with a reward: the call's own if the evaluator gave one, otherwise the trace's."""
    assert trace.reward is not None, "a credited trace has a reward"
    return trace.reward if call.reward is None else call.reward
