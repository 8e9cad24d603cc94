"""Where a prompt goes on after an answer, by templates whose turns end as those of real models do; the renderer is a plain function.

A template gives each turn as pieces of text and special tokens, so that what must follow an answer is known without looking for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.chat import ChatRequest, FunctionCall, Message, RepeatedAnswer, ToolCall
from proxy.engines.continuing import Continuing
from proxy.errors import EngineError
from topics.types.tokens import Ids

SPECIAL = 1000
ROLES = {"user": SPECIAL, "assistant": SPECIAL + 1, "system": SPECIAL + 2, "tool": SPECIAL + 3}
CALL, CALLED, END, RETURN, DOT_AND_LINE_END = SPECIAL + 4, SPECIAL + 5, SPECIAL + 6, SPECIAL + 7, SPECIAL + 8
Template = Callable[[Sequence[Message]], list[int]]
"""Tokens of messages, without what begins an answer."""


def spelled(text: str) -> list[int]:
    return [ord(character) for character in text]


def glm(messages: Sequence[Message]) -> list[int]:
    """Turns have no end of their own: the model ends its by sampling the token of the role that it gives the word to."""
    ids: list[int] = []
    for message in messages:
        ids += [ROLES[message.role], *spelled("\n" + str(message.content or "").strip())]
        for call in message.tool_calls:
            ids += [CALL, *spelled(f"{call.function.name} {call.function.arguments}"), CALLED]
    return ids


def mistral(messages: Sequence[Message]) -> list[int]:
    """Turns end with a token of their own, and calls with their id, which the model doesn't sample."""
    ids: list[int] = []
    for message in messages:
        ids += [ROLES[message.role], *spelled(str(message.content or ""))]
        for call in message.tool_calls:
            ids += [CALL, *spelled(f'{{"arguments": {call.function.arguments}, "id": "{call.id}"}}'), CALLED]
        ids += [END] if message.role == "assistant" else []
    return ids


def lfm(messages: Sequence[Message]) -> list[int]:
    """Calls of earlier turns aren't written, only their content."""
    return [
        token
        for message in messages
        for token in (ROLES[message.role], *spelled(str(message.content or "")), END, ord("\n"))
    ]


def harmony(messages: Sequence[Message]) -> list[int]:
    """gpt-oss: in history, reasoning is gone once a text came after it, and texts end with another token than the model samples."""
    ids: list[int] = []
    last_text = max(
        (at for at, message in enumerate(messages) if message.role == "assistant" and message.content), default=-1
    )
    for at, message in enumerate(messages):
        if message.reasoning and at > last_text:
            ids += [ROLES["assistant"], *spelled(f"analysis {message.reasoning}"), END]
        for call in message.tool_calls:
            ids += [ROLES["assistant"], *spelled(f"to={call.function.name} {call.function.arguments}"), CALLED]
        if message.role != "assistant" or message.content:
            ids += [ROLES[message.role], *spelled(f"final {message.content or ''}"), END]
    return ids


def gemma(messages: Sequence[Message]) -> list[int]:
    """Content of a turn with calls comes behind their results, so it would be repeated there."""
    ids: list[int] = []
    behind: list[int] = []
    for message in messages:
        if message.role != "tool":
            ids, behind = [*ids, *behind], []
        for call in message.tool_calls:
            ids += [CALL, *spelled(f"{call.function.name} {call.function.arguments}"), CALLED]
        content = [*spelled(str(message.content or "")), *([] if message.tool_calls else [END])]
        if message.tool_calls:
            behind = content
        else:
            ids += [ROLES[message.role], *content]
    return [*ids, *behind]


def nemotron(messages: Sequence[Message]) -> list[int]:
    """A line end before the end of a turn, which the tokenizer joins to a dot."""
    ids: list[int] = []
    for message in messages:
        text = spelled(str(message.content or ""))
        line_end = [*text[:-1], DOT_AND_LINE_END] if text[-1:] == [ord(".")] else [*text, ord("\n")]
        ids += [ROLES[message.role], *line_end, END]
    return ids


def renderer(template: Template) -> Callable[[ChatRequest], asyncio.Future[Ids]]:
    async def render(request: ChatRequest) -> Ids:
        return np.array([*template(request.messages), ROLES["assistant"]], np.int32)

    return render  # type: ignore[return-value] # a coroutine is awaitable


async def prompt_of(
    template: Template, messages: list[Message], at: int, sampled: list[int], *, is_ended: bool = True
) -> list[int] | None:
    """The prompt that goes on after `messages[at]`, which was sampled so; None where the rendering stands."""
    tokens = np.array([*template(messages[:at]), ROLES["assistant"], *sampled], np.int32)
    request = ChatRequest(messages, continued=RepeatedAnswer(at, tokens, is_ended))
    rendered = await renderer(template)(request)
    prompt = await Continuing(renderer(template)).prompt(request, rendered)
    ids = [int(one) for one in prompt.ids]
    return None if ids == rendered.tolist() else ids


def calling(arguments: str) -> Message:
    return Message("assistant", tool_calls=[ToolCall("abcdefghi", FunctionCall("look", arguments))])


ASKED = Message("user", "q")
YES, GO = Message("assistant", "yes "), Message("user", "go")
THOUGHT = Message("assistant", "yes", "because")
FOUND = Message("tool", "res", tool_call_id="abcdefghi")


