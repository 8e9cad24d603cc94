"""Tools of a Responses request: the function that the model sees for each, and the tool that a call is meant for.

To the model every tool is a function. Its name includes the namespace (`clock__sleep`). A table of the declared tools leads back from the
name, so that a call is answered with the item of the tool that the harness declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from proxy.chat import NOT_GIVEN, ForcedTool, Function, NamedFunction, Tool, ToolCall, ToolChoice
from proxy.dialects import freeform, responses_calls
from proxy.dialects.codec import decoded_part, invalid, is_present
from proxy.dialects.responses_calls import BUILT_INS, Declared, Kind, flat
from proxy.wire.openai_responses import Choice, ToolSpec

HARNESS_RUN = ("computer", "namespace")
"""Prefixes of tool types that the harness runs and that can't be offered: computer use, and a namespace in another."""
_specs = msgspec.json.Decoder(ToolSpec)
_choices: msgspec.json.Decoder[str | Choice] = msgspec.json.Decoder(str | Choice)


class Tools:
    """The tools of one request."""

    def __init__(self) -> None:
        self.shown: list[Tool] = []
        """The tools at the head of the prompt."""
        self._declared: dict[str, Declared] = {}
        self._functions: dict[str, Function] = {}
        self._deferred: set[str] = set()
        self._hosted: list[str] = []

    @property
    def hosted(self) -> list[str]:
        """Types of the tools that OpenAI's servers would run.

        Empty if the harness has tools that this request leaves out: such a request is an agent's, not a search beside its work.
        """
        return [] if self._declared and not self.shown else self._hosted

    def declare(self, raw: list[msgspec.Raw], field: str) -> list[Function]:
        """The functions of declared tools, in order; tools that OpenAI's servers run have none. Raises RefusalError.

        A name that was declared before keeps its first tool.
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
                raise invalid(f"{where}.name", "required")
            known_as = flat(namespace, name)
            if known_as not in self._declared:
                self._declared[known_as] = Declared(kind, name, namespace)
                self._functions[known_as] = _function(kind, known_as, spec)
            if spec.defer_loading:
                self._deferred.add(known_as)
            found.append(self._functions[known_as])
        return found

    def show(self, functions: list[Function]) -> None:
        """Show functions from the start, except those that the harness's tool search must find first."""
        is_searched = any(declared.kind == "tool_search" for declared in self._declared.values())
        shown = {tool.function.name for tool in self.shown}
        self.shown += [
            Tool(function)
            for function in {function.name: function for function in functions}.values()
            if function.name not in shown and not (is_searched and function.name in self._deferred)
        ]

    def choice(self, raw: msgspec.Raw) -> ToolChoice | None:
        """The canonical `tool_choice`; tools outside `allowed_tools` are no longer shown. Raises RefusalError."""
        if not is_present(raw):
            return None
        choice = decoded_part(raw, _choices, "tool_choice")
        match choice:
            case "none" | "auto" | "required":
                return choice
            case Choice(type="allowed_tools"):
                allowed = {_called(tool) for tool in choice.tools or ()}
                self.shown = [tool for tool in self.shown if tool.function.name in allowed]
                return choice.mode or "auto"
            case Choice():
                return self._forced(choice)
        raise invalid("tool_choice", f"expected none, auto, required or an object, got {choice!r}")

    def _forced(self, choice: Choice) -> ForcedTool:
        name = _called(choice)
        if name is None:
            reason = f"{choice.type!r} is not a tool that the harness runs; hosted tools aren't served"
            raise invalid("tool_choice.type", reason)
        if all(tool.function.name != name for tool in self.shown):
            names = ", ".join(tool.function.name for tool in self.shown) or "none"
            raise invalid("tool_choice", f"no tool is named {name!r}; there are {names}")
        return ForcedTool(NamedFunction(name))

    def item(self, call: ToolCall, suffix: str) -> dict[str, Any]:
        """A sampled call as its tool's item, or as a function call if no tool has its name."""
        name = call.function.name
        return responses_calls.item(call, self._declared.get(name, Declared("function", name)), suffix)


# --- declarations


def _flat(
    raw: list[msgspec.Raw], field: str, namespace: str | None = None
) -> Iterator[tuple[ToolSpec, str | None, str]]:
    """Each tool with its namespace and its path in the request; namespaces don't nest."""
    for at, one in enumerate(raw):
        where = f"{field}[{at}]"
        spec = decoded_part(one, _specs, where)
        if spec.type == "namespace" and namespace is None:
            if not spec.name:
                raise invalid(f"{where}.name", "required")
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
    parameters = spec.parameters if is_present(spec.parameters) else NOT_GIVEN
    return Function(name, spec.description, parameters, spec.strict)


def _called(choice: Choice) -> str | None:
    """The name of a chosen tool; None for a tool that the harness doesn't run."""
    if choice.type in ("function", "custom"):
        return None if choice.name is None else flat(choice.namespace, choice.name)
    return choice.type if choice.type in BUILT_INS or choice.type == "tool_search" else None
