"""Prompts that go on from sampled tokens: what a harness repeats stands as it was sampled, what it edited as it is rendered.

The server is the scripted engine, by HTTP, with every drift: what it sampled and how its template writes are known, and prompts are held
against that. Of the proxy there is the claim's memory and the engine's client; for dialects and log see tests/proxy/test_tokens_mode.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polar.scripted.app import running
from polar.scripted.conversation import Call, Turn
from polar.scripted.drift import Drift
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant
from polar.scripted.template import ChatTemplate
from proxy.capture import CallSpec, answered_record
from proxy.chat import (
    Answer,
    ChatRequest,
    ForcedTool,
    Function,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    NamedFunction,
    Part,
    RepeatedAnswer,
    TextPart,
    Tool,
    ToolChoice,
)
from proxy.engines.continuing import Continuing
from proxy.engines.vllm_tokens import VllmTokens
from proxy.errors import EngineError
from proxy.session.claim_state import ClaimState
from proxy.session.logged_calls import LoggedCall
from tests.proxy.engines.recorded import started
from topics.environment.keys import KeyClaims
from topics.types.completion import Sampling
from topics.types.tokens import unpack_ids

MODEL = "polar-scripted"
ALL = frozenset(Drift)
TOOLS = [Tool(Function("look", parameters=msgspec.Raw(b'{"type":"object"}')))]
SAID = (
    ScriptTurn("Let us see.", "Hm, where was it? <|im_end|>", (ScriptCall("look", '{"b":1.0,"a":"x  y"}'),)),
    ScriptTurn("", "", (ScriptCall("look", '{"n":[1,2]}'), ScriptCall("look", '{"é":"\\u00e9"}'))),
    ScriptTurn("It ends with a dot.", "Nearly done"),
    ScriptTurn("A line\n\nand another!", ""),
    ScriptTurn("", "Thought of it, said nothing"),
    ScriptTurn("  Blanks around  ", "", (ScriptCall("look", "{}"),)),
)
SCRIPT = Script("s", "", (Variant(SAID),))


def claim() -> ClaimState:
    now = 1_700_000_000
    return ClaimState(KeyClaims("t.0", 1, "c1", issued_at=now, expires_at=now + 3600, namespace="polar"))


class Session:
    """One claim and its engine, as the proxy brings them together."""

    def __init__(self, engine: VllmTokens, tools: list[Tool] | None = None) -> None:
        self.engine = engine
        self.claim = claim()
        self.tools = TOOLS if tools is None else tools
        self.calls = 0

    async def ask(self, messages: Sequence[Message], **fields: Any) -> Answer:
        request = ChatRequest([*messages], tools=self.tools, **fields)
        restored, transcript = self.claim.restore(request, "default")
        answer = await self.engine.complete(restored, "t.0")
        self.calls += 1
        spec = CallSpec(f"call{self.calls}", self.claim, "openai_chat", "default", restored, transcript, 0.0)
        logged = LoggedCall(answered_record(spec, answer), restored.messages, transcript, answer.message)
        self.claim.add(logged, answer.prompt_ids)
        return answer


@asynccontextmanager
async def opened(scripted: ScriptedEngine) -> AsyncIterator[Session]:
    """A session with a running server."""
    async with running(scripted) as url, started(VllmTokens(url, MODEL)) as engine:
        yield Session(engine)


def drifting(**options: Any) -> ScriptedEngine:
    return ScriptedEngine([SCRIPT], **({"drifts": ALL} | options))


def prompt_of(answer: Answer) -> list[int]:
    return [int(one) for one in unpack_ids(answer.prompt_ids)]


def sampled_by(answer: Answer) -> list[int]:
    return [int(one) for one in unpack_ids(answer.sampled_ids)]


# --- what a harness does


def repeated(message: Message, how: str) -> Message:
    """An answer as a harness sends it back."""
    changed = msgspec.structs.replace
    if how == "reserialised":
        calls = [
            changed(call, function=FunctionCall(call.function.name, anew(call.function.arguments)))
            for call in message.tool_calls
        ]
        return changed(message, tool_calls=calls)
    if how == "trimmed" and isinstance(message.content, str):
        # A blank answer that is trimmed says nothing: nobody can tell it from an answer that only thinks, without its reasoning.
        said = message.content.strip() or message.content
        return changed(message, content=said, reasoning=None)
    return changed(message, reasoning=None) if how == "without reasoning" else message


def anew(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, separators=(" ,", ": "))
    except ValueError:
        return arguments


def as_turn(message: Message) -> Turn:
    """A message as the scripted template takes it."""
    calls = tuple(Call(call.function.name, call.function.arguments) for call in message.tool_calls)
    assert not isinstance(message.content, list)
    return Turn(message.role, message.content or "", message.reasoning or "", calls)


@dataclass
class Harness:
    """A harness that keeps its own history, and what the engine's prompt must be for it, by the rules and nothing else."""

    template: ChatTemplate
    end: int
    """The token that ends turns."""
    history: list[tuple[object, Message, Turn]] = field(default_factory=list)
    """Of each message what it is, as the harness writes it, and as it was said."""
    known: dict[tuple[object, ...], list[int]] = field(default_factory=dict)
    """After which messages which tokens were read and sampled."""

    @property
    def messages(self) -> list[Message]:
        return [message for _, message, _ in self.history]

    @property
    def expected(self) -> list[int]:
        names = tuple(name for name, _, _ in self.history)
        rendered = self.rendered(0)
        for count in range(len(names), 0, -1):
            before = self.known.get(names[:count])
            if before is None:
                continue
            if rendered[: len(before)] == before:
                return rendered
            return before + [self.end] * (before[-1] != self.end) + self.rendered(count)
        return rendered

    def rendered(self, start: int) -> list[int]:
        """What the template writes of the messages from `start` on; its turns have no seams."""
        tools = [] if start else msgspec.json.decode(msgspec.json.encode(TOOLS))
        return self.template.encode([self._as_told(at) for at in range(start, len(self.history))], tools).tolist()

    def _as_told(self, at: int) -> Turn:
        """A turn as the template is given it: an answer in its own place with its reasoning, whether the harness kept it or not."""
        _, message, turn = self.history[at]
        is_repeated = tuple(name for name, _, _ in self.history[: at + 1]) in self.known
        return turn if is_repeated else replace(turn, reasoning=message.reasoning or "")

    def say(self, name: object, text: str) -> None:
        self.history.append((name, Message("user", text), Turn("user", text)))

    def hear(self, name: object, answer: Answer, how: str) -> None:
        """Takes an answer into its history, in its own spelling, and answers the answer's calls."""
        sampled = sampled_by(answer)
        told = repeated(answer.message, how)
        self.history.append((name, told, as_turn(answer.message)))
        names = tuple(name for name, _, _ in self.history)
        self.known[names] = prompt_of(answer) + sampled
        for at, call in enumerate(told.tool_calls):
            result = Message("tool", f"result {at}", tool_call_id=call.id)
            self.history.append((("result", at), result, Turn("tool", f"result {at}")))

    def edit(self, at: int, words: str) -> None:
        """Writes a turn anew: an assistant's without its calls, and their results go, too."""
        _, message, turn = self.history[at]
        edited = msgspec.structs.replace(message, content=words, reasoning=None, tool_calls=[])
        self.history[at] = ((words, at), edited, Turn(turn.role, words))
        while at + 1 < len(self.history) and message.tool_calls and self.history[at + 1][1].role == "tool":
            del self.history[at + 1]


