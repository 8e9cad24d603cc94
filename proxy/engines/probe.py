"""Checks of configured engines before a proxy starts: which model each serves, and whether it can serve training.

`capabilities` detects what one server can do; this module decides what that means for the settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from proxy.engines import capabilities, sglang_capabilities
from proxy.engines.api_key import ApiKey
from proxy.engines.capabilities import Capabilities, MissingFeature
from proxy.engines.connection import UnreachableError
from proxy.engines.http import NEEDS_KEY
from proxy.engines.pool import api_key_of, plug_in_of
from proxy.engines.replicas import PROBE
from proxy.engines.sglang_capabilities import SglangCapabilities
from proxy.errors import EngineError
from topics.environment import http_json
from topics.environment.settings import EngineSettings
from topics.types.errors import InputError, NotReadyError

ANSWER_S = 10.0
"""For `/v1/models`, which needs no model: a server answers it as soon as it listens."""
PROBE_S = 120.0
"""For one token: a server that has just started compiles on its first call."""
NO_IDS = (
    "it returns no token ids, and without them nothing can be trained: vLLM 0.10.2 or newer does (`return_token_ids`)"
)
NO_LOGPROBS = "it returns no logprob for each sampled token; vLLM does unless --max-logprobs forbids it"
CAUSES = {"no_token_ids": NO_IDS, "length_mismatch": NO_LOGPROBS, "bad_logprobs": NO_LOGPROBS}
"""The server's deficiency by EngineError's code."""

DETECTED: Mapping[str, tuple[Mapping[object, str], str]] = {
    "logprobs_mode": (
        {"raw": "return raw logprobs", "processed": "return processed logprobs"},
        "start all with the same --logprobs-mode",
    ),
    "unasked_grammar": (
        {True: "constrain tool calls that no request asks to constrain", False: "don't constrain them"},
        "start all with the same --tool-strict-level and --tool-call-parser",
    ),
}
"""Settings that a server shows: what each value means, and how servers become alike."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model of an inference server."""

    url: str
    """The server's base URL, without `/v1`."""
    model: str
    api_key: ApiKey | None = None
    """The key that the server demands."""


def find_model(url: str, model: str | None, *, field: str = "--model", api_key: ApiKey | None = None) -> ServedModel:
    """The named model of the server behind a URL with or without `/v1`, or its only one.

    Raises InputError for a bad URL and for a model that the server lacks, NotReadyError if it doesn't answer as an OpenAI-like server does.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError("--engine", url, "expected http://host:port, with or without /v1")
    served = _models(base, api_key)
    listed = f"{base} serves {', '.join(served) or 'no model'}"
    if model is None and len(served) != 1:
        raise InputError(field, None, f"{listed}; name one")
    if model is not None and model not in served:
        raise InputError(field, model, listed)
    return ServedModel(base, model or served[0], api_key)


def model_of(urls: Sequence[str], model: str | None, *, field: str = "--model", api_key: ApiKey | None = None) -> str:
    """The model of the servers of one engine: the named one, or the only model of the first server that answers.

    Raises InputError, naming `field`, for a model that a server lacks, NotReadyError if no server answers.
    """
    errors: list[NotReadyError] = []
    for url in urls:
        try:
            model = find_model(url, model, field=field, api_key=api_key).model
        except NotReadyError as error:
            errors.append(error)
    if model is None or len(errors) == len(urls):
        raise errors[0]
    return model


def with_models(engines: Mapping[str, EngineSettings]) -> dict[str, EngineSettings]:
    """The engines, each with its model; the servers of an engine whose model is named need not be up.

    Raises InputError if there is no engine and for a model that a server lacks, NotReadyError if no model is named and no server answers.
    """
    if not engines:
        raise InputError(
            "engines",
            None,
            "name one: --engine URL, or [engines.<name>] with its urls in the current folder's polar.toml",
        )
    return {name: each.model_copy(update={"model": _model(name, each)}) for name, each in engines.items()}


def _model(name: str, engine: EngineSettings) -> str:
    try:
        return model_of(engine.urls, engine.model, field=f"engines.{name}.model", api_key=api_key_of(name, engine))
    except NotReadyError as error:
        if engine.model is None:
            raise
        log.warning("an engine is not there yet", action="engine_missing", engine=name, why=str(error))
        return engine.model


async def try_call(served: ServedModel, mode: str = "chat") -> None:
    """Request one token just as the proxy will.

    Raises NotReadyError, with what the server lacks and what to do, and InputError for an unknown mode.
    """
    key = {} if served.api_key is None else {"api_key": served.api_key}
    engine = plug_in_of(mode, "--mode")(served.url, served.model, deadline_s=PROBE_S, **key)
    await engine.start()
    try:
        await engine.complete(PROBE, "polar-probe.0")
    except EngineError as error:
        cause = CAUSES.get(error.code, f"it gave no usable answer ({error.code}: {error.message})")
        raise _unusable(served, cause) from None
    finally:
        await engine.stop()


async def check_features(
    served: ServedModel, mode: str, announce: Callable[[str], None], capture: Iterable[str] = ()
) -> Capabilities | SglangCapabilities | None:
    """A server's capabilities; None for the scripted engine and for a server that isn't up. `announce` gets each missing feature.

    Raises NotReadyError, with the remedy, for a feature that the mode can't work without.
    """
    try:
        found, missing_features = await _features(served, mode, capture)
    except UnreachableError:
        return None
    for missing in missing_features:
        if missing.is_fatal:
            raise _unusable(served, str(missing))
        announce(f"the engine at {served.url}: {missing}")
    return found


async def _features(
    served: ServedModel, mode: str, capture: Iterable[str]
) -> tuple[Capabilities | SglangCapabilities | None, Iterable[MissingFeature]]:
    """A server's capabilities, and the features that it lacks for the mode. Raises UnreachableError."""
    if mode == sglang_capabilities.MODE:
        sglang = await sglang_capabilities.detect(served.url, served.model, served.api_key)
        return sglang, sglang.missing_features()
    found = await capabilities.detect(served.url, served.model, served.api_key)
    return found, () if found is None else capabilities.missing_features(found, mode, capture)


