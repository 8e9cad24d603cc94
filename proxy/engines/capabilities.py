"""What an inference server can do, asked of itself before anything rests on it, and for what it can't the flag that mends it.

vLLM's routes and words (0.32). All questions go out at once, with one deadline, and cost the server a token each at most; what a
server answers with an error it can't do. That token ids and logprobs come with an answer is not asked here: a call through the
engine's plug-in shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

from proxy.engines.connection import Connections, Dropped
from proxy.engines.http import UNREADABLE
from proxy.engines.response import Broken, Response, TooLarge

QUESTIONS_S = 30.0
"""For all of them: a server that has just started compiles on its first calls."""
ALTERNATIVES = 5
"""Likeliest tokens that are compared; vLLM allows 20 unless --max-logprobs says fewer."""
SPREAD = 0.01
"""Between the likeliest and the last of them, in nats: below that two temperatures look the same."""
HALF_WAY = 0.75
"""At temperature 2 the spread is half of what it was where logprobs are processed, and the same where they are raw."""
SCRIPTED = "polar-scripted"
"""How the version of the engine begins that plays scripts and keeps a record of every call."""
TOKENS_MODE = ("tokens", "vllm_tokens")

LogprobsMode = Literal["raw", "processed"]


class Route(StrEnum):
    """How a route stands."""

    WORKS = "works"
    OFF = "off"
    """It is there, and switched off."""
    MISSING = "missing"
    SILENT = "silent"
    """No whole answer within QUESTIONS_S, or that it is overloaded or fails: nothing is known of it."""


@dataclass(frozen=True)
class Capabilities:
    """One server's."""

    version: str | None
    """As it tells it; None: it doesn't, and is no vLLM."""
    context: int | None
    """Tokens of a prompt and its answer; None: it doesn't tell."""
    logprobs_mode: LogprobsMode | None
    """Found by asking at two temperatures; None: the answers don't show it."""
    tools: bool
    """Tools may be declared, and calls of them are parsed."""
    tokenizer: bool
    """It counts a conversation's tokens and tells the text of tokens."""
    render: Route
    generate: Route
    derender: Route
    weight_version: str | None
    """Which weights it has, as its trainer has named them; None: it doesn't tell."""

    @property
    def summary(self) -> str:
        """One line of what there is."""
        told = [f"vLLM {self.version}" if self.version else "a server that tells no version"]
        if self.context is not None:
            told.append(f"{self.context} tokens of context")
        if self.logprobs_mode is not None:
            told.append(f"{self.logprobs_mode} logprobs")
        if self.tools:
            told.append("tool calls")
        if self._routes == {Route.WORKS}:
            told.append("render, generate and derender")
        if self.weight_version is not None:
            told.append(f"weights {self.weight_version!r}")
        return ", ".join(told)

    @property
    def _routes(self) -> set[Route]:
        return {self.render, self.generate, self.derender}


@dataclass(frozen=True)
class Lack:
    """Something that a server can't do, or is not set up for."""

    what: str
    """In a word or two."""
    said: str
    """What there isn't, and what comes of it."""
    mend: str
    """The way out."""
    is_fatal: bool = False
    """The mode can't work without it."""

    def __str__(self) -> str:
        return f"{self.said}: {self.mend}"


def lacks(found: Capabilities, mode: str) -> Iterator[Lack]:
    """What an engine of this mode misses, the fatal first."""
    if mode in TOKENS_MODE:
        yield from _lacks_routes(found)
    if found.logprobs_mode == "raw":
        yield Lack(
            "logprobs",
            "logprobs are raw, before temperature, top_p, top_k and penalties, and so not those of the sampled distribution",
            "start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 without truncation",
        )
    if found.logprobs_mode is None:
        yield Lack(
            "logprobs",
            f"whether logprobs are raw or processed doesn't show: it tells no {ALTERNATIVES} likeliest tokens, or none differ",
            "start vLLM with --logprobs-mode processed_logprobs and without --max-logprobs 0, and say logprobs_mode in polar.toml",
        )
    if not found.tools:
        yield Lack(
            "tool calls",
            "it refuses calls that declare tools, as agents' do",
            "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of the model's family",
        )
    if not found.tokenizer:
        yield Lack(
            "tokenizer",
            "it has no /tokenize and /detokenize, so that tokens can't be counted for Anthropic's and Google's clients, "
            "and `polar show` has no texts of tokens",
            "ask the server itself, without a gateway that hides them",
        )
    if found.weight_version is None:
        yield Lack(
            "versions",
            "it doesn't tell which weights it has, so that versions come from the fleet's state alone",
            "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment if you update its weights, on a network of your own",
        )


def _lacks_routes(found: Capabilities) -> Iterator[Lack]:
    names = {"render": found.render, "generate": found.generate, "derender": found.derender}
    for state, (said, mend) in _WITHOUT.items():
        those = ", ".join(name for name, route in names.items() if route is state)
        if those:
            # A server that is paused or overloaded says nothing, and that is when another proxy is started.
            yield Lack("mode tokens", f'mode "tokens" needs {those}: {said}', mend, is_fatal=state is not Route.SILENT)


