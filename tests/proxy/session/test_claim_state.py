"""What a new owner makes of a claim's log: the memory of the owner before it, call by call."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.capture import CallSpec, answered_record
from proxy.chat import Answer, ChatRequest, Function, FunctionCall, ItemReference, Message, Tool, ToolCall, Usage
from proxy.lineage import HEADERS, VALUE_LIMIT
from proxy.session.claim_state import ClaimState
from proxy.session.history import Transcript, transcript
from proxy.session.logged_calls import LoggedCall
from proxy.session.recovery import ClaimLog
from topics.calls.delta import MEDIUM_BYTES, Spelled, spell
from topics.environment.keys import KeyClaims
from topics.types.completion import CallError, CallOutcome, Completion, Medium, MessageDelta, TokenDelta
from topics.types.last_call import LastCall
from topics.types.tokens import pack_ids

KEY = KeyClaims("t.0", 1, "c", expires_at=2**31, issued_at=0, namespace="polar")
ODD = '{"a" :1.0}'
TOOLS = [Tool(Function("bash"))]


class Turn(NamedTuple):
    """One call: which it goes on from, what it says anew, what comes of it."""

    after: int
    dropped: int
    text: str
    tools: int
    answer: str
    store: bool
    outcome: str


TURNS = st.lists(
    st.builds(
        Turn,
        st.integers(0, 9),
        st.integers(0, 2),
        st.sampled_from(["x", "y"]),
        st.integers(0, 2),
        st.sampled_from(["one", "two"]),
        st.booleans(),
        st.sampled_from(["answered"] * 5 + ["failed", "disowned"]),
    ),
    max_size=8,
)


def answered(turn: Turn, at: int) -> Answer:
    message = Message("assistant", turn.answer, tool_calls=[ToolCall(f"id{at}", FunctionCall("bash", ODD))])
    return Answer(message, "tool_calls", Usage(1, 2), _ids(turn.text, at), _ids(turn.answer), b"\0" * 8, "m")


def _ids(text: str, at: int = 0) -> bytes:
    return pack_ids([ord(letter) for letter in text] + [7] * at)


def asked(turn: Turn, said: Sequence[list[Message]]) -> ChatRequest:
    before = said[-1 - turn.after % len(said)] if said else []
    kept = before[: max(0, len(before) - turn.dropped)]
    tools = [Tool(Function(f"f{number}")) for number in range(turn.tools)]
    kept = kept or [Message("system", "Be brief.")] * turn.store
    instructed = bool(kept) and kept[0].role == "system"
    messages = [*kept, Message("user", turn.text)]
    return ChatRequest(messages, tools=tools, store=turn.store, instructions=instructed)


def lived(turns: Sequence[Turn]) -> tuple[ClaimState, list[Completion], frozenset[str], list[list[Message]]]:
    """A claim that took these calls itself, what it wrote of them, and the conversations."""
    claim, log, disowned, said = ClaimState(KEY), list[Completion](), set[str](), list[list[Message]]()
    for at, turn in enumerate(turns):
        request, answer, call_id = asked(turn, said), answered(turn, at), f"c{at}"
        spec = CallSpec(call_id, claim, "openai_chat", "default", request, _transcript(request), 0.0)
        record = answered_record(spec, answer)
        if turn.outcome == "failed":
            log.append(msgspec.structs.replace(record, outcome=CallOutcome.FAILED))
            continue
        log.append(record)
        claim.add(LoggedCall(record, request.messages, spec.transcript, answer.message), answer.prompt_ids)
        if turn.outcome == "disowned":
            claim.disown(call_id)
            disowned.add(call_id)
        said.append([*request.messages, answer.message])
    return claim, log, frozenset(disowned), said


def _transcript(request: ChatRequest) -> Transcript:
    return transcript(Spelled(request.messages), request.tools)


def respelled(messages: Sequence[Message]) -> list[Message]:
    """As a harness repeats them."""
    return [
        msgspec.structs.replace(message, tool_calls=[ToolCall("", FunctionCall("bash", '{"a":1}'))])
        if message.tool_calls
        else message
        for message in messages
    ]


@settings(deadline=None, max_examples=150)
@given(TURNS, st.integers(0, 8))
def test_a_recalled_claim_knows_what_the_one_before_knew(turns: list[Turn], seen: int) -> None:
    """Of which it may have seen the first calls itself."""
    then, log, disowned, said = lived(turns)
    now, *_ = lived(turns[:seen])
    now.take_over(ClaimLog(log, disowned, 0, is_over=False))
    now.take_over(ClaimLog(log, disowned, 0, is_over=False))
    assert now.usage == then.usage
    for conversation in said:
        asking = [*respelled(conversation), Message("user", "and?")]
        restored, spelled = then.turns.restore(asking)
        assert now.turns.restore(asking)[0] == restored
        for tools in ([], [Tool(Function("f0"))]):
            told = transcript(spelled, tools)
            assert now.history.transcript_delta(told) == then.history.transcript_delta(told)
    for at, turn in enumerate(turns):
        answer = answered(turn, at)
        assert now.history.prompt_delta(answer) == then.history.prompt_delta(answer)
    for call in log:
        if call.stored_from is None or call.outcome is CallOutcome.FAILED or call.call_id in disowned:
            continue
        going_on = ChatRequest([Message("user", "on")], continues=call.call_id)
        assert now.stored.continued(going_on) == then.stored.continued(going_on)


def test_the_log_is_read_on_for_an_item_of_a_call_that_is_not_known_yet() -> None:
    _, log, _, _ = lived([Turn(0, 0, "x", 0, "one", True, "answered")])
    claim = ClaimState(KEY)
    claim.take_over(ClaimLog(log, frozenset(), 0, is_over=False))
    lacking = [Message("user", "x"), Message("assistant"), Message("user", "on")]

    def refers_to(call_id: str | None) -> ChatRequest:
        return ChatRequest(lacking, references=[ItemReference("msg_", "input[1].id", 1, call_id, "content")])

    assert not claim.must_read_on(refers_to("c0"))
    assert not claim.must_read_on(refers_to(None))
    assert claim.must_read_on(refers_to("c1"))
    restored, _ = claim.restore(refers_to("c0"), None)
    assert restored.messages[1].content == "one"


@pytest.mark.parametrize("unsaid_calls", [0, 1])
def test_after_a_takeover_prompts_go_on_from_what_was_told_whole(unsaid_calls: int) -> None:
    _, [call], _, [said] = lived([Turn(0, 0, "x", 0, "one", False, "answered")])
    claim = ClaimState(KEY)
    read = [msgspec.structs.replace(call, finish_reason="stop", unsaid_calls=unsaid_calls)]
    claim.take_over(ClaimLog(read, frozenset(), 0, is_over=False))
    request, _ = claim.restore(ChatRequest([*said, Message("user", "on")]), "default")
    assert (request.continued is None) == bool(unsaid_calls)


@pytest.mark.parametrize(("doubt", "routed_by"), [(None, "c0"), ("ids", None), ("count", None)])
def test_rows_of_a_prompt_that_was_not_read_are_asked_for_again(doubt: str | None, routed_by: str | None) -> None:
    _, [call], _, [said] = lived([Turn(0, 0, "x", 0, "one", False, "answered")])
    claim = ClaimState(KEY)
    read = [msgspec.structs.replace(call, finish_reason="stop", routed_experts="blob:x", prompt_doubt=doubt)]
    claim.take_over(ClaimLog(read, frozenset(), 0, is_over=False))
    request, _ = claim.restore(ChatRequest([*said, Message("user", "on")]), "default")
    assert request.continued is not None
    assert request.continued.routed_by == routed_by


def test_what_a_log_lacks_costs_the_calls_that_need_it_and_no_others() -> None:
    turns = [Turn(0, 0, "x", 0, "one", False, "answered"), Turn(0, 0, "y", 0, "two", False, "answered")]
    _, log, _, said = lived(turns)
    assert log[1].messages.base == "c0"
    whole = msgspec.structs.replace(
        log[0],
        call_id="c2",
        prompt=TokenDelta(pack_ids([1, 2])),
        messages=MessageDelta(b'[{"role":"user","content":"z"}]'),
        sampled=pack_ids([3]),
        answer=b'{"role":"assistant","content":"three"}',
    )
    broken = msgspec.structs.replace(whole, call_id="c3", answer=b'{"role":"nobody"}')
    nameless = msgspec.structs.replace(whole, call_id="c4", messages=MessageDelta(b"[]", base="", shared=0))
    claim = ClaimState(KEY)
    claim.take_over(ClaimLog([log[1], broken, nameless, whole], frozenset(), 0, is_over=False))
    assert claim.usage.calls == 1
    assert claim.turns.unknown_turns(said[1]) != frozenset()
    assert claim.turns.unknown_turns([Message("assistant", "three")]) == frozenset()


@pytest.mark.parametrize(
    ("code", "is_ours"),
    [(code, False) for code in ("context_length", "refused", "too_large")]
    + [
        (code, True)
        for code in ("unreachable", "overloaded", "timeout", "server_error", "paused", "proxy_fault", "unrecorded")
    ],
)
def test_a_failed_call_is_told_unless_its_request_was_at_fault(code: str, is_ours: bool) -> None:
    claim, error = ClaimState(KEY), CallError(code, "why")
    claim.fail(error)
    assert claim.last_call == LastCall(error if is_ours else None)


@pytest.mark.parametrize(
    ("characters", "tokens", "store", "images", "header"),
    [
        (10, 10, 0, 0, 0),
        (2000, 300, 0, 0, 0),
        (100, 1000, 0, 0, 0),
        (100, 10, 1, 0, 0),
        (10, 10, 0, 1, 0),
        (10, 10, 0, 0, 40),
        (10, 10, 0, 0, VALUE_LIMIT),
    ],
    ids=["short", "long texts", "long prompts", "stored", "images", "threads", "threads by long headers"],
)
def test_a_claim_knows_about_how_much_memory_it_takes(
    characters: int, tokens: int, store: bool, images: int, header: int
) -> None:
    """Python's own count of what is left when only the claim is: within a third of `size`, some kB a call."""
    gc.collect()
    tracemalloc.start()
    try:
        began, _ = tracemalloc.get_traced_memory()
        claim = _grown(300, characters, tokens, store=bool(store), images=images, header=header)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - began
    finally:
        tracemalloc.stop()
    assert 0.75 < claim.size / taken < 1.34