def with_detected(engines: Mapping[str, EngineSettings], announce: Callable[[str], None]) -> dict[str, EngineSettings]:
    """The engines, each with `logprobs_mode` and `unasked_grammar` as detected, otherwise as configured.

    `announce` gets each missing feature. Raises NotReadyError if a server can't do what its engine's mode needs, InputError if something
    else is configured than is detected, or if the servers of an engine differ.
    """

    async def check_all() -> dict[str, EngineSettings]:
        return {name: await _with_detected(name, engine, announce) for name, engine in engines.items()}

    return asyncio.run(check_all())


async def _with_detected(name: str, engine: EngineSettings, announce: Callable[[str], None]) -> EngineSettings:
    model = engine.model
    assert model is not None, "set by with_models"
    key = api_key_of(name, engine)
    servers = await asyncio.gather(
        *(check_features(ServedModel(url, model, key), engine.mode, announce, engine.capture) for url in engine.urls)
    )
    detected: dict[str, object] = {}
    for field, (words, remedy) in DETECTED.items():
        values = {getattr(found, field, None) for found in servers} - {None}
        configured = getattr(engine, field)
        if len(values) > 1:
            some, others = sorted(words[value] for value in values)
            raise InputError(f"engines.{name}.urls", ", ".join(engine.urls), f"some {some}, others {others}: {remedy}")
        if values and configured not in (None, *values):
            raise InputError(f"engines.{name}.{field}", configured, f"its servers {words[next(iter(values))]}")
        detected[field] = next(iter(values), configured)
    return engine.model_copy(update=detected)


def _unusable(served: ServedModel, cause: str) -> NotReadyError:
    return NotReadyError(f"the engine at {served.url} ({served.model}) can't be used: {cause}")


def _models(base: str, api_key: ApiKey | None) -> list[str]:
    token = None if api_key is None else api_key.value
    try:
        answer = http_json.send(f"{base}/v1/models", token=token, timeout_s=ANSWER_S, through_proxy=True)
        if answer.status in (401, 403):
            raise NotReadyError(f"the engine at {base} demands another API key ({answer.status}): {NEEDS_KEY}")
        if answer.status >= 300:
            raise NotReadyError(f"what answers at {base} is no inference server: /v1/models gives {answer.status}")
        return [str(model["id"]) for model in answer.json()["data"]]
    except (http_json.NoAnswerError, ValueError) as error:
        raise NotReadyError(f"the engine at {base} doesn't answer: {error}") from None
    except (KeyError, TypeError):
        raise NotReadyError(f"what answers at {base}/v1/models is no inference server with OpenAI's routes") from None
