"""Input items of a Responses request as canonical messages.

A turn of the model's is reasoning, then text, then tool calls, each an item of its own, and here one message again. Which items are one
turn is told by the ids that we gave them; where a harness dropped these, an item that can't follow the one before it begins a new turn.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from proxy.chat import Function, ImagePart, ImageUrl, Message, Part, TextPart, ToolCall
from proxy.dialects import signature
from proxy.dialects.reading import inlined, invalid_field
from proxy.dialects.responses_calls import BUILT_INS, Kind, built_in_call, custom_call, function_call, search_call
from proxy.dialects.responses_tools import Tools
from proxy.errors import Refusal, RefusalError
from proxy.wire import openai_responses as wire

T = TypeVar("T")
OUR_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_\d+)?")
"""An item's id holds the call's that it is of."""
UNREADABLE = frozenset(
    {"compaction", "compaction_summary", "context_compaction", "compaction_trigger", "item_reference"}
)
"""Items that stand for others, which are not in the request."""
DETAILS = {"auto": "auto", "low": "low", "high": "high", "original": "high"}
BUILT_IN_CALLS: dict[str, Kind] = {built_in.item: kind for kind, built_in in BUILT_INS.items()}
_items = msgspec.json.Decoder(wire.Item)


@dataclass
class _Turn:
    """One of the model's, as far as it was read."""

    reasoning: str | None = None
    content: str | list[Part] | None = None
    calls: list[ToolCall] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """Of its items, those that we gave."""

    def message(self) -> Message:
        return Message("assistant", self.content, self.reasoning, self.calls)


class Input:
    """Reads items in order."""

    def __init__(self, tools: Tools) -> None:
        """`tools` get those that ride in the input."""
        self._tools = tools
        self._read: list[Message | _Turn] = []
        self._open: _Turn | None = None
        self._turns: dict[str, _Turn] = {}

    @property
    def messages(self) -> list[Message]:
        """What was read."""
        return [read.message() if isinstance(read, _Turn) else read for read in self._read]

    def item(self, raw: msgspec.Raw, at: str) -> None:
        """One item, which stands at `at`; one of a type that isn't known here is passed over. Raises RefusalError."""
        kind = _decoded(raw, _items, at)
        match kind.type:
            case "message":
                self._message(raw, at)
            case None if kind.role is not None:
                self._message(raw, at)
            case "reasoning":
                self._reasoning(_decoded(raw, _reasonings, at))
            case "function_call":
                call = _decoded(raw, _function_calls, at)
                self._call(function_call(call), call.id)
            case "custom_tool_call":
                custom = _decoded(raw, _custom_calls, at)
                self._call(custom_call(custom), custom.id)
            case "tool_search_call":
                search = _decoded(raw, _search_calls, at)
                if search.call_id is not None and search.execution != "server":
                    self._call(search_call(search), search.id)
            case "local_shell_call" | "shell_call" | "apply_patch_call" as item:
                built_in = _decoded(raw, _built_in_calls, at)
                self._call(built_in_call(BUILT_IN_CALLS[item], built_in, at), built_in.id)
            case kind_of_item if kind_of_item in UNREADABLE or kind_of_item is None:
                raise RefusalError(
                    Refusal.INVALID,
                    f"{at}: an item of type {kind_of_item or 'item_reference'!r} can't be read here; send the items themselves",
                    field=at,
                )
            case kind_of_item if kind_of_item in OTHERS:
                OTHERS[kind_of_item](self, raw, at)

    # --- the model's own

    def _turn(self, item_id: str | None, follows: Callable[[_Turn], bool]) -> _Turn:
        """The turn that an item is of; one that stood there already is of a turn that the harness tells again."""
        ours = OUR_ID.fullmatch(item_id or "")
        call = None if ours is None else ours[1]
        turn = self._turns.get(call) if call is not None else None
        if turn is not None and item_id in turn.ids:
            turn = None
        if turn is None and (self._open is None or call is not None or not follows(self._open)):
            turn = self._open = _Turn()
            self._read.append(turn)
        turn = turn or self._open
        assert turn is not None
        if ours is not None:
            self._turns[ours[1]] = turn
            turn.ids.add(ours[0])
        return turn

    def _reasoning(self, item: wire.ReasoningItem) -> None:
        told = signature.unseal(item.encrypted_content)
        if told is None:
            told = "\n\n".join(thought.text for thought in item.content or item.summary or ())
        turn = self._turn(item.id, lambda turn: turn.content is None and not turn.calls)
        turn.reasoning = told if turn.reasoning is None else f"{turn.reasoning}\n\n{told}"

    def _says(self, item: wire.MessageItem, at: str) -> None:
        content = _content(item.content, f"{at}.content")
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], TextPart):
            content = content[0].text
        self._turn(item.id, lambda turn: turn.content is None and not turn.calls).content = content

    def _call(self, call: ToolCall, item_id: str | None) -> None:
        self._turn(item_id, lambda _: True).calls.append(call)

    # --- what the model is told

    def _message(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _messages, at)
        if item.role == "assistant":
            self._says(item, at)
        else:
            self._told(Message(item.role, _content(item.content, f"{at}.content")))

    def _told(self, message: Message) -> None:
        self._open = None
        self._read.append(message)

    def _agent_message(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _agent_messages, at)
        self._told(Message("user", _content(item.content, f"{at}.content")))

    def _output(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _outputs, at)
        call_id = item.call_id if item.call_id is not None else item.id
        if call_id is None:
            raise RefusalError(Refusal.INVALID, f"{at}.call_id: required", field=f"{at}.call_id")
        self._told(Message("tool", _content(item.output, f"{at}.output"), tool_call_id=call_id))

    def _shell_output(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _shell_outputs, at)
        self._told(Message("tool", msgspec.json.format(item.output, indent=-1).decode(), tool_call_id=item.call_id))

    def _apply_patch_output(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _apply_patch_outputs, at)
        told = item.status if not item.output else f"{item.status}: {item.output}"
        self._told(Message("tool", told, tool_call_id=item.call_id))

    def _search_output(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _search_outputs, at)
        if item.call_id is not None:
            found = self._tools.declare(item.tools, f"{at}.tools")
            self._told(Message("tool", _definitions(found), tool_call_id=item.call_id))

    def _additional_tools(self, raw: msgspec.Raw, at: str) -> None:
        item = _decoded(raw, _additional_tools, at)
        found = self._tools.declare(item.tools, f"{at}.tools")
        if self._read:
            self._told(Message("developer", _definitions(found)))
        else:
            self._tools.show(found)


