"""Random sessions of agents as a proxy would have logged them, with what really happened beside the log.

`Lived` is the truth about a call, in the plainest form: whole lists, one entry for each token. Only `Agent._record` turns it into a
record, with the proxy's own writer of deltas and its own memory of seen answers. Nothing here knows how a builder works.

An agent has conversations (threads of the harness, sub-agents, side calls). A step asks one or several of them at once, and then each
answer is used, rejected, lost with its proxy, or never delivered. A template writes used answers into the next prompt as they were
sampled, or in one of the ways in which real templates and harnesses change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec
import numpy as np

from proxy.session.seen import Question, SeenAnswers
from tests.consumers.token_tree.transcripts import build_record, completion
from topics.calls.delta import BLOCK, PromptIndex
from topics.completions import Build
from topics.types.completion import CallOutcome, Completion, Medium, PolicySpan, Sampling, TokenDelta
from topics.types.session import Status
from topics.types.tokens import Ids, pack_ids, pack_logprobs, unpack_ids

MEDIA = False
"""Whether prompts have images: the writer of deltas takes them as `encode(prompt, media)` and `add(call_id, prompt, sampled, media)`."""
BEGIN, OPEN, OPEN_ELSE, THINK, THOUGHT, END, END_ELSE, TOOL, IMAGE = range(9)
"""Special tokens. A template opens an answer with OPEN, and may spell that OPEN_ELSE once the answer is history; so with END."""
WORDS = 9
"""The first token that is text."""
ENGINES = ("large", "small")
KINDS = ("main", "subagent", "compaction", "title", "summary")
LOGPROB_STEP = 1 / 1024
"""Logprobs are multiples of it, exact in float32, and no two tokens of a group have the same: a logprob names its token."""

Version = tuple[int | None, int | None]
"""Policy version and the publication that announced it; None: unknown."""
Read = int | tuple[int, *tuple[str, ...]]
"""What a model reads in one place: a token, or a token with the digests of the images that begin there."""


@dataclass(eq=False)
class Lived:
    """A model call as it happened."""

    call_id: str
    request: str
    """The id of its request's first choice."""
    choice: int
    prompt: list[Read]
    sampled: list[int]
    logprobs: list[float]
    """One for each sampled token, as are the versions."""
    versions: list[Version]
    sampling: Sampling
    logprobs_mode: str
    engine: str
    kind: str
    thread: str | None
    is_retry: bool
    """The client counts it as a retry."""
    received_at: int
    completed_at: int
    proxy: int
    """Number of the proxy process that served it."""
    outcome: CallOutcome = CallOutcome.ANSWERED
    finish_reason: str = "stop"
    realigned: int = 0
    seen_at: int | None = None
    """When the harness had the whole answer, if its proxy knows that."""
    is_disowned: bool = False
    prompt_doubt: str | None = None
    damage: str | None = None
    """What is wrong with its record: the reason code of a mask, or `gone`: it isn't on the log."""

    @property
    def whole(self) -> list[Read]:
        return [*self.prompt, *self.sampled]


@dataclass
class Session:
    """One session: what happened, and what the log says."""

    calls: list[Lived]
    """In log order."""
    records: list[Completion]
    disowned: frozenset[str]
    build: Build
    words: int
    """The size of its vocabulary."""


@dataclass
class _Conversation:
    """What an agent would send next."""

    tokens: list[Read]
    engine: str
    kind: str
    thread: str | None
    realigned: int = 0


def session(random: Random, numbers: Iterator[int], index: int = 0, samples: int = 1) -> Session:
    """A session of 0 to some 60 calls; `numbers` gives the logprobs of all sessions of a group."""
    return Agent(random, numbers, f"t.{index}").lived(index, samples)


