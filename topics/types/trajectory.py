"""A session's trajectory: its token tree, which holds each token once, and traces, which are root-to-leaf paths through it.

`nodes[i].parent < i`, and a path's tokens are the concatenation of its nodes' tokens. `Trace.trains` names the nodes of its path whose
sampled tokens are trainable *in this trace*: every sampled token is trainable in exactly one trace, or masked with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from topics.types.completion import Medium, PolicySpan, Sampling
from topics.types.errors import SessionError
from topics.types.session import Accounting, Status
from topics.types.tokens import Ids, Logprobs, count, unpack_ids, unpack_logprobs

ROOT = -1
"""The parent of a node that starts a path."""


class SameWeights(NamedTuple):
    """Sampled tokens `[start, end)` of one version and publication."""

    version: int | None
    """None: unknown."""
    publication: int | None
    """As `Completion.publication`."""
    start: int
    end: int


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
    """The call whose prompt + sampled tokens are the longest prefix of this call's prompt."""
    branch: str | None = None
    """`root`, or the reason code why the call doesn't simply continue its parent; None if it does, or has no answer."""
    finish_reason: str | None = None
    policy_version: int | None = None
    """Version of the weights that sampled it, or its first token if `policy_spans` is set; None: unknown."""
    sampling: Sampling = Sampling()
    model_served: str | None = None
    reward: float | None = None
    policy_spans: list[PolicySpan] = []
    """Set if weights changed within the answer, as in its Completion; empty: `policy_version` holds for every token."""
    realigned: int = 0
    """Prompt tokens kept as they were sampled, where the engine's own rendering would spell them differently."""
    engine: str = ""
    """Its name in the proxy's settings; empty in older records."""
    logprobs_mode: str = "unknown"
    """`raw`, `processed` (after temperature and truncation), or `unknown`, as in older records."""
    publication: int | None = None
    """As in its Completion: with `policy_version` it identifies the weights."""
    prompt_doubt: str | None = None
    """As in its Completion; its tokens are masked."""
    media: int = 0
    """Images and sounds in its prompt; nodes name them."""
    routed_experts: str | None = None
    """As in its Completion."""
    sampling_mask: str | None = None
    """As in its Completion."""
    uncaptured: dict[str, str] = {}
    """As in its Completion."""
    client: str | None = None
    """As in its Completion."""
    error_code: str | None = None
    """Why there is no answer, as `error.code` in its Completion; None: there is one, or an older builder wrote it."""

    def weights(self, start: int, end: int) -> list[SameWeights]:
        """The runs of equal weights within the sampled tokens `[start, end)`, ascending."""
        if not self.policy_spans:
            return [SameWeights(self.policy_version, self.publication, start, end)]
        parts = [
            SameWeights(span.version, span.publication, max(span.start, start), min(span.end, end))
            for span in self.policy_spans
        ]
        return [part for part in parts if part.start < part.end]


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of tokens that all its descendants share."""

    parent: int
    tokens: bytes
    """int32 LE, not empty."""
    logprobs: bytes | None = None
    """float32 LE, one for each sampled token; None for tokens that the model only read."""
    call: int | None = None
    """Index into `calls` of the call that sampled the tokens; None for tokens that the model only read."""
    masked: str | None = None
    """Reason code if the sampled tokens are trainable in no trace."""
    media: list[Medium] = []
    """The images and sounds that begin in it; a `position` counts from the node's first token."""


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
    """Counts over a trajectory, with tokens that aren't trainable by reason."""

    calls: int = 0
    answered: int = 0
    traces: int = 0
    tokens: int = 0
    """Tokens in the tree."""
    sampled_tokens: int = 0
    trainable_tokens: int = 0
    masked_tokens: dict[str, int] = {}
    branches: dict[str, int] = {}
    drift: dict[str, int] = {}
    late_calls: int = 0
    filtered: dict[str, int] = {}
    """Calls that the task's filters left out, by reason, and traces for `filtered_short`. `masked_tokens` counts their tokens."""