OTHERS: dict[str, Callable[[Input, msgspec.Raw, str], None]] = {
    "agent_message": Input._agent_message,
    "function_call_output": Input._output,
    "custom_tool_call_output": Input._output,
    "local_shell_call_output": Input._output,
    "shell_call_output": Input._shell_output,
    "apply_patch_call_output": Input._apply_patch_output,
    "tool_search_output": Input._search_output,
    "additional_tools": Input._additional_tools,
}
_messages = msgspec.json.Decoder(wire.MessageItem)
_agent_messages = msgspec.json.Decoder(wire.AgentMessageItem)
_reasonings = msgspec.json.Decoder(wire.ReasoningItem)
_function_calls = msgspec.json.Decoder(wire.FunctionCallItem)
_custom_calls = msgspec.json.Decoder(wire.CustomCallItem)
_search_calls = msgspec.json.Decoder(wire.SearchCallItem)
_built_in_calls = msgspec.json.Decoder(wire.BuiltInCallItem)
_outputs = msgspec.json.Decoder(wire.OutputItem)
_shell_outputs = msgspec.json.Decoder(wire.ShellOutputItem)
_apply_patch_outputs = msgspec.json.Decoder(wire.ApplyPatchOutputItem)
_search_outputs = msgspec.json.Decoder(wire.SearchOutputItem)
_additional_tools = msgspec.json.Decoder(wire.AdditionalToolsItem)


def _decoded(raw: msgspec.Raw, decoder: msgspec.json.Decoder[T], at: str) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), at) from None


def _definitions(functions: list[Function]) -> str:
    """Tools that come later stand where they came, as text, so that prompts only grow."""
    return "\n".join(inlined(function) for function in functions) or "No tools."


# --- content


def _content(content: str | list[wire.WirePart] | None, at: str) -> str | list[Part]:
    if isinstance(content, list):
        return [_part(part, f"{at}[{index}]") for index, part in enumerate(content)]
    return content or ""


def _part(part: wire.WirePart, at: str) -> Part:
    match part.type:
        case "input_text" | "output_text" | "text" | "summary_text" if part.text is not None:
            return TextPart(part.text)
        case "refusal" if part.refusal is not None:
            return TextPart(part.refusal)
        case "encrypted_content" if part.encrypted_content is not None:
            # Codex takes what the model wrote to another agent for encrypted: the schema says so, and OpenAI's server does it.
            return TextPart(part.encrypted_content)
        case "input_image" if part.image_url is not None:
            return ImagePart(ImageUrl(part.image_url, DETAILS.get(part.detail or "")))
        case "input_file" if part.file_data is not None or part.file_url is not None:
            return TextPart(_file(part))
    raise RefusalError(
        Refusal.INVALID,
        f"{at}: expected input_text, output_text, refusal, input_image with its image_url or input_file with its data or URL, "
        f"got {part.type!r}",
        field=at,
    )


def _file(part: wire.WirePart) -> str:
    """A text file's text under its name; of another the model is told that it isn't shown."""
    name = part.filename or part.file_url or "file"
    head, _, data = (part.file_data or "").rpartition(",")
    if not head or head.startswith("data:text/"):
        try:
            return f"{name}\n{base64.b64decode(data, validate=True).decode()}" if data else f"[{name}: not shown]"
        except (binascii.Error, ValueError):
            pass
    return f"[{name}: not shown]"
