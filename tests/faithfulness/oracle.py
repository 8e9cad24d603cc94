"""Guarantee 2, stated without a builder: what must be true of a trajectory.

    Every token with loss mask 1 is a token that the engine sampled in that very position, under exactly that prefix, with the logprob of
    the distribution that it was sampled from and the policy version that sampled it. Each sampled token is trained in exactly one trace,
    or masked with a reason.

Everything is compared with the truth (`lived.py`) token by token, in lists. Nothing here uses the code that made a trajectory or expands
one.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict

from tests.faithfulness.lived import Lived, Read, Session, Version
from tests.faithfulness.reasons import PLACELESS, TRAINED_BY_DEFAULT, parent_of, placed_calls, placeless, reasons
from tests.faithfulness.rows import require
from topics.types.building import Filters
from topics.types.completion import CallOutcome
from topics.types.trajectory import Call, Node, Trajectory

FACTS = (
    "engine", "kind", "sampling", "logprobs_mode", "outcome", "prompt_doubt", "realigned", "received_at", "completed_at",
)  # fmt: skip
"""Fields of a trajectory's call that the call that was lived has also."""


def check_trajectory(session: Session, trajectory: Trajectory, filters: Filters, rewards: str) -> None:
    """Every sampled token of the session is in the tree where it was sampled, and trained once or masked for a reason that holds.

    `rewards`: the builder's setting. Raises UnfaithfulError.
    """
    check = _Check(session, trajectory)
    check.tree()
    check.parents()
    check.traces()
    if rewards != "all":
        check.credit()
    check.reasons(filters)
    check.facts()
    check.counts()