STEPS = st.tuples(
    st.sampled_from(["verbatim", "reserialised", "without reasoning", "trimmed"]),
    st.one_of(st.none(), st.integers(0, 30)),
    st.one_of(st.none(), st.none(), st.integers(1, 12)),
)
"""How the answer is repeated; which turn is edited before the next call; after how many tokens it is cut off."""


ALIKE: list[tuple[str, int | None, int | None]] = [
    *[("verbatim", None, None)] * 4, ("without reasoning", None, None), ("verbatim", None, 1), ("verbatim", 0, None),
]  # fmt: skip
"""An answer that only thinks, then one cut off after a blank: with trimmed text they are one. An edit of the first turn moves both."""


@settings(max_examples=60, deadline=None)
@example(ALIKE, frozenset(), 0)
@given(st.lists(STEPS, min_size=2, max_size=8), st.frozensets(st.sampled_from(list(Drift))), st.integers(0, 3))
def test_prompts_are_what_was_sampled_as_far_as_it_is_repeated_and_what_is_rendered_from_there(
    steps: list[tuple[str, int | None, int | None]], drifts: frozenset[Drift], seed: int
) -> None:
    async def talk() -> None:
        scripted = drifting(drifts=drifts, seed=seed)
        harness = Harness(ChatTemplate(scripted.tokenizer, drifts), scripted.tokenizer.special_ids["<|im_end|>"])
        async with opened(scripted) as session:
            for step, (how, edited, limit) in enumerate(steps):
                harness.say(("user", step), f"Message {step}.")
                if edited is not None and edited < len(harness.history):
                    harness.edit(edited, f"Edited {step}.")
                expected = harness.expected
                answer = await session.ask(harness.messages, sampling=Sampling(max_tokens=limit))
                assert prompt_of(answer) == expected
                if answer.finish_reason == "length" and answer.message.tool_calls:
                    return  # where its last call ends can't be told: see below
                harness.hear(("answer", step), answer, how)

    asyncio.run(talk())


