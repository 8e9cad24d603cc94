"""Tool calls of the Responses API: each kind of tool has an item of its own for them, here a call's both ways.

A call reads the same when its item comes back: where the item's form can't hold the sampled arguments, it takes one that can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from proxy.chat import FunctionCall, ToolCall
from proxy.errors import Refusal, RefusalError
from proxy.wire.openai_responses import BuiltInCallItem, CustomCallItem, FunctionCallItem, SearchCallItem

Kind = Literal["function", "custom", "tool_search", "local_shell", "shell", "apply_patch"]
UNPARSED = "ctcr_"
"""How the id of a custom call begins whose `input` is the arguments as they were sampled, since they hold no input."""
UNREADABLE = (msgspec.DecodeError, RecursionError)


@dataclass(frozen=True)
class Declared:
    """A tool as the harness knows it."""

    kind: Kind
    name: str
    namespace: str | None = None


def flat(namespace: str | None, name: str) -> str:
    """The one name by which the model calls a tool."""
    return name if namespace is None else f"{namespace}__{name}"


class _Custom(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of a custom tool."""

    input: str


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
    """Of its call, where the arguments are."""
    item: str
    prefix: str
    """Of its calls' ids."""
    description: str
    parameters: msgspec.Raw
    arguments: msgspec.json.Decoder[Any]
    extras: dict[str, Any]
    """What the field has beside the arguments."""


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

_customs = msgspec.json.Decoder(_Custom)
_any = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


# --- calls to items


def item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """A sampled call as its tool's item; the item's id ends in `suffix`."""
    match declared.kind:
        case "custom":
            return _custom_item(call, declared, suffix)
        case "tool_search":
            return _search_item(call, suffix)
        case "local_shell" | "shell" | "apply_patch":
            return _built_in_item(call, declared, suffix)
        case "function":
            return _function_item(call, declared, suffix)


def _function_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    return {
        "id": f"fc_{suffix}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        **_named(declared),
        "arguments": call.function.arguments,
    }


def _named(declared: Declared) -> dict[str, str]:
    return {"name": declared.name} | ({} if declared.namespace is None else {"namespace": declared.namespace})


def _custom_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """Arguments without an input are the input themselves: Codex dies of a function call to a custom tool."""
    try:
        prefix, given = "ctc_", _customs.decode(call.function.arguments).input
    except UNREADABLE:
        prefix, given = UNPARSED, call.function.arguments
    return {
        "id": f"{prefix}{suffix}",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": call.id,
        **_named(declared),
        "input": given,
    }


def _search_item(call: ToolCall, suffix: str) -> dict[str, Any]:
    return {
        "id": f"tsc_{suffix}",
        "type": "tool_search_call",
        "execution": "client",
        "call_id": call.id,
        "status": "completed",
        "arguments": _object(call.function.arguments),
    }


def _object(arguments: str) -> msgspec.Raw | str:
    """The very text of a JSON object, else a string."""
    try:
        is_object = isinstance(_any.decode(arguments), dict)
    except UNREADABLE:
        is_object = False
    return msgspec.Raw(arguments.encode()) if is_object else arguments


def _built_in_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """A function call where the arguments are not as the tool takes them."""
    built_in = BUILT_INS[declared.kind]
    try:
        given = built_in.arguments.decode(call.function.arguments)
    except UNREADABLE:
        return _function_item(call, declared, suffix)
    return {
        "id": f"{built_in.prefix}{suffix}",
        "type": built_in.item,
        "call_id": call.id,
        "status": "completed",
        built_in.field: built_in.extras | msgspec.to_builtins(given),
    }


# --- items to calls


def function_call(item: FunctionCallItem) -> ToolCall:
    """The call of a `function_call`."""
    return ToolCall(item.call_id, FunctionCall(flat(item.namespace, item.name), item.arguments))


def custom_call(item: CustomCallItem) -> ToolCall:
    """The call of a `custom_tool_call`."""
    is_unparsed = item.id is not None and item.id.startswith(UNPARSED)
    arguments = item.input if is_unparsed else _encode(_Custom(item.input)).decode()
    return ToolCall(item.call_id, FunctionCall(flat(item.namespace, item.name), arguments))


def search_call(item: SearchCallItem) -> ToolCall:
    """The call of a `tool_search_call` that the harness answers."""
    assert item.call_id is not None, "the harness's, as the caller has seen"
    raw = bytes(item.arguments)
    arguments = _any.decode(raw) if raw.startswith(b'"') else msgspec.json.format(raw, indent=-1).decode()
    return ToolCall(item.call_id, FunctionCall("tool_search", arguments))


def built_in_call(kind: Kind, item: BuiltInCallItem, field: str) -> ToolCall:
    """The call of a built-in tool's item. Raises RefusalError where it has no action or operation."""
    built_in = BUILT_INS[kind]
    raw = bytes(getattr(item, built_in.field))
    given = _any.decode(raw) if raw else None
    if not isinstance(given, dict):
        where = f"{field}.{built_in.field}"
        raise RefusalError(Refusal.INVALID, f"{where}: expected an object", field=where)
    extras = built_in.extras
    said = {
        name: value
        for name, value in given.items()
        if value is not None and not (name in extras and value == extras[name])
    }
    return ToolCall(item.call_id, FunctionCall(kind, _encode(said).decode()))