class _Check:
    """A trajectory beside the truth."""

    def __init__(self, session: Session, trajectory: Trajectory) -> None:
        self._session = session
        self._made = trajectory
        self._logged = [call for call in session.calls if call.damage != "gone"]
        self._by_id = {call.call_id: call for call in self._logged}
        self._unplaced = placeless(session)
        ids = [call.call_id for call in trajectory.calls]
        require(ids == list(self._by_id), "has the calls", ids, "not", list(self._by_id))
        self._samplers: list[Lived | None] = []
        """By node."""
        self._prefixes: list[list[Read]] = []
        """By node: all that a model reads from the node's root to its end."""

    def tree(self) -> None:
        """Sampled nodes stand where their tokens were sampled; together they are each answer, once, with its logprobs."""
        held: defaultdict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self._made.nodes):
            require(-1 <= node.parent < number, "node", number, "has the parent", node.parent)
            tokens = _read(node)
            require(tokens, "node", number, "is empty")
            prefix = ([] if node.parent == -1 else self._prefixes[node.parent]) + tokens
            self._prefixes.append(prefix)
            call = None if node.call is None else self._by_id[self._made.calls[node.call].call_id]
            self._samplers.append(call)
            if call is None:
                require(node.logprobs is None and node.masked is None, "node", number, "was read, not sampled")
                continue
            start = len(prefix) - len(tokens) - len(call.prompt)
            at = "node", number, call.call_id
            require(start >= 0, *at, "begins in the prompt")
            require(prefix == call.whole[: len(prefix)], *at, "has another prefix than it was sampled under")
            held[call.call_id] += range(start, start + len(tokens))
            if node.logprobs is None:
                require(node.masked is not None, *at, "has no logprobs")
            elif call.damage != "invalid_logprobs":
                logprobs = array("f", node.logprobs).tolist()
                require(logprobs == call.logprobs[start : start + len(tokens)], *at, "has other logprobs")
        for call in self._logged:
            wanted = [] if call.call_id in self._unplaced else list(range(len(call.sampled)))
            require(sorted(held[call.call_id]) == wanted, call.call_id, "has not each of its tokens once in the tree")

    def parents(self) -> None:
        """Each call has the parent that the docs define, and its path runs through the parent's answer."""
        placed = placed_calls(self._session, self._unplaced)
        parents = {call.call_id: parent_of(call, placed) for call in placed}
        for made in self._made.calls:
            parent = parents.get(made.call_id)
            wanted = None if parent is None else parent.call_id
            require(made.parent == wanted, made.call_id, "has the parent", made.parent, "not", wanted)
        for number, (node, call) in enumerate(zip(self._made.nodes, self._samplers, strict=True)):
            parent = None if call is None else parents[call.call_id]
            at = node.parent
            while parent is not None and at != -1 and not self._ends(at, parent):
                at = self._made.nodes[at].parent
            require(parent is None or at != -1, "node", number, "isn't below its parent's answer")

    def _ends(self, node: int, call: Lived) -> bool:
        """Whether a call's answer ends with a node."""
        return self._samplers[node] is call and len(self._prefixes[node]) == len(call.whole)

    def traces(self) -> None:
        """A sampled node is trained in one trace, or has a reason; a trace is a path to the end of an answer."""
        times: Counter[int] = Counter()
        for trace in self._made.traces:
            above, at = set(), trace.leaf
            while at != -1:
                above.add(at)
                at = self._made.nodes[at].parent
            require(set(trace.trains) <= above, trace.trace_id, "trains nodes beside its path")
            require(trace.trains == sorted(trace.trains) != [], trace.trace_id, "trains", trace.trains)
            require(trace.reward in (None, self._made.reward), trace.trace_id, "has the reward", trace.reward)
            last = self._samplers[trace.leaf]
            require(last is not None and self._ends(trace.leaf, last), trace.trace_id, "doesn't end with an answer")
            times.update(trace.trains)
        for number, node in enumerate(self._made.nodes):
            is_trainable = node.call is not None and node.masked is None
            require(times[number] == is_trainable, "node", number, "is trained", times[number], "times:", node.masked)

    def credit(self) -> None:
        """A trace has the reward only for work that it trains."""
        for trace in self._made.traces:
            trained = {call.kind for at in trace.trains if (call := self._samplers[at]) is not None}
            is_work = not trained.isdisjoint(TRAINED_BY_DEFAULT)
            require(trace.reward is None or is_work, trace.trace_id, "has the reward for", trained)

    def reasons(self, filters: Filters) -> None:
        """Every mask has the reason that holds for its call; a call that is masked is masked whole, unless a trace was too short."""
        found: defaultdict[str, set[str | None]] = defaultdict(set)
        for node, call in zip(self._made.nodes, self._samplers, strict=True):
            if call is not None:
                found[call.call_id].add(node.masked)
        for call_id, allowed in reasons(self._session, self._unplaced, filters).items():
            require(found[call_id] <= allowed, call_id, "is masked as", found[call_id], "where there is", allowed)
            is_in_part = len(found[call_id]) > 1 and found[call_id] != {None, "filtered_short"}
            require(not is_in_part, call_id, "is masked in part", found[call_id])

    def facts(self) -> None:
        """What a trainer must know of a call stands on it; of each token, its version and publication."""
        for made in self._made.calls:
            call = self._by_id[made.call_id]
            for fact in FACTS:
                found, wanted = getattr(made, fact), getattr(call, fact)
                require(found == wanted, call.call_id, "has", fact, found, "not", wanted)
            require(
                made.sampled_tokens == len(call.sampled), call.call_id, "has", made.sampled_tokens, "sampled tokens"
            )
            require(_versions(made) == call.versions, call.call_id, "has other versions than it was sampled with")

    def counts(self) -> None:
        """The stats are what counting gives."""
        stats, sizes = self._made.stats, [len(node.tokens) // 4 for node in self._made.nodes]
        masked: Counter[str] = Counter()
        for node, size in zip(self._made.nodes, sizes, strict=True):
            masked.update({} if node.masked is None else {node.masked: size})
        counted = {
            "calls": len(self._logged),
            "answered": sum(call.outcome is CallOutcome.ANSWERED for call in self._logged),
            "traces": len(self._made.traces),
            "tokens": sum(sizes),
            "sampled_tokens": sum(len(call.sampled) for call in self._logged),
            "trainable_tokens": sum(sizes[node] for trace in self._made.traces for node in trace.trains),
        }
        for name, number in counted.items():
            require(getattr(stats, name) == number, "stats has", name, getattr(stats, name), "not", number)
        in_tree = {reason: tokens for reason, tokens in stats.masked_tokens.items() if reason not in PLACELESS}
        require(in_tree == dict(masked), "stats has", stats.masked_tokens, "not", masked)
        in_no_tree = sum(len(call.sampled) for call in self._logged if call.call_id in self._unplaced)
        require(sum(stats.masked_tokens.values()) == masked.total() + in_no_tree, "stats has", stats.masked_tokens)


def _read(node: Node) -> list[Read]:
    """What a model reads in a node."""
    images: defaultdict[int, list[str]] = defaultdict(list)
    for medium in node.media:
        images[medium.position or 0].append(medium.digest)
    tokens = array("i", node.tokens).tolist()
    return [(token, *images[at]) if at in images else token for at, token in enumerate(tokens)]


def _versions(call: Call) -> list[Version]:
    """Version and publication of each token."""
    if not call.policy_spans:
        return [(call.policy_version, call.publication)] * call.sampled_tokens
    return [(span.version, span.publication) for span in call.policy_spans for _ in range(span.start, span.end)]
