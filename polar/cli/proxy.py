"""`polar proxy`: one model proxy, in front of one engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from polar import settings
from polar.cli import logs
from polar.cli.options import Data, Model
from polar.types.errors import NotReady

PORT = 8400
CONTROL_PORT = 8401


def proxy(
    engine_url: Annotated[str, typer.Option("--engine", metavar="URL", help="Inference server, with or without /v1.")],
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

    from polar.embedded import engine
    from proxy.run import serve

    logs.for_service()
    found = settings.load(data)
    upstream = engine.find(engine_url, model)

    def ready(url: str, control_url: str) -> None:
        typer.echo(f"polar: the proxy serves {url}, in front of {upstream.url} ({upstream.model})", err=True)
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
                engine_url=upstream.url,
                model=upstream.model,
                ready=ready,
            )
        )
    except OSError as error:
        raise NotReady(f"the proxy can't start on {host}:{port} and {control_host}:{control_port}: {error}") from None


def _write(ready_file: Path, urls: dict[str, str]) -> None:
    """Whole or not at all: someone waits for it."""
    temporary = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(urls))
    temporary.replace(ready_file)
