"""The official client of each dialect behind one interface: a test asks all of them alike, and reads what each made of the answer."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import anthropic
import openai
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from polar.scripted.scripts import ScriptCall
from proxy.errors import Refusal

MODEL = "any/model:8b"
SYSTEM = "Be brief."
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG image."""
SPACED = '{"command" : "ls",\t"n":1.0, "é":"\\u00e9"}'
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"name": "bash", "description": "Runs.", "parameters": SCHEMA}
READ = {"name": "read", "parameters": {"type": "object", "properties": {}}}
Turns = list[Any]
"""A conversation in the client's own types."""


@dataclass(frozen=True)
class Reply:
    """One answer, as a client shows it."""

    id: str
    text: str
    reasoning: str
    calls: list[tuple[str, str, Any]]
    """Id, name and arguments of each tool call; the arguments as text if the client keeps it, parsed otherwise."""
    stop: str
    """The provider's word for the reason why the answer ended."""
    usage: tuple[int, int]
    """Tokens of the prompt and of the answers."""
    turns: Turns
    """The answer as the next request repeats it."""
    parsed: BaseModel | None = None


@dataclass(frozen=True)
class Options:
    """What a test asks for beside an answer."""

    system: bool = True
    tools: bool = False
    thoughts: bool = True
    limit: int = 1000
    choices: int = 1
    schema: type[BaseModel] | None = None


