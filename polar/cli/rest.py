"""`polar rest` serves the HTTP routes of NVIDIA's Polar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli import process
from polar.cli.options import Data, MetricsHost, MetricsPort
from polar.cli.output import note
from topics.environment import redaction, settings
from topics.types.errors import InputError, NotReadyError

PORT = 8410


def rest(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL for webhook workers of other hosts. Default: the address here."),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Tasks may upload files of this folder. Default: they may upload none."),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Write the URL in use, as JSON, once requests are answered.")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    data: Data = None,
) -> None:
    """Serve clients of NVIDIA's Polar: its REST routes for tasks, results, events and callbacks.

    Runs until SIGINT or SIGTERM. Every request needs the control token. The service keeps no state; any number of them may run.
    """
    from polar.rest.service import serve
    from proxy.addresses import Binding, require_address
    from topics.types.parts import is_http_url

    process.log_events()
    if advertise is not None and not is_http_url(advertise):
        raise InputError("--advertise", advertise, "must be a URL like http://10.0.0.7:8410")
    if files is not None and not files.is_dir():
        raise InputError("--files", str(files), "must be a folder")
    require_address(host, advertise, "webhook workers")
    found = settings.load(data)
    redaction.cover(found)

    def ready(url: str) -> None:
        note(f"NVIDIA Polar's REST is served at {url}")
        if ready_file is not None:
            process.write_ready(ready_file, {"url": url})

    metrics = None if metrics_port is None else Binding(metrics_host, metrics_port)
    base_url = None if advertise is None else advertise.rstrip("/")
    try:
        process.serve(
            lambda stop: serve(
                found,
                Binding(host, port),
                advertise=base_url,
                files=files,
                stop=stop,
                ready=ready,
                metrics_binding=metrics,
            )
        )
    except OSError as error:
        raise NotReadyError(f"polar rest can't start on {host}:{port}: {error}") from None