class Agent:
    """A harness, its engines and its proxies, over one session."""

    def __init__(self, random: Random, numbers: Iterator[int], session_id: str) -> None:
        self._random = random
        self._numbers = numbers
        self._session_id = session_id
        self._words = random.choice([3, 40, 40, 30_000])
        """The size of the vocabulary: with few words, prompts and answers meet by chance."""
        self._images = MEDIA and random.random() < 0.5
        self._knows_places = random.random() < 0.8
        """Whether the engine tells where in a prompt its images are; otherwise they may change every token of it."""
        self._system = self._text(random.choice([1, 4, 4, 4, BLOCK, 2 * BLOCK + 30]))
        self._has_threads = random.random() < 0.5
        self._thinks = random.random() < 0.3
        self._ways = random.choices(
            ["exact", "end_of_turn", "stripped", "opening", "edited", "realigned"], [8, 1, 1, 1, 1, 2], k=3
        )
        """How this session's template and harness write answers into the history."""
        self._now = 1000
        self._calls: list[Lived] = []
        self._records: list[Completion] = []
        self._conversations: list[_Conversation] = []
        self._threads = 0
        self._proxy = 0
        self._prompts = PromptIndex()
        self._seen = SeenAnswers()
        self._publications = 0
        self._weights: dict[str, Version] = dict.fromkeys(ENGINES, (None, None))

    def lived(self, index: int, samples: int) -> Session:
        self._publish()
        self._start("main")
        for _ in range(self._random.choice([0, 1, 2, 3, 4, 5, 6, 8, 40])):
            self._step()
        self._damage_records()
        status = self._random.choice([Status.COMPLETED, Status.COMPLETED, Status.TIMED_OUT, Status.FAILED])
        rewarded = [call.call_id for call in self._calls if self._random.random() < 0.1]
        build = build_record(
            session_id=self._session_id,
            sample_index=index,
            num_samples=samples,
            status=status,
            reward=self._random.choice([None, 0.0, 0.5, 1.0, 1.0]),
            call_rewards=dict.fromkeys(rewarded, 0.25) or None,
        )
        calls = sorted(self._calls, key=lambda call: call.completed_at)
        disowned = frozenset(call.call_id for call in calls if call.is_disowned)
        return Session(calls, self._records, disowned, build, self._words)

    # What an agent and its surroundings do

    def _step(self) -> None:
        match self._random.choices(
            ["turn", "at once", "start", "alike", "side", "compact", "rewind", "publish", "move"],
            [14, 2, 2, 1, 2, 1, 2, 3, 1],
        )[0]:
            case "turn":
                self._turns([self._random.choice(self._conversations)])
            case "at once":
                chosen = self._random.choice(self._conversations)
                copies = [replace(chosen, tokens=chosen.tokens + self._observation()) for _ in range(2)]
                self._conversations += copies
                self._turns([*copies, chosen][: self._random.choice([2, 2, 3])])
            case "start":
                self._start(self._random.choice(["main", "subagent"]))
                self._turns([self._conversations[-1]])
            case "alike":
                self._start_alike()
            case "side":
                self._side_call()
            case "compact":
                self._compact(self._random.choice(self._conversations))
            case "rewind":
                self._rewind(self._random.choice(self._conversations))
            case "publish":
                self._publish()
            case "move":
                self._move()

    def _start(self, kind: str) -> None:
        self._threads += 1
        thread = f"thread {self._threads}" if self._has_threads else None
        tokens: list[Read] = [BEGIN, *self._system, *self._text(4), END]
        self._conversations.append(_Conversation(tokens, self._random.choice(ENGINES), kind, thread))

    def _start_alike(self) -> None:
        """Sub-agents with equal prompts, at once or one after the other."""
        self._start("subagent")
        twin = replace(self._conversations[-1])
        if self._has_threads:
            twin.thread = f"{twin.thread} twin"
        self._conversations.append(twin)
        pair = self._conversations[-2:]
        for turns in [pair] if self._random.random() < 0.5 else [[one] for one in pair]:
            self._turns(turns)

    def _side_call(self) -> None:
        onto = self._random.choice(self._conversations)
        kind = self._random.choice(["title", "summary"])
        tokens = self._random.choice([onto.tokens, [BEGIN]]) + self._observation()
        self._answer(self._ask(_Conversation(tokens, self._random.choice(ENGINES), kind, onto.thread)))

    def _compact(self, conversation: _Conversation) -> None:
        """The model sums the history up, and the thread goes on from the summary."""
        asked = replace(conversation, tokens=conversation.tokens + self._observation(), kind="compaction")
        calls = self._ask(asked)
        self._answer(calls)
        conversation.tokens = [BEGIN, *self._system, *calls[0].sampled, END]
        conversation.realigned = 0

    def _rewind(self, conversation: _Conversation) -> None:
        """The harness goes back to an earlier point of a history, of its own or of another conversation, and goes on otherwise."""
        answered = [call for call in self._calls if call.outcome is CallOutcome.ANSWERED]
        if not answered:
            return
        to = self._random.choice(answered)
        kept = self._random.randrange(1, len(to.prompt) + 1)
        conversation.tokens = [*to.prompt[:kept], *self._random.choice([[], self._observation()])]
        conversation.realigned = 0

    def _turns(self, conversations: Sequence[_Conversation]) -> None:
        """Each conversation gets an answer, from requests that are under way together; some ask again until they like it."""
        waiting = [(conversation, self._ask(conversation)) for conversation in conversations]
        self._answer([call for _, calls in waiting for call in calls])
        for conversation, calls in waiting:
            self._take(conversation, calls)

    def _take(self, conversation: _Conversation, calls: list[Lived]) -> None:
        """What becomes of the answers to one request of a conversation."""
        every = list(calls)
        for _ in range(self._random.choice([0, 0, 0, 1, 2])):
            why = self._random.choice(["rejected", "rejected", "its proxy crashed", "the client lost it"])
            if why == "its proxy crashed":
                self._move()
            calls = self._ask(conversation, is_retry=why != "rejected" and self._random.random() < 0.7)
            self._answer(calls)
            every += calls
        used = self._random.choice(calls if self._random.random() < 0.8 else every)
        if used.seen_at is not None:
            self._go_on(conversation, used)

    def _move(self) -> None:
        """Another proxy takes the session over: it has read the log back, or doesn't know all of it any more."""
        self._proxy += 1
        self._seen = SeenAnswers()
        self._prompts = PromptIndex()
        for call in self._calls:
            if call.outcome is CallOutcome.ANSWERED and not call.is_disowned and self._random.random() < 0.9:
                self._remember(call)

    def _publish(self) -> None:
        """New weights, older ones again, or an engine that was started anew and names none."""
        for engine in ENGINES:
            if self._random.random() < 0.6:
                self._weights[engine] = self._next_version()

    def _next_version(self) -> Version:
        if self._random.random() < 0.15:
            return None, None
        self._publications += 1
        return self._random.randrange(4), self._publications

    # Calls

    def _ask(self, conversation: _Conversation, *, is_retry: bool = False) -> list[Lived]:
        """The calls of one request; their answers exist, and nobody has them."""
        self._now += 1
        prompt = [*conversation.tokens, OPEN]
        if not self._knows_places:
            images = [digest for read in prompt for digest in images_of(read)]
            prompt = [(BEGIN, *images), *ids_of(prompt[1:])] if images else prompt
        request = f"{self._session_id}-{len(self._calls)}"
        grammar = self._random.random() < 0.2
        sampling = Sampling(
            temperature=self._random.choice([None, 1.0, 0.7]),
            repetition_penalty=self._random.choice([None, None, 1.1]),
            top_p=0.9 if (truncated := self._random.random() < 0.2) else None,
            truncated=truncated,
            grammar=grammar,
        )
        mode = self._random.choice(["processed", "processed", "raw", "unknown"])
        asked: list[Lived] = []
        for choice in range(self._random.choice([1] * 9 + [2, 3])):
            outcome = self._random.choices([*CallOutcome], [12, 1, 1])[0]
            sampled, finish = self._sampled(prompt) if outcome is CallOutcome.ANSWERED else ([], "stop")
            asked.append(
                Lived(
                    request if choice == 0 else f"{request}.{choice}", request, choice, prompt, sampled,
                    [-next(self._numbers) * LOGPROB_STEP for _ in sampled],
                    self._versions(conversation.engine, len(sampled)),
                    sampling, mode, conversation.engine, conversation.kind, conversation.thread, is_retry,
                    self._now, 0, self._proxy, outcome, finish, conversation.realigned,
                )
            )  # fmt: skip
        self._calls += asked
        return asked

    def _sampled(self, prompt: list[Read]) -> tuple[list[int], str]:
        """An answer, and why it ended: at times the very answer that the prompt got before."""
        thoughts = [THINK, *self._text(3), THOUGHT] if self._thinks and self._random.random() < 0.7 else []
        text = self._text(self._random.choice([0, 1, 2, 5, 5, 12, 40]))
        is_cut = self._random.random() < 0.1
        answer = thoughts + text + ([] if is_cut else [END])
        earlier = [call.sampled for call in self._calls[-4:] if call.prompt == prompt and call.sampled]
        if earlier and self._random.random() < 0.2:
            answer = list(self._random.choice(earlier))
        return ([], "stop") if self._random.random() < 0.04 else (answer, "length" if is_cut else "stop")

    def _versions(self, engine: str, tokens: int) -> list[Version]:
        """The weights that sampled each token: they may change within an answer, if the engine names them."""
        versions = [self._weights[engine]] * tokens
        if tokens < 2 or self._weights[engine][0] is None or self._random.random() > 0.15:
            return versions
        for cut in sorted(self._random.sample(range(1, tokens), min(2, tokens - 1))):
            self._publications += 1
            self._weights[engine] = self._random.randrange(4), self._publications
            versions[cut:] = [self._weights[engine]] * (tokens - cut)
        return versions

    def _answer(self, calls: Sequence[Lived]) -> None:
        """The calls end in any order, each is logged, and its answer delivered, or not."""
        rejects: dict[str, list[str]] = {}
        for call in calls:
            if call.choice == 0:
                named = self._seen.asked_again(_question(call), call.received_at)
                rejects[call.request] = [] if call.is_retry else named
        for call in sorted(calls, key=lambda _: self._random.random()):
            self._now += self._random.randrange(1, 4)
            call.completed_at = self._now
            self._log(call, rejects[call.request])
        self._now += 1
        for request in {call.request for call in calls}:
            self._deliver([call for call in calls if call.request == request])

    def _deliver(self, choices: list[Lived]) -> None:
        """A request's answers reach the harness together, and only if there is one for each choice."""
        if any(call.outcome is not CallOutcome.ANSWERED or call.is_disowned for call in choices):
            return
        if self._random.random() < 0.07:
            for call in choices:
                call.is_disowned = True
            return
        for call in choices:
            call.seen_at = self._now
        self._seen.add(_question(choices[0]), [call.call_id for call in choices], self._now)

    def _go_on(self, conversation: _Conversation, used: Lived) -> None:
        """The conversation with an answer, as this session's template or harness writes it, and what the agent says next."""
        way = self._random.choice(self._ways)
        answer, opening = used.sampled, OPEN
        if way == "end_of_turn":
            answer = [*answer[:-1], END_ELSE]
        elif way == "stripped":
            answer = answer[self._random.randrange(len(answer) + 1) :]
        elif way == "opening":
            opening = OPEN_ELSE
        elif way == "edited":
            answer = answer[: self._random.randrange(len(answer) + 1)] + self._text(3)
        conversation.tokens = [*used.prompt[:-1], opening, *answer, *self._observation()]
        conversation.realigned = self._random.randrange(1, 3) if way == "realigned" else 0

    def _observation(self) -> list[Read]:
        """What a tool or a user says, with an image at times: one of few, so that prompts differ in an image alone."""
        text = self._text(self._random.choice([1, 3, 3, 3, 60]))
        image = self._random.choice("abc") * 64
        return [TOOL, *([(IMAGE, image), IMAGE] if self._images and self._random.random() < 0.4 else []), *text, END]

    def _text(self, size: int) -> list[int]:
        return [self._random.randrange(WORDS, WORDS + self._words) for _ in range(size)]

    # The log

    def _remember(self, call: Lived) -> None:
        self._prompts.add(call.call_id, _ids(call.prompt), _ids(call.sampled), *self._media(call))

    def _media(self, call: Lived) -> tuple[Any, ...]:
        """The prompt's images, for a writer of deltas that takes them."""
        found = [
            Medium(digest, position=at if self._knows_places else None)
            for at, read in enumerate(call.prompt)
            for digest in images_of(read)
        ]
        return (found,) if MEDIA else ()

    def _log(self, call: Lived, rejects: list[str]) -> None:
        record = self._record(call, rejects)
        is_acknowledged = self._random.random() > 0.03
        if not is_acknowledged:
            # Kafka may have it nevertheless. The proxy writes no delta against it.
            call.is_disowned = call.outcome is CallOutcome.ANSWERED
        elif call.outcome is CallOutcome.ANSWERED:
            self._remember(call)
        self._records += [record] * (2 if self._random.random() < 0.03 else 1)

    def _record(self, call: Lived, rejects: list[str]) -> Completion:
        """As `proxy/capture.py` writes it."""
        is_answered = call.outcome is CallOutcome.ANSWERED
        first = call.versions[0] if call.versions else (None, None)
        lineage = {"thread": call.thread} if call.thread else {}
        lineage |= {"retry": "1"} if call.is_retry else {}
        if is_answered and self._random.random() < 0.03:
            call.prompt_doubt = "the engine read another prompt"
        return completion(
            call.call_id,
            self._prompts.encode(_ids(call.prompt), *self._media(call)) if is_answered else TokenDelta(b""),
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
            **({"media": self._media(call)[0]} if MEDIA and is_answered else {}),
        )

    def _damage_records(self) -> None:
        """Some logs have lost a record, or have one that isn't what was written."""
        if self._random.random() > 0.25:
            return
        kind = self._random.choice(["gone", "base_missing", "invalid_tokens", "chain_differs", "invalid_logprobs"])
        damaged = {record.call_id: _damaged(record, kind, self._random) for record in self._records}
        for call in self._random.sample(self._calls, min(2, len(self._calls))):
            if (record := damaged[call.call_id]) is not None:
                call.damage = kind
                self._records = [record if one.call_id == call.call_id else one for one in self._records]
        if kind == "gone":
            gone = {call.call_id for call in self._calls if call.damage}
            self._records = [record for record in self._records if record.call_id not in gone]


