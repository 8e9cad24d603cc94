"""OpenAI Responses (POST /v1/responses and its input_tokens), by OpenAI's API reference of autumn 2026 and what Codex 0.169 sends.

Honoured: input, instructions (a system message before all else), tools, tool_choice, parallel_tool_calls, temperature, top_p,
max_output_tokens, reasoning.effort, text.format, include (reasoning.encrypted_content), previous_response_id, store, stream.
Repeated in the answer: metadata, user, safety_identifier, prompt_cache_key, max_tool_calls, truncation, reasoning, text. Rules:
- Messages stand where they stood, in their roles; reasoning, text and tool calls of one turn are one assistant message, a refusal is text.
- Reasoning is what `encrypted_content` holds, if it is ours, else the text as it came. It leaves as its summary, whole and whether asked
  for or not, so that a harness which echoes only that echoes all.
- Tools that the harness runs are functions to the model: of a namespace `namespace__name`; a custom tool has one string, `input`, and its
  grammar is told, not enforced; so are tool_search (execution client), local_shell, shell (not in a container) and apply_patch.
- A call leaves as its tool's own item. Where arguments don't fit it: a custom call's input is the arguments as they were sampled, a tool
  search's arguments are a string, and a built-in's call is a function_call.
- `additional_tools` before all messages are tools; later ones, and what a tool search found, stand there as text, so that prompts only
  grow. Tools with `defer_loading` are shown from the start only where the harness has no tool search.
- Tools that OpenAI's servers run (web_search, file_search, code_interpreter, image_generation, mcp, …), computer use, and types that we
  don't know aren't offered to the model; such items in the input, which no model here made, are passed over. A call with nothing but tools
  of OpenAI's servers is a side call (`proxy/call_kinds.py`). `allowed_tools` are the only ones shown. An `agent_message` is the user's.
- Text files are their text; of other files the model is told that they aren't shown. Image detail `original` is `high`.
- An answer that was cut off is `incomplete`. Usage tells 0 where the engine doesn't tell.
- Tools that a search found are not carried over by previous_response_id: only messages are.
Ignored: text.verbosity, reasoning.summary, truncation (nothing is dropped), context_management, max_tool_calls, moderation, service_tier,
stream_options, top_logprobs and the other values of include, client_metadata, access_programs, background_options, image,
prompt_cache_retention and prompt_cache_options, configuration_update items, phase and status of items, a namespace's
description (its tools have their own), and every field that we don't know.
Refused: background, conversation and prompt, which need a store; previous_response_id to input_tokens, which counts what it is sent and
asks no session; generate: false and prewarm, which ask for no answer; item references, compaction items and their trigger; images by file
id, audio; a choice of a tool that isn't shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.chat import NOT_GIVEN, Answer, ChatRequest, Message
from proxy.dialects import signature
from proxy.dialects.base import Route, Serves, Wire
from proxy.dialects.openai_chat import EFFORTS, SHAPES
from proxy.dialects.reading import decoded
from proxy.dialects.responses_input import Input
from proxy.dialects.responses_stream import PIECES, stream
from proxy.dialects.responses_tools import NOTHING, Tools
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
"""Code of a `response.failed`. Codex gives up at invalid_prompt, insufficient_quota and server_is_overloaded, and tries again at others."""
ENCRYPTED = "reasoning.encrypted_content"
CONTINUES = "previous_response_id"
STATUSES = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by finish reason."""

_requests = msgspec.json.Decoder(ResponsesRequest)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Repeated:
    """What the answer needs of its request."""

    tools: Tools
    encrypted: bool
    """Reasoning items carry their signature."""
    fields: dict[str, Any]


class OpenAIResponses:
    """The dialect `openai_responses`."""

    name = "openai_responses"
    routes: tuple[Route, ...] = tuple(
        route
        for version in ("/v1", "")
        for route in (
            Route("POST", f"{version}/responses", Serves.CALL),
            Route("GET", f"{version}/responses", Serves.UPGRADE),
            Route("POST", f"{version}/responses/input_tokens", Serves.COUNT),
        )
    )
    signs: frozenset[str] = frozenset()
    id_prefix = "resp_"
    keep_alive = b": keep-alive\n\n"
    request_type = ResponsesRequest

    def parse(self, wire: Wire) -> ChatRequest:
        """The canonical request. Raises RefusalError, naming the field."""
        try:
            return _canonical(decoded(wire.body, _requests), wire.serves)
        except msgspec.DecodeError as error:
            raise RefusalError(Refusal.INVALID, f"the request's body is not JSON: {error}") from None
        except RecursionError:
            raise RefusalError(Refusal.INVALID, "the request's body is nested too deeply") from None

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

    def models(self, served: Sequence[str], only: str | None) -> bytes:
        """OpenAI lists models apart from this API: no route of this dialect leads here."""
        raise NotImplementedError(served, only)

    def error(self, refused: RefusalError) -> bytes:
        """`{error: {message, type, param, code}}`."""
        kind, code = SHAPES[refused.refusal]
        if refused.field == CONTINUES:
            code = "previous_response_not_found"
        return _encode({"error": {"message": _told(refused), "type": kind, "param": refused.field, "code": code}})

    def error_event(self, refused: RefusalError) -> bytes:
        """A response that begins, else OpenAI's client takes nothing more, and fails. It bears no call's id: there is no answer."""
        message = _told(refused)
        if refused.retry_after_s is not None:
            message += f"; please try again in {refused.retry_after_s}s"  # there is no header: Codex reads these words
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


