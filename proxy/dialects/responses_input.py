"""Input items of a Responses request as canonical messages.

A turn of the model is reasoning, then text, then tool calls: items of their own that become one message again. Items with an id that the
proxy made belong to the turn in that id. If a harness dropped the ids, an item that can't follow the one before it begins a new turn.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from proxy.chat import Function, ImagePart, ImageUrl, Message, Part, TextPart, ToolCall
from proxy.dialects import signature
from proxy.dialects.codec import decoded_part, inlined, invalid
from proxy.dialects.responses_calls import BUILT_INS, Kind, built_in_call, custom_call, function_call, search_call
from proxy.dialects.responses_tools import Tools
from proxy.wire import openai_responses as wire

OUR_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_\d+)?")
"""An item's id contains the id of its call."""
UNREADABLE = frozenset(
    {"compaction", "compaction_summary", "context_compaction", "compaction_trigger", "item_reference"}
)
"""Items that refer to items outside the request."""
DETAILS = {"auto": "auto", "low": "low", "high": "high", "original": "high"}
BUILT_IN_CALLS: dict[str, Kind] = {built_in.item: kind for kind, built_in in BUILT_INS.items()}
_items = msgspec.json.Decoder(wire.Item)


@dataclass
class _Turn:
    """A turn of the model, as far as it was read."""

    reasoning: str | None = None
    content: str | list[Part] | None = None
    calls: list[ToolCall] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """The ids of its items that the proxy made."""

    def message(self) -> Message:
        return Message("assistant", self.content, self.reasoning, self.calls)


class InputReader:
    """Reads items in order."""

    def __init__(self, tools: Tools) -> None:
        """`tools` get the tools that are declared in the input."""
        self._tools = tools
        self._read: list[Message | _Turn] = []
        self._open: _Turn | None = None
        self._turns: dict[str, _Turn] = {}

    @property
    def messages(self) -> list[Message]:
        """The messages read so far."""
        return [read.message() if isinstance(read, _Turn) else read for read in self._read]

    def read(self, raw: msgspec.Raw, at: str) -> None:
        """Read the item whose path in the request is `at`; an item of unknown type is skipped. Raises RefusalError."""
        kind = decoded_part(raw, _items, at)
        match kind.type:
            case "message":
                self._message(raw, at)
            case None if kind.role is not None:
                self._message(raw, at)
            case "reasoning":
                self._reasoning(decoded_part(raw, _reasonings, at))
            case "function_call":
                call = decoded_part(raw, _function_calls, at)
                self._call(function_call(call), call.id)
            case "custom_tool_call":
                custom = decoded_part(raw, _custom_calls, at)
                self._call(custom_call(custom), custom.id)
            case "tool_search_call":
                search = decoded_part(raw, _search_calls, at)
                if search.call_id is not None and search.execution != "server":
                    self._call(search_call(search), search.id)
            case "local_shell_call" | "shell_call" | "apply_patch_call" as item:
                built_in = decoded_part(raw, _built_in_calls, at)
                self._call(built_in_call(BUILT_IN_CALLS[item], built_in, at), built_in.id)
            case kind_of_item if kind_of_item in UNREADABLE or kind_of_item is None:
                raise invalid(
                    at,
                    f"an item of type {kind_of_item or 'item_reference'!r} can't be read here; send the items themselves",
                )
            case kind_of_item if kind_of_item in OTHERS:
                OTHERS[kind_of_item](self, raw, at)

    # --- items of the model

    def _turn(self, item_id: str | None, follows: Callable[[_Turn], bool]) -> _Turn:
        """The turn of an item; an id that was read before begins a turn that the harness repeats."""
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
        text = signature.unseal(item.encrypted_content)
        if text is None:
            text = "\n\n".join(thought.text for thought in item.content or item.summary or ())
        turn = self._turn(item.id, lambda turn: turn.content is None and not turn.calls)
        turn.reasoning = text if turn.reasoning is None else f"{turn.reasoning}\n\n{text}"

    def _answer_text(self, item: wire.MessageItem, at: str) -> None:
        content = _content(item.content, f"{at}.content")
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], TextPart):
            content = content[0].text
        self._turn(item.id, lambda turn: turn.content is None and not turn.calls).content = content

    def _call(self, call: ToolCall, item_id: str | None) -> None:
        self._turn(item_id, lambda _: True).calls.append(call)

    # --- items for the model

    def _message(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _messages, at)
        if item.role == "assistant":
            self._answer_text(item, at)
        else:
            self._add(Message(item.role, _content(item.content, f"{at}.content")))

    def _add(self, message: Message) -> None:
        self._open = None
        self._read.append(message)

    def _agent_message(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _agent_messages, at)
        self._add(Message("user", _content(item.content, f"{at}.content")))

    def _output(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _outputs, at)
        call_id = item.call_id if item.call_id is not None else item.id
        if call_id is None:
            raise invalid(f"{at}.call_id", "required")
        self._add(Message("tool", _content(item.output, f"{at}.output"), tool_call_id=call_id))

    def _shell_output(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _shell_outputs, at)
        self._add(Message("tool", msgspec.json.format(item.output, indent=-1).decode(), tool_call_id=item.call_id))

    def _apply_patch_output(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _apply_patch_outputs, at)
        text = f"{item.status}: {item.output}" if item.output else item.status
        self._add(Message("tool", text, tool_call_id=item.call_id))

    def _search_output(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _search_outputs, at)
        if item.call_id is not None:
            found = self._tools.declare(item.tools, f"{at}.tools")
            self._add(Message("tool", _definitions(found), tool_call_id=item.call_id))

    def _additional_tools(self, raw: msgspec.Raw, at: str) -> None:
        item = decoded_part(raw, _additional_tools, at)
        found = self._tools.declare(item.tools, f"{at}.tools")
        if self._read:
            self._add(Message("developer", _definitions(found)))
        else:
            self._tools.show(found)


OTHERS: dict[str, Callable[[InputReader, msgspec.Raw, str], None]] = {
    "agent_message": InputReader._agent_message,
    "function_call_output": InputReader._output,
    "custom_tool_call_output": InputReader._output,
    "local_shell_call_output": InputReader._output,
    "shell_call_output": InputReader._shell_output,
    "apply_patch_call_output": InputReader._apply_patch_output,
    "tool_search_output": InputReader._search_output,
    "additional_tools": InputReader._additional_tools,
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


def _definitions(functions: list[Function]) -> str:
    """The text that stands for tools which are added in mid-conversation: prompts only grow."""
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
            # Codex labels a message between agents as encrypted, which OpenAI's server makes it; here it is plain text.
            return TextPart(part.encrypted_content)
        case "input_image" if part.image_url is not None:
            return ImagePart(ImageUrl(part.image_url, DETAILS.get(part.detail or "")))
        case "input_file" if part.file_data is not None or part.file_url is not None:
            return TextPart(_file(part))
    expected = "input_text, output_text, refusal, input_image with its image_url or input_file with its data or URL"
    raise invalid(at, f"expected {expected}, got {part.type!r}")


def _file(part: wire.WirePart) -> str:
    """A text file's name and text; for any other file, a note that it isn't shown."""
    name = part.filename or part.file_url or "file"
    head, _, data = (part.file_data or "").rpartition(",")
    if not head or head.startswith("data:text/"):
        try:
            return f"{name}\n{base64.b64decode(data, validate=True).decode()}" if data else f"[{name}: not shown]"
        except (binascii.Error, ValueError):
            pass
    return f"[{name}: not shown]"
