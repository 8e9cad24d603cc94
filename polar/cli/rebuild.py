"""`polar rebuild`: trajectories made again from the log by any builder, into a topic of their own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polar.cli import progress
from polar.cli.exits import Exit
from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, show
from topics.environment import registry, settings
from topics.environment.settings import Settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from consumers.rebuild.request import RebuildReport, RebuildRequest

NAMED = 10
"""Sessions and tasks that people are told by name."""
COLUMNS = [
    "rebuilt",
    ">sessions",
    ">out before",
    ">groups",
    ">traces",
    ">sampled",
    ">trainable",
    ">failed",
    ">unfinished",
]


def rebuild(
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="NAME", help="Write polar.trajectories.NAME; the builder's own topics are refused."
        ),
    ],
    builder: Annotated[
        str | None,
        typer.Option(
            "--builder", metavar="B", help="By name, or module:Class; else each task's own, with its own settings."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="JSON", help="The builder's settings; else its defaults.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="Of this task alone; may be repeated.")] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Build trajectories again from the log, each once; the same command goes on where a run was cut short."""
    from consumers.rebuild.request import RebuildRequest
    from topics import trajectories

    found = settings.load(data)
    name = trajectories.output_named(into, found.namespace) or ""
    request = RebuildRequest(name, builder, _checked(builder, config), frozenset(task or ()))
    report = asyncio.run(_rebuild(found, request))
    topic = trajectories.topic(name).full_name(found.namespace)
    _say(report)
    if output is Format.JSON:
        print_json(_document(topic, request, report))
    else:
        row = (
            topic,
            report.sessions,
            report.were_out,
            report.groups,
            report.traces,
            report.sampled_tokens,
            report.trainable_tokens,
        )
        show(COLUMNS, [(*row, len(report.failed), report.unfinished)])
    if report.failed or report.incomplete or report.tasks_missing:
        raise typer.Exit(Exit.FAILED)


def _checked(builder: str | None, config: str | None) -> bytes:
    """The settings in one spelling. Raises InputError for a builder that isn't here, or settings that it would refuse."""
    if builder is None:
        if config is not None:
            raise InputError("--config", config, "goes with --builder; without it each task's own settings are taken")
        return b"{}"
    loaded = registry.load(registry.Kind.BUILDER, builder)
    try:
        body: Any = json.loads(config or "{}")
    except ValueError as error:
        raise InputError("--config", config, f"isn't JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError("--config", config, "expected a JSON object of settings")
    try:
        loaded(**body)
    except InputError:
        raise
    except Exception as error:
        raise InputError("--config", config or "{}", f"{builder} takes no such settings: {error}") from error
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


async def _rebuild(found: Settings, request: RebuildRequest) -> RebuildReport:
    from consumers.rebuild.run import rebuild
    from polar.client import require_topic
    from topics import completions

    await require_topic(found, completions.TOPIC)
    far = (0, 0)
    result: list[RebuildReport] = []

    def told(passed: int, total: int) -> None:
        nonlocal far
        far = passed, total

    async def work() -> None:
        result.append(await rebuild(found, request, told))

    await progress.reading(work(), lambda: far, "the log")
    return result[0]


def _say(report: RebuildReport) -> None:
    """What isn't as it was when the sessions ran, on stderr."""
    named = [f"{session_id} FAILED: {why}" for session_id, why in report.failed.items()]
    named += [
        f"{task_id}: the log knows nothing any more of {missing} of its sessions; trainers skip its group"
        for task_id, missing in report.incomplete.items()
    ]
    for line in named[:NAMED]:
        note(" ".join(line.split()))
    if len(named) > NAMED:
        note(f"… and {len(named) - NAMED} more; --format json has all")
    if report.to_build:
        note(
            f"{report.to_build} sessions and the ends of their groups aren't written: fix their builder and run the same command again"
        )
    if report.tasks_missing:
        note(f"nothing on the log of {', '.join(report.tasks_missing)}; `polar status` knows the tasks")
    if report.unreadable:
        note(f"{report.unreadable} records can't be read; `polar.dead-letters` has those of no sense at all")


def _document(topic: str, request: RebuildRequest, report: RebuildReport) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(report)
    told["tasks"] = len(report.tasks)
    return {"topic": topic, "builder": request.builder, "config": json.loads(request.config)} | told
