"""Guarantee 2, stated without a builder: what must be true of a trajectory, and of whatever a trainer makes of it.

    Every token with loss mask 1 is a token that the engine sampled in that very position, under exactly that prefix, with the logprob of
    the distribution that it was sampled from and the policy version that sampled it. Each sampled token is trained in exactly one trace,
    or masked with a reason.

The truth is `Lived`, and everything is compared with it token by token, in lists. Nothing here uses the code that made a trajectory or
expands one.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faithfulness.sessions import Lived, Read, Session, Version, ids_of
from topics.types.building import Filters
from topics.types.completion import CallOutcome
from topics.types.trajectory import Node, Trajectory

TRAINED_BY_DEFAULT = ("main", "subagent", "compaction")
MANY_WORDS = 10_000
"""From this size of a vocabulary on, no two texts meet by chance."""
Token = tuple[Lived, int]
"""A sampled token: its call, and its index among the tokens that the call sampled."""


class Unfaithful(AssertionError):  # noqa: N818 - a finding
    """Something that guarantee 2 forbids."""


def require(holds: object, *found: object) -> None:
    """Raise Unfaithful with what was found, unless it holds."""
    if not holds:
        raise Unfaithful(*found)


@dataclass
class Row:
    """A sequence as a trainer gets it, whatever its format; all lists have one entry for each token."""

    name: str
    tokens: list[int]
    is_trained: Sequence[object]
    logprobs: Sequence[float]
    versions: list[int | None] | None = None
    """None: the format has no version for each token."""
    all_versions: Iterable[int | None] | None = None
    """The versions of the trained tokens, as a set; None: the format has none."""


class Truth:
    """What really happened in the sessions of a group, by logprob: each sampled token has its own."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._tokens: dict[float, Token] = {
            logprob: (call, index)
            for session in sessions
            for call in session.calls
            for index, logprob in enumerate(call.logprobs)
        }

    def check_rows(self, rows: Iterable[Row], wanted: Iterable[float]) -> None:
        """Each of the `wanted` tokens (by their logprobs) is trained once in these rows, as it was sampled, and no other token is."""
        found: Counter[float] = Counter()
        for row in rows:
            require(
                len(row.tokens) == len(row.is_trained) == len(row.logprobs), row.name, "has lists of unequal length"
            )
            found.update(self._trained(row))
        twice = [logprob for logprob, times in found.items() if times > 1]
        require(not twice, "trained twice", [self._tokens[logprob][0].call_id for logprob in twice])
        lost, more = set(wanted) - set(found), set(found) - set(wanted)
        require(not lost, "not in any row", [self._tokens[logprob][0].call_id for logprob in lost])
        require(not more, "trained without a right to", [self._tokens[logprob][0].call_id for logprob in more])

    def _trained(self, row: Row) -> Iterator[float]:
        versions = set()
        before: Token | None = None
        for position, is_trained in enumerate(row.is_trained):
            if not is_trained:
                require(row.logprobs[position] == 0, row.name, position, "has a logprob, and isn't trained")
                before = None
                continue
            logprob = row.logprobs[position]
            require(logprob in self._tokens, row.name, position, "has a logprob that no engine gave", logprob)
            call, index = self._tokens[logprob]
            at = row.name, position, call.call_id, index
            require(position == len(call.prompt) + index, *at, "stands elsewhere than it was sampled")
            require(row.tokens[position] == call.sampled[index], *at, "has another token's logprob")
            version, _ = call.versions[index]
            versions.add(version)
            if row.versions is not None:
                require(
                    row.versions[position] == version, *at, "has the version", row.versions[position], "not", version
                )
            if before != (call, index - 1):  # otherwise its prefix is that of the token before, and that token
                require(row.tokens[:position] == ids_of(call.whole[:position]), *at, "has another prefix")
            before = call, index
            yield logprob
        if row.all_versions is not None:
            require(set(row.all_versions) == versions, row.name, "has the versions", row.all_versions, "not", versions)


def check_trajectory(session: Session, trajectory: Trajectory, filters: Filters) -> None:
    """Every sampled token of the session is in the tree where it was sampled, and trained once or masked for a reason that holds."""
    check = _Check(session, trajectory)
    check.tree()
    check.traces()
    check.reasons(filters)
    check.facts()
    check.counts()


