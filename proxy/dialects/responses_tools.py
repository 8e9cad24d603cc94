"""Tools of a Responses request: what the model is shown for each, and which one it called.

To the model every tool is a function. Its name tells the namespace (`clock__sleep`), and a table of what was declared leads back, so that a
call is answered as the harness knows the tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from proxy.chat import NOT_GIVEN, ForcedTool, Function, NamedFunction, Tool, ToolCall, ToolChoice
from proxy.dialects import freeform, responses_calls
from proxy.dialects.reading import invalid_field
from proxy.dialects.responses_calls import BUILT_INS, Declared, Kind, flat
from proxy.errors import Refusal, RefusalError
from proxy.wire.openai_responses import Choice, ToolSpec

NOTHING = (b"", b"null")
HARNESS_RUN = ("computer", "namespace")
"""How the types begin of tools that are the harness's, though they can't be offered: computer use, and a namespace in another."""
_specs = msgspec.json.Decoder(ToolSpec)
_choices: msgspec.json.Decoder[str | Choice] = msgspec.json.Decoder(str | Choice)


class Tools:
    """The tools of one request."""

    def __init__(self) -> None:
        self.shown: list[Tool] = []
        """What the model has from the start."""
        self._declared: dict[str, Declared] = {}
        self._functions: dict[str, Function] = {}
        self._deferred: set[str] = set()
        self._hosted: list[str] = []

    @property
    def hosted(self) -> list[str]:
        """Types of the tools that OpenAI's servers would run. None where the harness has tools that this request leaves out: then it is
        one of an agent's, not a search beside its work."""
        return [] if self._declared and not self.shown else self._hosted

    def declare(self, raw: list[msgspec.Raw], field: str) -> list[Function]:
        """Tools in order, each by the name that the model calls it by; one that nobody here runs is no function. Raises RefusalError.

        A name that is known already keeps its first meaning.
        """
        found = []
        for spec, namespace, where in _flat(raw, field):
            kind = _kind(spec)
            if kind is None:
                if not spec.type.startswith(HARNESS_RUN):
                    self._hosted.append(spec.type)
                continue
            name = spec.name if kind in ("function", "custom") else kind
            if not name:
                raise RefusalError(Refusal.INVALID, f"{where}.name: required", field=f"{where}.name")
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
        """`tool_choice`; of `allowed_tools` only those are shown on. Raises RefusalError."""
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
        raise RefusalError(
            Refusal.INVALID,
            f"tool_choice: expected none, auto, required or an object, got {choice!r}",
            field="tool_choice",
        )

    def _forced(self, choice: Choice) -> ForcedTool:
        name = _called(choice)
        if name is None:
            raise RefusalError(
                Refusal.INVALID,
                f"tool_choice.type: {choice.type!r} is not a tool that the harness runs; hosted tools aren't served",
                field="tool_choice.type",
            )
        if all(tool.function.name != name for tool in self.shown):
            names = ", ".join(tool.function.name for tool in self.shown) or "none"
            raise RefusalError(
                Refusal.INVALID, f"tool_choice.name: no tool is named {name!r}; there are {names}", field="tool_choice"
            )
        return ForcedTool(NamedFunction(name))

    def item(self, call: ToolCall, suffix: str) -> dict[str, Any]:
        """A sampled call as its tool's item; one of a tool that nobody declared as a function's."""
        name = call.function.name
        return responses_calls.item(call, self._declared.get(name, Declared("function", name)), suffix)


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
                raise RefusalError(Refusal.INVALID, f"{where}.name: required", field=f"{where}.name")
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
        grammar = None if spec.format is None else spec.format.definition
        return freeform.function(name, spec.description, grammar, spec.format.syntax or "" if spec.format else "")
    built_in = BUILT_INS.get(kind)
    if built_in is not None:
        return Function(name, built_in.description, built_in.parameters)
    parameters = NOT_GIVEN if bytes(spec.parameters) in NOTHING else spec.parameters
    return Function(name, spec.description, parameters, spec.strict)


def _called(choice: Choice) -> str | None:
    """The name of a chosen tool; None for one that isn't the harness's."""
    if choice.type in ("function", "custom"):
        return None if choice.name is None else flat(choice.namespace, choice.name)
    return choice.type if choice.type in BUILT_INS or choice.type == "tool_search" else None