class Client(ABC):
    """An official client with a session's key."""

    dialect: ClassVar[str]
    error: ClassVar[type[Exception] | tuple[type[Exception], ...]]
    words: ClassVar[dict[Refusal, str]]
    """The provider's words for errors."""
    overflow: ClassVar[str]
    """A pattern of the words by which harnesses know to compact."""
    stops: ClassVar[tuple[str, str, str]]
    """`Reply.stop` of an answer that calls tools, of one that ends, and of one that reached its limit."""
    unreadable: ClassVar[Any]
    """A turn that the dialect refuses."""
    work: tuple[ScriptCall, ...] = (ScriptCall("bash", SPACED), ScriptCall("read", "{}"))
    again: ScriptCall = ScriptCall("bash", {"command": "é"})
    keeps_text = False
    """`Reply.calls` has the arguments' text."""
    hides_thoughts = False
    """The model's reasoning is shown only to those who ask for it."""

    client: Any

    async def ask(self, turns: Turns, stream: bool = False, **options: Any) -> list[Reply]:
        """The answers, one for each choice; `options` are the fields of Options."""
        return await self._ask(turns, stream, Options(**options))

    @abstractmethod
    async def _ask(self, turns: Turns, stream: bool, options: Options) -> list[Reply]: ...

    @abstractmethod
    def user(self, text: str, image: str | None = None) -> Any:
        """A user's turn."""

    @abstractmethod
    def results(self, reply: Reply) -> Turns:
        """The results of a reply's tool calls."""

    @abstractmethod
    def word(self, error: Any) -> str:
        """The provider's word for an error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


class _OpenAI(Client):
    keeps_text = True

    def __init__(self, url: str, key: str, retries: int = 0) -> None:
        self.client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=retries)

    def word(self, error: Any) -> str:
        return str(error.code or error.type)

    async def models(self) -> list[str]:
        return [model.id async for model in self.client.models.list()]


class Chat(_OpenAI):
    dialect = "openai_chat"
    error = openai.APIError
    words: ClassVar = {
        Refusal.INVALID: "invalid_request_error",
        Refusal.CONTEXT_LENGTH: "context_length_exceeded",
        Refusal.UNAUTHENTICATED: "invalid_api_key",
        Refusal.CLOSED: "session_closed",
    }
    overflow = "maximum context length"
    stops = ("tool_calls", "stop", "length")
    unreadable: ClassVar = {"role": "user", "content": [{"type": "input_audio"}]}
    again = ScriptCall("bash", '{"command": ')

    async def _ask(self, turns: Turns, stream: bool, options: Options) -> list[Reply]:
        system = [{"role": "system", "content": SYSTEM}] if options.system else []
        tools = [{"type": "function", "function": tool} for tool in (BASH, READ)] if options.tools else openai.omit
        fields: dict[str, Any] = {"model": MODEL, "messages": system + turns, "n": options.choices, "tools": tools}
        fields |= {"max_tokens": options.limit}
        completions = self.client.chat.completions
        if stream:
            fields |= {"stream_options": {"include_usage": True}, "response_format": options.schema or openai.omit}
            async with completions.stream(**fields) as events:
                try:
                    body = await events.get_final_completion()
                except openai.LengthFinishReasonError as error:
                    body = error.completion
        elif options.schema:
            body = await completions.parse(**fields, response_format=options.schema)
        else:
            body = await completions.create(**fields)
        return [
            Reply(
                body.id,
                message.content or "",
                (message.model_extra or {}).get("reasoning_content", ""),
                [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []],
                choice.finish_reason,
                (body.usage.prompt_tokens, body.usage.completion_tokens),
                [message.model_dump(exclude_unset=True, exclude={"parsed"})],
                getattr(message, "parsed", None),
            )
            for choice in body.choices
            for message in [choice.message]
        ]

    async def opened(self, turns: Turns) -> AsyncIterator[Any]:
        """The events of a stream whose headers have arrived."""
        return aiter(await self.client.chat.completions.create(model="m", messages=turns, stream=True))

    def user(self, text: str, image: str | None = None) -> Any:
        pixel = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
        return {"role": "user", "content": [{"type": "text", "text": text}, pixel] if image else text}

    def results(self, reply: Reply) -> Turns:
        content = [{"type": "text", "text": "ok"}]
        return [{"role": "tool", "tool_call_id": call_id, "content": content} for call_id, *_ in reply.calls]


class FailedResponseError(Exception):
    """A stream of the Responses API ended with `response.failed`, which the client doesn't raise."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Responses(_OpenAI):
    dialect = "openai_responses"
    error = (openai.APIError, FailedResponseError)
    words: ClassVar = Chat.words | {Refusal.CLOSED: "invalid_prompt"}
    overflow = "exceeds the context window"
    stops = ("completed", "completed", "max_output_tokens")
    unreadable: ClassVar = {"type": "item_reference", "id": "msg_1"}
    work = (
        ScriptCall("bash", SPACED),
        ScriptCall("clock__sleep", '{"ms":1, broken'),
        ScriptCall("patch", json.dumps({"input": "*** Begin Patch\n+é\n"})),
    )
    again = ScriptCall("bash", "no JSON")
    tools: ClassVar[list[Any]] = [
        {"type": "function", "strict": False, **BASH},
        {
            "type": "namespace",
            "name": "clock",
            "description": "Time.",
            "tools": [READ | {"type": "function", "name": "sleep"}],
        },
        {"type": "custom", "name": "patch", "format": {"type": "text"}},
    ]

    async def _ask(self, turns: Turns, stream: bool, options: Options) -> list[Reply]:
        fields: dict[str, Any] = {"model": MODEL, "input": turns, "max_output_tokens": options.limit, "store": False}
        fields |= {"include": ["reasoning.encrypted_content"], "tools": self.tools if options.tools else []}
        fields |= {"instructions": SYSTEM} if options.system else {}
        if stream:
            async with self.client.responses.stream(**fields, text_format=options.schema or openai.omit) as events:
                async for event in events:
                    last = event
            body = last.response
        elif options.schema:
            body = await self.client.responses.parse(**fields, text_format=options.schema)
        else:
            body = await self.client.responses.create(**fields)
        calls = []
        for item in body.output:
            if item.type == "function_call":
                prefix = f"{item.namespace}__" if item.namespace else ""
                calls.append((item.call_id, prefix + item.name, item.arguments))
            elif item.type == "custom_tool_call":
                calls.append((item.call_id, item.name, json.dumps({"input": item.input})))
        return [
            Reply(
                body.id,
                body.output_text,
                "".join(part.text for item in body.output if item.type == "reasoning" for part in item.summary),
                calls,
                body.incomplete_details.reason if body.status == "incomplete" else body.status,
                (body.usage.input_tokens, body.usage.output_tokens),
                [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in body.output],
                body.output_parsed if options.schema else None,
            )
        ]

    async def opened(self, turns: Turns) -> AsyncIterator[Any]:
        stream = await self.client.responses.create(model="m", input=turns, stream=True)

        async def events() -> AsyncIterator[Any]:
            async for event in stream:
                if event.type == "response.failed" and event.response.error:
                    raise FailedResponseError(event.response.error.code)
                yield event

        return events()

    def user(self, text: str, image: str | None = None) -> Any:
        pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
        return {"role": "user", "content": [{"type": "input_text", "text": text}, pixel] if image else text}

    def results(self, reply: Reply) -> Turns:
        output = [{"type": "input_text", "text": "ok"}]
        calls = [item for item in reply.turns if item["type"].endswith("_call")]
        return [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output} for call in calls]

    async def count(self, turns: Turns) -> int:
        return int((await self.client.responses.input_tokens.count(model="m", input=turns)).input_tokens)


