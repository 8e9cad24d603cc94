"""`polar up` runs the whole system on this machine until it is stopped."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import process, progress
from polar.cli.options import (
    Data,
    EngineCapture,
    EngineKeyFile,
    EngineMode,
    EngineUrl,
    Model,
    TrustTasks,
    checked_capture,
    trusting,
)
from polar.cli.output import note, say
from topics.environment import settings
from topics.environment.settings import ENV_FILE, Settings, write_env_file
from topics.types.completion import ReplayField
from topics.types.errors import InputError, NotReadyError
from topics.waiting.first_done import first_done

if TYPE_CHECKING:
    from polar.embedded.system import Options, System
    from proxy.engines.probe import ServedModel


def up(
    data: Data = None,
    engine_url: EngineUrl = None,
    model: Model = None,
    mode: EngineMode = "chat",
    engine_key_file: EngineKeyFile = None,
    capture: EngineCapture = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Write the content of DIR/polar.env to F once everything answers.")
    ] = None,
    scripts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", exists=True, help="File or folder of scripts for the scripted engine. Repeatable."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the proxy; 0 takes a free one.")] = 0,
    page_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of the live page, on 127.0.0.1; 0 takes that of the last time, or a free one."
        ),
    ] = 0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve the metrics of all parts to Prometheus on this port of 127.0.0.1; 0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    trust_tasks: TrustTasks = False,
) -> None:
    """Run the whole system on this machine until Ctrl-C.

    Starts Kafka, a proxy, all workers and, without --engine, the scripted engine. Uses the Kafka in POLAR_KAFKA if it is set.
    """
    from polar.embedded import disk, lock
    from polar.embedded.system import Options
    from proxy.engines import probe
    from proxy.engines.api_key import ApiKey
    from proxy.engines.pool import plug_in_of, require_capture

    captured = checked_capture(capture)
    require_capture(plug_in_of(mode, "--mode"), mode, captured, "--capture")
    if engine_url is None and model is not None:
        raise InputError("--model", model, "needs --engine")
    if engine_url is None and engine_key_file is not None:
        raise InputError("--engine-key-file", str(engine_key_file), "needs --engine")
    if engine_url is not None and scripts:
        raise InputError(
            "--scripts", str(scripts[0]), "only the scripted engine has scripts, and --engine names another engine"
        )
    upstream = None
    if engine_url is not None:
        key = None if engine_key_file is None else ApiKey(engine_key_file.absolute(), field="--engine-key-file")
        upstream = probe.find_model(engine_url, model, api_key=key)
        asyncio.run(_examine(upstream, mode, captured))
    configured = settings.load(data)
    if configured.engines and upstream is None:
        raise InputError(
            "engines",
            ", ".join(configured.engines),
            "polar up uses one engine: pass --engine URL, or run `polar proxy`, which reads [engines]",
        )
    folder = configured.data
    lock_file = lock.claim(folder, announce=note)
    try:
        disk.require(folder)
        # The file of a killed `up` is out of date and must not be read as settings.
        (folder / ENV_FILE).unlink(missing_ok=True)
        found = trusting(settings.load(data), trust_tasks)
        found = trusting(found, not asyncio.run(_has_cells()))
        options = Options(
            engine=upstream,
            mode=mode,
            capture=captured,
            scripts=scripts or [],
            port=port,
            page_port=page_port,
            metrics_port=metrics_port,
        )
        process.serve(lambda stop: _run(found, options, lock_file, ready_file, stop))
    finally:
        os.close(lock_file)


async def _examine(upstream: ServedModel, mode: str, capture: frozenset[ReplayField]) -> None:
    """Raise NotReadyError if the engine can't serve training."""
    from proxy.engines import probe

    # The routes that the mode needs come first: their error names the flag that enables them.
    found = await probe.check_features(upstream, mode, note, capture)
    await probe.try_call(upstream, mode)
    if found is not None:
        note(f"the engine: {found.summary}")


async def _has_cells() -> bool:
    """Whether tasks run in cells; a warning if they can't."""
    from consumers.runtimes import guarded
    from consumers.runtimes.cell.backend import check

    try:
        await check()
    except NotReadyError as error:
        note(
            f"warning: this machine can't run cells ({error}), so tasks run in the runtime {guarded.instead_of_cells()!r}, "
            "as your own user (docs/security.md)"
        )
        return False
    return True


async def _run(found: Settings, options: Options, lock_file: int, ready_file: Path | None, stop: asyncio.Event) -> None:
    from polar.embedded.system import System
    from topics.contract import catalogue
    from topics.log.topic_watch import watching_topics

    system = System(found, options, lock=lock_file, announce=note, meter=progress.download_bar())
    starting = system.start()
    try:
        if starting not in await first_done(starting, stop):
            return
        # First: whoever waits for the file may read what was printed.
        _print_addresses(system, found.data)
        if ready_file is not None:
            write_env_file(ready_file, system.addresses)
        async with watching_topics(system.settings(), catalogue.FIXED, note):
            await first_done(system.keep(), stop)
    finally:
        note("stopping")
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        await system.stop()


def _print_addresses(system: System, data: Path) -> None:
    from polar.page.access import with_token

    assert system.engine is not None, "it is known once the system has started"
    scripted = "scripted: it plays scripts and filler text, no model runs. " if system.is_scripted else ""
    lines = {
        "Kafka": system.addresses["POLAR_KAFKA"],
        "proxy": system.addresses["POLAR_PROXY_URL"],
        "control": f"{system.addresses['POLAR_CONTROL_URL']}/readyz",
        "page": with_token(system.addresses["POLAR_PAGE_URL"], system.settings()),
        **({} if system.metrics_url is None else {"metrics": system.metrics_url}),
        "engine": f"{scripted}{system.engine.url} ({system.engine.model})",
        "logs": str(data / "logs"),
        "settings": str(data / ENV_FILE),
    }
    say("\n".join(f"{name:9}{value}" for name, value in lines.items()))
    say(f"polar is up: `polar submit FILE --data {data}` from another shell; Ctrl-C here stops everything")
