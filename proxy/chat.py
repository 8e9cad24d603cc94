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
Doubt = Literal["not_ours", "mixed", "gaps", "late", "restarted"]
"""Why a version isn't recorded. Of those that an engine reports: `not_ours`: it names its weights by something else than a version.
`mixed`: it reports several names, not all of them versions. `gaps`: tokens lack a version. `late`: it reports only the version at the
answer's end. Of the published one: `restarted`: the server was started after the publication, or doesn't say now when it was started."""
NOT_GIVEN = msgspec.Raw()
"""Stands for None: msgspec supports no `Raw | None`."""


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
    """A function's name and arguments."""

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
    """The newest sampled answer that a request repeats after the very messages that it answered."""

    position: int
    """Index of its message in the request."""
    tokens: Ids
    """Its call's prompt and sampled tokens."""
    is_ended: bool
    """The last token ends turns: neither a limit nor a stop string ended the answer."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A harness's request, in any dialect."""

    messages: list[Message]
    model: str | None = None
    tools: list[Tool] = []
    hosted_tools: list[str] = []
    """Types of tools that the harness expects its provider to run, such as a web search; they aren't run here."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    sampling: Sampling = Sampling()
    stop: list[str] = []
    response_format: msgspec.Raw = NOT_GIVEN
    """OpenAI's structured-output object, if the answer must follow a grammar."""
    reasoning_effort: str | None = None
    """`none`, `low`, `medium` or `high`; a provider's other names become the nearest of these."""
    choices: int = 1
    """Number of answers to the same prompt; each is a call of its own on the log."""
    continues: str | None = None
    """The call whose messages and answer come before `messages` (OpenAI's previous_response_id)."""
    store: bool = False
    """Another request may continue this one."""
    instructions: bool = False
    """`messages[0]` holds this request's own instructions, which a request that continues it doesn't inherit."""
    stream: bool = False
    stream_usage: bool = False
    """The stream ends with the usage."""
    continued: RepeatedAnswer | None = None
    """For engines that own their prompts: the answer whose tokens the prompt repeats. Set by the claim."""
    salt: Callable[[], str | None] | None = None
    """Returns `cache_salt`. Set when the call reaches the engine."""
    wire: object = None
    """The dialect's own data: what its answer repeats of the request."""

    @property
    def stored_from(self) -> int | None:
        """Index of the first message that a continuing request inherits; None if none may continue this one."""
        return int(self.instructions) if self.store else None

    @property
    def cache_salt(self) -> str | None:
        """Keeps the engine's prefix cache of different weights apart; computed when the engine is called."""
        return None if self.salt is None else self.salt()

    @property
    def has_images(self) -> bool:
        """Whether a message holds an image."""
        parts = (part for message in self.messages if isinstance(message.content, list) for part in message.content)
        return any(isinstance(part, ImagePart) for part in parts)

    @property
    def offered_tools(self) -> str | None:
        """The tools that the prompt may be limited to: `none`, or `function:` and a name. None: all.

        SGLang leaves other tools out of the prompt; vLLM does for `none` if started with --exclude-tools-when-tool-choice-none.
        """
        if not self.tools:
            return None
        if isinstance(self.tool_choice, ForcedTool):
            return f"function:{self.tool_choice.function.name}"
        return "none" if self.tool_choice == "none" else None

    @property
    def is_grammar_bound(self) -> bool:
        """Whether the engine masks tokens: for structured output, or for a required tool call."""
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
    """Prompt tokens from the engine's cache; None if it doesn't report them."""
    reasoning: int | None = None
    """Sampled reasoning tokens; None if the engine doesn't report them."""


class Answer(msgspec.Struct, frozen=True):
    """An engine's answer: the message for the harness, the tokens for the log."""

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
    """The engine's name of the model."""
    logprobs_mode: str = "processed"
    policy_version: int | None = None
    """The first token's; None if the engine doesn't report it."""
    stop_sequence: str | None = None
    """The stop string that ended the answer, if one did."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """If the engine reports that weights changed within the answer: ascending, without gaps, over all sampled tokens. Empty:
    `policy_version` is every token's."""
    unsaid_calls: int = 0
    """Sampled tool calls that the message lacks, since the request allows one at a time: no prompt continues this answer's tokens."""
    policy_doubt: Doubt | None = None
    """Why the versions that the engine reports aren't recorded."""
    publication: int | None = None
    """Offset of the record that published the first token's weights. Set by `VersionAttribution`, as in `policy_spans`."""
    realigned: int = 0
    """Tokens mode: prompt tokens kept as sampled where the engine's own rendering has others."""
