"""Which finished sessions a subcommand of `polar export` takes: options and their meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import checked_run
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

if TYPE_CHECKING:
    from analytics.queries.query import Reader
    from polar.export.sessions import Finished, Selection

Task = Annotated[list[str] | None, typer.Option("--task", metavar="TASK", help="Only this task. Repeatable.")]
Harness = Annotated[
    str | None,
    typer.Option("--harness", metavar="NAME", help="Only sessions of this harness, as `polar sql` names it."),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="T", help="`eval`, or a task's output_topic. Default: the trajectories for training."
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only sessions that fulfil this condition on the view `trajectories`."),
]


def selection(
    found: Settings,
    task: Sequence[str] | None,
    run: str | None,
    harness: str | None,
    topic: str | None,
    where: str | None,
) -> Selection:
    """The selection that the options describe. Raises InputError."""
    from polar.export.sessions import Selection
    from topics import trajectories

    output = trajectories.output_named(topic, found.namespace)
    return Selection(tuple(task or ()), checked_run(run), harness, output, where)


@contextmanager
def finished(found: Settings, wanted: Selection) -> Iterator[tuple[Reader, list[Finished]]]:
    """The lake, which doesn't change meanwhile, and the selected sessions.

    Raises InputError for a wrong condition, NotReadyError if no session is selected or no lake can be read.
    """
    from analytics.queries import query
    from polar.export import sessions

    with query.connect(found) as reader:
        chosen = sessions.select(reader, wanted)
        if not chosen:
            raise NotReadyError(
                "no finished session in the lake is among those that you chose; `polar sql 'FROM trajectories'` lists them"
            )
        yield reader, chosen


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Raises InputError where the folder of `--out`, or something in it, can't be written."""
    try:
        yield
    except OSError as error:
        raise InputError("--out", str(out), f"can't be written: {error}; free it, or name another folder") from None
