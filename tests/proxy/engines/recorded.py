"""Servers that answer as real ones did: bodies recorded from vLLM 0.32.0 on a CPU, shortened to what is read, served over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.serving import serving_by_path

Answer = tuple[int, Any]
"""Status and JSON."""
CannedAnswer = Answer | Callable[[dict[str, Any]], Answer]
"""The answer of a path: status and JSON, or a function of the request's body that returns them."""

OFF: Answer = (
    403,
    {
        "error": {
            "message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
            "type": "PermissionDeniedError",
            "param": None,
            "code": 403,
        }
    },
)
NOT_FOUND: Answer = (404, {"detail": "Not Found"})
NO_TOOLS: Answer = (
    400,
    {
        "error": {
            "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    },
)
LOGPROBS = {".": -0.12776759, " raises": -3.77282524, " ar": -4.08332252, '"]': -4.52399921, "45": -5.19981766}
"""At temperature 1; raw they are the same at any."""
AT_TWO = {"OL": -7.10372639, ".": -1.79948640, " raises": -3.62201500, " ar": -3.77726364, '"]': -3.99760199}
"""Processed, at temperature 2: computed, halved differences are all that counts; the sampled token comes first, whatever its rank."""


def likeliest(logprobs: Mapping[str, float]) -> Answer:
    """A chat completion of one token with its alternatives."""
    alternatives = [
        {"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in logprobs.items()
    ]
    entry = {**alternatives[0], "top_logprobs": alternatives}
    choice = {"index": 0, "message": {"role": "assistant", "content": entry["token"]}, "logprobs": {"content": [entry]}}
    return 200, {"id": "chatcmpl-a5ce", "object": "chat.completion", "model": "tiny", "choices": [choice]}


def raw_chat(asked: dict[str, Any]) -> Answer:
    """As a server that was started without any of the flags."""
    return NO_TOOLS if "tools" in asked else likeliest(LOGPROBS)


def processed_chat(asked: dict[str, Any]) -> Answer:
    """As one that Polar wants."""
    return likeliest(AT_TWO if asked.get("temperature") == 2.0 else LOGPROBS)


def rendering(asked: dict[str, Any]) -> Answer:
    """What a server whose parser is hermes renders; a strict tool, or one call at a time, gives a grammar there."""
    is_bound = any(tool["function"].get("strict") for tool in asked.get("tools", ()))
    params: dict[str, Any] = {
        "temperature": asked.get("temperature", 1.0),
        "top_p": 1.0,
        "min_p": 0.0,
        "max_tokens": 8176,
    }
    if is_bound or asked.get("parallel_tool_calls") is False:
        params["structured_outputs"] = {"structural_tag": "{}"}
    return 200, {"request_id": "chatcmpl-8926", "token_ids": [0, 1800, 205], "sampling_params": params}


def generation(entry: dict[str, Any], **fields: Any) -> Answer:
    """An answer of generate, with this logprob of its only token."""
    choice = {"index": 0, "finish_reason": "length", "token_ids": [2452], "logprobs": {"content": [entry]}}
    return 200, {"request_id": "generate-tokens-8ef4", "choices": [choice | fields]}


BARE: dict[str, CannedAnswer] = {
    "/version": (200, {"version": "0.32.0"}),
    "/v1/models": (200, {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 8192}]}),
    "/weight_info": NOT_FOUND,
    "/tokenize": (200, {"count": 3, "max_model_len": 8192, "tokens": [0, 1800, 205], "token_strs": None}),
    "/detokenize": (200, {"prompt": "<|im_start|>"}),
    "/v1/chat/completions": raw_chat,
    "/v1/chat/completions/render": OFF,
    "/inference/v1/generate": OFF,
    "/v1/chat/completions/derender": OFF,
}
"""`vllm serve MODEL`, by path."""
FULL: dict[str, CannedAnswer] = {
    **BARE,
    "/weight_info": (200, {"weight_version": "default"}),
    "/v1/chat/completions": processed_chat,
    "/v1/chat/completions/render": rendering,
    "/inference/v1/generate": generation({"token_id": 2452, "logprob": -7.1, "rank": 12}, stop_reason=None),
    "/v1/chat/completions/derender": (400, {"error": {"message": "3 validation errors: …", "code": 400}}),
}
"""The same with the flags of docs/vllm.md."""


def sglang_chat(asked: dict[str, Any]) -> Answer:
    """As SGLang 0.5.13, by its sources: the ids of a request are the prompt, and logprobs come after temperature."""
    if asked.get("top_k") == 0:
        return 400, {"message": "top_k must be -1 (disable) or at least 1, got 0."}
    status, body = processed_chat(asked)
    prompt = asked.get("input_ids", [151644, 872, 198])
    return status, body | {"choices": [body["choices"][0] | {"prompt_token_ids": prompt}]}


SGLANG: dict[str, CannedAnswer] = {
    "/v1/models": (200, {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 8192}]}),
    "/server_info": (200, {"version": "0.5.13", "tool_call_parser": "qwen25", "model_path": "/models/tiny"}),
    "/model_info": (200, {"model_path": "/models/tiny", "is_generation": True, "weight_version": "default"}),
    "/v1/chat/completions": sglang_chat,
}
"""`sglang serve` in its wire form; written by its sources, since no live server has answered yet."""


@contextmanager
def answering(told: Mapping[str, CannedAnswer]) -> Iterator[str]:
    """The base URL of a server with these answers, text as it is; any other path gets a 404."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        found = told.get(path, NOT_FOUND)
        status, answered = found(body) if callable(found) else found
        return status, answered.encode() if isinstance(answered, str) else answered

    with serving_by_path(answer) as (url, _):
        yield url


class Startable(Protocol):
    """An engine, or several."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


E = TypeVar("E", bound=Startable)


@asynccontextmanager
async def started(engine: E) -> AsyncIterator[E]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def served(
    answer: Callable[[web.Request], Awaitable[web.Response]], make: Callable[[str], E]
) -> AsyncIterator[E]:
    """The engine that `make` gives for the URL of a server which answers each POST so."""
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server, started(make(str(server.make_url("")).rstrip("/"))) as engine:
        yield engine
