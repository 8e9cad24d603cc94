"""Tools of a Responses request: what the model is shown for each, and a call of each in its own item's form, both ways.

To the model every tool is a function. Its name tells the namespace (`clock__sleep`), and a table of what was declared leads back, so a
call is answered as the harness knows the tool. A call reads the same when its item comes back: where the item's form can't hold the
sampled arguments, it takes one that can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from proxy.chat import (
    NOT_GIVEN,
    ForcedTool,
    Function,
    FunctionCall,
    NamedFunction,
    Tool,
    ToolCall,
    ToolChoice,
)
from proxy.dialects.reading import invalid_field
from proxy.errors import Refusal, Refused
from proxy.wire.openai_responses import BuiltInCallItem, Choice, CustomCallItem, SearchCallItem, ToolSpec

Kind = Literal["function", "custom", "tool_search", "local_shell", "shell", "apply_patch"]
NOTHING = (b"", b"null")
UNPARSED = "ctcr_"
"""How the id of a custom call begins whose `input` is the arguments as they were sampled, since they hold no input."""
INPUT_SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)


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

_specs = msgspec.json.Decoder(ToolSpec)
_choices = msgspec.json.Decoder(str | Choice)
_customs = msgspec.json.Decoder(_Custom)
_any = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode
UNREADABLE = (msgspec.DecodeError, RecursionError)


@dataclass(frozen=True)
class Declared:
    """A tool as the harness knows it."""

    kind: Kind
    name: str
    namespace: str | None = None


class Tools:
    """The tools of one request."""

    def __init__(self) -> None:
        self.shown: list[Tool] = []
        """What the model has from the start."""
        self._declared: dict[str, Declared] = {}
        self._functions: dict[str, Function] = {}
        self._deferred: set[str] = set()

    def declare(self, raw: list[msgspec.Raw], field: str) -> list[Function]:
        """Tools in order, each by the name that the model calls it by; one that nobody here runs is no function. Raises Refused.

        A name that is known already keeps its first meaning.
        """
        found = []
        for spec, namespace, where in _flat(raw, field):
            kind = _kind(spec)
            if kind is None:
                continue
            name = spec.name if kind in ("function", "custom") else kind
            if not name:
                raise Refused(Refusal.INVALID, f"{where}.name: required", field=f"{where}.name")
            known_as = flat(namespace, name)
            if known_as not in self._declared:
                self._declared[known_as] = Declared(kind, name, namespace)
                self._functions[known_as] = _function(kind, known_as, spec)
            if spec.defer_loading:
                self._deferred.add(known_as)
            found.append(self._functions[known_as])
        return found

    def show(self, functions: list[Function]) -> None:
        """Shows the model these from the start, save those that a tool search of the harness's is to find first."""
        is_searched = any(declared.kind == "tool_search" for declared in self._declared.values())
        shown = {tool.function.name for tool in self.shown}
        self.shown += [
            Tool(function)
            for function in {function.name: function for function in functions}.values()
            if function.name not in shown and not (is_searched and function.name in self._deferred)
        ]

    def choice(self, raw: msgspec.Raw) -> ToolChoice | None:
        """`tool_choice`; of `allowed_tools` only those are shown on. Raises Refused."""
        if bytes(raw) in NOTHING:
            return None
        try:
            choice = _choices.decode(raw)
        except msgspec.ValidationError as error:
            raise invalid_field(str(error), "tool_choice") from None
        match choice:
            case "none" | "auto" | "required":
                return choice
            case Choice(type="allowed_tools"):
                allowed = {_called(tool) for tool in choice.tools or ()}
                self.shown = [tool for tool in self.shown if tool.function.name in allowed]
                return choice.mode or "auto"
            case Choice():
                return self._forced(choice)
        raise Refused(
            Refusal.INVALID,
            f"tool_choice: expected none, auto, required or an object, got {choice!r}",
            field="tool_choice",
        )

    def _forced(self, choice: Choice) -> ForcedTool:
        name = _called(choice)
        if name is None:
            raise Refused(
                Refusal.INVALID,
                f"tool_choice.type: {choice.type!r} is not a tool that the harness runs; hosted tools aren't served",
                field="tool_choice.type",
            )
        if all(tool.function.name != name for tool in self.shown):
            names = ", ".join(tool.function.name for tool in self.shown) or "none"
            raise Refused(
                Refusal.INVALID, f"tool_choice.name: no tool is named {name!r}; there are {names}", field="tool_choice"
            )
        return ForcedTool(NamedFunction(name))

    def item(self, call: ToolCall, suffix: str) -> dict[str, Any]:
        """A sampled call as its tool's item; its id ends in `suffix`."""
        arguments = call.function.arguments
        declared = self._declared.get(call.function.name, Declared("function", call.function.name))
        if declared.kind == "custom":
            return _custom_item(call, declared, suffix)
        if declared.kind == "tool_search":
            return {
                "id": f"tsc_{suffix}",
                "type": "tool_search_call",
                "execution": "client",
                "call_id": call.id,
                "status": "completed",
                "arguments": _object(arguments),
            }
        built_in = BUILT_INS.get(declared.kind)
        fields = None if built_in is None else _fields(built_in, arguments)
        if built_in is not None and fields is not None:
            return {
                "id": f"{built_in.prefix}{suffix}",
                "type": built_in.item,
                "call_id": call.id,
                "status": "completed",
                built_in.field: fields,
            }
        item = {
            "id": f"fc_{suffix}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": declared.name,
            "arguments": arguments,
        }
        return item if declared.namespace is None else item | {"namespace": declared.namespace}