class Trajectory(msgspec.Struct, frozen=True, tag="trajectory", omit_defaults=True):
    """A session's outcome. Key: session id. Written exactly once, by the builder that owns its partition."""

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
    """The task's metadata, a JSON object."""
    mode: str = "train"
    rebuilt_with: bytes | None = None
    """JSON object of builder settings if `polar rebuild` made it; None: the builder made it, once per session."""
    reward_reason: str | None = None
    """Why the reward is what it is: the evaluator's words, or the error of the evaluation; None: no reason was given."""
    run: str | None = None
    """The task's run; None: of no run, or an older coordinator or builder wrote it."""
    label: str | None = None
    """The user's name for an opened session; None: none."""

    def expanded(self) -> list[ExpandedTrace]:
        """Its expanded traces, in order; expanded again at each call."""
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
    """By sample index; None without a reward."""
    statuses: list[Status]
    rebuilt: bool = False
    """True if `polar rebuild` wrote it."""
    run: str | None = None
    """As in its trajectories."""


class Span(msgspec.Struct, frozen=True):
    """Tokens `[start, end)` of an expanded trace that one call sampled with the same weights."""

    call: Call
    start: int
    end: int
    policy_version: int | None = None
    """None: unknown."""
    publication: int | None = None
    """As `Call.publication`: with the version it identifies the weights."""


class ExpandedTrace(msgspec.Struct, frozen=True):
    """A trace as arrays of equal length."""

    trace: Trace
    token_ids: Ids
    """int32 [n]"""
    loss_mask: NDArray[np.uint8]
    """uint8 [n], 1 for trainable tokens"""
    logprobs: Logprobs
    """float32 [n], 0.0 where the mask is 0"""
    spans: list[Span]
    """Trainable spans, ascending."""
    media: list[Medium] = []
    """The images and sounds of the path, in order; a `position` counts from the trace's first token."""


def answer_offsets(nodes: Sequence[Node]) -> list[int | None]:
    """By node: how many tokens of its call's answer come before its own, which the nodes above it hold; None: no call sampled it."""
    offsets: list[int | None] = []
    for node in nodes:
        before = None if node.parent == ROOT else nodes[node.parent]
        is_continued = before is not None and before.call == node.call
        start = (offsets[node.parent] or 0) + count(before.tokens) if before is not None and is_continued else 0
        offsets.append(None if node.call is None else start)
    return offsets


def path(trajectory: Trajectory, leaf: int) -> list[int]:
    """Node indexes from the root to `leaf`."""
    found: list[int] = []
    while leaf != ROOT:
        found.append(leaf)
        leaf = trajectory.nodes[leaf].parent
    return found[::-1]


def expand(trajectory: Trajectory, trace: Trace) -> ExpandedTrace:
    """Token ids, loss mask, logprobs and media along a trace's path."""
    indexes = path(trajectory, trace.leaf)
    nodes = [trajectory.nodes[i] for i in indexes]
    total = sum(count(node.tokens) for node in nodes)
    ids = np.empty(total, dtype=np.int32)
    mask = np.zeros(total, dtype=np.uint8)
    logprobs = np.zeros(total, dtype=np.float32)
    spans: list[Span] = []
    media: list[Medium] = []
    trained = set(trace.trains)
    at = first = 0
    sampler: int | None = None
    for index, node in zip(indexes, nodes, strict=True):
        if node.call != sampler:
            # The nodes of one call are adjacent: its answer begins here.
            first, sampler = at, node.call
        end = at + count(node.tokens)
        media += [replace(medium, position=at + (medium.position or 0)) for medium in node.media]
        ids[at:end] = unpack_ids(node.tokens)
        if index in trained:
            assert node.logprobs is not None, "a trained node was sampled"
            assert node.call is not None, "a trained node has a call"
            mask[at:end] = 1
            logprobs[at:end] = unpack_logprobs(node.logprobs)
            call = trajectory.calls[node.call]
            spans += [
                Span(call, first + run.start, first + run.end, run.version, run.publication)
                for run in call.weights(at - first, end - first)
            ]
        at = end
    return ExpandedTrace(trace, ids, mask, logprobs, spans, media)