# --- named cases


async def twice(
    session: Session, *, then: str = "Go on.", how: str = "verbatim", **first: Any
) -> tuple[Answer, Answer]:
    """An answer, and the next one of the conversation that it begins."""
    said = [Message("user", "hi")]
    before = await session.ask(said, **first)
    said.append(repeated(before.message, how))
    said += [Message("tool", "found", tool_call_id=call.id) for call in before.message.tool_calls]
    return before, await session.ask([*said, Message("user", then)])


def goes_on(before: Answer, after: Answer) -> bool:
    """Whether the second prompt begins with the first call's tokens."""
    tokens = prompt_of(before) + sampled_by(before)
    return prompt_of(after)[: len(tokens)] == tokens


async def test_without_drift_the_rendering_stands_and_costs_no_more_than_itself() -> None:
    async with opened(drifting(drifts=frozenset())) as session:
        counted = Counted(session.engine)
        before, after = await twice(session)
        assert goes_on(before, after)
        assert (after.realigned, counted.renders) == (0, 2)


async def test_under_drift_a_call_costs_one_rendering_more_and_a_kind_of_answer_four_once() -> None:
    async with opened(drifting()) as session:
        counted = Counted(session.engine)
        before, after = await twice(session)
        assert goes_on(before, after)
        assert after.realigned > 0
        assert counted.renders == 1 + 2 + 4
        before, after = await twice(Session(session.engine))
        assert goes_on(before, after)
        assert counted.renders == 7 + 1 + 2


class Counted:
    """Counts what an engine renders."""

    def __init__(self, engine: VllmTokens) -> None:
        self.renders = 0
        post = engine._http.post

        async def counting(path: str, body: bytes, session_id: str | None = None) -> bytes:
            self.renders += path.endswith("/render")
            return await post(path, body, session_id)

        engine._http.post = counting  # type: ignore[method-assign]


async def test_a_stop_string_is_among_the_tokens_and_not_in_the_text() -> None:
    async with opened(drifting()) as session:
        before, after = await twice(session, stop=["see"])
        assert (before.message.content, before.finish_reason, before.stop_sequence) == ("Let us ", "stop", "see")
        assert goes_on(before, after)
        end = prompt_of(after)[len(prompt_of(before)) + len(sampled_by(before))]
        assert end == ScriptedEngine().tokenizer.special_ids["<|im_end|>"]


async def test_where_a_call_was_followed_by_a_cut_the_rendering_stands() -> None:
    """After the arguments the template ends the call, and whether the model did can't be told from its message."""
    said = Script("s", "", (Variant((ScriptTurn("", "Hm", (ScriptCall("look", "{}"), ScriptCall("look", "{}"))),)),))
    async with opened(ScriptedEngine([said], drifts=frozenset({Drift.REASONING}))) as session:
        whole = await session.ask([Message("user", "hi")])
        cut = len(sampled_by(whole)) - 3
        before, after = await twice(session, sampling=Sampling(max_tokens=cut))
        assert before.message.tool_calls
        assert not goes_on(before, after)
        assert after.realigned == 0


