"""The check of an inference server: whether it can serve training, and in which mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

from polar.doctor.finding import Finding, State
from proxy.engines import capabilities, probe
from proxy.engines.api_key import ApiKey
from proxy.engines.connection import UnreachableError
from topics.types.errors import InputError, NotReadyError


async def inference(url: str, model: str | None, key_file: Path | None = None) -> list[Finding]:
    """Whether an engine can serve training, and in which mode. `key_file`: see `--engine-key-file`."""
    try:
        key = None if key_file is None else ApiKey(key_file, field="--engine-key-file")
        upstream = await asyncio.to_thread(probe.find_model, url, model, api_key=key)
        await probe.try_call(upstream)
        found = await capabilities.detect(upstream.url, upstream.model, key)
    except (InputError, NotReadyError, UnreachableError) as error:
        return [Finding("engine", State.BAD, str(error), "see `--engine` and `--model`")]
    told = f"{upstream.url} serves {upstream.model} with token ids and logprobs"
    if found is None:
        return [Finding("engine", State.GOOD, f"{told}: the scripted engine")]
    missing = [
        Finding(f"engine: {missing.name}", State.LATER, missing.effect, missing.remedy)
        for missing in capabilities.missing_features(found, "tokens")
    ]
    return [Finding("engine", State.GOOD, f"{told}: {found.summary}"), *missing]
