"""Deltas and their expansion: whatever the calls, what comes out is what went in, and only what is new is written."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.specimens import JSON
from topics.calls.delta import BLOCK, MessageIndex, PromptIndex, Spelled, links
from topics.calls.resolver import BaseMissingError, DeltaError, Resolver
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.tokens import Ids, common_prefix, count, pack_ids, unpack_ids

NO_PROMPT = TokenDelta(b"")
NO_MESSAGES = MessageDelta(b"[]")


def ids(*tokens: int) -> Ids:
    return np.array(tokens, dtype=np.int32)


def call(
    call_id: str,
    prompt: TokenDelta = NO_PROMPT,
    sampled: Ids | None = None,
    messages: MessageDelta = NO_MESSAGES,
    answer: object | None = None,
) -> Completion:
    tokens = pack_ids(ids() if sampled is None else sampled)
    body = b"" if answer is None else msgspec.json.encode(answer)
    return Completion(
        call_id, "t.0", 1, "c", CallOutcome.ANSWERED, "openai_chat", "vllm_chat", 0, 0, prompt, messages, sampled=tokens, answer=body
    )  # fmt: skip


class Turn(msgspec.Struct, frozen=True):
    """A call made of an earlier one's beginning and something new; lengths in tokens, or messages."""

    after: int
    """Which earlier call, by age."""
    keep: int
    """How much of it, in thousandths."""
    new: int
    """What follows: `new` tokens that tell nothing apart but their number and `flavour`."""
    flavour: int
    sampled: int
    acknowledged: bool


TURNS = st.lists(
    st.builds(
        Turn,
        after=st.integers(0, 5),
        keep=st.sampled_from([0, 1, 300, 500, 999, 1000, 1000, 1000]),
        new=st.integers(0, 2 * BLOCK + 2),
        flavour=st.integers(0, 2),
        sampled=st.sampled_from([0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1]),
        acknowledged=st.booleans(),
    ),
    max_size=12,
)


def played(turns: Sequence[Turn]) -> list[tuple[Turn, Ids, Ids]]:
    """The prompts and sampled tokens of turns."""
    made: list[tuple[Turn, Ids, Ids]] = []
    for turn in turns:
        whole = np.concatenate(made[-1 - turn.after % len(made)][1:]) if made else ids()
        kept = whole[: len(whole) * turn.keep // 1000]
        new = np.arange(turn.new, dtype=np.int32) // 100 + turn.flavour
        sampled = np.full(turn.sampled, turn.flavour, dtype=np.int32)
        made.append((turn, np.concatenate((kept, new)), sampled))
    return made


@settings(deadline=None)
@given(TURNS, st.sampled_from([10**6, 700]))
def test_prompts_come_back_as_they_were(turns: list[Turn], max_tokens: int) -> None:
    index, resolver = PromptIndex(max_tokens), Resolver()
    for at, (turn, prompt, sampled) in enumerate(played(turns)):
        resolver.add(call(f"c{at}", index.encode(prompt), sampled))
        assert np.array_equal(resolver.prompt(f"c{at}"), prompt)
        if turn.acknowledged:
            index.add(f"c{at}", prompt, sampled)
            whole = np.concatenate((prompt, sampled))
            assert index.tokens(f"c{at}", len(whole) + 1) is None
            for length in {0, len(prompt), len(whole)} if len(whole) else ():
                known = index.tokens(f"c{at}", length)
                assert known is not None
                assert np.array_equal(known, whole[:length])
    for at, (turn, prompt, _) in enumerate(played(turns)):
        known = index.tokens(f"c{at}", len(prompt))
        assert known is None or (turn.acknowledged and np.array_equal(known, prompt))


@settings(deadline=None)
@given(TURNS)
def test_the_base_shares_the_longest_prefix_of_all_acknowledged_calls(turns: list[Turn]) -> None:
    index = PromptIndex()
    known: dict[str, Ids] = {}
    for at, (turn, prompt, sampled) in enumerate(played(turns)):
        delta = index.encode(prompt)
        best = max((common_prefix(whole, prompt) for whole in known.values()), default=0)
        assert delta.shared == best
        assert (delta.base is None) == (best == 0)
        if delta.base is not None:
            assert common_prefix(known[delta.base], prompt) == best
        if turn.acknowledged:
            index.add(f"c{at}", prompt, sampled)
            known[f"c{at}"] = np.concatenate((prompt, sampled))


@settings(deadline=None)
@given(TURNS)
def test_the_chain_is_that_of_the_whole_prompt(turns: list[Turn]) -> None:
    index = PromptIndex()
    for at, (_, prompt, sampled) in enumerate(played(turns)):
        whole = links(prompt)
        assert index.encode(prompt).chain == (whole[-1] if whole else b"")
        index.add(f"c{at}", prompt, sampled)


def test_a_growing_conversation_writes_only_what_is_new() -> None:
    index = PromptIndex()
    prompt = np.arange(1500, dtype=np.int32)
    for turn in range(50):
        delta = index.encode(prompt)
        assert count(delta.rest) == (1500 if turn == 0 else 300)
        assert delta.base == (None if turn == 0 else f"c{turn - 1}")
        sampled = np.full(100, turn, dtype=np.int32)
        index.add(f"c{turn}", prompt, sampled)
        prompt = np.concatenate((prompt, sampled, np.full(300, 1000 + turn, dtype=np.int32)))


def test_an_index_that_is_full_forgets_all_but_the_newest_call() -> None:
    index = PromptIndex(max_tokens=10)
    index.add("old", ids(1, 2, 3, 4), ids(5, 6))
    index.add("new", ids(7, 8, 9), ids(10, 11, 12))
    assert index.encode(ids(1, 2, 3, 4)).base is None
    assert index.encode(ids(7, 8, 9, 10)) == TokenDelta(b"", shared=4, base="new")


def test_the_first_call_of_an_id_counts() -> None:
    index = PromptIndex()
    index.add("a", ids(1, 2), ids(3))
    index.add("a", ids(9, 9), ids(9))
    assert index.encode(ids(9, 9)).base is None
    resolver = Resolver()
    resolver.add(call("a", TokenDelta(pack_ids(ids(1, 2)))))
    resolver.add(call("a", TokenDelta(pack_ids(ids(9, 9)))))
    assert resolver.prompt("a").tolist() == [1, 2]


MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"])}, optional={"content": JSON})
TALKS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.lists(MESSAGE, max_size=3), st.none() | MESSAGE, st.booleans()),
    max_size=10,
)


