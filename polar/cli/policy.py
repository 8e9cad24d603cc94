"""`polar policy`: which weights are served, as calls are to say it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from polar.cli.fleet import run, versions_in_words
from polar.cli.options import Data, Format, Output
from topics.environment import settings

app = typer.Typer(no_args_is_help=True, help="Say, or show, which policy version is served.")


@app.command("publish")
def publish(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0, help="The trainer's number for these weights.")],
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Only this engine's, as the proxies' settings name it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even where that goes back.")] = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Say which weights are served from now on; each call's record says the version that sampled it.

    Calls that are under way while the fleet runs say none: nobody knows which weights sampled them.
    """
    from polar import fleet

    run(fleet.publish(settings.load(data), version, engine, force=force))
    if output is Format.JSON:
        typer.echo(json.dumps({"version": version, "engine": engine}))
    else:
        typer.echo(f"{'all engines serve' if engine is None else f'engine {engine} serves'} policy version {version}")


@app.command("show")
def show(output: Output = Format.TABLE, data: Data = None) -> None:
    """Show the policy version that calls say now."""
    from polar import fleet

    standing = run(fleet.state(settings.load(data)))
    if output is Format.JSON:
        typer.echo(json.dumps([{"engine": name, "version": version} for name, version in standing.versions.items()]))
    else:
        typer.echo(versions_in_words(standing))