async def ask(base_url: str, model: str) -> Capabilities | None:
    """Ask a server; None for the scripted engine, which is asked nothing.

    Raises Unreachable where there is none; what it answers with an error it can't do.
    """
    server = _Server(base_url, model)
    try:
        return await server.ask()
    finally:
        server.stop()


class _Server:
    """One server while it is asked."""

    def __init__(self, base_url: str, model: str) -> None:
        self._connections = Connections(base_url.rstrip("/").removesuffix("/v1"))
        self._model = model

    def stop(self) -> None:
        self._connections.close()

    async def ask(self) -> Capabilities | None:
        version = text_of(await self._ask("GET", "/version"), "version")
        if version is not None and version.startswith(SCRIPTED):
            return None
        models, weights, counted, text, one, two, tools, *routes = await asyncio.gather(
            self._ask("GET", "/v1/models"),
            self._ask("GET", "/weight_info"),
            self._post("/tokenize", messages=_SHORT),
            self._post("/detokenize", tokens=[0]),
            self._chat(temperature=1.0, **_PLAIN),
            self._chat(temperature=2.0, **_PLAIN),
            self._chat(tools=_TOOLS, tool_choice="auto"),
            self._post("/v1/chat/completions/render", messages=_SHORT),
            self._post("/inference/v1/generate", token_ids=[0], sampling_params={"max_tokens": 1}),
            self._post("/v1/chat/completions/derender"),
        )
        render, generate, derender = map(route_of, routes)
        return Capabilities(
            version,
            context_of(models, self._model),
            logprobs_mode_of(likeliest_of(one), likeliest_of(two)),
            not _is_refused(tools),
            not (_is_refused(counted) or _is_refused(text)),
            render,
            generate,
            derender,
            text_of(weights, "weight_version"),
        )

    async def _chat(self, **fields: Any) -> Response | None:
        return await self._post("/v1/chat/completions", messages=_SHORT, max_tokens=1, **fields)

    async def _post(self, path: str, **fields: Any) -> Response | None:
        return await self._ask("POST", path, msgspec.json.encode({"model": self._model, **fields}))

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Response | None:
        """None: no whole answer in time."""
        try:
            return await self._connections.ask(method, path, body, QUESTIONS_S)
        except (TimeoutError, Dropped, Broken, TooLarge):
            return None


_WITHOUT = {
    Route.OFF: ("switched off", 'start vLLM with --enable-scale-out, or use mode "chat"'),
    Route.MISSING: ("not there", 'use vLLM 0.24 or newer, started with --enable-scale-out, or use mode "chat"'),
    Route.SILENT: (
        f"no answer within {QUESTIONS_S:.0f} s, or an error of the server's",
        "see whether it is paused or overloaded; calls fail until it answers",
    ),
}
"""By how a route stands, what is said of it and the way out."""
_SHORT = [{"role": "user", "content": "Say a word."}]
_PLAIN: dict[str, Any] = {"logprobs": True, "top_logprobs": ALTERNATIVES, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def route_of(told: Response | None) -> Route:
    """A route that finds fault with a request works; 403 is how vLLM answers for those of --enable-scale-out."""
    if told is None or told.status == 429 or told.status >= 500:
        return Route.SILENT
    if told.status == 403:
        return Route.OFF
    return Route.WORKS if told.status in (200, 400, 422) else Route.MISSING


def context_of(told: Response | None, model: str) -> int | None:
    """`max_model_len` of a model in `/v1/models`."""
    listed = _json(told)
    models = listed.get("data") if isinstance(listed, dict) else None
    for one in models if isinstance(models, list) else []:
        if isinstance(one, dict) and one.get("id") == model and isinstance(one.get("max_model_len"), int):
            return int(one["max_model_len"])
    return None


def likeliest_of(told: Response | None) -> dict[str, float]:
    """Logprobs of the first token's alternatives in a chat completion, by their text; the one that was sampled may be among them."""
    try:
        entry = _json(told)["choices"][0]["logprobs"]["content"][0]
        return {str(one["token"]): float(one["logprob"]) for one in entry["top_logprobs"]}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def logprobs_mode_of(at_one: dict[str, float], at_two: dict[str, float]) -> LogprobsMode | None:
    """From tokens' logprobs at temperature 1 and 2: dividing logits by 2 halves all differences."""
    both = at_one.keys() & at_two.keys()
    if len(both) < 2:
        return None
    first, second = (max(one[token] for token in both) - min(one[token] for token in both) for one in (at_one, at_two))
    if first < SPREAD:
        return None
    return "processed" if second / first < HALF_WAY else "raw"


def text_of(told: Response | None, field: str) -> str | None:
    """A field of a JSON answer that is text."""
    found = _json(told)
    value = found.get(field) if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


def _is_refused(told: Response | None) -> bool:
    """No answer in time is no refusal: a busy server may be late."""
    return told is not None and told.status != 200


def _json(told: Response | None) -> Any:
    """What a 200 answer says; None for anything else."""
    if told is None or told.status != 200:
        return None
    try:
        return msgspec.json.decode(told.body)
    except UNREADABLE:
        return None
