"""The engines of a proxy, by name, and which of them a call is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from proxy.engines.base import Engine
from proxy.engines.replicas import Replicas
from topics.environment import registry
from topics.environment.settings import EngineSettings
from topics.types.errors import InputError

MODES = {"chat": "vllm_chat", "tokens": "vllm_tokens"}
"""Plug-ins by `mode`; any other mode is a plug-in's own name."""


class Engines:
    """A proxy's engines; the first is the default."""

    def __init__(self, engines: Sequence[Replicas]) -> None:
        assert engines, "there is one at least"
        self._engines = engines

    @classmethod
    def of(cls, named: Mapping[str, EngineSettings], **options: object) -> Engines:
        """The engines of the settings, each with its `model`; `options` go to the plug-ins. Raises InputError."""
        return cls([_replicas(name, told, options) for name, told in named.items()])

    def __iter__(self) -> Iterator[Replicas]:
        return iter(self._engines)

    @property
    def default(self) -> Replicas:
        """For what names no model."""
        return self._engines[0]

    @property
    def models(self) -> list[str]:
        """What harnesses may ask for by name, each once, for model lists."""
        return list(dict.fromkeys(model for engine in self._engines for model in engine.models))

    def for_model(self, model: str | None) -> Replicas:
        """The first engine that has this model by name, else the first that takes any, else the default: harnesses ask for theirs."""
        named = (engine for engine in self._engines if model in engine.models)
        takers = (engine for engine in self._engines if engine.takes_any)
        return next(named, None) or next(takers, self.default)

    async def start(self) -> None:
        """Opens connections; doesn't ask whether a server is there."""
        for engine in self._engines:
            await engine.start()

    async def stop(self) -> None:
        """Closes them; calls in flight fail."""
        for engine in self._engines:
            await engine.stop()


def _replicas(name: str, told: EngineSettings, options: Mapping[str, object]) -> Replicas:
    assert told.model is not None, "it was asked for where none was said"
    plug_in = plug_in_of(told.mode, f"engines.{name}.mode")
    servers = {url: plug_in(url, told.model, logprobs_mode=told.logprobs_mode or "raw", **options) for url in told.urls}
    return Replicas(name, servers, model=told.model, models=told.models, concurrency=told.concurrency)


def plug_in_of(mode: str, field: str) -> Callable[..., Engine]:
    """What makes an engine of a mode, of a server's URL, its model and options. Raises InputError, naming `field`."""
    try:
        plug_in: Callable[..., Engine] = registry.load(registry.Kind.ENGINE, MODES.get(mode, mode))
    except InputError as error:
        raise InputError(field, mode, f"must be chat, tokens, or an engine plug-in: {error.reason}") from None
    return plug_in