def test_images_of_a_log_that_was_read_back_take_memory() -> None:
    """Also those of a call that lacks its base, which the log alone holds."""
    _, [call], *_ = lived([Turn(0, 0, "x", 0, "one", False, "answered")])
    media = [Medium(f"{number:064x}") for number in range(1_000)]
    read = [msgspec.structs.replace(call, prompt=TokenDelta(b"", 1, "gone"), media=media)]
    claim = ClaimState(KEY)
    claim.take_over(ClaimLog(read, frozenset(), 0, is_over=False))
    assert claim.size > 1_000 * MEDIUM_BYTES


def _grown(calls: int, characters: int, tokens: int, *, store: bool, images: int, header: int) -> ClaimState:
    """A claim with one conversation, to which each call adds this number of characters, tokens and images. `header`: characters of each
    header that gives each call a thread of its own; 0: the headers name no thread."""
    claim = ClaimState(KEY)
    messages, spelled, ids, media = list[Message](), Spelled(), list[int](), list[Medium]()
    for at in range(calls):
        messages.append(Message("user", f"{at} {'x' * characters}"))
        spelled.append(spell(messages[-1]))
        media = [*media, *(_medium(images * at + number, len(ids)) for number in range(images))]
        ids += [at] * tokens
        prompt, sampled = pack_ids(ids), pack_ids([2 * at] * tokens)
        call = ToolCall(f"call_{at:032x}", FunctionCall("bash", f'{{"command": "{at}"}}'))
        message = Message("assistant", f"{at} {'y' * characters}", tool_calls=[call])
        answer = Answer(message, "tool_calls", Usage(1, 2), prompt, sampled, bytes(4 * tokens), "m")
        said = transcript(spelled.upto(len(messages)), TOOLS)
        request = ChatRequest(list(messages), tools=TOOLS, store=store)
        lineage = {name: f"{name}{at:0{header - len(name)}}" for name in HEADERS} if header else None
        spec = CallSpec(f"{at:032x}", claim, "openai_chat", "default", request, said, 0.0, lineage=lineage)
        claim.add(LoggedCall(answered_record(spec, answer, media), list(messages), said, message), prompt, media)
        messages.append(message)
        spelled.append(spell(message))
        ids += [2 * at] * tokens
    return claim


def _medium(number: int, position: int) -> Medium:
    return Medium(f"{number:064x}", position=position, media_type="image/png", blob=f"blob:sha256/{number:064x}")
