"""Detects what an inference server can do, by requests to the server itself, and names the flag that adds each missing feature.

Routes and messages are those of vLLM 0.32. All requests are sent at once under one deadline and cost the server at most a token each. A
feature is missing if its request is answered with an error. Token ids and logprobs are tested by `probe.py`, which calls the plug-in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from proxy.engines.api_key import ApiKey
from proxy.engines.connection import ConnectionPool
from proxy.engines.context import context_in
from proxy.engines.http import UNREADABLE
from proxy.engines.response import NoAnswerError, Response

DETECTION_S = 30.0
"""Deadline for all requests: a server that has just started compiles on its first calls."""
ALTERNATIVES = 5
"""Number of likeliest tokens to compare; vLLM allows 20 unless --max-logprobs sets fewer."""
SPREAD = 0.01
"""Minimal difference, in nats, between the likeliest and the least likely alternative; below it two temperatures can't be told apart."""
HALF_WAY = 0.75
"""Threshold between the two ratios of spreads at temperature 2 and 1: 0.5 if logprobs are processed, 1 if they are raw."""
SCRIPTED = "polar-scripted"
"""Prefix of the scripted engine's version. It records every call, so it gets no requests of ours."""
TOKENS_MODE = ("tokens", "vllm_tokens")
FIRST_VERSION = "0.32"
"""The first version of vLLM whose generate answers with what mode `tokens` needs; read from the wheels (docs/vllm.md)."""

LogprobsMode = Literal["raw", "processed"]


class RouteState(StrEnum):
    """Whether a route of a server can be used."""

    WORKS = "works"
    OFF = "off"
    """The route exists and is switched off."""
    MISSING = "missing"
    OLDER = "older"
    """The route answers without fields that mode `tokens` needs."""
    SILENT = "silent"
    """Unknown: no whole answer within DETECTION_S, an overload, or a server error."""


@dataclass(frozen=True)
class Capabilities:
    """The abilities of one server."""

    version: str | None
    """vLLM's version; None: the server reports none and is not vLLM."""
    context: int | None
    """Tokens that a prompt and its answer may have together; None: not reported."""
    logprobs_mode: LogprobsMode | None
    """Found by requests at two temperatures; None: the answers don't show it."""
    tools: bool
    """Requests may declare tools, and calls of tools are parsed."""
    tokenizer: bool
    """The server counts a conversation's tokens and detokenizes."""
    render: RouteState
    generate: RouteState
    derender: RouteState
    weight_version: str | None
    """Name that the trainer gave the weights; None: not reported."""
    unasked_grammar: bool | None = None
    """Tool calls are constrained though the request doesn't ask for it; None: the server renders no requests with tools."""
    returns: frozenset[str] | None = None
    """What `generate` returns beside tokens: `routed_experts`, `sampling_mask`. None: it gave no answer that shows it."""

    @property
    def summary(self) -> str:
        """One line that lists the features."""
        features = []
        if self.tools:
            features.append("tool calls")
        if {self.render, self.generate, self.derender} == {RouteState.WORKS}:
            features.append("render, generate and derender")
        return summary_of("vLLM", self, features)


class Reported(Protocol):
    """The abilities that servers of all kinds report."""

    @property
    def version(self) -> str | None: ...
    @property
    def context(self) -> int | None: ...
    @property
    def logprobs_mode(self) -> LogprobsMode | None: ...
    @property
    def weight_version(self) -> str | None: ...


def summary_of(program: str, found: Reported, features: Iterable[str]) -> str:
    """One line that lists a server's features; `features` are those of its kind."""
    listed = [f"{program} {found.version}" if found.version else "a server that reports no version"]
    if found.context is not None:
        listed.append(f"{found.context} tokens of context")
    if found.logprobs_mode is not None:
        listed.append(f"{found.logprobs_mode} logprobs")
    listed += features
    if found.weight_version is not None:
        listed.append(f"weights {found.weight_version!r}")
    return ", ".join(listed)


@dataclass(frozen=True)
class MissingFeature:
    """A feature that a server lacks or is not configured for."""

    name: str
    effect: str
    """The missing feature, and the consequence."""
    remedy: str
    is_fatal: bool = False
    """The engine's mode can't work without the feature."""

    def __str__(self) -> str:
        return f"{self.effect}: {self.remedy}"


