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
    from consumers.rebuild.wanted import Done, Wanted

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
    from consumers.rebuild.wanted import Wanted, check_output
    from topics import trajectories

    found = settings.load(data)
    name = trajectories.output_named(into, found.namespace) or ""
    check_output(name)
    wanted = Wanted(name, builder, _checked(builder, config), frozenset(task or ()))
    done = asyncio.run(_rebuild(found, wanted))
    topic = trajectories.topic(name).full_name(found.namespace)
    _say(done)
    if output is Format.JSON:
        print_json(_document(topic, wanted, done))
    else:
        row = (
            topic,
            done.sessions,
            done.were_out,
            done.groups,
            done.traces,
            done.sampled_tokens,
            done.trainable_tokens,
        )
        show(COLUMNS, [(*row, len(done.failed), done.unfinished)])
    if done.failed or done.incomplete or done.tasks_missing:
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


async def _rebuild(found: Settings, wanted: Wanted) -> Done:
    from consumers.rebuild.run import rebuild
    from polar.client import require_topic
    from topics import completions

    await require_topic(found, completions.TOPIC)
    far = (0, 0)
    result: list[Done] = []

    def told(passed: int, total: int) -> None:
        nonlocal far
        far = passed, total

    async def work() -> None:
        result.append(await rebuild(found, wanted, told))

    await progress.reading(work(), lambda: far, "the log")
    return result[0]


def _say(done: Done) -> None:
    """What isn't as it was when the sessions ran, on stderr."""
    named = [f"{session_id} FAILED: {why}" for session_id, why in done.failed.items()]
    named += [
        f"{task_id}: the log knows nothing any more of {missing} of its sessions; trainers skip its group"
        for task_id, missing in done.incomplete.items()
    ]
    for line in named[:NAMED]:
        note(" ".join(line.split()))
    if len(named) > NAMED:
        note(f"… and {len(named) - NAMED} more; --format json has all")
    if done.to_build:
        note(
            f"{done.to_build} sessions aren't written, nor their groups' ends: mend their builder and run the same command"
        )
    if done.tasks_missing:
        note(f"nothing on the log of {', '.join(done.tasks_missing)}; `polar status` knows the tasks")
    if done.unreadable:
        note(f"{done.unreadable} records can't be read; `polar.dead-letters` has those of no sense at all")


def _document(topic: str, wanted: Wanted, done: Done) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(done)
    told["tasks"] = len(done.tasks)
    return {"topic": topic, "builder": wanted.builder, "config": json.loads(wanted.config)} | told
