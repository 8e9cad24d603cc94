"""Guarantee 2 for rows, the form in which every trainer gets tokens: each trained token is as it was sampled.

A token of a row is identified by its logprob, and everything else about it is compared with the truth.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.faithfulness.lived import Lived, Published, Session, Version, ids_of, images_of
from topics.types.trajectory import Trajectory

Token = tuple[Lived, int]
"""A sampled token: its call, and its index among the tokens that the call sampled."""


def is_fresh(weights: Version, engine: str, published: Sequence[Published], limit: int) -> bool:
    """Whether an engine's weights are on the line of those that were published last, and at most `limit` versions older.

    They are on it if none of a lower version was published for their engine since. What is published for another engine alone has a number,
    and no line for this one.
    """
    (version, offset), (newest, newest_engine) = weights, published[-1]
    if version is None or offset is None or newest is None or not newest - limit <= version <= newest:
        return False
    since = [each for each, whose in published[offset + 1 :] if whose in (None, engine) and each is not None]
    return newest_engine not in (None, engine) or all(each >= version for each in since)


class UnfaithfulError(AssertionError):
    """Something that guarantee 2 forbids."""


def require(holds: object, *found: object) -> None:
    """Raise UnfaithfulError with what was found, unless it holds."""
    if not holds:
        raise UnfaithfulError(" ".join(map(str, found)))


@dataclass
class Row:
    """A sequence as a trainer gets it, whatever its format; all lists have one entry for each token."""

    name: str
    tokens: list[int]
    is_trained: Sequence[object]
    logprobs: Sequence[float]
    versions: list[int | None] | None = None
    """None: the format has no version for each token."""
    publications: list[int | None] | None = None
    """None: the format has none."""
    media: list[tuple[str, int]] | None = None
    """Digest and place of each image; None: the format has none, or refuses them."""
    temperatures: Sequence[float | None] | None = None
    """By which the logits that predict each token are divided; None: the format has none."""
    names: Callable[[set[int | None]], bool] | None = None
    """Whether what the format says of the row's versions fits those of its trained tokens; None: it says nothing."""


class Truth:
    """What really was sampled in the sessions of a group, by logprob."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._tokens: dict[float, Token] = {
            logprob: (call, index)
            for session in sessions
            for call in session.calls
            for index, logprob in enumerate(call.logprobs)
        }

    def fresh(self, logprobs: Iterable[float], published: Sequence[Published], limit: int) -> list[float]:
        """Those of the tokens that are fresh for a trainer with the weights that were published last."""
        tokens = {logprob: self._tokens[logprob] for logprob in logprobs}
        return [
            logprob
            for logprob, (call, index) in tokens.items()
            if is_fresh(call.versions[index], call.engine, published, limit)
        ]

    def check(self, rows: Iterable[Row], wanted: Iterable[float]) -> None:
        """Each of the `wanted` tokens (by their logprobs) is trained in these rows, and no other token is; and as `trained`."""
        found = self.trained(rows)
        lost, more = set(wanted) - found, found - set(wanted)
        require(not lost, "in no row:", [self._tokens[logprob][0].call_id for logprob in lost])
        require(not more, "trained without a right to:", [self._tokens[logprob][0].call_id for logprob in more])

    def trained(self, rows: Iterable[Row]) -> set[float]:
        """The logprobs of the tokens that these rows train. Each is trained once, as it was sampled."""
        found: Counter[float] = Counter()
        for row in rows:
            lengths = {len(row.tokens), len(row.is_trained), len(row.logprobs)}
            require(len(lengths) == 1, row.name, "has lists of unequal length")
            found.update(self._of_row(row))
        twice = [logprob for logprob, times in found.items() if times > 1]
        require(not twice, "trained twice:", [self._tokens[logprob][0].call_id for logprob in twice])
        return set(found)

    def _of_row(self, row: Row) -> Iterator[float]:
        versions: set[int | None] = set()
        before: Token | None = None
        last: Token | None = None
        for position, (is_trained, logprob) in enumerate(zip(row.is_trained, row.logprobs, strict=True)):
            if not is_trained:
                require(logprob == 0, row.name, position, "has a logprob, and isn't trained")
                before = None
                continue
            require(logprob in self._tokens, row.name, position, "has a logprob that no engine gave:", logprob)
            call, index = self._tokens[logprob]
            at = row.name, position, call.call_id, index
            require(position == len(call.prompt) + index, *at, "stands elsewhere than it was sampled")
            require(row.tokens[position] == call.sampled[index], *at, "has another token's logprob")
            if before != (call, index - 1):  # otherwise its prefix is that of the token before, and that token
                require(row.tokens[:position] == ids_of(call.whole[:position]), *at, "has another prefix")
            before = last = call, index
            version, publication = call.versions[index]
            versions.add(version)
            for name, column, wanted in (
                ("version", row.versions, version),
                ("publication", row.publications, publication),
                ("temperature", row.temperatures, call.sampling.temperature),
            ):
                named = wanted if column is None else column[position]
                require(named == wanted, *at, "has the", name, named, "not", wanted)
            yield logprob
        if row.media is not None and last is not None:
            call, index = last
            read = call.whole[: len(call.prompt) + index + 1]
            seen = [(digest, at) for at, one in enumerate(read) for digest in images_of(one)]
            shown = [one for one in row.media if one[1] < len(read)]
            require(shown == seen, row.name, "has the images", shown, "not", seen)
        require(
            row.names is None or not versions or row.names(versions), row.name, "names other versions than", versions
        )


def plain_rows(trajectory: Trajectory, *, rewarded: bool) -> Iterator[Row]:
    """A trajectory's traces, or those with a reward, expanded by walking up from their leaves."""
    for trace in trajectory.traces:
        if rewarded and trace.reward is None:
            continue
        tokens: list[int] = []
        is_trained: list[bool] = []
        logprobs: list[float] = []
        at = trace.leaf
        while at != -1:
            node, trains = trajectory.nodes[at], at in trace.trains
            own = array("i", node.tokens).tolist()
            tokens[:0] = own
            is_trained[:0] = [trains] * len(own)
            logprobs[:0] = array("f", node.logprobs or b"").tolist() if trains else [0.0] * len(own)
            at = node.parent
        yield Row(trace.trace_id, tokens, is_trained, logprobs)


def trained_logprobs(rows: Iterable[Row]) -> list[float]:
    """The logprobs of all trained tokens."""
    return [p for row in rows for p, is_trained in zip(row.logprobs, row.is_trained, strict=True) if is_trained]
