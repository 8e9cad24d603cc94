"""`polar rebuild` builds trajectories again from the log, with any builder, into a topic of their own."""

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
"""Most sessions and tasks printed by name."""
COLUMNS = [
    "rebuilt", ">sessions", ">out before", ">groups", ">traces", ">sampled", ">trainable", ">failed", ">unfinished",
]  # fmt: skip


def rebuild(
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="NAME", help="Write to polar.trajectories.NAME, which must not be a topic of the builder."
        ),
    ],
    builder: Annotated[
        str | None,
        typer.Option(
            "--builder", metavar="B", help="Name, or module:Class. Default: each task's builder and settings."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option("--config", metavar="JSON", help="Settings of the builder.")] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="Only this task. Repeatable.")] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Build trajectories again from the log, each once. After an interruption, the same command continues."""
    from consumers.rebuild.request import RebuildRequest
    from topics import trajectories

    found = settings.load(data)
    name = trajectories.output_named(into, found.namespace) or ""
    request = RebuildRequest(name, builder, _checked(builder, config), frozenset(task or ()))
    report = asyncio.run(_rebuild(found, request))
    topic = trajectories.topic(name).full_name(found.namespace)
    _print_problems(report)
    if output is Format.JSON:
        print_json(_document(topic, request, report))
    else:
        built = (
            report.sessions, report.were_out, report.groups, report.traces, report.sampled_tokens, report.trainable_tokens,
        )  # fmt: skip
        show(COLUMNS, [(topic, *built, len(report.failed), report.unfinished)])
    if report.failed or report.incomplete or report.tasks_missing:
        raise typer.Exit(Exit.FAILED)


def _checked(builder: str | None, config: str | None) -> bytes:
    """The settings as canonical JSON. Raises InputError for an unknown builder, or for settings that it refuses."""
    if builder is None:
        if config is not None:
            raise InputError("--config", config, "needs --builder; without it each task's own settings apply")
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
        raise InputError("--config", config or "{}", f"{builder} refuses these settings: {error}") from error
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


async def _rebuild(found: Settings, request: RebuildRequest) -> RebuildReport:
    from consumers.rebuild.run import rebuild
    from polar.table import require_topic
    from topics import completions

    await require_topic(found, completions.TOPIC)
    offsets = (0, 0)

    def progressed(passed: int, total: int) -> None:
        nonlocal offsets
        offsets = passed, total

    return await progress.reading(rebuild(found, request, progressed), lambda: offsets, "the log")


def _print_problems(report: RebuildReport) -> None:
    """Print on stderr what differs from the original run."""
    named = [f"{session_id} FAILED: {why}" for session_id, why in report.failed.items()]
    named += [
        f"{task_id}: the log no longer has {missing} of its sessions; trainers skip its group"
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
        note(f"the log has nothing of {', '.join(report.tasks_missing)}; `polar status` knows the tasks")
    if report.unreadable:
        note(f"{report.unreadable} records can't be read; `polar.dead-letters` has those of no sense at all")


def _document(topic: str, request: RebuildRequest, report: RebuildReport) -> dict[str, Any]:
    summary: dict[str, Any] = msgspec.to_builtins(report)
    summary["tasks"] = len(report.tasks)
    return {"topic": topic, "builder": request.builder, "config": json.loads(request.config)} | summary
