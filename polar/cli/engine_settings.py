"""The engines that a command's options name, otherwise those of polar.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from topics.environment.settings import EngineSettings, Settings
from topics.types.completion import ReplayField
from topics.types.errors import InputError

FLAGGED = "default"
"""Name of the engine that --engine names."""


def chosen(
    found: Settings,
    urls: Sequence[str],
    model: str | None,
    mode: str,
    key_file: Path | None,
    capture: frozenset[ReplayField] = frozenset(),
) -> Mapping[str, EngineSettings]:
    """The engines by name, each with its model. Raises InputError and NotReadyError as `probe.model_of` and `probe.with_models` do."""
    from proxy.engines import probe
    from proxy.engines.api_key import ApiKey

    if model is not None and not urls:
        raise InputError("--model", model, "needs --engine")
    if mode != "chat" and not urls:
        raise InputError("--mode", mode, "needs --engine; in polar.toml set the engine's `mode`")
    if key_file is not None and not urls:
        raise InputError(
            "--engine-key-file", str(key_file), "needs --engine; in polar.toml set the engine's `api_key_file`"
        )
    if capture and not urls:
        raise InputError(
            "--capture", ", ".join(sorted(capture)), "needs --engine; in polar.toml set the engine's `capture`"
        )
    if not urls:
        return probe.with_models(found.engines)
    key = None if key_file is None else ApiKey(key_file, field="--engine-key-file")
    served = probe.model_of(urls, model, api_key=key)
    return {FLAGGED: EngineSettings(urls=tuple(urls), model=served, mode=mode, api_key_file=key_file, capture=capture)}
