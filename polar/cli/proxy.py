"""`polar proxy`: a model proxy, of one process or several, in front of its engines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from polar.cli import logs, running
from polar.cli.options import Data, EngineMode, Model
from polar.cli.output import note
from topics.environment import settings
from topics.types.errors import InputError, NotReady

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
    mode: EngineMode = "chat",
    host: Annotated[str, typer.Option(help="Address that harnesses reach.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = PORT,
    control_host: Annotated[str, typer.Option(help="Address of health and metrics.")] = "127.0.0.1",
    control_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="0: any free one. Of several processes the first's, the next ones follow."),
    ] = CONTROL_PORT,
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many share the port, one a core.")] = 1,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where proxies of other hosts reach this one. Else the address that it listens on."
        ),
    ] = None,
    peer_port: Annotated[
        int | None,
        typer.Option(hidden=True, help="This is one of several processes: its own port, beside the shared one."),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Written, as JSON, with the URLs in use once calls are served.")
    ] = None,
    data: Data = None,
) -> None:
    """Serve models to harnesses, each call captured.

    Runs until SIGINT or SIGTERM. A call is on the log before it is answered. Any number of them, on any hosts, serve one fleet: each
    session has one owner among them, and whoever is asked by its harness asks that one.
    """
    import uvloop

    from polar.cli.processes import Processes
    from proxy.addresses import Binding, require_address
    from proxy.run import serve

    logs.for_service()
    advertised = _advertised(advertise, processes)
    require_address(host, advertised)
    found = _settings(data, engine_urls or [], model, mode, announce=_announce if peer_port is None else _say_nothing)
    calls, controls = (
        Binding(*at, shared=peer_port is not None) for at in ((host, port), (control_host, control_port))
    )

    def ready(url: str, *control_urls: str) -> None:
        behind = ", ".join(f"{' '.join(told.urls)} ({told.model})" for told in found.engines.values())
        if peer_port is None:
            note(f"the proxy serves {url}, in front of {behind}")
        if ready_file is not None:
            _write(ready_file, {"url": url, "control_url": control_urls[0], "control_urls": control_urls})

    try:
        if processes > 1:
            several = Processes(sys.argv[1:], processes, calls, controls, advertised)
            try:
                running.serve(
                    lambda stop: several.keep(
                        stop, ready=lambda: ready(several.url, *several.control_urls), announce=_announce
                    )
                )
            finally:
                several.close()
        else:
            peers = None if peer_port is None else Binding(host, peer_port, shared=True)
            uvloop.run(serve(found, calls, controls, peers=peers, advertise=advertised, ready=ready))
    except OSError as error:
        raise NotReady(f"the proxy can't start on {host}:{port} and {control_host}:{control_port}: {error}") from None


def _advertised(url: str | None, processes: int) -> str | None:
    """Without a slash at its end. Raises InputError."""
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
        raise InputError("--advertise", url, "several processes have a port each: leave the port out")
    return url.rstrip("/")


def _announce(line: str) -> None:
    note(f"{line}")


def _say_nothing(line: str) -> None:
    """Of several processes one tells."""


def _settings(
    data: Path | None, engine_urls: list[str], model: str | None, mode: str, *, announce: Callable[[str], None]
) -> settings.Settings:
    """With the engines that flags name, else those of polar.toml, each with its model, asked what they can do."""
    from proxy.engines import probe

    if model is not None and not engine_urls:
        raise InputError("--model", model, "goes with --engine")
    if mode != "chat" and not engine_urls:
        raise InputError("--mode", mode, "goes with --engine; in polar.toml it is the engine's `mode`")
    found = settings.load(data)
    if engine_urls:
        told = settings.EngineSettings(urls=tuple(engine_urls), model=probe.model_of(engine_urls, model), mode=mode)
        named: Mapping[str, settings.EngineSettings] = {FLAGGED: told}
    else:
        named = probe.with_models(found.engines)
    return found.model_copy(update={"engines": probe.with_logprobs_modes(named, announce)})


def _write(ready_file: Path, urls: dict[str, Any]) -> None:
    """Whole or not at all: someone waits for it."""
    temporary = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(urls))
    temporary.replace(ready_file)
