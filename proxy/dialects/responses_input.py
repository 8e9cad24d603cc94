"""Input items of a Responses request as canonical messages.

A turn of the model is reasoning, then text, then tool calls: items of their own that become one message again. Items with an id that the
proxy made belong to the turn in that id. If a harness dropped the ids, an item that can't follow the one before it begins a new turn. A
reference stands for the item that it names: its turn lacks that part until the session's stored answers are looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from proxy.chat import Function, FunctionCall, ImagePart, ImageUrl, ItemReference, Message, Part, TextPart, ToolCall
from proxy.dialects import signature
from proxy.dialects.codec import decoded_part, file_text, inlined, invalid
from proxy.dialects.responses_calls import BUILT_INS, Kind, built_in_call, custom_call, function_call, search_call
from proxy.dialects.responses_tools import Tools
from proxy.wire import openai_responses as wire

CALL_PREFIX = "resp_"
"""Prefix of the ids of answers, and so of calls."""
OUR_ID = re.compile(r"(?P<kind>[a-z]+)_(?P<call>[0-9a-f]{32})(?:_(?P<at>\d{1,9}))?")
"""An item's id: it contains the id of its call, and of a tool call its index in the answer. So all proxies know the items on the log."""
UNREADABLE = frozenset({"compaction", "compaction_summary", "context_compaction", "compaction_trigger"})
"""Items whose content only OpenAI's servers can read."""
DETAILS = {"auto": "auto", "low": "low", "high": "high", "original": "high"}
ItemForm = TypeVar("ItemForm", bound=msgspec.Struct)
_items = msgspec.json.Decoder(wire.Item)


@dataclass
class _Turn:
    """A turn of the model, as far as it was read."""

    reasoning: str | None = None
    content: str | list[Part] | None = None
    calls: list[ToolCall] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """The ids of its items that the proxy made."""
    references: list[tuple[str, str]] = field(default_factory=list)
    """Id and path of each reference."""

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

    def references(self, first: int) -> list[ItemReference]:
        """The references read so far, if `first` is the index of the first message in the request."""
        return [
            _reference(item_id, path, position)
            for position, read in enumerate(self._read, first)
            if isinstance(read, _Turn)
            for item_id, path in read.references
        ]

    def read(self, raw: msgspec.Raw, at: str) -> None:
        """Read the item whose path in the request is `at`; an item of unknown type is skipped. Raises RefusalError."""
        item = decoded_part(raw, _items, at)
        kind = "message" if item.type is None and item.role is not None else item.type or "item_reference"
        if kind in UNREADABLE:
            raise invalid(at, f"an item of type {kind!r} can't be read here; send the items themselves")
        if kind in READERS:
            decoder, read = READERS[kind]
            read(self, decoded_part(raw, decoder, at), at)

    # --- items of the model

    def _turn(self, item_id: str | None, follows: Callable[[_Turn], bool]) -> _Turn:
        """The turn of an item; an id that was read before begins a turn that the harness repeats."""
        ours = OUR_ID.fullmatch(item_id or "")
        call = None if ours is None else ours["call"]
        turn = self._turns.get(call) if call is not None else None
        if turn is not None and item_id in turn.ids:
            turn = None
        if turn is None and (self._open is None or call is not None or not follows(self._open)):
            turn = self._open = _Turn()
            self._read.append(turn)
        turn = turn or self._open
        assert turn is not None
        if ours is not None:
            self._turns[ours["call"]] = turn
            turn.ids.add(ours[0])
        return turn

    def _reasoning(self, item: wire.ReasoningItem, _: str) -> None:
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

    def _function_call(self, item: wire.FunctionCallItem, _: str) -> None:
        self._call(function_call(item), item.id)

    def _custom_call(self, item: wire.CustomCallItem, _: str) -> None:
        self._call(custom_call(item), item.id)

    def _search_call(self, item: wire.SearchCallItem, _: str) -> None:
        if item.call_id is not None and item.execution != "server":
            self._call(search_call(item), item.id)

    def _call(self, call: ToolCall, item_id: str | None) -> None:
        self._turn(item_id, lambda _: True).calls.append(call)

    def _item_reference(self, item: wire.ItemReference, at: str) -> None:
        turn, part = self._turn(item.id, lambda _: True), _part_of(item.id)
        turn.references.append((item.id, f"{at}.id"))
        if isinstance(part, int):
            turn.calls.append(ToolCall(item.id, FunctionCall("")))
        elif part == "content":
            turn.content = ""  # a text that follows is another turn's

    # --- items for the model

    def _message(self, item: wire.MessageItem, at: str) -> None:
        if item.role == "assistant":
            self._answer_text(item, at)
        else:
            self._add(Message(item.role, _content(item.content, f"{at}.content")))

    def _add(self, message: Message) -> None:
        self._open = None
        self._read.append(message)

    def _agent_message(self, item: wire.AgentMessageItem, at: str) -> None:
        self._add(Message("user", _content(item.content, f"{at}.content")))

    def _output(self, item: wire.OutputItem, at: str) -> None:
        call_id = item.call_id if item.call_id is not None else item.id
        if call_id is None:
            raise invalid(f"{at}.call_id", "required")
        self._add(Message("tool", _content(item.output, f"{at}.output"), tool_call_id=call_id))

    def _shell_output(self, item: wire.ShellOutputItem, _: str) -> None:
        self._add(Message("tool", msgspec.json.format(item.output, indent=-1).decode(), tool_call_id=item.call_id))

    def _apply_patch_output(self, item: wire.ApplyPatchOutputItem, _: str) -> None:
        text = f"{item.status}: {item.output}" if item.output else item.status
        self._add(Message("tool", text, tool_call_id=item.call_id))

    def _search_output(self, item: wire.SearchOutputItem, at: str) -> None:
        if item.call_id is not None:
            found = self._tools.declare(item.tools, f"{at}.tools")
            self._add(Message("tool", _definitions(found), tool_call_id=item.call_id))

    def _additional_tools(self, item: wire.AdditionalToolsItem, at: str) -> None:
        found = self._tools.declare(item.tools, f"{at}.tools")
        if self._read:
            self._add(Message("developer", _definitions(found)))
        else:
            self._tools.show(found)