async def test_a_server_that_refuses_small_conversations_leaves_the_rendering_of_ended_turns_and_is_asked_again() -> (
    None
):
    refuses = True

    async def render(request: ChatRequest) -> Ids:
        if refuses and request.messages[0].content != "q":
            raise EngineError("refused", "no system prompt")
        return await renderer(mistral)(request)

    tokens = np.array([*mistral([ASKED]), ROLES["assistant"], *spelled("YES"), END], np.int32)
    request = ChatRequest([ASKED, YES, GO], continued=RepeatedAnswer(1, tokens, True))
    rendered = await render(request)
    continuing = Continuing(render)
    assert (await continuing.prompt(request, rendered)).ids.tolist() == rendered.tolist()
    refuses = False
    assert (await continuing.prompt(request, rendered)).ids.tolist() == [
        *tokens.tolist(),
        *mistral([GO]),
        ROLES["assistant"],
    ]


async def test_what_a_template_ends_answers_with_is_asked_once_however_many_calls_need_it() -> None:
    rendered: list[ChatRequest] = []

    async def render(request: ChatRequest) -> Ids:
        rendered.append(request)
        await asyncio.sleep(0)
        return await renderer(mistral)(request)

    tokens = np.array([*mistral([ASKED]), ROLES["assistant"], *spelled("YES"), END], np.int32)
    request = ChatRequest([ASKED, YES, GO], continued=RepeatedAnswer(1, tokens, True))
    own = await renderer(mistral)(request)
    continuing = Continuing(render)
    await asyncio.gather(*(continuing.prompt(request, own) for _ in range(3)))
    assert len(rendered) == 3 + 3


MESSAGES = st.one_of(
    st.builds(
        Message, st.sampled_from(["user", "system", "assistant", "tool"]), st.sampled_from(["", "a", "b.", "c!"])
    ),
    st.builds(calling, st.sampled_from(["{}", '{"a": "1."}', '{"b": {"c": 2}}'])),
)

ANSWERING_CALLS = [
    calling(text) for text in ("{}", '{"n": [1]}', '{"a": "The twin says 1"}', '{"a": "The twin says no" }')
]
"""Ids that a template writes after the arguments aren't taken for another message."""


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([glm, mistral, lfm, harmony]),
    st.lists(MESSAGES, min_size=1, max_size=5),
    st.sampled_from([YES, THOUGHT, *ANSWERING_CALLS]),
)
@example(glm, [GO], YES)
@example(glm, [Message("system", "REMINDER"), GO], YES)
@example(glm, [Message("tool", "", tool_call_id="x"), GO], YES)
@example(glm, [Message("user", "NOTE"), calling('{"a": "x"}'), FOUND], calling('{"a": "x"}'))
@example(mistral, [FOUND], calling('{"a": "The twin says no" }'))
@example(lfm, [FOUND], calling("{}"))
@example(harmony, [GO], YES)
@example(harmony, [FOUND, YES, GO], calling("{}"))
def test_after_what_was_sampled_comes_all_that_the_template_writes_or_the_rendering_stands(
    template: Template, later: list[Message], said: Message
) -> None:
    """Whatever comes after an answer, which ends with the token of whoever is next to speak in small conversations."""
    ends: dict[Template, int] = {
        glm: ROLES["tool" if said.tool_calls else "user"],
        mistral: END,
        lfm: END,
        harmony: CALLED if said.tool_calls else RETURN,
    }
    end = ends[template]
    has_own_end = bool(said.tool_calls) and template is not harmony
    sampled = [*spelled("sampled otherwise"), *([CALLED] if has_own_end else []), end]
    prompt = asyncio.run(prompt_of(template, [ASKED, said, *later], 1, sampled))
    after = template(later)
    is_next = True
    if template is glm:
        is_next = after[0] == end
        after = after[1:]
    elif template is lfm:
        after = [ord("\n"), *after]
    elif template is harmony and not said.tool_calls:
        after = [END, *after]
    expected = [*template([ASKED]), ROLES["assistant"], *sampled, *after, ROLES["assistant"]]
    assert prompt == (expected if is_next else None)


async def test_an_answer_whose_content_would_be_repeated_behind_its_results_is_rendered_anew() -> None:
    sampled = [*spelled("Look: "), CALL, *spelled("look"), CALLED]
    silent = calling('{"a": 1}')
    prompt = await prompt_of(gemma, [ASKED, silent, FOUND], 1, sampled)
    assert prompt == [*gemma([ASKED]), ROLES["assistant"], *sampled, *gemma([FOUND]), ROLES["assistant"]]
    talking = msgspec.structs.replace(silent, content="Look:")
    assert await prompt_of(gemma, [ASKED, talking, FOUND], 1, sampled) is None


async def test_after_a_text_that_was_cut_comes_the_line_end_that_the_tokenizer_joins_to_its_dot() -> None:
    sampled = spelled("It is  so.")
    prompt = await prompt_of(nemotron, [ASKED, Message("assistant", "It is so."), GO], 1, sampled, is_ended=False)
    end = [ord("\n"), END]
    assert prompt == [*nemotron([ASKED]), ROLES["assistant"], *sampled, *end, *nemotron([GO]), ROLES["assistant"]]
