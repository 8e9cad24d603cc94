"""The log of one session, as its proxies write it: with their own writer of deltas and their own memory of the answers that were seen.

A proxy that takes the session over has read the log back, or no longer knows all of it. Some logs are damaged afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np

from proxy.session.seen import Question, SeenAnswers
from tests.consumers.token_tree.transcripts import completion
from tests.faithfulness.lived import UNPROVEN, Lived, Read, Version, ids_of, images_of
from topics.calls.delta import BLOCK, PromptIndex
from topics.calls.media_marks import listed
from topics.types.completion import CallOutcome, Completion, Medium, PolicySpan, TokenDelta
from topics.types.tokens import Ids, pack_ids, pack_logprobs, unpack_ids


class ProxyLog:
    """Records in log order."""

    def __init__(self, random: Random, session_id: str, *, knows_places: bool) -> None:
        """`knows_places`: engines tell where in a prompt its images are; otherwise they may change every token of it."""
        self._random = random
        self._session_id = session_id
        self._knows_places = knows_places
        self._prompts = PromptIndex()
        self._seen = SeenAnswers()
        self.proxy = 0
        """Number of the proxy process that owns the session."""
        self.records: list[Completion] = []

    def take_over(self, calls: Iterable[Lived]) -> None:
        """Another proxy owns the session from now on; `calls` are those before."""
        self.proxy += 1
        self._seen = SeenAnswers()
        self._prompts = PromptIndex()
        for call in calls:
            if call.outcome is CallOutcome.ANSWERED and not call.is_disowned and self._random.random() < 0.9:
                self._remember(call)

    def rejects(self, call: Lived) -> list[str]:
        """The answers that a request rejects: `call` is its first choice."""
        named = self._seen.asked_again(_question(call), call.received_at)
        return [] if call.is_retry else named

    def deliver(self, choices: Sequence[Lived], at: int) -> None:
        """The harness has the answers to one request."""
        for call in choices:
            call.seen_at = at
        self._seen.add(_question(choices[0]), [call.call_id for call in choices], at)

    def write(self, call: Lived, rejects: list[str]) -> None:
        """Write a call that has ended, as `proxy/capture.py` does."""
        record = self._record(call, rejects)
        if self._random.random() < 0.03:
            # Kafka didn't acknowledge the record, and may have it nevertheless. The proxy writes no delta against it.
            call.is_disowned = call.outcome is CallOutcome.ANSWERED
            if self._random.random() < 0.5:
                call.damage = "gone"
                return
        elif call.outcome is CallOutcome.ANSWERED:
            self._remember(call)
        self.records += [record] * (2 if self._random.random() < 0.03 else 1)

    def damage(self, calls: Sequence[Lived], kind: str) -> None:
        """Lose records of one or two calls (`gone`), or change them so that the reason `kind` holds."""
        by_id = {record.call_id: record for record in self.records}
        changed = {call: _damaged(by_id[call.call_id], kind, self._random) for call in calls if call.call_id in by_id}
        can_have = [(call, record) for call, record in changed.items() if record is not None]
        for call, record in self._random.sample(can_have, min(len(can_have), self._random.choice([1, 2]))):
            call.damage = kind
            others = [record if one.call_id == call.call_id else one for one in self.records]
            self.records = [one for one in others if kind != "gone" or one.call_id != call.call_id]

    def _remember(self, call: Lived) -> None:
        self._prompts.add(call.call_id, _ids(call.prompt), _ids(call.sampled), self._media(call))

    def _media(self, call: Lived) -> list[Medium]:
        return [
            Medium(digest, position=at if self._knows_places else None, unproven=digest == UNPROVEN)
            for at, read in enumerate(call.prompt)
            for digest in images_of(read)
        ]

    def _record(self, call: Lived, rejects: list[str]) -> Completion:
        is_answered = call.outcome is CallOutcome.ANSWERED
        first = call.versions[0] if call.versions else (None, None)
        lineage = {"thread": call.thread} if call.thread else {}
        lineage |= {"retry": "1"} if call.is_retry else {}
        media = self._media(call) if is_answered else []
        prompt = self._prompts.encode(_ids(call.prompt), media) if is_answered else TokenDelta(b"")
        return completion(
            call.call_id,
            prompt,
            call.sampled,
            session_id=self._session_id,
            logprobs=pack_logprobs(call.logprobs),
            logprobs_mode=call.logprobs_mode,
            outcome=call.outcome,
            engine=call.engine,
            kind=call.kind,
            lineage=lineage or None,
            received_at=call.received_at,
            completed_at=call.completed_at,
            choice=call.choice,
            sampling=call.sampling,
            finish_reason=call.finish_reason if is_answered else None,
            realigned=call.realigned,
            policy_version=first[0],
            publication=first[1],
            policy_spans=_spans(call.versions),
            rejects=rejects,
            prompt_doubt=call.prompt_doubt,
            media=listed(media, prompt.shared, self._prompts.media(prompt.base)),
        )


def _question(call: Lived) -> Question:
    """Its prompt stands for the messages that it was rendered from."""
    thread = None if call.thread is None else frozenset({("thread", call.thread)})
    return repr(call.prompt).encode(), b"", thread


def _spans(versions: Sequence[Version]) -> list[PolicySpan]:
    """The runs of equal versions, if there are several."""
    edges = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1]]
    spans = []
    for start, end in zip([0, *edges], [*edges, len(versions)], strict=True):
        version, publication = versions[start] if versions else (None, None)
        if version is not None:
            spans.append(PolicySpan(version, start, end, publication))
    return spans if edges else []


def _ids(tokens: Iterable[Read]) -> Ids:
    return np.array(ids_of(tokens), dtype=np.int32)


def _damaged(record: Completion, kind: str, random: Random) -> Completion | None:
    """The record with this damage; None if it can't have it, or nobody could notice."""
    prompt, sampled = record.prompt, record.sampled
    changed: dict[str, Any] | None = None
    match kind:
        case "gone":
            changed = {}
        case "base_missing" if record.outcome is CallOutcome.ANSWERED:
            too_long = msgspec.structs.replace(prompt, shared=prompt.shared + 100_000)
            changed = {"prompt": random.choice([msgspec.structs.replace(prompt, base="nobody"), too_long])}
        case "invalid_tokens" if prompt.rest:
            negative = pack_ids([-1]) + prompt.rest[4:]
            changed = {"prompt": msgspec.structs.replace(prompt, rest=random.choice([negative, prompt.rest[:-1]]))}
        case "chain_differs" if prompt.shared and random.random() < 0.5:
            # It names an image in the shared part that its base doesn't have.
            changed = {"media": [Medium("d" * 64), *record.media]}
        case "chain_differs" if prompt.rest and prompt.shared < _verified(prompt):
            other = unpack_ids(prompt.rest).copy()
            other[0] += 1
            changed = {"prompt": msgspec.structs.replace(prompt, rest=pack_ids(other))}
        case "invalid_logprobs" if sampled:
            unusable = pack_logprobs([random.choice([float("nan"), float("-inf"), -9999.0])])
            changed = {"logprobs": random.choice([record.logprobs[4:], unusable + record.logprobs[4:], b""])}
    return None if changed is None else msgspec.structs.replace(record, **changed)


def _verified(prompt: TokenDelta) -> int:
    """Tokens of a prompt that its hash chain covers."""
    return (prompt.shared + len(prompt.rest) // 4) // BLOCK * BLOCK
