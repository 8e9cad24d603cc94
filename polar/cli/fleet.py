"""`polar fleet`: pause, resume and drain all that runs on one Kafka; `polar.fleet` does it, here it is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from polar.cli.exits import Exit, ended
from polar.cli.options import Data, Format, Output
from polar.cli.tables import show
from topics.environment import settings
from topics.environment.settings import Settings

if TYPE_CHECKING:
    from polar.fleet import Standing
    from topics.workers import Heartbeat

T = TypeVar("T")
Force = Annotated[bool, typer.Option("--force", help="Where another has paused the fleet: take that over.")]

app = typer.Typer(no_args_is_help=True, help="Pause the fleet for new weights, resume it, or drain it.")


class InFlight(StrEnum):
    """What becomes of model calls under way."""

    FINISH = "finish"
    ABORT = "abort"


@app.command("pause")
def pause(
    in_flight: Annotated[
        InFlight,
        typer.Option(help="finish: calls under way end first. abort: they are ended, and asked anew afterwards."),
    ] = InFlight.FINISH,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="For the fleet to be still; else it runs on.")
    ] = 60,
    force: Force = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Pause the fleet, and return when no model call is under way anywhere; it stays paused until `polar fleet resume`.

    Harnesses notice nothing: their calls wait, and their clocks stand still.
    """
    from polar import fleet

    found = settings.load(data)
    still = run(fleet.pause(found, in_flight=in_flight.value, deadline_s=timeout, force=force))
    if output is Format.JSON:
        typer.echo(json.dumps(asdict(still), indent=2))
    else:
        whose = f"{len(still.proxies)} prox{'y' if len(still.proxies) == 1 else 'ies'}"
        typer.echo(
            f"still after {still.took_s:.2f} s, {whose} (generation {still.generation}); `polar fleet resume` ends the pause"
        )


@app.command("resume")
def resume(output: Output = Format.TABLE, data: Data = None) -> None:
    """End a pause and a draining, whoever began them."""
    from polar import fleet

    before = run(fleet.resume(settings.load(data)))
    if output is Format.JSON:
        typer.echo(json.dumps({"was_paused": before.state.paused, "was_draining": before.state.draining}))
        return
    if not before.state.paused and not before.state.draining:
        typer.echo("the fleet runs already")
        return
    typer.echo("the fleet runs again")
    if before.state.paused:
        typer.echo(
            f"polar: calls say {versions_in_words(before)}; if other weights are served now: `polar policy publish`",
            err=True,
        )


@app.command("drain")
def drain(
    workers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKER]...", help="Ids of processes that are to end, as `polar fleet status` lists them."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="How long to wait; else as long as it takes.")
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Let work in hand come to its end, and begin none.

    Without names the whole fleet: no session gets a slot until `polar fleet resume`. With names those processes, which then end.
    """
    from polar import fleet

    names = workers or []

    def progress(left: int) -> None:
        if left and output is Format.TABLE:
            typer.echo(f"polar: {left} {'processes live' if names else 'sessions in hand'}", err=True)

    run(fleet.drain(settings.load(data), names, deadline_s=timeout, progress=progress))
    if output is Format.JSON:
        typer.echo(json.dumps({"drained": names or "fleet"}))
    elif names:
        typer.echo(f"ended: {', '.join(names)}")
    else:
        typer.echo("nothing is in hand, and nothing begins; `polar fleet resume` ends that")


@app.command("status")
def status(output: Output = Format.TABLE, data: Data = None) -> None:
    """Say whether the fleet is paused or draining, which policy version is served, and how far each process has heard of it."""
    standing, beats = run(_status(settings.load(data)))
    state = standing.state
    if output is Format.JSON:
        told = {
            "generation": state.generation,
            "paused": state.paused,
            "in_flight": state.in_flight,
            "draining": state.draining,
            "by": state.by or None,
            "since": since(standing),
            "policy": [{"engine": name, "version": version} for name, version in standing.versions.items()],
            "processes": [
                {
                    "worker_id": beat.worker_id,
                    "role": beat.role,
                    "host": beat.host,
                    "pid": beat.pid,
                    "generation": beat.fleet_generation,
                    "calls": beat.calls if beat.role == "proxy" else None,
                    "leaving": beat.leaving,
                }
                for beat in beats
            ],
        }
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"the fleet {state_in_words(standing)}; policy version {versions_in_words(standing)}\n")
    show(
        ["process", "role", "host", ">pid", ">generation", ">calls", "leaving"],
        (
            [
                beat.worker_id,
                beat.role,
                beat.host,
                beat.pid,
                beat.fleet_generation,
                beat.calls if beat.role == "proxy" else None,
                "yes" if beat.leaving else None,
            ]
            for beat in beats
        ),
    )


async def _status(found: Settings) -> tuple[Standing, list[Heartbeat]]:
    """What is said, and the newest heartbeats by role and id."""
    from polar.fleet import Controls

    async with Controls(found) as controls:
        beats = await controls.heartbeats()
        return await controls.standing(), sorted(beats, key=lambda beat: (beat.role, beat.worker_id))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Its result. What goes wrong with the fleet as a whole ends the command with exit code 1."""
    from polar.fleet import FleetError

    try:
        return asyncio.run(work)
    except FleetError as error:
        raise ended(str(error), Exit.FAILED) from None


def since(standing: Standing) -> str | None:
    """When the state was written, UTC."""
    if standing.since_ms is None:
        return None
    return datetime.fromtimestamp(standing.since_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def state_in_words(standing: Standing) -> str:
    """`runs`, or what it does instead, since when and by whom."""
    state = standing.state
    what = [word for word, holds in (("is paused", state.paused), ("is draining", state.draining)) if holds]
    if not what:
        return f"runs (generation {state.generation})"
    return f"{' and '.join(what)} since {since(standing)}, by {state.by or 'an unnamed hand'} (generation {state.generation})"


def versions_in_words(standing: Standing) -> str:
    """`7`, `7, small 3`, or `not known`."""
    told = [f"{name} {_version(version)}" for name, version in standing.versions.items() if name is not None]
    return ", ".join([_version(standing.versions.get(None)), *told])


def _version(version: int | None) -> str:
    return "not known" if version is None else str(version)