def _built_in_call(kind: Kind) -> Callable[[InputReader, wire.BuiltInCallItem, str], None]:
    return lambda reader, item, at: reader._call(built_in_call(kind, item, at), item.id)


def _reader(
    form: type[ItemForm], read: Callable[[InputReader, ItemForm, str], None]
) -> tuple[msgspec.json.Decoder[Any], Callable[[InputReader, Any, str], None]]:
    return msgspec.json.Decoder(form), read


READERS = {
    "message": _reader(wire.MessageItem, InputReader._message),
    "agent_message": _reader(wire.AgentMessageItem, InputReader._agent_message),
    "item_reference": _reader(wire.ItemReference, InputReader._item_reference),
    "reasoning": _reader(wire.ReasoningItem, InputReader._reasoning),
    "function_call": _reader(wire.FunctionCallItem, InputReader._function_call),
    "custom_tool_call": _reader(wire.CustomCallItem, InputReader._custom_call),
    "tool_search_call": _reader(wire.SearchCallItem, InputReader._search_call),
    **{tool.item: _reader(wire.BuiltInCallItem, _built_in_call(kind)) for kind, tool in BUILT_INS.items()},
    "function_call_output": _reader(wire.OutputItem, InputReader._output),
    "custom_tool_call_output": _reader(wire.OutputItem, InputReader._output),
    "local_shell_call_output": _reader(wire.OutputItem, InputReader._output),
    "shell_call_output": _reader(wire.ShellOutputItem, InputReader._shell_output),
    "apply_patch_call_output": _reader(wire.ApplyPatchOutputItem, InputReader._apply_patch_output),
    "tool_search_output": _reader(wire.SearchOutputItem, InputReader._search_output),
    "additional_tools": _reader(wire.AdditionalToolsItem, InputReader._additional_tools),
}
"""The form of each type of item, and the method that reads it; items of other types are skipped."""


def _reference(item_id: str, path: str, position: int) -> ItemReference:
    ours = OUR_ID.fullmatch(item_id)
    call_id = None if ours is None else CALL_PREFIX + ours["call"]
    return ItemReference(item_id, path, position, call_id, _part_of(item_id))


def _part_of(item_id: str) -> Literal["reasoning", "content"] | int:
    """The part of an answer that an item holds; `content` for an id of others."""
    ours = OUR_ID.fullmatch(item_id)
    if ours is not None and ours["at"] is not None:
        return int(ours["at"])
    return "reasoning" if ours is not None and ours["kind"] == "rs" else "content"


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
    head, _, data = (part.file_data or "").rpartition(",")
    is_text = not head or head.startswith("data:text/")
    return file_text(part.filename or part.file_url or "file", data or None if is_text else None)