def flat(namespace: str | None, name: str) -> str:
    """The one name by which the model calls a tool."""
    return name if namespace is None else f"{namespace}__{name}"


# --- declarations


def _flat(
    raw: list[msgspec.Raw], field: str, namespace: str | None = None
) -> Iterator[tuple[ToolSpec, str | None, str]]:
    """Each tool with its namespace and where it stands; namespaces don't nest."""
    for at, one in enumerate(raw):
        where = f"{field}[{at}]"
        try:
            spec = _specs.decode(one)
        except msgspec.ValidationError as error:
            raise invalid_field(str(error), where) from None
        if spec.type == "namespace" and namespace is None:
            if not spec.name:
                raise Refused(Refusal.INVALID, f"{where}.name: required", field=f"{where}.name")
            yield from _flat(spec.tools or [], f"{where}.tools", spec.name)
        else:
            yield spec, namespace, where


def _kind(spec: ToolSpec) -> Kind | None:
    match spec.type:
        case "function" | "custom" | "local_shell" | "apply_patch" as kind:
            return kind
        case "tool_search" if spec.execution == "client":
            return "tool_search"
        case "shell" if spec.environment is None or spec.environment.type == "local":
            return "shell"
    return None


def _function(kind: Kind, name: str, spec: ToolSpec) -> Function:
    if kind == "custom":
        return Function(name, _described(spec), INPUT_SCHEMA)
    built_in = BUILT_INS.get(kind)
    if built_in is not None:
        return Function(name, built_in.description, built_in.parameters)
    parameters = NOT_GIVEN if bytes(spec.parameters) in NOTHING else spec.parameters
    return Function(name, spec.description, parameters, spec.strict)


def _described(spec: ToolSpec) -> str | None:
    """A grammar is told; nothing holds the model to it."""
    if spec.format is None or spec.format.definition is None:
        return spec.description
    told = f"`input` must match this {spec.format.syntax or ''} grammar:\n{spec.format.definition}"
    return told if not spec.description else f"{spec.description}\n\n{told}"


def _called(choice: Choice) -> str | None:
    """The name of a chosen tool; None for one that isn't the harness's."""
    if choice.type in ("function", "custom"):
        return None if choice.name is None else flat(choice.namespace, choice.name)
    return choice.type if choice.type in BUILT_INS or choice.type == "tool_search" else None


# --- calls to items


def _custom_item(call: ToolCall, declared: Declared, suffix: str) -> dict[str, Any]:
    """Arguments without an input are the input themselves: a harness dies of a function call to a custom tool."""
    try:
        prefix, given = "ctc_", _customs.decode(call.function.arguments).input
    except UNREADABLE:
        prefix, given = UNPARSED, call.function.arguments
    item = {
        "id": f"{prefix}{suffix}",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": call.id,
        "name": declared.name,
        "input": given,
    }
    return item if declared.namespace is None else item | {"namespace": declared.namespace}


def _object(arguments: str) -> msgspec.Raw | str:
    """The very text of a JSON object, else a string."""
    try:
        is_object = isinstance(_any.decode(arguments), dict)
    except UNREADABLE:
        is_object = False
    return msgspec.Raw(arguments.encode()) if is_object else arguments


def _fields(built_in: BuiltIn, arguments: str) -> dict[str, Any] | None:
    try:
        read = built_in.arguments.decode(arguments)
    except UNREADABLE:
        return None
    given: dict[str, Any] = msgspec.to_builtins(read)
    return built_in.extras | given


# --- items to calls


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
    """The call of a built-in tool's item. Raises Refused where it has no action or operation."""
    built_in = BUILT_INS[kind]
    raw = bytes(getattr(item, built_in.field))
    given = _any.decode(raw) if raw else None
    if not isinstance(given, dict):
        where = f"{field}.{built_in.field}"
        raise Refused(Refusal.INVALID, f"{where}: expected an object", field=where)
    extras = built_in.extras
    said = {
        name: value
        for name, value in given.items()
        if value is not None and not (name in extras and value == extras[name])
    }
    return ToolCall(item.call_id, FunctionCall(kind, _encode(said).decode()))