class Messages(Client):
    dialect = "anthropic_messages"
    error = anthropic.APIStatusError
    words: ClassVar = {
        Refusal.INVALID: "invalid_request_error",
        Refusal.CONTEXT_LENGTH: "invalid_request_error",
        Refusal.UNAUTHENTICATED: "authentication_error",
        Refusal.CLOSED: "conflict_error",
    }
    overflow = r"prompt is too long: \d+ tokens > \d+ maximum"
    stops = ("tool_use", "end_turn", "max_tokens")
    unreadable: ClassVar = {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
    hides_thoughts = True
    tools: ClassVar[list[Any]] = [
        {"name": "bash", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"name": "read", "type": "custom", "description": "Reads.", "input_schema": {"type": "object"}},
    ]

    def __init__(self, url: str, key: str, retries: int = 0) -> None:
        self.client = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=retries)

    async def _ask(self, turns: Turns, stream: bool, options: Options) -> list[Reply]:
        marked = [self._unmarked(turn) for turn in turns[:-1]] + turns[-1:]
        fields: dict[str, Any] = {"model": MODEL, "max_tokens": options.limit, "messages": marked}
        fields |= {"tools": self.tools} if options.tools else {}
        fields |= {"system": [{"type": "text", "text": SYSTEM}]} if options.system else {}
        fields |= {"thinking": {"type": "adaptive", "display": "summarized" if options.thoughts else "omitted"}}
        if stream:
            output_format: Any = options.schema or anthropic.omit
            async with self.client.messages.stream(**fields, output_format=output_format) as events:
                message = await events.get_final_message()
        elif options.schema:
            message = await self.client.messages.parse(**fields, output_format=options.schema)
        else:
            message = await self.client.messages.create(**fields)
        usage, blocks = message.usage, message.content
        return [
            Reply(
                message.id,
                "".join(block.text for block in blocks if block.type == "text"),
                "".join(block.thinking for block in blocks if block.type == "thinking"),
                [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
                message.stop_sequence or message.stop_reason,
                (usage.input_tokens + (usage.cache_read_input_tokens or 0), usage.output_tokens),
                [{"role": "assistant", "content": blocks}],
                message.parsed_output if options.schema else None,
            )
        ]

    async def opened(self, turns: Turns) -> AsyncIterator[Any]:
        return aiter(await self.client.messages.create(model="m", max_tokens=100, messages=turns, stream=True))

    def user(self, text: str, image: str | None = None) -> Any:
        pixel = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}
        return {"role": "user", "content": [{"type": "text", "text": text}, *([pixel] if image else [])]}

    def results(self, reply: Reply) -> Turns:
        """The last result has a cache breakpoint, as harnesses set it; the second one is an error."""
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": [{"type": "text", "text": "ok"}],
                "is_error": at == 1,
            }
            for at, (call_id, *_) in enumerate(reply.calls)
        ]
        if results:
            results[-1]["cache_control"] = {"type": "ephemeral"}
        return [{"role": "user", "content": results}] if results else []

    def _unmarked(self, turn: Any) -> Any:
        """A turn as harnesses send it again: without its breakpoint, a lone text as a string."""
        if turn["role"] == "assistant":
            return turn
        blocks = [{name: block[name] for name in block if name != "cache_control"} for block in turn["content"]]
        if [block["type"] for block in blocks] == ["text"]:
            return turn | {"content": blocks[0]["text"]}
        return turn | {"content": [block | {"content": "ok"} for block in blocks]}

    def word(self, error: Any) -> str:
        return str(error.type)

    async def count(self, turns: Turns) -> int:
        return int((await self.client.messages.count_tokens(model="m", messages=turns)).input_tokens)

    async def models(self) -> list[str]:
        listed = [model.id async for model in self.client.models.list(limit=1000)]
        return [*listed, (await self.client.models.retrieve("polar-scripted")).display_name]


