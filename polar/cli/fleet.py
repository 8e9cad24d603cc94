"""`polar fleet` and `polar policy`: pause, resume and drain everything on one Kafka, and publish the version of its weights.

`polar.fleet.Fleet` does the work; this module prints its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from polar.cli.exits import Exit, ended
from polar.cli.options import Data, Format, Output
from polar.cli.output import escaped_line, note, print_json, say, show
from topics.environment import settings
from topics.environment.settings import Settings

if TYPE_CHECKING:
    from polar.fleet import Fleet, FleetStatus
    from topics.workers import Heartbeat

T = TypeVar("T")
Force = Annotated[bool, typer.Option("--force", help="Take over a pause of another client.")]

app = typer.Typer(no_args_is_help=True, help="Pause the fleet for new weights, resume it, or drain it.")
policy_app = typer.Typer(no_args_is_help=True, help="Publish or show the policy version that engines serve.")


class InFlight(StrEnum):
    FINISH = "finish"
    ABORT = "abort"


@app.command("pause")
def pause(
    in_flight: Annotated[
        InFlight,
        typer.Option(help="finish: calls in flight finish first. abort: they are aborted, and sent again afterwards."),
    ] = InFlight.FINISH,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds until the pause is given up; the fleet then runs on.")
    ] = 60,
    force: Force = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Pause the fleet, and return when no model call is in flight. It stays paused until `polar fleet resume`.

    Harnesses notice nothing: their calls wait, and their run clocks stop.
    """
    found = settings.load(data)
    report = run(found, lambda fleet: fleet.pause(in_flight=in_flight.value, deadline_s=timeout, force=force))
    if output is Format.JSON:
        print_json(asdict(report))
    else:
        proxies = f"{len(report.proxies)} prox{'y' if len(report.proxies) == 1 else 'ies'}"
        say(
            f"paused after {report.took_s:.2f} s, {proxies} (generation {report.generation}); `polar fleet resume` ends the pause"
        )


@app.command("resume")
def resume(output: Output = Format.TABLE, data: Data = None) -> None:
    """End a pause and a drain, whoever began them."""
    before = run(settings.load(data), lambda fleet: fleet.resume())
    if output is Format.JSON:
        print_json({"was_paused": before.state.paused, "was_draining": before.state.draining})
        return
    if not before.state.paused and not before.state.draining:
        say("the fleet runs already")
        return
    say("the fleet runs again")
    if before.state.paused:
        note(
            f"calls record policy version {versions_in_words(before)}; if the engines serve other weights now: `polar policy publish`"
        )


@app.command("drain")
def drain(
    workers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKER]...", help="Ids of the processes to drain, from `polar fleet status`."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="Seconds to wait.  [default: no limit]")
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Let active sessions finish, and start no others.

    Without names the whole fleet drains: no session gets a slot until `polar fleet resume`. Named processes drain and then end.
    """
    names = workers or []

    def progress(remaining: int) -> None:
        if remaining and output is Format.TABLE:
            note(f"{remaining} {'processes live' if names else 'sessions active'}")

    run(settings.load(data), lambda fleet: fleet.drain(names, deadline_s=timeout, progress=progress))
    if output is Format.JSON:
        print_json({"drained": names or "fleet"})
    elif names:
        say(f"ended: {', '.join(names)}")
    else:
        say("no session is active, and none starts; `polar fleet resume` ends the drain")


@app.command("status")
def status(output: Output = Format.TABLE, data: Data = None) -> None:
    """Show whether the fleet is paused or draining, its policy version, and which state each process has read."""
    found, beats = run(settings.load(data), _status)
    state = found.state
    processes = [
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
    ]
    if output is Format.JSON:
        print_json(
            {
                "generation": state.generation,
                "paused": state.paused,
                "in_flight": state.in_flight,
                "draining": state.draining,
                "by": state.by or None,
                "since": since(found),
                "policy": _policy(found),
                "processes": processes,
            }
        )
        return
    say(f"the fleet {state_in_words(found)}; policy version {versions_in_words(found)}\n")
    columns = ["process", "role", "host", ">pid", ">generation", ">calls", "leaving"]
    cells = (
        [
            row["worker_id"],
            row["role"],
            row["host"],
            row["pid"],
            row["generation"],
            row["calls"],
            "yes" if row["leaving"] else None,
        ]
        for row in processes
    )
    show(columns, cells)


async def _status(fleet: Fleet) -> tuple[FleetStatus, list[Heartbeat]]:
    """The fleet's status, and the newest heartbeats by role and id."""
    beats = await fleet.heartbeats()
    return await fleet.status(), sorted(beats, key=lambda beat: (beat.role, beat.worker_id))


@policy_app.command("publish")
def publish(
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0, help="The trainer's number for these weights.")],
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Only this engine, by its name in the proxies' settings."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow a lower version than the current one.")] = False,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Publish the version of the weights that engines serve from now on. The record of each call names the version that sampled it.

    Calls that are in flight while the fleet runs record none: nobody knows which weights sampled them.
    """
    run(settings.load(data), lambda fleet: fleet.publish(version, engine, force=force))
    if output is Format.JSON:
        print_json({"version": version, "engine": engine})
    else:
        say(f"{'all engines serve' if engine is None else f'engine {engine} serves'} policy version {version}")


@policy_app.command("show")
def show_policy(output: Output = Format.TABLE, data: Data = None) -> None:
    """Show the policy version that calls record now."""
    found = run(settings.load(data), lambda fleet: fleet.status())
    if output is Format.JSON:
        print_json(_policy(found))
    else:
        say(versions_in_words(found))


def run(found: Settings, command: Callable[[Fleet], Awaitable[T]]) -> T:
    """The command's result. A FleetError ends the process with exit code 1."""
    from polar.fleet import Fleet, FleetError

    async def connected() -> T:
        async with Fleet(found) as fleet:
            return await command(fleet)

    try:
        return asyncio.run(connected())
    except FleetError as error:
        raise ended(str(error), Exit.FAILED) from None


def since(status: FleetStatus) -> str | None:
    """When the state was written, UTC."""
    if status.since_ms is None:
        return None
    return datetime.fromtimestamp(status.since_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def state_in_words(status: FleetStatus) -> str:
    """`runs`, or `is paused` and `is draining`, with the time and the client."""
    state = status.state
    what = [word for word, holds in (("is paused", state.paused), ("is draining", state.draining)) if holds]
    if not what:
        return f"runs (generation {state.generation})"
    return f"{' and '.join(what)} since {since(status)}, by {escaped_line(state.by) or 'an unnamed client'} (generation {state.generation})"


def versions_in_words(status: FleetStatus) -> str:
    """`7`, `7, small 3`, or `not known`."""
    by_engine = [
        f"{escaped_line(name)} {_version(version)}" for name, version in status.versions.items() if name is not None
    ]
    return ", ".join([_version(status.versions.get(None)), *by_engine])


def _policy(status: FleetStatus) -> list[dict[str, str | int | None]]:
    return [{"engine": name, "version": version} for name, version in status.versions.items()]


def _version(version: int | None) -> str:
    return "not known" if version is None else str(version)
