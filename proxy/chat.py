"""The canonical chat form: where dialects and engines meet, and what the log keeps.

A dialect turns a provider's request into a `ChatRequest`, an engine turns that into an `Answer`, a dialect turns that into the provider's
response. Everything stays where the model sees it: roles as they came, part lists as lists, tool arguments as the very string that was
sampled. As JSON a `Message` and a `Tool` are those of OpenAI's Chat Completions, with vLLM's `reasoning`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from topics.types.completion import PolicySpan, Sampling
from topics.types.tokens import Ids

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
Doubt = Literal["not_ours", "mixed", "gaps", "late"]
"""The engine has another name for its weights than a version; several, and not all of them versions; doesn't say one for each token; or
says which it had when the answer was whole, and they may have sampled its end alone."""
NOT_GIVEN = msgspec.Raw()
"""msgspec takes no `Raw | None`: no bytes stand for None."""


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text among other parts."""

    text: str


class ImageUrl(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an image is: a URL, or its bytes in a data URL."""

    url: str
    detail: str | None = None


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image among other parts."""

    image_url: ImageUrl


Part = TextPart | ImagePart


class FunctionCall(msgspec.Struct, frozen=True):
    """Which function, with what."""

    name: str
    arguments: str = ""
    """The very string that was sampled, JSON or not."""


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call of an assistant turn."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn. Text and tool calls of one turn are one message."""

    role: Role
    content: str | list[Part] | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    name: str | None = None


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = NOT_GIVEN
    """Its JSON schema, byte for byte as it came: key order reaches the prompt."""
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool that the harness declares."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    """The name of one function."""

    name: str


class ForcedTool(msgspec.Struct, frozen=True):
    """A tool choice: this function and no other."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | ForcedTool


class RepeatedAnswer(msgspec.Struct, frozen=True, eq=False):
    """The newest answer of a session that a request repeats, after the very messages that it answered."""

    position: int
    """Of its message in the request."""
    tokens: Ids
    """Its call's prompt and what was sampled."""
    is_ended: bool
    """The last of them is one that ends turns: neither a limit nor a stop string ended it."""


class ChatRequest(msgspec.Struct, frozen=True):
    """What a harness asks for, in any dialect."""

    messages: list[Message]
    model: str | None = None
    tools: list[Tool] = []
    hosted_tools: list[str] = []
    """Types of the tools that the harness expects its provider to run, such as a web search: nobody runs them here."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    sampling: Sampling = Sampling()
    stop: list[str] = []
    response_format: msgspec.Raw = NOT_GIVEN
    """OpenAI's structured-output object, where the answer is held to a grammar."""
    reasoning_effort: str | None = None
    """`none`, `low`, `medium` or `high`; what providers name beyond these is the nearest."""
    choices: int = 1
    """Answers wanted to the same prompt; each is a call of its own on the log."""
    continues: str | None = None
    """The call whose messages and answer come before `messages` (OpenAI's previous_response_id)."""
    store: bool = False
    """Another request may continue this one."""
    instructions: bool = False
    """`messages[0]` is this request's own instructions, which one that continues it doesn't inherit."""
    stream: bool = False
    stream_usage: bool = False
    """The stream tells usage at its end; dialects that always do so set it."""
    continued: RepeatedAnswer | None = None
    """For engines that own their prompts: the answer whose tokens stand in this one's. Set where the call is made."""
    salt: Callable[[], str | None] | None = None
    """Tells `cache_salt`. Set where the call reaches the engine."""
    wire: object = None
    """The dialect's own: what its answer repeats of the request. Nobody else looks at it."""

    @property
    def stored_from(self) -> int | None:
        """The first message that a request which continues this one inherits; None: none may."""
        return int(self.instructions) if self.store else None

    @property
    def cache_salt(self) -> str | None:
        """What its engine keeps the prefixes that it caches for it apart by, if it is asked now: those of other weights."""
        return None if self.salt is None else self.salt()

    @property
    def has_images(self) -> bool:
        """Whether the model is shown any."""
        parts = (part for message in self.messages if isinstance(message.content, list) for part in message.content)
        return any(isinstance(part, ImagePart) for part in parts)

    @property
    def offered_tools(self) -> str | None:
        """Which of its tools the model may be told of only: `none`, or `function:` and a name. None: all.

        SGLang leaves the others out of the prompt, vLLM does so for `none` where it is started with --exclude-tools-when-tool-choice-none.
        """
        if not self.tools:
            return None
        if isinstance(self.tool_choice, ForcedTool):
            return f"function:{self.tool_choice.function.name}"
        return "none" if self.tool_choice == "none" else None

    @property
    def is_grammar_bound(self) -> bool:
        """Whether the engine masks tokens: structured output, or a tool call that must come."""
        return (
            bool(bytes(self.response_format))
            or self.tool_choice == "required"
            or isinstance(self.tool_choice, ForcedTool)
        )


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call."""

    prompt: int
    sampled: int
    cached: int | None = None
    """Prompt tokens that the engine had in its cache; None where it doesn't tell."""
    reasoning: int | None = None
    """Sampled tokens that were reasoning; None where it doesn't tell."""


class Answer(msgspec.Struct, frozen=True):
    """What an engine answered: the message for the harness, the tokens for the log."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    prompt_ids: bytes
    """int32 LE."""
    sampled_ids: bytes
    """int32 LE, at least one."""
    logprobs: bytes
    """float32 LE, as many as `sampled_ids`."""
    model: str
    """As the engine names it."""
    logprobs_mode: str = "processed"
    policy_version: int | None = None
    """Of the first token; None from an engine that doesn't tell."""
    stop_sequence: str | None = None
    """The stop string that ended it, where one did."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """Where the engine tells that weights changed within the answer: ascending, without gaps, over all sampled tokens. Empty:
    `policy_version` is every token's."""
    unsaid_calls: int = 0
    """Calls of tools that were sampled and aren't in the message, since the request takes one at a time: no prompt goes on from it."""
    policy_doubt: Doubt | None = None
    """Why the engine's word on versions isn't passed on."""
    realigned: int = 0
    """Tokens of the prompt that stand as they were sampled where the engine's own rendering spelled them otherwise: tokens mode."""
