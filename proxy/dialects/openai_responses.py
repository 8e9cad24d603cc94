"""OpenAI Responses (POST /v1/responses and its input_tokens), by OpenAI's API reference of autumn 2026 and the requests of Codex 0.169.

Honoured: input, instructions (a system message before all others), tools, tool_choice, parallel_tool_calls, temperature, top_p,
max_output_tokens, reasoning.effort, text.format, include (reasoning.encrypted_content), previous_response_id, store, stream.
Repeated in the answer: metadata, user, safety_identifier, prompt_cache_key, max_tool_calls, truncation, reasoning, text.

Rules:
- Messages keep their places and roles. Reasoning, text and tool calls of one turn are one assistant message. A refusal is text.
- Reasoning is the content of `encrypted_content` if the proxy wrote it, otherwise the text. It leaves as a whole in the summary, requested
  or not: a harness that echoes the summary alone echoes all of it.
- Tools that the harness runs are functions to the model. A namespace's function is named `namespace__name`. A custom tool has one string,
  `input`; its grammar is described, not enforced. tool_search (execution client), local_shell, shell (outside containers) and apply_patch
  are functions too.
- A call leaves as its tool's own item. If its arguments don't fit the item, a custom call's input is the sampled arguments, a tool search's
  arguments are a string, and a built-in tool's call is a function_call.
- `additional_tools` before all messages are tools. Later ones, and the results of a tool search, are text in their place: prompts only
  grow. Tools with `defer_loading` are shown from the start only if the harness has no tool search.
- Tools that OpenAI's servers run (web_search, file_search, code_interpreter, image_generation, mcp, …), computer use and unknown types are
  not offered to the model, and their items in the input are skipped: no model here made them. A request whose only tools are run by
  OpenAI's servers is a side call (`proxy/call_kinds.py`). Only `allowed_tools` are shown. An `agent_message` is the user's.
- Text files are their text; for other files the model reads that they aren't shown. Image detail `original` is `high`.
- An answer that was cut off is `incomplete`. Usage is 0 for counts that the engine doesn't report.
- previous_response_id carries messages over, and no tools that a search found.
- An item_reference stands for an item of an earlier answer of this session that was stored (`store` is true unless it is false). The id of
  any other item is an error in OpenAI's words, with what to send instead.
Ignored: text.verbosity, reasoning.summary, truncation (nothing is dropped), context_management, max_tool_calls, moderation, service_tier,
stream_options, top_logprobs and the other values of include, client_metadata, access_programs, background_options, image,
prompt_cache_retention and prompt_cache_options, configuration_update items, phase and status of items, a namespace's description (its
tools have their own), and all unknown fields.
Refused: background, conversation and prompt, which need a store; previous_response_id and item references to input_tokens, which knows no
session; generate: false and prewarm, which request no answer; compaction items and their trigger; images by file id; audio; a choice of a
tool that isn't shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.chat import NOT_GIVEN, Answer, ChatRequest, ItemReference, Message
from proxy.dialects import signature
from proxy.dialects.base import Route, Serves, Wire, versioned
from proxy.dialects.codec import decoded, invalid, is_present, refusing_bad_json
from proxy.dialects.openai_chat import EFFORTS, SHAPES
from proxy.dialects.responses_input import CALL_PREFIX, InputReader
from proxy.dialects.responses_stream import PIECES, stream
from proxy.dialects.responses_tools import Tools
from proxy.errors import Refusal, RefusalError
from proxy.wire.openai_responses import Format, ResponsesRequest, Text
from topics.types.completion import Sampling

FAILURES: dict[Refusal, str] = {
    Refusal.INVALID: "invalid_prompt",
    Refusal.CONTEXT_LENGTH: "context_length_exceeded",
    Refusal.UNAUTHENTICATED: "invalid_prompt",
    Refusal.SPENT: "insufficient_quota",
    Refusal.NOT_FOUND: "invalid_prompt",
    Refusal.SLOW: "server_error",
    Refusal.CLOSED: "invalid_prompt",
    Refusal.TOO_LARGE: "invalid_prompt",
    Refusal.UPGRADE: "invalid_prompt",
    Refusal.OVERLOADED: "rate_limit_exceeded",
    Refusal.BAD_ENGINE: "server_error",
    Refusal.UNAVAILABLE: "server_error",
}
"""Code of a `response.failed`. Codex gives up at invalid_prompt, insufficient_quota and server_is_overloaded, and retries at others."""
ENCRYPTED = "reasoning.encrypted_content"
CONTINUES = "previous_response_id"
UNCOUNTED = "not looked up to count tokens"
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reason why an answer is incomplete, by finish reason."""

_requests = msgspec.json.Decoder(ResponsesRequest)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class RequestContext:
    """The parts of a request that its answer needs."""

    tools: Tools
    has_signatures: bool
    """Reasoning items carry `encrypted_content`."""
    fields: dict[str, Any]
    """Fields that the answer repeats."""


