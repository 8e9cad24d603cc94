"""Random sessions of agents: what happens in them, and the log that their proxies write of it.

An agent has conversations: threads of the harness, sub-agents, side calls. A step asks one or several of them at once. Each answer is then
used, rejected, lost with its proxy, or never delivered. A template writes used answers into the next prompt as they were sampled, or in one
of the ways in which real templates and harnesses change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import get_args

from proxy.chat import PromptDoubt
from tests.consumers.token_tree.transcripts import build_record
from tests.faithfulness.lived import UNPROVEN, Lived, Published, Read, Session, Version, ids_of, images_of
from tests.faithfulness.proxy_log import ProxyLog
from topics.calls.delta import BLOCK
from topics.types.completion import CallOutcome, Sampling
from topics.types.session import Status

BEGIN, OPEN, OPEN_ELSE, THINK, THOUGHT, END, END_ELSE, TOOL, IMAGE = range(9)
"""Special tokens. A template opens an answer with OPEN, and may spell that OPEN_ELSE once the answer is history; so with END."""
WORDS = 9
"""The first token that is text."""
ENGINES = ("large", "small")
KINDS = ("main", "subagent", "compaction", "title", "side")
PLAIN = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    grammar_source="none",
)
"""Everything is known, and the distribution is the model's own. No other call of these sessions is plain."""
LOGPROB_STEP = 1 / 1024
"""Logprobs are multiples of it, exact in float32."""
DAMAGE = ("gone", "base_missing", "invalid_tokens", "chain_differs", "invalid_logprobs")


@dataclass(frozen=True)
class Served:
    """How a group's calls are sampled: some trainers take only one mode and one temperature at a time, and by which weights."""

    modes: Sequence[str]
    """Of logprobs."""
    temperatures: Sequence[float]
    published: list[Published] = field(default_factory=list)
    """By the trainer, so far."""

    def publish(self, random: Random, engine: str | None) -> Version:
        """The next version as a rule; at times a lower one, and the numbers above it come again. Now and then the update breaks off."""
        last = max([version for version, _ in self.published[-3:] if version is not None], default=0)
        lower = random.randrange(last + 1)
        version = random.choice([last, lower, lower, *[last + 1] * 5])
        is_interrupted = engine is None and len(self.published) > 0 and random.random() < 0.1
        self.published.append((None if is_interrupted else version, engine))
        return (None, None) if is_interrupted else (version, len(self.published) - 1)


def served(random: Random) -> Served:
    """One mode and one temperature, as a rule."""
    mode, temperature = random.choice(["processed", "raw", "unknown"]), random.choice([1.0, 0.7])
    is_mixed = random.random() < 0.2
    return Served(["processed", "raw"] if is_mixed else [mode], [1.0, 0.7] if is_mixed else [temperature])


@dataclass
class _Conversation:
    """What an agent would send next."""

    tokens: list[Read]
    engine: str
    kind: str
    thread: str | None
    realigned: int = 0


def session(random: Random, numbers: Iterator[int], served: Served, index: int = 0, samples: int = 1) -> Session:
    """A session of 0 to some 100 calls; `numbers` gives the logprobs of all sessions of a group."""
    return _Agent(random, numbers, served, f"t.{index}").lived(index, samples)


