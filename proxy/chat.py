"""The canonical chat form: where dialects and engines meet, and what the log keeps.

A dialect turns a provider's request into a `ChatRequest`, an engine turns that into an `Answer`, a dialect turns that into the provider's
response. Everything stays where the model sees it: roles as they came, part lists as lists, tool arguments as the very string that was
sampled. As JSON a `Message` and a `Tool` are those of OpenAI's Chat Completions, with vLLM's `reasoning`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from topics.types.completion import UNKNOWN, PolicySpan, ReplayField, Sampling
from topics.types.tokens import Ids

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
Doubt = Literal["not_ours", "mixed", "gaps", "late", "restarted"]
"""Why a version isn't recorded.

`not_ours`: the engine names its weights by something other than a version. `mixed`: the engine reports several names, and not all of them
are versions. `gaps`: the engine reports no version for some tokens. `late`: the engine reports only the version at the answer's end.
`restarted`: the server was started after the version was published, or no longer reports when it was started."""
PromptDoubt = Literal["count", "ids"]
"""Why an engine read another prompt than is recorded, by its own report: another number of tokens, or other tokens."""
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

    @property
    def kind(self) -> str:
        """As `Medium.kind`."""
        return "image"

    @property
    def url(self) -> str:
        return self.image_url.url


class AudioUrl(msgspec.Struct, frozen=True):
    """The bytes of a sound, in a data URL."""

    url: str


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="audio_url"):
    """A sound among other parts, as vLLM and SGLang spell it."""

    audio_url: AudioUrl

    @property
    def kind(self) -> str:
        """As `Medium.kind`."""
        return "audio"

    @property
    def url(self) -> str:
        return self.audio_url.url


MediaPart = ImagePart | AudioPart
Part = TextPart | MediaPart


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
    routed_by: str | None = None
    """Its call's id if its routed experts are on the log, without a doubt about its prompt."""


class ItemReference(msgspec.Struct, frozen=True):
    """A part of an earlier answer that a request names by an id instead of repeating it (OpenAI's `item_reference`)."""

    item_id: str
    field: str
    """Path of the reference in the request."""
    position: int
    """Index of its message, which lacks the part; a tool call has a placeholder there, whose id is `item_id`."""
    call_id: str | None
    """The call that answered; None: no call here makes such ids."""
    part: Literal["reasoning", "content"] | int
    """The message's field, or the tool call's index in the answer."""


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
    references: list[ItemReference] = []
    """Parts that `messages` lack; the claim looks them up."""
    store: bool = False
    """Another request may continue this one, or refer to its answer."""
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
    def has_media(self) -> bool:
        """Whether a message holds an image or a sound."""
        parts = (part for message in self.messages if isinstance(message.content, list) for part in message.content)
        return any(isinstance(part, MediaPart) for part in parts)

    @property
    def media(self) -> list[tuple[int, MediaPart]]:
        """All images and sounds in order, each with the index of its message."""
        return [
            (at, part)
            for at, message in enumerate(self.messages)
            if isinstance(message.content, list)
            for part in message.content
            if isinstance(part, MediaPart)
        ]

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
    def may_call_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def grammar_source(self) -> str | None:
        """The field that asks the engine to mask tokens, as in `Sampling.grammar_source`; None: no field does."""
        if bytes(self.response_format):
            return "response_format"
        if not self.may_call_tools:
            return None
        if self.tool_choice == "required" or isinstance(self.tool_choice, ForcedTool):
            return "tool_choice"
        if any(tool.function.strict for tool in self.tools):
            return "strict_tools"
        return "parallel_tool_calls" if self.parallel_tool_calls is False else None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call."""

    prompt: int
    sampled: int
    cached: int | None = None
    """Prompt tokens from the engine's cache; None if it doesn't report them."""
    reasoning: int | None = None
    """Sampled reasoning tokens; None if the engine doesn't report them."""


class ReplayValue(msgspec.Struct, frozen=True):
    """What an engine sent beside an answer, for a trainer to replay; it is converted only when it is stored."""

    field: ReplayField
    size: int
    """Bytes in memory."""
    encode: Callable[[], bytes]
    """Returns the blob's bytes. It takes milliseconds for each MB, and may be called in any thread. Raises ReplayError."""


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
    logprobs_mode: str = UNKNOWN
    sampling: Sampling | None = None
    """How the engine says that it sampled; None: as the request has it."""
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
    media_positions: tuple[int, ...] | None = None
    """Index of the first placeholder of each image and sound, in the request's order; None: the engine doesn't report them."""
    prompt_doubt: PromptDoubt | None = None
    """Why the engine may have read another prompt than `prompt_ids`."""
    replay: tuple[ReplayValue, ...] = ()
    """What waits to be stored."""
    stored: dict[ReplayField, str] = {}
    """Blob references of what was stored."""
    uncaptured: dict[ReplayField, str] = {}
    """As in `Completion`."""