def _told(refused: RefusalError) -> str:
    """Of a prompt that is too long in the words by which harnesses know to compact."""
    if refused.refusal is not Refusal.CONTEXT_LENGTH:
        return refused.message
    told = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return told if refused.context is None else f"{told} ({refused.context[0]} tokens > {refused.context[1]} maximum)"


# --- request to canonical


def _canonical(wire: ResponsesRequest, serves: Serves) -> ChatRequest:
    _refuse(wire, serves)
    tools = Tools()
    tools.show(tools.declare(wire.tools or [], "tools"))
    messages = _messages(wire, tools)
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
        store=wire.store is not False,
        instructions=bool(wire.instructions),
        stream=bool(wire.stream),
        stream_usage=bool(wire.stream),
        wire=Repeated(tools, ENCRYPTED in (wire.include or ()), _fields(wire)),
    )


def _refuse(wire: ResponsesRequest, serves: Serves) -> None:
    stored = "nothing is stored for this; send the conversation whole"
    is_continued_count = serves is Serves.COUNT and wire.previous_response_id is not None
    for field, is_asked, why in (
        (CONTINUES, is_continued_count, "not looked up to count tokens; send the whole conversation as input"),
        ("background", wire.background, "answers are not kept; ask without it"),
        ("conversation", bytes(wire.conversation) not in NOTHING, stored),
        ("prompt", bytes(wire.prompt) not in NOTHING, stored),
        ("generate", wire.generate is False, "every request is answered"),
        (
            "prompt_cache_options.prewarm",
            wire.prompt_cache_options is not None and wire.prompt_cache_options.prewarm,
            "every request is answered",
        ),
    ):
        if is_asked:
            raise RefusalError(Refusal.INVALID, f"{field}: {why}", field=field)


def _messages(wire: ResponsesRequest, tools: Tools) -> list[Message]:
    messages = [Message("system", wire.instructions)] if wire.instructions else []
    if isinstance(wire.input, str):
        messages.append(Message("user", wire.input))
    else:
        read = Input(tools)
        for at, item in enumerate(wire.input or ()):
            read.item(item, f"input[{at}]")
        messages += read.messages
    if not messages and wire.previous_response_id is None:
        raise RefusalError(Refusal.INVALID, "input: expected a string, or at least one message", field="input")
    return messages


def _response_format(wire: Format | None) -> msgspec.Raw:
    """In Chat Completions' form; nothing for plain text, which holds the model to nothing."""
    match wire:
        case None | Format(type="text"):
            return NOT_GIVEN
        case Format(type="json_object"):
            return msgspec.Raw(b'{"type":"json_object"}')
        case Format(type="json_schema") if bytes(wire.schema) not in NOTHING:
            told = {"name": wire.name or "output", "description": wire.description, "strict": wire.strict}
            schema = {name: value for name, value in told.items() if value is not None} | {"schema": wire.schema}
            return msgspec.Raw(_encode({"type": "json_schema", "json_schema": schema}))
    raise RefusalError(
        Refusal.INVALID,
        f"text.format: expected text, json_object or json_schema with its schema, got {wire.type!r}",
        field="text.format",
    )


def _fields(wire: ResponsesRequest) -> dict[str, Any]:
    """What the answer repeats, as the API does, with its defaults for what wasn't said."""
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
        "tool_choice": "auto" if bytes(wire.tool_choice) in NOTHING else wire.tool_choice,
        "tools": wire.tools or [],
        "truncation": wire.truncation or "disabled",
        "user": wire.user,
    }


def _text(wire: Text) -> dict[str, Any]:
    asked = wire.format or Format("text")
    told: dict[str, Any] = {"type": asked.type}
    if asked.type == "json_schema":
        told |= {"name": asked.name, "schema": asked.schema, "strict": asked.strict, "description": asked.description}
    return {"format": told, "verbosity": wire.verbosity or "medium"}


# --- answer to wire


def _begun(call_id: str, created: int, request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """A response without its output."""
    assert isinstance(request.wire, Repeated), "of this dialect's own parse"
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
    cut_by = STATUSES.get(answer.finish_reason)
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
    """Reasoning, text, tool calls; a message without text only where there is nothing else. The last is what was cut off."""
    assert isinstance(request.wire, Repeated), "of this dialect's own parse"
    message = answer.message
    suffix = call_id.removeprefix(OpenAIResponses.id_prefix)
    items: list[dict[str, Any]] = []
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        sealed = {"encrypted_content": signature.seal(message.reasoning)} if request.wire.encrypted else {}
        items.append({"id": f"rs_{suffix}", "type": "reasoning", "summary": summary, **sealed})
    if message.content or not (message.reasoning or message.tool_calls):
        text = {"type": "output_text", "text": message.content or "", "annotations": [], "logprobs": []}
        said = {"type": "message", "status": "completed", "role": "assistant", "content": [text]}
        items.append({"id": f"msg_{suffix}", **said})
    items += [request.wire.tools.item(call, f"{suffix}_{at}") for at, call in enumerate(message.tool_calls)]
    if answer.finish_reason in STATUSES and items[-1]["type"] in ("message", *PIECES):
        items[-1]["status"] = "incomplete"
    return items