class _Check:
    """A trajectory beside the truth."""

    def __init__(self, session: Session, trajectory: Trajectory) -> None:
        self._session = session
        self._made = trajectory
        self._by_id = {call.call_id: call for call in session.calls}
        self._unplaced = _unplaced(session)
        ids = [call.call_id for call in trajectory.calls]
        on_log = [call.call_id for call in session.calls if call.damage != "gone"]
        require(ids == on_log, "calls", ids, on_log)
        self._prefixes: list[list[Read]] = []
        """By node: all that a model reads from the node's root to its end."""
        self._place: list[tuple[Lived, range] | None] = []
        """By node: the call that sampled it, and which of the call's tokens it holds."""

    def tree(self) -> None:
        """Sampled nodes stand where their tokens were sampled; together they are each answer, once, with its logprobs."""
        held: defaultdict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self._made.nodes):
            require(-1 <= node.parent < number, "node", number, "has the parent", node.parent)
            tokens = _read(node)
            require(tokens, "node", number, "is empty")
            prefix = ([] if node.parent == -1 else self._prefixes[node.parent]) + tokens
            self._prefixes.append(prefix)
            self._place.append(None)
            if node.call is None:
                require(node.logprobs is None and node.masked is None, "node", number, "was read, not sampled")
                continue
            call = self._by_id[self._made.calls[node.call].call_id]
            start = len(prefix) - len(tokens) - len(call.prompt)
            at = "node", number, call.call_id
            require(start >= 0, *at, "begins in the prompt")
            require(prefix == call.whole[: len(prefix)], *at, "has another prefix than it was sampled under")
            own = range(start, start + len(tokens))
            self._place[-1] = call, own
            held[call.call_id] += own
            if node.logprobs is not None and call.damage != "invalid_logprobs":
                logprobs = array("f", node.logprobs).tolist()
                require(logprobs == call.logprobs[start : start + len(tokens)], *at, "has other logprobs")
            require(node.logprobs is not None or node.masked is not None, *at, "has no logprobs")
        for call in self._session.calls:
            wanted = [] if call.call_id in self._unplaced else list(range(len(call.sampled)))
            require(sorted(held[call.call_id]) == wanted, call.call_id, "has not each of its tokens once in the tree")

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
            place = self._place[trace.leaf]
            require(place and place[1].stop == len(place[0].sampled), trace.trace_id, "doesn't end with an answer")
            times.update(trace.trains)
        for number, node in enumerate(self._made.nodes):
            is_trainable = node.call is not None and node.masked is None
            require(times[number] == is_trainable, "node", number, "is trained", times[number], "times:", node.masked)

    def reasons(self, filters: Filters) -> None:
        """Every mask has a reason that holds, and every call with such a reason is masked."""
        found: defaultdict[str, set[str | None]] = defaultdict(set)
        for node, place in zip(self._made.nodes, self._place, strict=True):
            if place is not None:
                found[place[0].call_id].add(node.masked)
        for call_id, allowed in _reasons(self._session, self._unplaced, filters).items():
            require(found[call_id] <= allowed, call_id, "is masked as", found[call_id], "where there is", allowed)
            is_in_part = len(found[call_id]) > 1 and found[call_id] != {None, "filtered_short"}
            require(not is_in_part, call_id, "is masked in part", found[call_id])

    def facts(self) -> None:
        """What a trainer must know of a call stands on it; of each token, its version and publication."""
        for made in self._made.calls:
            call = self._by_id[made.call_id]
            facts = (made.engine, made.kind, made.sampling, made.logprobs_mode, made.outcome, made.prompt_doubt)
            wanted = (call.engine, call.kind, call.sampling, call.logprobs_mode, call.outcome, call.prompt_doubt)
            require(facts == wanted, call.call_id, "has the facts", facts, "not", wanted)
            require(versions_of(made, len(call.sampled)) == call.versions, call.call_id, "has other versions")

    def counts(self) -> None:
        """The stats are what counting gives."""
        stats, nodes = self._made.stats, self._made.nodes
        sizes = [len(node.tokens) // 4 for node in nodes]
        masked: Counter[str] = Counter()
        for node, size in zip(nodes, sizes, strict=True):
            masked.update({} if node.masked is None else {node.masked: size})
        sampled = [call for call in self._session.calls if call.damage != "gone"]
        placeless = sum(len(call.sampled) for call in sampled if call.call_id in self._unplaced)
        require(stats.calls == len(sampled), "stats.calls", stats.calls)
        require(stats.answered == sum(call.outcome is CallOutcome.ANSWERED for call in sampled), "stats.answered")
        require(stats.tokens == sum(sizes), "stats.tokens", stats.tokens)
        require(stats.traces == len(self._made.traces), "stats.traces", stats.traces)
        require(stats.sampled_tokens == sum(len(call.sampled) for call in sampled), "stats.sampled_tokens")
        trained = sum(sizes[node] for trace in self._made.traces for node in trace.trains)
        require(stats.trainable_tokens == trained, "stats.trainable_tokens", stats.trainable_tokens, trained)
        in_nodes = {reason: count for reason, count in stats.masked_tokens.items() if reason not in PLACELESS}
        require(in_nodes == dict(masked), "stats.masked_tokens", stats.masked_tokens, masked)
        in_no_node = sum(stats.masked_tokens.get(reason, 0) for reason in PLACELESS)
        require(in_no_node == placeless, "stats.masked_tokens", stats.masked_tokens, placeless)


def _read(node: Node) -> list[Read]:
    """What a model reads in a node."""
    images: defaultdict[int, list[str]] = defaultdict(list)
    for medium in node.media:
        images[medium.position or 0].append(medium.digest)
    return [
        (token, *images[at]) if at in images else token for at, token in enumerate(array("i", node.tokens).tolist())
    ]


def versions_of(call: Any, tokens: int) -> list[Version]:
    """Version and publication of each token, read off a call of a trajectory."""
    if not call.policy_spans:
        return [(call.policy_version, call.publication)] * tokens
    return [(s.version, s.publication) for s in call.policy_spans for _ in range(s.start, s.end)]


def plain_rows(trajectory: Trajectory, *, rewarded: bool) -> Iterator[Row]:
    """A trajectory's traces, or those with a reward, expanded by walking up from their leaves."""
    for trace in trajectory.traces:
        if rewarded and trace.reward is None:
            continue
        tokens: list[int] = []
        logprobs: list[float] = []
        is_trained: list[bool] = []
        at = trace.leaf
        while at != -1:
            node = trajectory.nodes[at]
            own = array("i", node.tokens).tolist()
            trained = at in trace.trains
            tokens = own + tokens
            logprobs = (array("f", node.logprobs or b"").tolist() if trained else [0.0] * len(own)) + logprobs
            is_trained = [trained] * len(own) + is_trained
            at = node.parent
        yield Row(trace.trace_id, tokens, is_trained, logprobs)


def trained_logprobs(rows: Iterable[Row]) -> list[float]:
    """The logprobs of all trained tokens."""
    return [p for row in rows for p, is_trained in zip(row.logprobs, row.is_trained, strict=True) if is_trained]


# Reasons, as docs/builder.md defines them

PLACELESS = frozenset({"base_missing", "invalid_tokens", "chain_differs"})
"""Reasons of a call whose prompt is unknown, so that it is in no tree."""


def _unplaced(session: Session) -> dict[str, set[str]]:
    """The reasons why a prompt can't be restored from the log, by call: those of its own record, and its base's."""
    bases = {record.call_id: record.prompt.base for record in session.records}
    unplaced: dict[str, set[str]] = {}
    known: set[str] = set()
    for call in session.calls:
        if call.damage == "gone":
            unplaced[call.call_id] = set()
            continue
        base = bases[call.call_id]
        reasons = {call.damage} & PLACELESS if call.damage else set()
        if base is not None and (base not in known or base in unplaced):
            reasons = reasons | {"base_missing"}
        if reasons:
            unplaced[call.call_id] = reasons
        known.add(call.call_id)
    return unplaced


def _reasons(session: Session, unplaced: Mapping[str, set[str]], filters: Filters) -> dict[str, set[str | None]]:
    """The reasons that hold for each call in the tree; None if it may be trained. One reason of several is enough."""
    placed = [call for call in session.calls if call.call_id not in unplaced and call.outcome is CallOutcome.ANSWERED]
    unused = _unused(session, placed)
    found: dict[str, set[str | None]] = {}
    for call in placed:
        reasons: set[str | None] = set()
        if call.prompt_doubt is not None:
            reasons.add("prompt_differs")
        if call.damage == "invalid_logprobs":
            reasons.add("invalid_logprobs")
        if call.is_disowned:
            reasons.add("disowned")
        if call.kind not in (*TRAINED_BY_DEFAULT, *filters.kinds):
            reasons.add("side_call")
        reasons |= _filtered(session, call, filters)
        excuses: set[str | None] = unused.get(call.call_id, {None})
        if filters.rejected == "train":
            excuses = {None if excuse == "rejected" else excuse for excuse in excuses}
        reasons = reasons | excuses if not reasons else reasons | excuses - {None}
        if reasons >= {None} and filters.min_trainable_tokens > 1:
            reasons.add("filtered_short")
        found[call.call_id] = reasons
    return found


def _filtered(session: Session, call: Lived, filters: Filters) -> set[str]:
    holds = {
        "filtered_status": filters.statuses is not None and session.build.status not in filters.statuses,
        "filtered_kind": call.kind not in filters.kinds,
        "filtered_engine": filters.engines is not None and call.engine not in filters.engines,
        "filtered_truncated": filters.drop_truncated and call.finish_reason == "length",
        "filtered_long": filters.max_tokens is not None and len(call.whole) > filters.max_tokens,
    }
    return {reason for reason, is_true in holds.items() if is_true}


def _unused(session: Session, placed: Sequence[Lived]) -> dict[str, set[str | None]]:
    """For each call whose thread asked its very question again: what the log allows to say of its answer.

    `rejected` if its proxy knows that the harness had the answer before, else `undelivered`; None where it may be the answer in use.
    """
    alike: defaultdict[object, defaultdict[str, list[Lived]]] = defaultdict(lambda: defaultdict(list))
    for call in placed:
        if call.sampled and not call.is_disowned:
            alike[tuple(call.prompt), call.thread, call.kind][call.request].append(call)
    asked_again = [list(requests.values()) for requests in alike.values() if len(requests) > 1]
    surely_used = {_continued(call, placed) for call in placed} if asked_again else set()
    found: dict[str, set[str | None]] = {}
    for requests in asked_again:
        question = requests[0][0].prompt
        answers = [call for choices in requests for call in choices]
        repeats_none = [later for later in placed if not any(_begins(later.prompt, call.whole) for call in answers)]
        is_vague = any(_may_repeat(session, later.prompt, question) for later in repeats_none)
        is_used = [not surely_used.isdisjoint(choices) for choices in requests]
        is_repeated = [any(_begins(p.prompt, call.whole) for p in placed for call in choices) for choices in requests]
        for number, choices in enumerate(requests):
            is_last_resort = number == len(requests) - 1 and not any(is_used[:-1])
            for call in choices:
                excuse = "rejected" if _is_rejected(session, call) else "undelivered"
                if is_used[number]:
                    found[call.call_id] = {None}
                elif is_vague or is_repeated[number] or (is_last_resort and any(is_repeated)):
                    found[call.call_id] = {None, excuse}
                else:
                    found[call.call_id] = {None if is_last_resort else excuse}
    return found


def _begins(prompt: list[Read], tokens: list[Read]) -> bool:
    return prompt[: len(tokens)] == tokens


def _may_repeat(session: Session, prompt: list[Read], question: list[Read]) -> bool:
    """Whether a prompt may hold an answer to a question, as a template or a harness changed it. With few words any prompt may."""
    return session.words < MANY_WORDS or (len(prompt) > len(question) and _begins(prompt, question[:-1]))


def _continued(call: Lived, placed: Sequence[Lived]) -> Lived | None:
    """The answer that a prompt surely goes on from: the longest that it begins with; None if there is none, or there are several."""
    fits = [
        other
        for other in placed
        if other.completed_at < call.completed_at
        and other.sampled
        and not other.is_disowned
        and call.prompt[: len(other.whole)] == other.whole
    ]
    longest = max((len(other.whole) for other in fits), default=0)
    best = [other for other in fits if len(other.whole) == longest]
    return best[0] if len(best) == 1 else None


def _is_rejected(session: Session, call: Lived) -> bool:
    """Whether the log says so: the next request with its question, of the same proxy, came when the harness had the answer."""
    later = [
        other
        for other in session.calls
        if other.thread == call.thread
        and other.prompt == call.prompt
        and other.proxy == call.proxy
        and call.seen_at is not None
        and other.received_at >= call.seen_at
    ]
    first = min((other.received_at for other in later), default=None)
    return any(other.received_at == first and not other.is_retry and other.damage != "gone" for other in later)
