"""`polar export otlp` sends finished sessions to a tracing backend as OpenTelemetry spans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli import export_selection, following
from polar.cli.options import Data, Format, MetricsHost, MetricsPort, OnlyRun, Output
from polar.cli.output import note, print_json, say
from topics.environment import redaction, settings
from topics.types.errors import InputError


def otlp(
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="Base URL of the OTLP/HTTP receiver. Default: OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also send the sessions that end from now on, until SIGINT or SIGTERM.")
    ] = False,
    position: Annotated[
        Path | None,
        typer.Option(
            "--position", metavar="FILE", help="Remember here which sessions were sent, and continue after them."
        ),
    ] = None,
    contents: Annotated[
        bool,
        typer.Option("--contents", help="Also send messages, tools and words of evaluators. They may hold secrets."),
    ] = False,
    task: export_selection.Task = None,
    run: OnlyRun = None,
    harness: export_selection.Harness = None,
    topic: export_selection.Topic = None,
    where: export_selection.Where = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Send each session to a tracing backend: a trace with a span for each stage and each model call.

    The standard variables OTEL_EXPORTER_OTLP_*, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES hold. A session has the same
    trace and span ids however often it is sent.
    """
    from polar.export.otlp.backend import Backend
    from polar.export.otlp.run import Export

    if follow and position is None:
        raise InputError("--position", position, "--follow needs a file in which to remember what was sent")
    found = settings.load(data)
    redaction.cover(found)
    wanted = export_selection.selection(found, task, run, harness, topic, where)
    backend = Backend(endpoint)
    export = Export(found, wanted, backend, position, with_contents=contents)
    try:
        if follow:
            note(f"sending finished sessions to {backend.url}")
            written = {"sessions": lambda: export.sent.sessions, "spans": lambda: export.sent.spans}
            following.follow(export.follow, written, lambda: export.failures, metrics_port, metrics_host)
            return
        backend.send([])
        sent = export.send_all()
    finally:
        backend.close()
    if output is Format.JSON:
        counts = {"sessions": sent.sessions, "spans": sent.spans, "rejected": backend.rejected, "waiting": sent.waiting}
        print_json({"endpoint": backend.url, **counts})
        return
    say(f"{backend.url}: {sent.sessions} sessions, {sent.spans} spans")
    if backend.rejected:
        note(f"the backend rejected {backend.rejected} of the spans")
    if sent.waiting:
        note("the lake doesn't have all records of the next sessions yet; run the command again")