def _damaged(record: Completion, kind: str, random: Random) -> Completion | None:
    """The record with this damage; None if it can't have it, or nobody could notice."""
    prompt, sampled = record.prompt, record.sampled
    changed: dict[str, Any] | None = None
    match kind:
        case "gone":
            changed = {}
        case "base_missing" if record.outcome is CallOutcome.ANSWERED:
            elsewhere = random.choice([{"base": "nobody"}, {"shared": prompt.shared + 100_000}])
            changed = {"prompt": msgspec.structs.replace(prompt, **elsewhere)}
        case "invalid_tokens" if prompt.rest:
            negative = pack_ids([-1]) + prompt.rest[4:]
            changed = {"prompt": msgspec.structs.replace(prompt, rest=random.choice([negative, prompt.rest[:-1]]))}
        case "chain_differs" if prompt.rest and (prompt.shared + 1) <= _verified(prompt):
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


def _spans(versions: Sequence[Version]) -> list[PolicySpan]:
    """The runs of equal versions, if there are several."""
    edges = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1]]
    spans = []
    for start, end in zip([0, *edges], [*edges, len(versions)], strict=True):
        version, publication = versions[start] if versions else (None, None)
        if version is not None:
            spans.append(PolicySpan(version, start, end, publication))
    return spans if edges else []


def _question(call: Lived) -> Question:
    """Its prompt stands for the messages that it was rendered from."""
    thread = None if call.thread is None else frozenset({("thread", call.thread)})
    return repr(call.prompt).encode(), b"", thread


def images_of(read: Read) -> tuple[str, ...]:
    """The digests of the images that begin in a place."""
    return () if isinstance(read, int) else read[1:]


def ids_of(prompt: Iterable[Read]) -> list[int]:
    """The token ids alone."""
    return [read if isinstance(read, int) else read[0] for read in prompt]


def _ids(tokens: Iterable[Read]) -> Ids:
    return np.array(ids_of(tokens), dtype=np.int32)