class _Agent:
    """A harness and its engines, over one session."""

    def __init__(self, random: Random, numbers: Iterator[int], served: Served, session_id: str) -> None:
        self._random = random
        self._numbers = numbers
        self._served = served
        self._session_id = session_id
        self._words = random.choice([3, 40, 40, 30_000])
        self._images = random.random() < 0.4
        self._knows_places = random.random() < 0.8
        self._system = self._text(random.choice([1, 4, 4, 4, BLOCK, 2 * BLOCK + 30]))
        self._has_threads = random.random() < 0.5
        self._thinks = random.random() < 0.3
        self._ways = random.choices(
            ["exact", "end_of_turn", "stripped", "opening", "edited", "realigned"], [8, 1, 1, 1, 1, 2], k=3
        )
        """How this session's template and harness write answers into the history."""
        self._now = 1000
        self._calls: list[Lived] = []
        self._log = ProxyLog(random, session_id, knows_places=self._knows_places)
        self._conversations: list[_Conversation] = []
        self._threads = 0
        self._weights: dict[str, Version] = dict.fromkeys(ENGINES, (None, None))

    def lived(self, index: int, samples: int) -> Session:
        self._publish()
        self._start("main")
        for _ in range(self._random.choice([0, 1, 2, 3, 4, 5, 6, 8, 40])):
            self._step()
        calls = sorted(self._calls, key=lambda call: call.completed_at)
        if self._random.random() < 0.25:
            self._log.damage(calls, self._random.choice(DAMAGE))
        rewarded = [call.call_id for call in calls if self._random.random() < 0.02]
        build = build_record(
            session_id=self._session_id,
            sample_index=index,
            num_samples=samples,
            status=self._random.choice([Status.COMPLETED, Status.COMPLETED, Status.TIMED_OUT, Status.FAILED]),
            reward=self._random.choice([None, 0.0, 0.5, 1.0, 1.0]),
            call_rewards=dict.fromkeys(rewarded, 0.25) or None,
        )
        disowned = frozenset(call.call_id for call in calls if call.is_disowned)
        return Session(calls, self._log.records, disowned, build, self._words)

    # What an agent and its surroundings do

    def _step(self) -> None:
        chosen = self._random.choice(self._conversations)
        match self._random.choices(
            ["turn", "at once", "start", "alike", "side", "compact", "rewind", "publish", "move"],
            [14, 2, 2, 1, 2, 1, 2, 3, 1],
        )[0]:
            case "turn":
                self._turns([chosen])
            case "at once":
                copies = [replace(chosen, tokens=chosen.tokens + self._observation()) for _ in range(2)]
                self._conversations += copies
                self._turns([*copies, chosen][: self._random.choice([2, 2, 3])])
            case "start":
                self._start(self._random.choice(["main", "subagent"]))
                self._turns([self._conversations[-1]])
            case "alike":
                self._start_alike()
            case "side":
                self._side_call(chosen)
            case "compact":
                self._compact(chosen)
            case "rewind":
                self._rewind(chosen)
            case "publish":
                self._publish()
            case "move":
                self._log.take_over(self._calls)

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

    def _side_call(self, onto: _Conversation) -> None:
        kind = self._random.choice(["title", "side"])
        history: list[Read] = onto.tokens if self._random.random() < 0.5 else [BEGIN]
        tokens = history + self._observation()
        self._answer(self._ask(_Conversation(tokens, self._random.choice(ENGINES), kind, onto.thread)))

    def _compact(self, conversation: _Conversation) -> None:
        """The model sums the history up, and the thread goes on from the summary."""
        calls = self._ask(replace(conversation, tokens=conversation.tokens + self._observation(), kind="compaction"))
        self._answer(calls)
        conversation.tokens = [BEGIN, *self._system, *calls[0].sampled, END]
        conversation.realigned = 0

    def _rewind(self, conversation: _Conversation) -> None:
        """The harness goes back to an earlier point of a history, of its own or of another conversation, and goes on otherwise."""
        answered = [call for call in self._calls if call.outcome is CallOutcome.ANSWERED]
        if answered:
            to = self._random.choice(answered)
            kept = to.prompt[: self._random.randrange(1, len(to.prompt) + 1)]
            conversation.tokens = kept + (self._observation() if self._random.random() < 0.5 else [])
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
                self._log.take_over(self._calls)
            calls = self._ask(conversation, is_retry=why != "rejected" and self._random.random() < 0.7)
            self._answer(calls)
            every += calls
        used = self._random.choice(calls if self._random.random() < 0.8 else every)
        if used.seen_at is not None:
            self._go_on(conversation, used)

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

    def _publish(self) -> None:
        """New weights of an engine or of all, or an engine that was started anew and names none."""
        if self._random.random() < 0.15:
            self._weights[self._random.choice(ENGINES)] = None, None
        engine = self._random.choice([None, None, *ENGINES])
        published = self._served.publish(self._random, engine)
        self._weights |= dict.fromkeys(ENGINES if engine is None else [engine], published)

    # Calls

    def _ask(self, conversation: _Conversation, *, is_retry: bool = False) -> list[Lived]:
        """The calls of one request; their answers exist, and nobody has them."""
        self._now += 1
        prompt = [*conversation.tokens, OPEN]
        if not self._knows_places and (images := [digest for read in prompt for digest in images_of(read)]):
            prompt = [(BEGIN, *images), *ids_of(prompt[1:])]
        request = f"{self._session_id}-{len(self._calls)}"
        sampling = self._sampling()
        mode = self._random.choice(self._served.modes)
        asked: list[Lived] = []
        for choice in range(self._random.choice([1] * 9 + [2, 3])):
            outcome = self._random.choices([*CallOutcome], [12, 1, 1])[0]
            sampled, finish = self._sampled(prompt) if outcome is CallOutcome.ANSWERED else ([], "stop")
            asked.append(
                Lived(
                    call_id=request if choice == 0 else f"{request}.{choice}",
                    request=request,
                    choice=choice,
                    prompt=prompt,
                    sampled=sampled,
                    logprobs=[-next(self._numbers) * LOGPROB_STEP for _ in sampled],
                    versions=self._versions(conversation.engine, len(sampled)),
                    sampling=sampling,
                    logprobs_mode=mode,
                    engine=conversation.engine,
                    kind=conversation.kind,
                    thread=conversation.thread,
                    is_retry=is_retry,
                    received_at=self._now,
                    proxy=self._log.proxy,
                    outcome=outcome,
                    finish_reason=finish,
                    realigned=conversation.realigned,
                    prompt_doubt=self._prompt_doubt() if sampled else None,
                )
            )
        self._calls += asked
        return asked

    def _prompt_doubt(self) -> PromptDoubt | None:
        return self._random.choice(get_args(PromptDoubt)) if self._random.random() < 0.03 else None

    def _sampling(self) -> Sampling:
        if 1.0 in self._served.temperatures and self._random.random() < 0.4:
            return PLAIN
        is_truncated, has_grammar = self._random.random() < 0.2, self._random.random() < 0.2
        return Sampling(
            temperature=self._random.choice(self._served.temperatures),
            repetition_penalty=self._random.choice([None, None, 1.1]),
            top_p=0.9 if is_truncated else None,
            truncated=is_truncated,
            grammar=has_grammar,
            grammar_source="response_format" if has_grammar else self._random.choice(["none", "unknown"]),
        )

    def _sampled(self, prompt: list[Read]) -> tuple[list[int], str]:
        """An answer, and why it ended: at times the very answer that the prompt got before, at times nothing."""
        earlier = [call.sampled for call in self._calls[-4:] if call.prompt == prompt and call.sampled]
        if earlier and self._random.random() < 0.2:
            return list(self._random.choice(earlier)), "stop"
        if self._random.random() < 0.04:
            return [], "stop"
        thoughts = [THINK, *self._text(3), THOUGHT] if self._thinks and self._random.random() < 0.7 else []
        text = self._text(self._random.choice([0, 1, 2, 5, 5, 12, 40]))
        is_cut = bool(text) and self._random.random() < 0.1
        return thoughts + text + ([] if is_cut else [END]), "length" if is_cut else "stop"

    def _versions(self, engine: str, tokens: int) -> list[Version]:
        """The weights that sampled each token: they may change within an answer, if the engine names them."""
        versions = [self._weights[engine]] * tokens
        if tokens < 2 or self._weights[engine][0] is None or self._random.random() > 0.15:
            return versions
        for cut in sorted(self._random.sample(range(1, tokens), min(2, tokens - 1))):
            self._weights[engine] = self._served.publish(self._random, engine)
            versions[cut:] = [self._weights[engine]] * (tokens - cut)
        return versions

    def _answer(self, calls: Sequence[Lived]) -> None:
        """The calls end in any order, each is logged, and its answer delivered, or not."""
        rejects = {call.request: self._log.rejects(call) for call in calls if call.choice == 0}
        for call in self._random.sample(calls, len(calls)):
            self._now += self._random.randrange(1, 4)
            call.completed_at = self._now
            self._log.write(call, rejects[call.request])
        self._now += 1
        for request in rejects:
            self._deliver([call for call in calls if call.request == request])

    def _deliver(self, choices: list[Lived]) -> None:
        """A request's answers reach the harness together, and only if there is one for each choice."""
        if any(call.outcome is not CallOutcome.ANSWERED or call.is_disowned for call in choices):
            return
        if self._random.random() < 0.07:
            for call in choices:
                call.is_disowned = True
        else:
            self._log.deliver(choices, self._now)

    def _observation(self) -> list[Read]:
        """What a tool or a user says, with an image at times: one of few, so that prompts differ in an image alone."""
        text = self._text(self._random.choice([1, 3, 3, 3, 60]))
        image = self._random.choice(
            ["a" * 64, "b" * 64, "c" * 64, UNPROVEN if self._random.random() < 0.2 else "a" * 64]
        )
        shown: list[Read] = [(IMAGE, image), IMAGE] if self._images and self._random.random() < 0.4 else []
        return [TOOL, *shown, *text, END]

    def _text(self, size: int) -> list[int]:
        return [self._random.randrange(WORDS, WORDS + self._words) for _ in range(size)]
