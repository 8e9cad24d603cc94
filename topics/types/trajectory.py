"""What a session yields: its token tree, each token once, and traces as root-to-leaf paths through it.

`nodes[i].parent < i`; a path's tokens are the concatenation of its nodes'. `Trace.trains` names the nodes of its path whose sampled
tokens are trainable *in this trace*: every sampled token is trainable in exactly one trace, or masked with a reason.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.types.completion import PolicySpan, Sampling
from topics.types.errors import SessionError
from topics.types.session import Accounting, Status
from topics.types.tokens import Ids, Logprobs, count, unpack_ids, unpack_logprobs

ROOT = -1
"""The parent of a node that starts a path."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of this trajectory, without its tokens."""

    call_id: str
    kind: str
    outcome: str
    dialect: str
    received_at: int
    completed_at: int
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    parent: str | None = None
    """The call whose prompt + sampled tokens this one's prompt extends furthest."""
    branch: str | None = None
    """`root`, or why it is no plain continuation of its parent: a reason code; None where it is one, or has no answer."""
    finish_reason: str | None = None
    policy_version: int | None = None
    """Of the weights that sampled it, its first token where `policy_spans` tell more; None: not known."""
    sampling: Sampling = Sampling()
    model_served: str | None = None
    reward: float | None = None
    policy_spans: list[PolicySpan] = []
    """Where weights changed within its answer: over all of its sampled tokens, as in its Completion; empty: `policy_version` is
    every token's."""
    realigned: int = 0
    """Tokens of its prompt that stand as they were sampled where the engine's own rendering spelled them otherwise."""

    def versions(self, start: int, end: int) -> list[tuple[int | None, int, int]]:
        """Of its sampled tokens `[start, end)`: runs of one policy version, each with its own start and end, ascending."""
        if not self.policy_spans:
            return [(self.policy_version, start, end)]
        parts = [(span.version, max(span.start, start), min(span.end, end)) for span in self.policy_spans]
        return [part for part in parts if part[1] < part[2]]


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of tokens that all its descendants share."""

    parent: int
    tokens: bytes
    """int32 LE, not empty."""
    logprobs: bytes | None = None
    """float32 LE, as many as tokens, where these were sampled; None where the model only read them."""
    call: int | None = None
    """Index into `calls` of the call that sampled them; None where the model only read them."""
    masked: str | None = None
    """Why sampled tokens are trained in no trace: a reason code."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path from a root to `leaf`."""

    trace_id: str
    leaf: int
    """Index into `nodes`."""
    trains: list[int]
    """Indexes into `nodes`, on the path, ascending."""
    kind: str = "main"
    reward: float | None = None
    finish_reason: str | None = None


class Stats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts over a trajectory; what is not trained is counted by its reason."""

    calls: int = 0
    answered: int = 0
    traces: int = 0
    tokens: int = 0
    """In the tree, each once."""
    sampled_tokens: int = 0
    trainable_tokens: int = 0
    masked_tokens: dict[str, int] = {}
    branches: dict[str, int] = {}
    drift: dict[str, int] = {}
    late_calls: int = 0
    filtered: dict[str, int] = {}
    """What the task's filters left out, by reason: calls, and for `filtered_short` traces. Their tokens are in `masked_tokens`."""


class Trajectory(msgspec.Struct, frozen=True, tag="trajectory", omit_defaults=True):
    """One session's outcome. Key: session id. Written by the builder that owns its partition, exactly once."""

    session_id: str
    task_id: str
    sample_index: int
    num_samples: int
    attempt: int
    status: Status
    builder: str
    harness: str
    reward: float | None = None
    error: SessionError | None = None
    nodes: list[Node] = []
    calls: list[Call] = []
    traces: list[Trace] = []
    stats: Stats = Stats()
    accounting: Accounting = Accounting()
    artifacts: dict[str, str] | None = None
    metadata: bytes = b"{}"
    """JSON object: the task's."""
    mode: str = "train"
    rebuilt_with: bytes | None = None
    """JSON object, the settings of its builder: `polar rebuild` made it. None: the builder did, once for each session."""

    def expanded(self) -> list[ExpandedTrace]:
        """Its traces written out, in order; made anew at each call."""
        return [expand(self, trace) for trace in self.traces]

    def task_metadata(self) -> dict[str, Any]:
        """The task's `metadata`, decoded."""
        decoded: dict[str, Any] = msgspec.json.decode(self.metadata)
        return decoded


class GroupFinished(msgspec.Struct, frozen=True, tag="group_finished", omit_defaults=True):
    """After the last trajectory of a task, in the same partition. Key: task id."""

    task_id: str
    num_samples: int
    session_ids: list[str]
    rewards: list[float | None]
    """By sample index; None where no evaluator gave one."""
    statuses: list[Status]
    rebuilt: bool = False
    """`polar rebuild` wrote it."""


class Span(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of an expanded trace that one call sampled, by weights of one version."""

    call: Call
    start: int
    end: int
    policy_version: int | None = None
    """None: not known."""


class ExpandedTrace(msgspec.Struct, frozen=True):
    """A trace as a trainer wants it; the three arrays are equally long."""

    trace: Trace
    token_ids: Ids
    """int32 [n]"""
    loss_mask: NDArray[np.uint8]
    """uint8 [n], 1 where trained"""
    logprobs: Logprobs
    """float32 [n], 0.0 where the mask is 0"""
    spans: list[Span]
    """Trained spans, ascending."""


def path(trajectory: Trajectory, leaf: int) -> list[int]:
    """Node indexes from the root to `leaf`."""
    found: list[int] = []
    while leaf != ROOT:
        found.append(leaf)
        leaf = trajectory.nodes[leaf].parent
    return found[::-1]


def expand(trajectory: Trajectory, trace: Trace) -> ExpandedTrace:
    """Write a trace out: ids, loss mask and logprobs along its path."""
    indexes = path(trajectory, trace.leaf)
    nodes = [trajectory.nodes[i] for i in indexes]
    total = sum(count(node.tokens) for node in nodes)
    ids = np.empty(total, dtype=np.int32)
    mask = np.zeros(total, dtype=np.uint8)
    logprobs = np.zeros(total, dtype=np.float32)
    spans: list[Span] = []
    trained = set(trace.trains)
    at = first = 0
    sampler: int | None = None
    for index, node in zip(indexes, nodes, strict=True):
        if node.call != sampler:
            # The nodes of one call follow one another: here its answer begins.
            first, sampler = at, node.call
        end = at + count(node.tokens)
        ids[at:end] = unpack_ids(node.tokens)
        if index in trained:
            assert node.logprobs is not None, "a trained node was sampled"
            assert node.call is not None, "a trained node has a call"
            mask[at:end] = 1
            logprobs[at:end] = unpack_logprobs(node.logprobs)
            call = trajectory.calls[node.call]
            runs = call.versions(at - first, end - first)
            spans += [Span(call, first + start, first + stop, version) for version, start, stop in runs]
        at = end
    return ExpandedTrace(trace, ids, mask, logprobs, spans)