def missing_features(found: Capabilities, mode: str, capture: Iterable[str] = ()) -> Iterator[MissingFeature]:
    """The features that a server lacks for an engine with this mode and `capture`, fatal ones first."""
    if mode in TOKENS_MODE:
        yield from _missing_routes(found)
    if found.returns is not None:
        for value in sorted(set(capture) - found.returns):
            remedy = f"start vLLM with {_FLAGS[value]}, or leave {value!r} out of the engine's `capture` in polar.toml"
            yield MissingFeature(value, f"the server returns no {value}", remedy, is_fatal=True)
    if "sampling_mask" in (found.returns or ()):
        yield MissingFeature(
            "sampling",
            "it returns sampling masks, and so answers only calls with temperature > 0 and top_k > 0",
            "set top_k in the tasks' sampling, which has none by default, or start vLLM without --return-sampling-mask",
        )
    if found.logprobs_mode == "raw":
        yield MissingFeature(
            "logprobs",
            "logprobs are raw, before temperature, top_p, top_k and penalties, and so not those of the sampled distribution",
            "start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 without truncation and penalties",
        )
    if found.logprobs_mode is None:
        yield MissingFeature(
            "logprobs",
            f"it is unknown whether logprobs are raw or processed: the server returns no {ALTERNATIVES} likeliest tokens, or all are equal",
            "start vLLM with --logprobs-mode processed_logprobs and without --max-logprobs 0, and set logprobs_mode in polar.toml",
        )
    if found.unasked_grammar:
        yield MissingFeature(
            "grammar",
            "the server constrains tool calls that no request asks to constrain: their logprobs aren't those of the model's distribution",
            "start vLLM without --tool-strict-level; if that is its parser's default, with VLLM_ENFORCE_STRICT_TOOL_CALLING=0",
        )
    if not found.tools:
        yield MissingFeature(
            "tool calls",
            "the server refuses requests that declare tools, as agents' requests do",
            "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model's family",
        )
    if not found.tokenizer:
        yield MissingFeature(
            "tokenizer",
            "the server has no /tokenize and /detokenize: token counts for Anthropic's and Google's clients fail, "
            "and `polar show` has no texts of tokens",
            "name the server itself, without a gateway that hides these routes",
        )
    if found.weight_version is None:
        yield MissingFeature(
            "versions",
            "the server doesn't report its weights' version, so versions come from the fleet's state alone",
            "if you update its weights, start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, on a private network",
        )


def _missing_routes(found: Capabilities) -> Iterator[MissingFeature]:
    routes = {"render": found.render, "generate": found.generate, "derender": found.derender}
    for state, (reason, remedy) in _UNUSABLE.items():
        names = ", ".join(name for name, route in routes.items() if route is state)
        if names:
            # A paused or overloaded server is no reason to stop: another proxy is started just then.
            is_fatal = state is not RouteState.SILENT
            yield MissingFeature("mode tokens", f'mode "tokens" needs {names}: {reason}', remedy, is_fatal=is_fatal)


_UNUSABLE = {
    RouteState.OFF: ("switched off", 'start vLLM with --enable-scale-out, or use mode "chat"'),
    RouteState.MISSING: (
        "not found",
        f'use vLLM {FIRST_VERSION} or newer, started with --enable-scale-out, or use mode "chat"',
    ),
    RouteState.OLDER: (
        "answers without the token_id of each logprob or without stop_reason",
        f'use vLLM {FIRST_VERSION} or newer, or use mode "chat"',
    ),
    RouteState.SILENT: (
        f"no answer within {DETECTION_S:.0f} s, or a server error",
        "check whether the server is paused or overloaded; calls fail until it answers",
    ),
}
"""Reason and remedy for a route in each state but WORKS."""
_FLAGS = {
    "routed_experts": "--enable-return-routed-experts (mixture-of-experts models only)",
    "sampling_mask": "--return-sampling-mask",
}
"""vLLM's flag for each value of the setting `capture`."""
ANY_TOKEN = 1_000_000
"""A top_k above all vocabularies: without top_k, a server that returns sampling masks answers 500."""
SHORT = [{"role": "user", "content": "Say a word."}]
"""Messages of a small request."""
PLAIN: dict[str, Any] = {"logprobs": True, "top_logprobs": ALTERNATIVES, "top_p": 1.0, "top_k": ANY_TOKEN, "min_p": 0.0}
"""Fields that ask for the likeliest tokens of an untruncated distribution."""
_ONE_TOKEN = {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "logprobs": 0}
_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


