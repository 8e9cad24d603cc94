"""`polar proxy`: one model proxy, in front of its engines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from polar import settings
from polar.cli import logs
from polar.cli.options import Data, Model
from polar.types.errors import InputError, NotReady

PORT = 8400
CONTROL_PORT = 8401
FLAGGED = "default"
"""Name of the engine that --engine names."""


def proxy(
    engine_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="URL",
            help="Inference server, with or without /v1; several of the same model may be named. Else polar.toml's [engines].",
        ),
    ] = None,
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address that harnesses reach.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = PORT,
    control_host: Annotated[str, typer.Option(help="Address of health and metrics.")] = "127.0.0.1",
    control_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = CONTROL_PORT,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Written, as JSON, with the URLs in use once calls are served.")
    ] = None,
    data: Data = None,
) -> None:
    """Serve models to harnesses, each call captured.

    Runs until SIGINT or SIGTERM. A call is on the log before it is answered.
    """
    import uvloop

    from proxy.run import serve

    logs.for_service()
    found = _settings(data, engine_urls or [], model)

    def ready(url: str, control_url: str) -> None:
        behind = ", ".join(f"{' '.join(told.urls)} ({told.model})" for told in found.engines.values())
        typer.echo(f"polar: the proxy serves {url}, in front of {behind}", err=True)
        if ready_file is not None:
            _write(ready_file, {"url": url, "control_url": control_url})

    try:
        uvloop.run(
            serve(
                found,
                host=host,
                port=port,
                control_host=control_host,
                control_port=control_port,
                ready=ready,
            )
        )
    except OSError as error:
        raise NotReady(f"the proxy can't start on {host}:{port} and {control_host}:{control_port}: {error}") from None


def _settings(data: Path | None, engine_urls: list[str], model: str | None) -> settings.Settings:
    """With the engines that flags name, else those of polar.toml, each with its model."""
    from polar.embedded import engine

    if model is not None and not engine_urls:
        raise InputError("--model", model, "goes with --engine")
    found = settings.load(data)
    if engine_urls:
        told = settings.EngineSettings(urls=tuple(engine_urls), model=engine.model_at(engine_urls, model))
        return found.model_copy(update={"engines": {FLAGGED: told}})
    return found.model_copy(update={"engines": engine.with_models(found.engines)})


def _write(ready_file: Path, urls: dict[str, str]) -> None:
    """Whole or not at all: someone waits for it."""
    temporary = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(urls))
    temporary.replace(ready_file)