class OpenAIResponses:
    """The dialect `openai_responses`."""

    name = "openai_responses"
    routes: tuple[Route, ...] = versioned(
        Route("POST", "/responses", Serves.CALL),
        Route("GET", "/responses", Serves.UPGRADE),
        Route("POST", "/responses/input_tokens", Serves.COUNT),
    )
    signs: frozenset[str] = frozenset()
    id_prefix = CALL_PREFIX
    keep_alive = b": keep-alive\n\n"
    request_type = ResponsesRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises RefusalError, naming the field."""
        with refusing_bad_json():
            return _canonical(decoded(wire.body, _requests), wire.serves)

    def body(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`response`."""
        [answer] = answers
        begun = _begun(call_id, created, request, answer)
        return _encode(_ended(begun, _items(call_id, request, answer), answer))

    def stream(self, call_id: str, created: int, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """`response.created`, each item's events, `response.completed` or `response.incomplete`."""
        [answer] = answers
        begun = _begun(call_id, created, request, answer)
        items = _items(call_id, request, answer)
        return stream(begun, items, _ended(begun, items, answer))

    def count(self, tokens: int) -> bytes:
        """`response.input_tokens`."""
        return _encode({"object": "response.input_tokens", "input_tokens": tokens})

    def models(self, served: Mapping[str, int | None], only: str | None) -> bytes:
        """Not served: OpenAI lists models outside this API."""
        raise NotImplementedError(served, only)

    def error(self, refused: RefusalError) -> bytes:
        """`{error: {message, type, param, code}}`."""
        kind, code = SHAPES[refused.refusal]
        if refused.field == CONTINUES:
            code = "previous_response_not_found"
        return _encode(
            {"error": {"message": _error_message(refused), "type": kind, "param": refused.field, "code": code}}
        )

    def error_event(self, refused: RefusalError) -> bytes:
        """A failed response. It begins as every response does, since OpenAI's client rejects any other first event; its id is no call's."""
        message = _error_message(refused)
        if refused.retry_after_s is not None:
            message += f"; please try again in {refused.retry_after_s}s"  # Codex reads these words, as there is no header any more
        begun = {
            "id": f"{self.id_prefix}failed",
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "error": None,
            "model": "",
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        failed = {"status": "failed", "error": {"code": FAILURES[refused.refusal], "message": message}}
        return stream(begun, [], begun | failed)


# --- request to canonical


def _canonical(wire: ResponsesRequest, serves: Serves) -> ChatRequest:
    _refuse(wire, serves)
    tools = Tools()
    tools.show(tools.declare(wire.tools or [], "tools"))
    messages, references = _messages(wire, tools)
    if references and serves is Serves.COUNT:
        raise invalid(references[0].field, f"{UNCOUNTED}; send the item itself")
    choice = tools.choice(wire.tool_choice)
    return ChatRequest(
        model=wire.model,
        messages=messages,
        tools=tools.shown,
        hosted_tools=tools.hosted,
        tool_choice=choice if tools.shown else None,
        parallel_tool_calls=wire.parallel_tool_calls,
        sampling=Sampling(temperature=wire.temperature, top_p=wire.top_p, max_tokens=wire.max_output_tokens),
        response_format=_response_format(wire.text.format if wire.text is not None else None),
        reasoning_effort=EFFORTS.get((wire.reasoning.effort if wire.reasoning is not None else None) or ""),
        continues=wire.previous_response_id,
        references=references,
        store=wire.store is not False,
        instructions=bool(wire.instructions),
        stream=bool(wire.stream),
        stream_usage=bool(wire.stream),
        wire=RequestContext(tools, ENCRYPTED in (wire.include or ()), _repeated_fields(wire)),
    )


def _refuse(wire: ResponsesRequest, serves: Serves) -> None:
    not_stored = "nothing is stored for this; send the whole conversation"
    is_continued_count = serves is Serves.COUNT and wire.previous_response_id is not None
    is_prewarm = wire.prompt_cache_options is not None and wire.prompt_cache_options.prewarm
    for field, is_requested, reason in (
        (CONTINUES, is_continued_count, f"{UNCOUNTED}; send the whole conversation as input"),
        ("background", wire.background, "answers are not kept; send the request without it"),
        ("conversation", is_present(wire.conversation), not_stored),
        ("prompt", is_present(wire.prompt), not_stored),
        ("generate", wire.generate is False, "every request is answered"),
        ("prompt_cache_options.prewarm", is_prewarm, "every request is answered"),
    ):
        if is_requested:
            raise invalid(field, reason)


def _messages(wire: ResponsesRequest, tools: Tools) -> tuple[list[Message], list[ItemReference]]:
    messages = [Message("system", wire.instructions)] if wire.instructions else []
    references: list[ItemReference] = []
    if isinstance(wire.input, str):
        messages.append(Message("user", wire.input))
    else:
        reader = InputReader(tools)
        for at, item in enumerate(wire.input or ()):
            reader.read(item, f"input[{at}]")
        references = reader.references(len(messages))
        messages += reader.messages
    if not messages and wire.previous_response_id is None:
        raise invalid("input", "expected a string, or at least one message")
    return messages, references


def _response_format(wire: Format | None) -> msgspec.Raw:
    """The format in Chat Completions' form; absent for plain text, which needs no grammar."""
    match wire:
        case None | Format(type="text"):
            return NOT_GIVEN
        case Format(type="json_object"):
            return msgspec.Raw(b'{"type":"json_object"}')
        case Format(type="json_schema") if is_present(wire.schema):
            optional = {"name": wire.name or "output", "description": wire.description, "strict": wire.strict}
            schema = {name: value for name, value in optional.items() if value is not None} | {"schema": wire.schema}
            return msgspec.Raw(_encode({"type": "json_schema", "json_schema": schema}))
    raise invalid("text.format", f"expected text, json_object or json_schema with its schema, got {wire.type!r}")


def _repeated_fields(wire: ResponsesRequest) -> dict[str, Any]:
    """The request's fields that the answer repeats, with the API's defaults."""
    return {
        "background": False,
        "instructions": wire.instructions,
        "max_tool_calls": wire.max_tool_calls,
        "metadata": wire.metadata or {},
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": wire.previous_response_id,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {
            "effort": wire.reasoning.effort if wire.reasoning is not None else None,
            "summary": wire.reasoning.summary if wire.reasoning is not None else None,
        },
        "safety_identifier": wire.safety_identifier,
        "service_tier": "default",
        "store": wire.store is not False,
        "text": _text(wire.text or Text()),
        "tool_choice": wire.tool_choice if is_present(wire.tool_choice) else "auto",
        "tools": wire.tools or [],
        "truncation": wire.truncation or "disabled",
        "user": wire.user,
    }


def _text(wire: Text) -> dict[str, Any]:
    asked = wire.format or Format("text")
    form: dict[str, Any] = {"type": asked.type}
    if asked.type == "json_schema":
        form |= {"name": asked.name, "schema": asked.schema, "strict": asked.strict, "description": asked.description}
    return {"format": form, "verbosity": wire.verbosity or "medium"}


# --- answer to body and to stream events


def _begun(call_id: str, created: int, request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """The response before its output."""
    assert isinstance(request.wire, RequestContext), "set by parse"
    return {
        "id": call_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": request.model or answer.model,
        "output": [],
        "max_output_tokens": request.sampling.max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "usage": None,
        **request.wire.fields,
    }


def _ended(begun: dict[str, Any], items: list[dict[str, Any]], answer: Answer) -> dict[str, Any]:
    cut_by = INCOMPLETE.get(answer.finish_reason)
    return begun | {
        "status": "completed" if cut_by is None else "incomplete",
        "incomplete_details": None if cut_by is None else {"reason": cut_by},
        "output": items,
        "usage": {
            "input_tokens": answer.usage.prompt,
            "input_tokens_details": {"cached_tokens": answer.usage.cached or 0, "cache_write_tokens": 0},
            "output_tokens": answer.usage.sampled,
            "output_tokens_details": {"reasoning_tokens": answer.usage.reasoning or 0},
            "total_tokens": answer.usage.prompt + answer.usage.sampled,
        },
    }


def _items(call_id: str, request: ChatRequest, answer: Answer) -> list[dict[str, Any]]:
    """Reasoning, text, then tool calls. An answer without any has an empty message. Of a cut answer the last item is incomplete."""
    assert isinstance(request.wire, RequestContext), "set by parse"
    message = answer.message
    suffix = call_id.removeprefix(OpenAIResponses.id_prefix)
    items: list[dict[str, Any]] = []
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        signed = {"encrypted_content": signature.seal(message.reasoning)} if request.wire.has_signatures else {}
        items.append({"id": f"rs_{suffix}", "type": "reasoning", "summary": summary, **signed})
    if message.content or not (message.reasoning or message.tool_calls):
        text = {"type": "output_text", "text": message.content or "", "annotations": [], "logprobs": []}
        body = {"type": "message", "status": "completed", "role": "assistant", "content": [text]}
        items.append({"id": f"msg_{suffix}", **body})
    items += [request.wire.tools.item(call, f"{suffix}_{at}") for at, call in enumerate(message.tool_calls)]
    if answer.finish_reason in INCOMPLETE and items[-1]["type"] in ("message", *PIECES):
        items[-1]["status"] = "incomplete"
    return items


# --- errors


def _error_message(refused: RefusalError) -> str:
    """The message; for a prompt that is too long, the words at which harnesses compact their history."""
    if refused.refusal is not Refusal.CONTEXT_LENGTH:
        return refused.message
    words = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return words if refused.context is None else f"{words} ({refused.context[0]} tokens > {refused.context[1]} maximum)"