async def detect(base_url: str, model: str, api_key: ApiKey | None = None) -> Capabilities | None:
    """A server's capabilities; None for the scripted engine. Raises UnreachableError."""
    connections = ConnectionPool(base_url, api_key)

    async def send(method: str, path: str, body: bytes = b"") -> Response | None:
        """None: no whole answer in time."""
        try:
            return await connections.request(method, path, body, DETECTION_S)
        except (TimeoutError, NoAnswerError):
            return None

    async def post(path: str, **fields: Any) -> Response | None:
        return await send("POST", path, msgspec.json.encode({"model": model, **fields}))

    async def chat(**fields: Any) -> Response | None:
        return await post("/v1/chat/completions", messages=SHORT, max_tokens=1, **fields)

    try:
        version = _text(await send("GET", "/version"), "version")
        if version is not None and version.startswith(SCRIPTED):
            return None
        models, weights, tokenized, detokenized, one, two, tools, *routes = await asyncio.gather(
            send("GET", "/v1/models"),
            send("GET", "/weight_info"),
            post("/tokenize", messages=SHORT),
            post("/detokenize", tokens=[0]),
            chat(temperature=1.0, **PLAIN),
            chat(temperature=2.0, **PLAIN),
            chat(tools=_TOOLS, tool_choice="auto", temperature=1.0, top_k=1),
            post("/v1/chat/completions/render", messages=SHORT, tools=_TOOLS, tool_choice="auto"),
            post("/inference/v1/generate", token_ids=[0], sampling_params=_ONE_TOKEN),
            post("/v1/chat/completions/derender"),
        )
    finally:
        connections.close()
    render, generate, derender = map(_route_state, routes)
    if generate is RouteState.WORKS and not _is_whole_generation(routes[1]):
        generate = RouteState.OLDER
    return Capabilities(
        version,
        context_of(models, model),
        logprobs_mode_of(likeliest(one), likeliest(two)),
        not _is_refused(tools),
        not (_is_refused(tokenized) or _is_refused(detokenized)),
        render,
        generate,
        derender,
        _text(weights, "weight_version"),
        _unasked_grammar(routes[0]),
        _returns(routes[1]),
    )


def _returns(generated: Response | None) -> frozenset[str] | None:
    """What an answer of `generate` has beside tokens; None for anything but an answer."""
    try:
        choice = json_of(generated)["choices"][0]
        return frozenset(name for name in _FLAGS if choice.get(name) is not None)
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def is_silent(response: Response | None) -> bool:
    """True for no whole answer in time, an overload, or a server error: they show nothing about a route."""
    return response is None or response.status == 429 or response.status >= 500


def _route_state(response: Response | None) -> RouteState:
    """A route that rejects a request's fields works; vLLM answers 403 for routes of --enable-scale-out that are switched off."""
    if response is None or is_silent(response):
        return RouteState.SILENT
    if response.status == 403:
        return RouteState.OFF
    return RouteState.WORKS if response.status in (200, 400, 422) else RouteState.MISSING


def _is_whole_generation(response: Response | None) -> bool:
    """Whether a generation has all fields of mode `tokens`; a rejected request shows nothing, so True."""
    try:
        choices = json_of(response)["choices"] if response is not None and response.status == 200 else []
        return not choices or ("stop_reason" in choices[0] and "token_id" in choices[0]["logprobs"]["content"][0])
    except (KeyError, IndexError, TypeError):
        return False


def context_of(response: Response | None, model: str) -> int | None:
    """The context's length of a model, by the answer of `/v1/models`."""
    return None if response is None or response.status != 200 else context_in(response.body, model)


def likeliest(response: Response | None) -> dict[str, float]:
    """Logprobs, by text, of the first token's alternatives in a chat completion; the sampled token may be among them."""
    try:
        entry = json_of(response)["choices"][0]["logprobs"]["content"][0]
        return {str(one["token"]): float(one["logprob"]) for one in entry["top_logprobs"]}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def _unasked_grammar(rendered: Response | None) -> bool | None:
    """Whether the rendering of a request that may call a tool has a grammar; None without a rendering."""
    try:
        return json_of(rendered)["sampling_params"].get("structured_outputs") is not None
    except (KeyError, TypeError, AttributeError):
        return None


def logprobs_mode_of(at_one: dict[str, float], at_two: dict[str, float]) -> LogprobsMode | None:
    """The mode, from tokens' logprobs at temperature 1 and 2: dividing logits by 2 halves all differences."""
    both = at_one.keys() & at_two.keys()
    if len(both) < 2:
        return None
    first, second = (max(one[token] for token in both) - min(one[token] for token in both) for one in (at_one, at_two))
    if first < SPREAD:
        return None
    return "processed" if second / first < HALF_WAY else "raw"


def _text(response: Response | None, field: str) -> str | None:
    """A field of a JSON answer, if it is a string."""
    answer = json_of(response)
    value = answer.get(field) if isinstance(answer, dict) else None
    return value if isinstance(value, str) else None


def _is_refused(response: Response | None) -> bool:
    """True for an error; no answer in time is not one, as a busy server may be late."""
    return response is not None and response.status != 200


def json_of(response: Response | None) -> Any:
    """The JSON of a 200 answer; None for anything else."""
    if response is None or response.status != 200:
        return None
    try:
        return msgspec.json.decode(response.body)
    except UNREADABLE:
        return None
