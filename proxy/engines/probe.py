"""Engines as settings name them: what is served there, and whether it can serve training, asked of the servers themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.chat import ChatRequest, Message
from proxy.engines import capabilities
from proxy.engines.capabilities import Capabilities
from proxy.engines.connection import Unreachable
from proxy.engines.pool import plug_in_of
from proxy.errors import EngineError
from topics.environment import http_json
from topics.environment.settings import EngineSettings
from topics.types.completion import Sampling
from topics.types.errors import InputError, NotReady

ANSWER_S = 10.0
VLLM_DEFAULT = "raw"
"""Its --logprobs-mode."""
PROBE_S = 120.0
"""For one token: a server that has just started compiles on its first call."""
NO_IDS = (
    "it returns no token ids, and without them nothing can be trained: vLLM 0.10.2 or newer does (`return_token_ids`)"
)
NO_LOGPROBS = "it returns no logprob for each sampled token; vLLM does unless --max-logprobs forbids it"
LACKS = {"no_token_ids": NO_IDS, "length_mismatch": NO_LOGPROBS, "bad_logprobs": NO_LOGPROBS}
"""By EngineError's code, what the server can't do."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Engine:
    """An inference server: its base URL without `/v1`, and the model to ask it for."""

    url: str
    model: str


def find(url: str, model: str | None, *, field: str = "--model") -> Engine:
    """The engine behind a URL with or without `/v1`, and its only model where none is named.

    Raises InputError for a bad URL and for a model that it lacks, NotReady where it doesn't answer as an OpenAI-like server does.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("--engine", url, "expected http://host:port, with or without /v1")
    served = _models(base)
    if model is None and len(served) != 1:
        raise InputError(field, None, f"{base} serves {', '.join(served) or 'no model'}; name one")
    if model is not None and model not in served:
        raise InputError(field, model, f"{base} serves {', '.join(served) or 'no model'}")
    return Engine(base, model or served[0])


def with_models(engines: Mapping[str, EngineSettings]) -> dict[str, EngineSettings]:
    """The engines, each with the model to ask for; one that is named needs no server that is up yet.

    Raises InputError where there is no engine and for a model that a server lacks, NotReady where none is named and no server tells.
    """
    if not engines:
        raise InputError(
            "engines",
            None,
            "name one: --engine URL, or [engines.<name>] with its urls in the current folder's polar.toml",
        )
    return {name: told.model_copy(update={"model": _model(name, told)}) for name, told in engines.items()}


def _model(name: str, told: EngineSettings) -> str:
    try:
        return model_at(told.urls, told.model, field=f"engines.{name}.model")
    except NotReady as missing:
        if told.model is None:
            raise
        log.warning("an engine is not there yet", action="engine_missing", engine=name, why=str(missing))
        return told.model


def model_at(urls: Sequence[str], model: str | None, *, field: str = "--model") -> str:
    """The model of servers that are to be one engine: the only one of the first that answers, where none is named.

    Raises InputError, naming `field`, for a model that a server lacks, NotReady where no server answers.
    """
    missing: list[NotReady] = []
    for url in urls:
        try:
            model = find(url, model, field=field).model
        except NotReady as error:
            missing.append(error)
    if model is None or len(missing) == len(urls):
        raise missing[0]
    return model


async def probe(engine: Engine, mode: str = "chat") -> None:
    """Ask for one token, just as the proxy will.

    Raises NotReady, saying what the server lacks and what to do, InputError for a mode that there is none of.
    """
    asked = plug_in_of(mode, "--mode")(engine.url, engine.model, deadline_s=PROBE_S)
    request = ChatRequest([Message("user", content="Say a word.")], sampling=Sampling(temperature=1, max_tokens=1))
    await asked.start()
    try:
        await asked.complete(request, "polar-probe.0")
    except EngineError as fault:
        what = LACKS.get(fault.code, f"it gave no usable answer ({fault.code}: {fault.message})")
        raise NotReady(f"the engine at {engine.url} ({engine.model}) can't be used: {what}") from None
    finally:
        await asked.stop()


def examined(engines: Mapping[str, EngineSettings], announce: Callable[[str], None]) -> dict[str, EngineSettings]:
    """The engines, each with the `logprobs_mode` that its servers are found to have; `announce` is told what they lack.

    A server that isn't up yet isn't asked, nor is the scripted engine: `raw` then, vLLM's default, where none is said. Raises NotReady
    where a server can't do what its engine's mode needs, InputError where another `logprobs_mode` is said or servers differ.
    """

    async def ask() -> dict[str, EngineSettings]:
        return {name: await _examined(name, told, announce) for name, told in engines.items()}

    return asyncio.run(ask())


async def examine(engine: Engine, mode: str, announce: Callable[[str], None]) -> Capabilities | None:
    """What a server can do; None for the scripted engine and for one that isn't up. `announce` is told what it lacks.

    Raises NotReady where it can't do what the mode needs, with the way out.
    """
    try:
        found = await capabilities.ask(engine.url, engine.model)
    except Unreachable:
        return None
    for lack in () if found is None else capabilities.lacks(found, mode):
        if lack.is_fatal:
            raise NotReady(f"the engine at {engine.url} ({engine.model}) can't be used: {lack}")
        announce(f"the engine at {engine.url}: {lack}")
    return found


async def _examined(name: str, told: EngineSettings, announce: Callable[[str], None]) -> EngineSettings:
    assert told.model is not None, "it was asked for where none was said"
    servers = await asyncio.gather(*(examine(Engine(url, told.model), told.mode, announce) for url in told.urls))
    modes = {found.logprobs_mode for found in servers if found is not None} - {None}
    if len(modes) > 1:
        raise InputError(
            f"engines.{name}.urls", ", ".join(told.urls), "some tell raw logprobs, others processed: start all alike"
        )
    found = modes.pop() if modes else None
    if found is not None and told.logprobs_mode not in (None, found):
        raise InputError(f"engines.{name}.logprobs_mode", told.logprobs_mode, f"its servers tell {found} logprobs")
    return told.model_copy(update={"logprobs_mode": told.logprobs_mode or found or VLLM_DEFAULT})


def _models(base: str) -> list[str]:
    try:
        answer = http_json.send(f"{base}/v1/models", timeout_s=ANSWER_S, through_proxy=True)
        if answer.status >= 300:
            raise NotReady(f"what answers at {base} is no inference server: /v1/models gives {answer.status}")
        return [str(model["id"]) for model in answer.json()["data"]]
    except (http_json.NoAnswerError, ValueError) as error:
        raise NotReady(f"the engine at {base} doesn't answer: {error}") from None
    except (KeyError, TypeError):
        raise NotReady(f"what answers at {base}/v1/models is no inference server with OpenAI's routes") from None
