"""Tool calls of the Responses API, in both directions: each kind of tool has an item type of its own for its calls.

A call reads the same when its item comes back: if the item's form can't hold the sampled arguments, the call takes a form that can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from proxy.chat import FunctionCall, ToolCall
from proxy.dialects import freeform
from proxy.dialects.codec import invalid, is_object
from proxy.wire.openai_responses import BuiltInCallItem, CustomCallItem, FunctionCallItem, SearchCallItem

Kind = Literal["function", "custom", "tool_search", "local_shell", "shell", "apply_patch"]
UNPARSED = "ctcr_"
"""Prefix of a custom call's id if its `input` is the sampled arguments, which have no `input` of their own."""


@dataclass(frozen=True)
class Declared:
    """A tool as the harness declared it."""

    kind: Kind
    name: str
    namespace: str | None = None


def flat(namespace: str | None, name: str) -> str:
    """The name by which the model calls a tool."""
    return name if namespace is None else f"{namespace}__{name}"


class _LocalShell(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `local_shell`."""

    command: list[str]
    working_directory: str | msgspec.UnsetType = msgspec.UNSET
    timeout_ms: int | msgspec.UnsetType = msgspec.UNSET


class _Shell(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `shell`."""

    commands: list[str]
    timeout_ms: int | msgspec.UnsetType = msgspec.UNSET
    max_output_length: int | msgspec.UnsetType = msgspec.UNSET


class _CreateFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="create_file"):
    path: str
    diff: str


class _UpdateFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="update_file"):
    path: str
    diff: str


class _DeleteFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="delete_file"):
    path: str


@dataclass(frozen=True)
class BuiltIn:
    """A tool that OpenAI defines and the harness runs."""

    field: Literal["action", "operation"]
    """The field of its call's item that holds the arguments."""
    item: str
    prefix: str
    """Prefix of its calls' ids."""
    description: str
    parameters: msgspec.Raw
    arguments: msgspec.json.Decoder[Any]
    extras: dict[str, Any]
    """Constant values in the field beside the arguments."""


def _schema(properties: dict[str, Any], required: list[str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"type": "object", "properties": properties, "required": required}))


_STRINGS = {"type": "array", "items": {"type": "string"}}
BUILT_INS: dict[Kind, BuiltIn] = {
    "local_shell": BuiltIn(
        "action",
        "local_shell_call",
        "lsh_",
        "Runs a command on the local machine.",
        _schema(
            {
                "command": _STRINGS | {"description": "The program and its arguments."},
                "working_directory": {"type": "string"},
                "timeout_ms": {"type": "integer"},
            },
            ["command"],
        ),
        msgspec.json.Decoder(_LocalShell),
        {"type": "exec", "env": {}},
    ),
    "shell": BuiltIn(
        "action",
        "shell_call",
        "sh_",
        "Runs shell commands, one after another.",
        _schema(
            {
                "commands": _STRINGS,
                "timeout_ms": {"type": "integer"},
                "max_output_length": {"type": "integer", "description": "Characters of output to keep."},
            },
            ["commands"],
        ),
        msgspec.json.Decoder(_Shell),
        {},
    ),
    "apply_patch": BuiltIn(
        "operation",
        "apply_patch_call",
        "apc_",
        "Creates, updates or deletes one file.",
        _schema(
            {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {"type": "string", "description": "A V4A diff; for delete_file there is none."},
            },
            ["type", "path"],
        ),
        msgspec.json.Decoder(_CreateFile | _UpdateFile | _DeleteFile),
        {},
    ),
}

_any = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


# --- calls to items


def item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """A sampled call as its tool's item; the item's id ends in `suffix`."""
    match declared.kind:
        case "custom":
            return _custom_item(call, declared, suffix)
        case "tool_search":
            arguments = call.function.arguments
            found = msgspec.Raw(arguments.encode()) if is_object(arguments) else arguments
            return _item("tool_search_call", f"tsc_{suffix}", call) | {"execution": "client", "arguments": found}
        case "local_shell" | "shell" | "apply_patch":
            return _built_in_item(call, declared, suffix)
        case "function":
            return _function_item(call, declared, suffix)


def _item(kind: str, item_id: str, call: ToolCall) -> dict[str, Any]:
    return {"id": item_id, "type": kind, "status": "completed", "call_id": call.id}


def _function_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    bare = _item("function_call", f"fc_{suffix}", call)
    return bare | _named(declared) | {"arguments": call.function.arguments}


def _named(declared: Declared) -> dict[str, str]:
    return {"name": declared.name} | ({} if declared.namespace is None else {"namespace": declared.namespace})


def _custom_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """Arguments without an input are the input themselves: Codex crashes on a function call to a custom tool."""
    text = freeform.parsed_input(call.function.arguments)
    bare = _item("custom_tool_call", f"{UNPARSED if text is None else 'ctc_'}{suffix}", call)
    return bare | _named(declared) | {"input": call.function.arguments if text is None else text}


def _built_in_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """The tool's item, or a function call if the arguments don't fit it."""
    built_in = BUILT_INS[declared.kind]
    try:
        arguments = built_in.arguments.decode(call.function.arguments)
    except (msgspec.DecodeError, RecursionError):
        return _function_item(call, declared, suffix)
    bare = _item(built_in.item, f"{built_in.prefix}{suffix}", call)
    return bare | {built_in.field: built_in.extras | msgspec.to_builtins(arguments)}


# --- items to calls


def function_call(item: FunctionCallItem) -> ToolCall:
    """The call of a `function_call`."""
    return ToolCall(item.call_id, FunctionCall(flat(item.namespace, item.name), item.arguments))


def custom_call(item: CustomCallItem) -> ToolCall:
    """The call of a `custom_tool_call`."""
    is_unparsed = item.id is not None and item.id.startswith(UNPARSED)
    arguments = item.input if is_unparsed else freeform.arguments_of(item.input)
    return ToolCall(item.call_id, FunctionCall(flat(item.namespace, item.name), arguments))


def search_call(item: SearchCallItem) -> ToolCall:
    """The call of a `tool_search_call` that the harness answers."""
    assert item.call_id is not None, "checked by the caller"
    raw = bytes(item.arguments)
    arguments = _any.decode(raw) if raw.startswith(b'"') else msgspec.json.format(raw, indent=-1).decode()
    return ToolCall(item.call_id, FunctionCall("tool_search", arguments))


def built_in_call(kind: Kind, item: BuiltInCallItem, field: str) -> ToolCall:
    """The call of a built-in tool's item. Raises RefusalError if it has no action or operation."""
    built_in = BUILT_INS[kind]
    raw = bytes(getattr(item, built_in.field))
    value = _any.decode(raw) if raw else None
    if not isinstance(value, dict):
        raise invalid(f"{field}.{built_in.field}", "expected an object")
    arguments = {
        name: argument
        for name, argument in value.items()
        if argument is not None and built_in.extras.get(name) != argument
    }
    return ToolCall(item.call_id, FunctionCall(kind, _encode(arguments).decode()))
