"""Detects what an SGLang server can do for the engine `sglang_tokens`, by requests to the server itself.

Routes and fields are those of SGLang 0.5.13; older names of a route are tried also. All requests are sent at once under one deadline and
cost the server at most a token each. Not yet run against a live server: written by SGLang's sources and documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.engines import capabilities
from proxy.engines.api_key import ApiKey
from proxy.engines.capabilities import (
    DETECTION_S,
    PLAIN,
    SHORT,
    LogprobsMode,
    MissingFeature,
    context_of,
    json_of,
    likeliest,
    logprobs_mode_of,
    summary_of,
)
from proxy.engines.connection import ConnectionPool
from proxy.engines.response import NoAnswerError, Response

MODE = "sglang_tokens"
INFO = ("/server_info", "/get_server_info")
MODEL = ("/model_info", "/get_model_info")
PROOF = [1, 2, 3]
"""Ids sent in place of a prompt. Every vocabulary has them, and no chat template renders them."""


@dataclass(frozen=True)
class SglangCapabilities:
    """The abilities of one SGLang server."""

    version: str | None
    """None: not reported."""
    context: int | None
    """Tokens that a prompt and its answer may have together; None: not reported."""
    logprobs_mode: LogprobsMode | None
    """Found by requests at two temperatures; None: the answers don't show it."""
    tool_parser: str | None
    """The `--tool-call-parser`; None: none, or not reported."""
    reads_ids: bool | None
    """A request's `input_ids` replace the prompt, and the answer returns the prompt's ids; None: no whole answer in time."""
    weight_version: str | None
    """Name that the trainer gave the weights; None: not reported."""

    @property
    def summary(self) -> str:
        """One line that lists the features."""
        features = []
        if self.tool_parser is not None:
            features.append(f"tool calls ({self.tool_parser})")
        if self.reads_ids:
            features.append("prompts by ids")
        return summary_of("SGLang", self, features)

    def missing_features(self) -> Iterator[MissingFeature]:
        """The features that the server lacks, fatal ones first."""
        if not self.reads_ids:
            # A paused or overloaded server is no reason to stop, as with vLLM.
            yield MissingFeature(
                "prompts by ids",
                "the server ignores input_ids, or doesn't return the ids of the prompt that it read"
                if self.reads_ids is False
                else f"no answer to a prompt of ids within {DETECTION_S:.0f} s, or a server error",
                "use SGLang 0.5.13 or newer, without a gateway that drops fields of requests"
                if self.reads_ids is False
                else "check whether the server is paused or overloaded; calls fail until it answers",
                is_fatal=self.reads_ids is False,
            )
        if self.logprobs_mode == "raw":
            yield MissingFeature(
                "logprobs",
                "logprobs are those before temperature, and so not those of the sampled distribution",
                "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment, or sample at temperature 1",
            )
        if self.logprobs_mode is None:
            yield MissingFeature(
                "logprobs",
                "it is unknown whether logprobs are raw or processed: the server returns no likeliest tokens, or all are equal",
                "set logprobs_mode in polar.toml: processed, unless SGLANG_RETURN_ORIGINAL_LOGPROB is in the server's environment",
            )
        if self.tool_parser is None:
            yield MissingFeature(
                "tool calls",
                "the server reports no tool call parser, and without one agents get calls as text",
                "start SGLang with the --tool-call-parser of the model's family",
            )
        if self.weight_version is None:
            yield MissingFeature(
                "versions",
                "the server doesn't report its weights' version, so versions come from the fleet's state alone",
                "name weight_version in each update of the weights",
            )


async def detect(base_url: str, model: str, api_key: ApiKey | None = None) -> SglangCapabilities:
    """A server's capabilities. Raises UnreachableError."""
    connections = ConnectionPool(base_url, api_key)

    async def send(method: str, path: str, body: bytes = b"") -> Response | None:
        """None: no whole answer in time."""
        try:
            return await connections.request(method, path, body, DETECTION_S)
        except (TimeoutError, NoAnswerError):
            return None

    async def chat(**fields: Any) -> Response | None:
        body = {"model": model, "messages": SHORT, "max_completion_tokens": 1, **fields}
        return await send("POST", "/v1/chat/completions", msgspec.json.encode(body))

    async def first(paths: tuple[str, ...]) -> dict[str, Any]:
        """The first JSON object that one of these paths answers."""
        for path in paths:
            found = json_of(await send("GET", path))
            if isinstance(found, dict):
                return found
        return {}

    plain = {**PLAIN, "top_k": -1}  # SGLang refuses 0
    try:
        models, info, about, one, two, proof = await asyncio.gather(
            send("GET", "/v1/models"),
            first(INFO),
            first(MODEL),
            chat(temperature=1.0, **plain),
            chat(temperature=2.0, **plain),
            chat(input_ids=PROOF, return_prompt_token_ids=True),
        )
    finally:
        connections.close()
    return SglangCapabilities(
        _text(info, "version"),
        context_of(models, model),
        logprobs_mode_of(likeliest(one), likeliest(two)),
        _text(info, "tool_call_parser"),
        _reads_ids(proof),
        _text(about, "weight_version"),
    )


def _reads_ids(response: Response | None) -> bool | None:
    if capabilities.is_silent(response):
        return None
    try:
        read = json_of(response)["choices"][0]["prompt_token_ids"]
    except (KeyError, IndexError, TypeError):
        return False
    return bool(read == PROOF)


def _text(found: dict[str, Any], field: str) -> str | None:
    value = found.get(field)
    return value if isinstance(value, str) else None
