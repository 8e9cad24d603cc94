"""The chat template: an append-only conversation gives append-only prompts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.answer import as_turn, joined
from polar.scripted.conversation import Call, Turn
from tests.polar.scripted.conversations import ANSWERS, OTHERS, PARSER, TEMPLATE, TOKENIZER, TOOLS


@given(
    opening=st.lists(OTHERS, max_size=3),
    rounds=st.lists(st.tuples(ANSWERS, st.lists(OTHERS, max_size=3)), max_size=4),
    tools=TOOLS,
)
def test_each_prompt_begins_with_the_prompt_before_and_what_was_sampled(
    opening: list[Turn], rounds: list[tuple[Turn, list[Turn]]], tools: list[Any]
) -> None:
    turns = list(opening)
    for said, others in rounds:
        prompt = TEMPLATE.encode(turns, tools)
        sampled = TEMPLATE.encode_answer(said)
        turns += [as_turn(joined(PARSER.deltas(sampled))), *others]
        assert TEMPLATE.encode(turns, tools)[: len(prompt) + len(sampled)] == prompt + sampled


@given(st.lists(OTHERS, min_size=1), TOOLS)
def test_specials_in_what_others_write_are_text(turns: list[Turn], tools: list[Any]) -> None:
    harmless = [Turn(turn.role, "x" if turn.text else "") for turn in turns]
    specials = set(TOKENIZER.special_ids.values())
    assert [i for i in TEMPLATE.encode(turns, tools) if i in specials] == [
        i for i in TEMPLATE.encode(harmless, tools) if i in specials
    ]


def test_a_conversation_renders_as_chatml_with_its_tools_in_the_first_system_block() -> None:
    turns = [
        Turn("developer", "Be brief."),
        Turn("user", "What does f do?"),
        Turn("assistant", "I'll look.", "Where is it?", (Call("read", '{"path" : "f.py"}'), Call("ls", "{}"))),
        Turn("tool", "def f(): ..."),
    ]
    tool = {"type": "function", "function": {"name": "read"}}
    assert TOKENIZER.decode(TEMPLATE.encode(turns, [tool])) == (
        "<|im_start|>developer<|im_sep|>Be brief.\n\n# Tools\n\n"
        'To call a tool, write {"name": …, "arguments": {…}} as a tool call.\n\n'
        '{"type": "function", "function": {"name": "read"}}<|im_end|>'
        "<|im_start|>user<|im_sep|>What does f do?<|im_end|>"
        "<|im_start|>assistant<|im_sep|><think>Where is it?</think>I'll look.\n"
        '<tool_call>\n{"name": "read", "arguments": {"path" : "f.py"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call><|im_end|>'
        "<|im_start|>tool<|im_sep|>def f(): ...<|im_end|>"
        "<|im_start|>assistant<|im_sep|>"
    )


def test_tools_get_a_system_block_where_the_conversation_has_none() -> None:
    rendered = TOKENIZER.decode(TEMPLATE.encode([Turn("user", "hi")], [{"function": {"name": "read"}}]))
    assert rendered.startswith("<|im_start|>system<|im_sep|># Tools")
    assert rendered.endswith("<|im_end|><|im_start|>user<|im_sep|>hi<|im_end|><|im_start|>assistant<|im_sep|>")


def test_a_growing_conversation_is_encoded_once() -> None:
    turns = [Turn("user", f"message {n} " + "word " * 50) for n in range(40)]
    TEMPLATE.encode(turns)
    before = TOKENIZER.cache_misses
    for n in range(5):
        TEMPLATE.encode([*turns, Turn("user", f"and {n}")])
    assert TOKENIZER.cache_misses - before == 5
