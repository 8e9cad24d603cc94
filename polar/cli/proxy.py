"""`polar proxy` runs a model proxy, of one process or several, in front of its engines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from polar.cli import engine_settings, process
from polar.cli.options import Data, EngineCapture, EngineKeyFile, EngineMode, Model, checked_capture
from polar.cli.output import note
from topics.environment import redaction, settings
from topics.log import logins
from topics.types.completion import ReplayField
from topics.types.errors import InputError, NotReadyError

PORT = 8400
CONTROL_PORT = 8401


def proxy(
    engine_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="URL",
            help="Inference server, with or without /v1. Repeatable for servers of one model. Default: [engines] of polar.toml.",
        ),
    ] = None,
    model: Model = None,
    mode: EngineMode = "chat",
    engine_key_file: EngineKeyFile = None,
    capture: EngineCapture = None,
    host: Annotated[str, typer.Option(help="Address for harnesses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    control_host: Annotated[str, typer.Option(help="Address for health checks and metrics.")] = "127.0.0.1",
    control_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of the first process, the others have the next ones; 0 takes free ones."
        ),
    ] = CONTROL_PORT,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes that share the port, at most one per core.")
    ] = 1,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL for proxies of other hosts. Default: the address of this proxy."),
    ] = None,
    peer_port: Annotated[
        int | None, typer.Option(hidden=True, help="One of several processes: its own port beside the shared one.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Write the URLs in use, as JSON, once calls are served.")
    ] = None,
    data: Data = None,
) -> None:
    """Serve models to harnesses, each call captured.

    Runs until SIGINT or SIGTERM. A call is on the log before it is answered. Any number of proxies, on any hosts, serve one fleet: one
    proxy owns each session, and the others forward its calls.
    """
    import uvloop

    from polar.cli.processes import ProxyProcesses
    from proxy.addresses import Binding, require_address
    from proxy.run import serve

    process.log_events()
    advertised = _advertised(advertise, processes)
    require_address(host, advertised)
    # Only one of several processes announces what it found.
    announce = note if peer_port is None else lambda _: None
    found = _settings(
        data, engine_urls or [], model, mode, engine_key_file, checked_capture(capture), announce=announce
    )
    redaction.cover(found)
    calls, controls = (
        Binding(*at, shared=peer_port is not None) for at in ((host, port), (control_host, control_port))
    )

    def ready(url: str, *control_urls: str) -> None:
        behind = ", ".join(f"{' '.join(engine.urls)} ({engine.model})" for engine in found.engines.values())
        if peer_port is None:
            note(f"the proxy serves {url}, in front of {behind}")
        if ready_file is not None:
            process.write_ready(ready_file, {"url": url, "control_url": control_urls[0], "control_urls": control_urls})

    try:
        if processes > 1:
            several = ProxyProcesses(sys.argv[1:], processes, calls, controls, advertised)
            try:
                process.serve(
                    lambda stop: several.keep(
                        stop, ready=lambda: ready(several.url, *several.control_urls), announce=note
                    )
                )
            finally:
                several.close()
        else:
            peers = None if peer_port is None else Binding(host, peer_port, shared=True)
            uvloop.run(serve(found, calls, controls, peers=peers, advertise=advertised, ready=ready))
    except OSError as error:
        raise NotReadyError(
            f"the proxy can't start on {host}:{port} and {control_host}:{control_port}: {error}"
        ) from None


def _advertised(url: str | None, processes: int) -> str | None:
    """The URL without a final slash. Raises InputError."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
        is_base = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    except ValueError:
        is_base = False
    if not is_base:
        raise InputError("--advertise", url, "must be a URL without a path, like http://10.0.0.7:8400")
    if processes > 1 and port is not None:
        raise InputError("--advertise", url, "each of several processes has its own port: leave the port out")
    return url.rstrip("/")


def _settings(
    data: Path | None,
    engine_urls: list[str],
    model: str | None,
    mode: str,
    key_file: Path | None,
    capture: frozenset[ReplayField],
    *,
    announce: Callable[[str], None],
) -> settings.Settings:
    """The settings with the engines of the options, or of polar.toml, each with its model and logprobs mode."""
    from proxy.engines import probe

    found = logins.of_roles(settings.load(data), ["proxy"])
    named = engine_settings.chosen(found, engine_urls, model, mode, key_file, capture)
    return found.model_copy(update={"engines": probe.with_detected(named, announce)})