@settings(deadline=None)
@given(TALKS, st.sampled_from([1000, 6]))
def test_messages_come_back_with_equal_values(
    talks: list[tuple[int, int, list[Any], Any, bool]], max_messages: int
) -> None:
    index, resolver = MessageIndex(max_messages), Resolver()
    said: list[list[Any]] = []
    for at, (after, drop, new, answer, acknowledged) in enumerate(talks):
        before = said[-1 - after % len(said)] if said else []
        messages = [*before[: max(0, len(before) - drop)], *new]
        spelled = Spelled(messages)
        resolver.add(call(f"c{at}", messages=index.encode(spelled), answer=answer))
        # As JSON text, since True == 1 == 1.0 in Python.
        assert _text(resolver.messages(f"c{at}")) == _text(messages)
        said.append(messages if answer is None else [*messages, answer])
        if acknowledged:
            index.add(f"c{at}", spelled, answer)


def _text(messages: list[Any]) -> bytes:
    return msgspec.json.encode(messages, order="sorted")


def test_messages_are_compared_by_value_and_not_by_spelling() -> None:
    index = MessageIndex()
    index.add("a", Spelled([{"role": "user", "content": "hi"}]), {"role": "assistant", "content": "hello"})
    swapped = [{"content": "hi", "role": "user"}, {"content": "hello", "role": "assistant"}]
    delta = index.encode(Spelled([*swapped, {"role": "user", "content": "bye"}]))
    assert delta == MessageDelta(b'[{"content":"bye","role":"user"}]', shared=2, base="a")


def test_a_missing_base_is_named_with_the_call() -> None:
    with pytest.raises(BaseMissingError, match="call b: its base a isn't") as missing:
        Resolver().add(call("b", TokenDelta(b"", shared=1, base="a")))
    assert (missing.value.call_id, missing.value.base) == ("b", "a")
    with pytest.raises(BaseMissingError, match="call b: its base a isn't"):
        Resolver().add(call("b", messages=MessageDelta(b"[]", shared=1, base="a")))


def test_sharing_more_than_the_base_has_is_refused() -> None:
    resolver = Resolver()
    resolver.add(call("a", TokenDelta(pack_ids(ids(1, 2))), ids(3), MessageDelta(b'[{"role":"user"}]')))
    with pytest.raises(DeltaError, match="call b: shares 4 tokens"):
        resolver.add(call("b", TokenDelta(b"", shared=4, base="a")))
    with pytest.raises(DeltaError, match="call b: shares 2 messages"):
        resolver.add(call("b", messages=MessageDelta(b"[]", shared=2, base="a")))


def test_a_prompt_that_isnt_the_one_written_is_refused() -> None:
    prompt = np.arange(BLOCK + 10, dtype=np.int32)
    delta = PromptIndex().encode(prompt)
    damaged = unpack_ids(delta.rest).copy()
    damaged[17] += 1
    with pytest.raises(DeltaError, match=r"call a: .*hash chain differs"):
        Resolver().add(call("a", msgspec.structs.replace(delta, rest=pack_ids(damaged))))
