"""`polar up`: the whole system on this machine, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import progress, running
from polar.cli.options import Data, EngineMode, EngineUrl, Model
from polar.cli.output import note
from topics.environment import settings
from topics.environment.settings import ENV_FILE, Settings, write_env_file
from topics.types.errors import InputError
from topics.waiting.first_done import first_done

if TYPE_CHECKING:
    from polar.embedded.system import Options, System
    from proxy.engines.probe import ServedModel


def up(
    data: Data = None,
    engine_url: EngineUrl = None,
    model: Model = None,
    mode: EngineMode = "chat",
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Written when everything answers: what DIR/polar.env holds.")
    ] = None,
    scripts: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", exists=True, help="For the scripted engine: a file or folder; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The proxy's; 0: any free one.")] = 0,
) -> None:
    """Run the whole system on this machine until Ctrl-C.

    Kafka, a proxy, all workers and, without --engine, the scripted engine. With POLAR_KAFKA set that Kafka is used.
    """
    from polar.embedded import disk, lock
    from polar.embedded.system import Options
    from proxy.engines import probe
    from proxy.engines.pool import plug_in_of

    plug_in_of(mode, "--mode")
    if engine_url is None and model is not None:
        raise InputError("--model", model, "goes with --engine")
    if engine_url is not None and scripts:
        raise InputError("--scripts", str(scripts[0]), "the scripted engine's, and --engine names another")
    upstream = None
    if engine_url is not None:
        upstream = probe.find_model(engine_url, model)
        asyncio.run(_examine(upstream, mode))
    given = settings.load(data)
    if given.engines and upstream is None:
        raise InputError(
            "engines",
            ", ".join(given.engines),
            "polar up asks one engine: say --engine URL, or run `polar proxy`, which reads [engines]",
        )
    folder = given.data
    disk.require(folder)
    held = lock.claim(folder, announce=_announce)
    try:
        # What a killed `up` has left is true no more, and must not pass for settings.
        (folder / ENV_FILE).unlink(missing_ok=True)
        found = settings.load(data)
        options = Options(engine=upstream, mode=mode, scripts=scripts or [], port=port)
        running.serve(lambda stop: _run(found, options, held, ready_file, stop))
    finally:
        os.close(held)


async def _examine(upstream: ServedModel, mode: str) -> None:
    """Raises NotReady where it can't serve training."""
    from proxy.engines import probe

    # First the routes that a mode needs, with the flag that opens them.
    found = await probe.check_features(upstream, mode, _announce)
    await probe.try_call(upstream, mode)
    if found is not None:
        _announce(f"the engine: {found.summary}")


async def _run(found: Settings, options: Options, held: int, ready_file: Path | None, stop: asyncio.Event) -> None:
    from polar.embedded.system import System

    system = System(found, options, lock=held, announce=_announce, meter=progress.download_bar())
    starting = system.start()
    try:
        if starting not in await first_done(starting, stop):
            return
        if ready_file is not None:
            write_env_file(ready_file, system.addresses)
        _say_where(system, found.data)
        await first_done(system.keep(), stop)
    finally:
        _announce("stopping")
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        await system.stop()


def _say_where(system: System, data: Path) -> None:
    assert system.engine is not None, "it is known once the system has started"
    scripted = "scripted: it plays scripts and filler, no model runs. " if system.is_scripted else ""
    lines = {
        "Kafka": system.addresses["POLAR_KAFKA"],
        "proxy": system.addresses["POLAR_PROXY_URL"],
        "control": f"{system.addresses['POLAR_CONTROL_URL']}/readyz",
        "engine": f"{scripted}{system.engine.url} ({system.engine.model})",
        "logs": str(data / "logs"),
        "settings": str(data / ENV_FILE),
    }
    typer.echo("\n".join(f"{name:9}{value}" for name, value in lines.items()))
    typer.echo(f"polar is up: `polar submit FILE --data {data}` from elsewhere, Ctrl-C here stops everything")


def _announce(line: str) -> None:
    note(f"{line}")
