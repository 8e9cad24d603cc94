"""The engines of a proxy by name, and the choice of one for a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from proxy.engines.api_key import ApiKey
from proxy.engines.base import Engine
from proxy.engines.process import Process
from proxy.engines.replicas import Replicas
from topics.environment import registry
from topics.environment.settings import EngineSettings
from topics.types.completion import UNKNOWN, ReplayField
from topics.types.errors import InputError

MODES = {"chat": "vllm_chat", "tokens": "vllm_tokens"}
"""Plug-ins by `mode`; any other mode is the name of a plug-in."""


class Engines:
    """A proxy's engines; the first is the default."""

    def __init__(self, engines: Sequence[Replicas]) -> None:
        assert engines, "at least one"
        self._engines = engines

    @classmethod
    def of(cls, named: Mapping[str, EngineSettings], **options: object) -> Engines:
        """Engines made from settings, each with its `model`; `options` go to the plug-ins. Raises InputError."""
        return cls([_replicas(name, engine, options) for name, engine in named.items()])

    def __iter__(self) -> Iterator[Replicas]:
        return iter(self._engines)

    @property
    def default(self) -> Replicas:
        """The engine for calls that name no model."""
        return self._engines[0]

    @property
    def models(self) -> list[str]:
        """Names that harnesses may request, each once, for model lists."""
        return list(dict.fromkeys(model for engine in self._engines for model in engine.models))

    def for_model(self, model: str | None) -> Replicas:
        """The first engine with this model, otherwise the first that takes any name, otherwise the default.

        Harnesses often request their provider's models, which no engine has.
        """
        named = (engine for engine in self._engines if model in engine.models)
        takers = (engine for engine in self._engines if engine.takes_any)
        return next(named, None) or next(takers, self.default)

    async def contexts(self, models: Sequence[str]) -> dict[str, int | None]:
        """By model, the context of its engine as in `Replicas.context`. Each engine is asked once."""
        by_model = {model: self.for_model(model) for model in models}
        engines = list(dict.fromkeys(by_model.values()))
        lengths = dict(zip(engines, await asyncio.gather(*(each.context() for each in engines)), strict=True))
        return {model: lengths[engine] for model, engine in by_model.items()}

    async def start(self, on_process: Callable[[str, Process], None] = lambda *_: None) -> None:
        """Open connections; no server need be up. `on_process` as in `Replicas.start`."""
        for engine in self._engines:
            await engine.start(on_process)

    async def stop(self) -> None:
        """Close connections; calls in flight fail."""
        for engine in self._engines:
            await engine.stop()


def _replicas(name: str, engine: EngineSettings, options: Mapping[str, object]) -> Replicas:
    assert engine.model is not None, "set by probe.with_models"
    plug_in = plug_in_of(engine.mode, f"engines.{name}.mode")
    if (key := api_key_of(name, engine)) is not None:
        options = {**options, "api_key": key}
    require_capture(plug_in, engine.mode, engine.capture, f"engines.{name}.capture")
    if engine.capture:
        options = {**options, "capture": engine.capture}
    servers = {
        url: plug_in(url, engine.model, logprobs_mode=engine.logprobs_mode or UNKNOWN, **options) for url in engine.urls
    }
    return Replicas(
        name,
        servers,
        model=engine.model,
        models=engine.models,
        concurrency=engine.concurrency,
        unasked_grammar=engine.unasked_grammar,
    )


def api_key_of(name: str, engine: EngineSettings) -> ApiKey | None:
    """The key that an engine's servers demand. Raises InputError."""
    file = engine.api_key_file
    return None if file is None else ApiKey(file, field=f"engines.{name}.api_key_file")


def require_capture(plug_in: Callable[..., Engine], mode: str, capture: frozenset[ReplayField], field: str) -> None:
    """Raises InputError, naming `field`, if the plug-in of this mode can't return what is to be captured."""
    if lacking := capture - getattr(plug_in, "captures", frozenset()):
        reason = f'mode {mode!r} can\'t return {", ".join(sorted(lacking))}; mode "tokens" can, with vLLM'
        raise InputError(field, sorted(capture), reason)


def plug_in_of(mode: str, field: str) -> Callable[..., Engine]:
    """The plug-in of a mode; it takes a server's URL, its model and options. Raises InputError, naming `field`."""
    try:
        plug_in: Callable[..., Engine] = registry.load(registry.Kind.ENGINE, MODES.get(mode, mode))
    except InputError as error:
        raise InputError(field, mode, f"must be chat, tokens, or an engine plug-in: {error.reason}") from None
    return plug_in