class Generate(Client):
    """Google's client against AI Studio's paths. Its tool calls have no ids of the harness's."""

    dialect = "google_generate_content"
    error = errors.APIError
    words: ClassVar = {
        Refusal.INVALID: "INVALID_ARGUMENT",
        Refusal.CONTEXT_LENGTH: "INVALID_ARGUMENT",
        Refusal.UNAUTHENTICATED: "UNAUTHENTICATED",
        Refusal.CLOSED: "ABORTED",
    }
    overflow = "The input token count .*exceeds the maximum number of tokens"
    stops = ("STOP", "STOP", "MAX_TOKENS")
    unreadable: ClassVar = types.Content(role="user", parts=[types.Part.from_bytes(data=b"x", mime_type="video/mp4")])
    hides_thoughts = True
    vertex = False

    def __init__(self, url: str, key: str, retries: int = 0) -> None:
        retry = types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01, max_delay=0.02)
        options = types.HttpOptions(base_url=url, retry_options=retry)
        self.client = genai.Client(api_key=key, vertexai=self.vertex, http_options=options).aio

    async def _ask(self, turns: Turns, stream: bool, options: Options) -> list[Reply]:
        declared = [
            types.FunctionDeclaration(name="bash", parameters_json_schema=SCHEMA),
            types.FunctionDeclaration(name="read", description="Reads."),
        ]
        config = types.GenerateContentConfig(
            system_instruction=SYSTEM if options.system else None,
            tools=[types.Tool(function_declarations=declared)] if options.tools else None,
            thinking_config=types.ThinkingConfig(include_thoughts=options.thoughts),
            max_output_tokens=options.limit,
            candidate_count=options.choices,
            response_mime_type="application/json" if options.schema else None,
            response_schema=options.schema,
        )
        models = self.client.models
        if stream:
            chunks = await models.generate_content_stream(model=MODEL, contents=turns, config=config)
            replies = [chunk async for chunk in chunks]
        else:
            replies = [await models.generate_content(model=MODEL, contents=turns, config=config)]
        return [reply_of(replies, choice, options.schema) for choice in range(options.choices)]

    def user(self, text: str, image: str | None = None) -> Any:
        pixel = types.Part.from_bytes(data=base64.b64decode(image or ""), mime_type="image/png")
        return types.Content(role="user", parts=[types.Part(text=text), *([pixel] if image else [])])

    def results(self, reply: Reply) -> Turns:
        parts = [types.Part.from_function_response(name=name, response={"output": "ok"}) for _, name, _ in reply.calls]
        return [types.Content(role="user", parts=parts)] if parts else []

    def word(self, error: Any) -> str:
        return str(error.status)

    async def count(self, turns: Turns) -> int:
        return int((await self.client.models.count_tokens(model="m", contents=turns)).total_tokens)

    async def models(self) -> list[str]:
        models = self.client.models
        named = [*[model async for model in await models.list()], await models.get(model="polar-scripted")]
        return [(model.name or "").removeprefix("models/") for model in named]

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()


class Vertex(Generate):
    """Google's client against Vertex's paths."""

    vertex = True


def reply_of(
    responses: list[types.GenerateContentResponse], choice: int = 0, schema: type[BaseModel] | None = None
) -> Reply:
    """One candidate of Google's responses: of the only one, or of a stream's, whose contents the client keeps apart."""
    candidates = [each for one in responses for each in one.candidates or [] if (each.index or 0) == choice]
    contents = [each.content for each in candidates if each.content]
    parts = [part for content in contents for part in content.parts or []]
    usage, reason = responses[-1].usage_metadata, candidates[-1].finish_reason
    calls = [part.function_call for part in parts if part.function_call]
    text = "".join(part.text for part in parts if part.text and not part.thought)
    prompt = (usage and usage.prompt_token_count) or 0
    parsed = responses[0].parsed if len(responses) == 1 else schema and schema.model_validate_json(text)
    assert len({response.response_id for response in responses}) == 1
    return Reply(
        responses[0].response_id or "",
        text,
        "".join(part.text for part in parts if part.text and part.thought),
        [(call.id or "", call.name or "", call.args) for call in calls],
        reason.value if reason else "",
        (prompt, ((usage and usage.total_token_count) or 0) - prompt),
        list(contents),
        parsed if isinstance(parsed, BaseModel) else None,
    )