CHANGES: list[dict[str, Any]] = [
    {"reasoning_effort": "high"},
    {"tools": []},
    {"tool_choice": "none"},
    {"tool_choice": ForcedTool(NamedFunction("look"))},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
async def test_what_else_shapes_a_prompt_begins_another_branch(change: dict[str, Any]) -> None:
    async with opened(drifting()) as session:
        said = [Message("user", "hi")]
        before = await session.ask(said)
        others = dict(change)
        session.tools = others.pop("tools", TOOLS)
        after = await session.ask([*said, before.message, Message("user", "Go on.")], **others)
        assert not goes_on(before, after)
        assert after.realigned == 0


async def test_an_answer_that_nobody_saw_is_not_gone_on_from() -> None:
    async with opened(drifting()) as session:
        said = [Message("user", "hi")]
        before = await session.ask(said)
        session.claim.disown("call1")
        after = await session.ask([*said, before.message, Message("user", "Go on.")])
        assert not goes_on(before, after)


@pytest.mark.parametrize("has_image", [False, True])
async def test_parts_of_text_are_gone_on_from_and_a_prompt_with_images_stands(has_image: bool) -> None:
    async with opened(drifting()) as session:
        seen: list[Part] = [TextPart("see")]
        if has_image:
            seen.append(ImagePart(ImageUrl("data:image/png;base64,AAAA")))
        before = await session.ask([Message("user", seen)])
        parts: list[Part] = [TextPart(str(before.message.content))]
        parted = msgspec.structs.replace(before.message, content=parts)
        after = await session.ask([Message("user", seen), parted, Message("user", "Go on.")])
        assert goes_on(before, after) is not has_image
        assert (after.realigned > 0) is not has_image


async def test_a_prompt_that_does_not_fit_is_told_with_its_numbers() -> None:
    async with opened(drifting(max_model_len=200)) as session:
        answer = await session.ask([Message("user", "hi")], sampling=Sampling(max_tokens=32_000))
        assert answer.finish_reason == "tool_calls"
        with pytest.raises(EngineError) as fault:
            await session.ask([Message("user", "word " * 300)])
        assert fault.value.code == "context_length"
        assert fault.value.context is not None
        assert fault.value.context[1] == 200


@pytest.mark.parametrize(
    ("choice", "finish"), [("required", "tool_calls"), ({"function": {"name": "look"}}, "stop")], ids=["any", "named"]
)
async def test_a_forced_call_comes_and_ends_as_chat_completions_say(choice: Any, finish: str) -> None:
    async with opened(ScriptedEngine()) as session:
        told = msgspec.convert(
            {"choice": choice | {"type": "function"} if isinstance(choice, dict) else choice}, Chosen
        )
        answer = await session.ask([Message("user", "hi")], tool_choice=told.choice)
        assert [call.function.name for call in answer.message.tool_calls] == ["look"]
        assert answer.finish_reason == finish


class Chosen(msgspec.Struct):
    choice: ToolChoice


async def test_a_grammar_reaches_the_sampler() -> None:
    form = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"x","schema":{"const":{"a":1}}}}')
    async with opened(ScriptedEngine()) as session:
        session.tools = []
        answer = await session.ask([Message("user", "hi")], response_format=form)
        assert answer.message.content == '{"a":1}'


async def test_of_parallel_calls_one_is_told_where_one_is_wanted() -> None:
    async with opened(ScriptedEngine([Script("s", "", (Variant((SAID[1],)),))])) as session:
        answer = await session.ask([Message("user", "hi")], parallel_tool_calls=False)
        assert (len(answer.message.tool_calls), answer.unsaid_calls) == (1, 1)


async def test_no_prompt_goes_on_from_a_call_that_was_not_told() -> None:
    """Its result never comes, and the harness's history doesn't have it."""
    async with opened(ScriptedEngine([Script("s", "", (Variant((SAID[1],)),))])) as session:
        before, after = await twice(session, parallel_tool_calls=False)
        assert not goes_on(before, after)
        assert after.realigned == 0
        before, after = await twice(Session(session.engine), parallel_tool_calls=True)
        assert goes_on(before, after)


async def test_a_template_that_takes_no_twin_leaves_the_rendering() -> None:
    async def refused(_: ChatRequest) -> Any:
        raise EngineError("refused", "no")

    tokens, rendered = np.arange(9, dtype=np.int32), np.arange(3, 12, dtype=np.int32)
    request = ChatRequest([Message("user", "a"), Message("assistant", "b")], continued=RepeatedAnswer(1, tokens, True))
    prompt = await Continuing(refused).prompt(request, rendered)
    assert (prompt.ids.tolist(), prompt.realigned) == (rendered.tolist(), 0)


async def test_another_end_than_the_templates_stands_before_it() -> None:
    """A model may end a turn with a token that its template never writes."""

    async def render(request: ChatRequest) -> Any:
        return np.array([1, *(ord(c) for m in request.messages for c in f"{m.role[0]}{m.content}."), 2], np.int32)

    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    sampled = np.array([1, 900, 901], np.int32)
    request = ChatRequest(said, continued=RepeatedAnswer(1, sampled, True))
    prompt = await Continuing(render).prompt(request, await render(request))
    assert prompt.ids.tolist() == [1, 900, 901, ord("."), ord("u"), ord("c"), ord("."), 2]
