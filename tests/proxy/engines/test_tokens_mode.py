"""Prompts that go on from sampled tokens: what a harness repeats stands as it was sampled, what it edited as it is rendered.

The server is the scripted engine, by HTTP, with every drift; what it sampled and how its template writes are known, and that is what prompts
are held against. Of the proxy there is the claim's memory and the engine's client; dialects, log and HTTP are in test_tokens_proxy.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.keys import KeyClaims
from polar.scripted.app import running
from polar.scripted.conversation import Call, Turn
from polar.scripted.drift import Drift
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant
from polar.scripted.template import ChatTemplate
from polar.types.completion import Sampling
from polar.types.tokens import unpack_ids
from proxy.chat import Answer, ChatRequest, Function, FunctionCall, Message, Tool
from proxy.engines.vllm_tokens import VllmTokens
from proxy.session.claims import Claim

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
REST = Turn("user", "")


def claim() -> Claim:
    now = 1_700_000_000
    return Claim(KeyClaims("t.0", 1, "c1", issued_at=now, expires_at=now + 3600))


class Session:
    """One claim and its engine, as the proxy brings them together."""

    def __init__(self, engine: VllmTokens, tools: list[Tool] | None = None) -> None:
        self.engine = engine
        self.claim = claim()
        self.tools = TOOLS if tools is None else tools
        self.calls = 0

    async def ask(self, messages: Sequence[Message], **fields: Any) -> Answer:
        request = ChatRequest([*messages], tools=self.tools, **fields)
        asked, told = self.claim.restored(request, "default")
        answer = await self.engine.complete(asked, "t.0")
        self.calls += 1
        self.claim.acknowledged(f"call{self.calls}", "default", asked, told, answer)
        return answer


def opened(scripted: ScriptedEngine) -> Any:
    """A running server and a session with it, as a context."""

    class Opened:
        async def __aenter__(self) -> Session:
            self.server = running(scripted)
            url = await self.server.__aenter__()
            self.engine = VllmTokens(url, MODEL)
            await self.engine.start()
            return Session(self.engine)

        async def __aexit__(self, *error: object) -> None:
            await self.engine.stop()
            await self.server.__aexit__(None, None, None)

    return Opened()


def drifting(**options: Any) -> ScriptedEngine:
    return ScriptedEngine([SCRIPT], **({"drifts": ALL} | options))


def prompt_of(answer: Answer) -> list[int]:
    return unpack_ids(answer.prompt_ids).tolist()


def sampled_by(answer: Answer) -> list[int]:
    return unpack_ids(answer.sampled_ids).tolist()


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
        return changed(message, content=message.content.strip(), reasoning=None)
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


@settings(max_examples=60, deadline=None)
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
