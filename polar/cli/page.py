"""`polar page` serves the live page."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from polar.cli import process
from polar.cli.options import Data, MetricsHost, MetricsPort
from polar.cli.output import note
from topics.environment import redaction, settings
from topics.types.errors import NotReadyError

PORT = 8420


def page(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Every request needs the control token, on every address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Write the URL in use, as JSON, once requests are answered.")
    ] = None,
    listener: Annotated[
        int | None, typer.Option(hidden=True, help="A listening socket to serve, until nobody looks; of `polar up`.")
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    data: Data = None,
) -> None:
    """Serve the live page: runs, sessions, groups, tokens, SQL. Its address is printed with the control token.

    Runs until SIGINT or SIGTERM. Follows Kafka only while somebody looks.
    """
    from polar.page.access import with_token
    from polar.page.service import serve
    from proxy.addresses import Binding

    process.log_events()
    found = settings.load(data)
    redaction.cover(found)

    def ready(url: str) -> None:
        # What `polar up` starts writes into a log, and its address is printed already.
        note(f"the page is at {with_token(url, found) if listener is None else url}")
        if ready_file is not None:
            process.write_ready(ready_file, {"url": url})

    metrics = None if metrics_port is None else Binding(metrics_host, metrics_port)
    try:
        place = Binding(host, port) if listener is None else socket.socket(fileno=listener)
        process.serve(lambda stop: serve(found, place, stop=stop, ready=ready, metrics_binding=metrics))
    except OSError as error:
        raise NotReadyError(f"polar page can't start on {host}:{port}: {error}") from None
