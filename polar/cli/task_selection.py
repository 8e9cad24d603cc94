"""Which tasks of a set a subcommand of `polar tasks` works on, and with which template: options and their meaning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from polar.cli import documents
from polar.cli.output import note
from polar.tasks import harbor_mapping, repositories, task_sets
from polar.tasks.repositories import Repositories
from polar.tasks.row_options import RowOptions
from polar.tasks.task_sets import Condition, Found, Selection
from polar.tasks.templates import TASK_FOLDER, with_sources
from topics.types.errors import InputError
from topics.types.task import TaskRequest

SHOWN_PROBLEMS = 20
"""Messages about single tasks; the rest is counted."""

SetPath = Annotated[
    Path,
    typer.Argument(
        metavar="SET",
        help="A task's folder, a folder of those, a registry.json or a dataset.toml; or rows: a .jsonl, .json or .parquet file.",
    ),
]
Dataset = Annotated[
    str | None, typer.Option("--dataset", metavar="NAME[@VERSION]", help="Only this dataset of the set's registry.")
]
Split = Annotated[str | None, typer.Option("--split", help="Only the tasks that splits.json lists under this name.")]
Only = Annotated[
    Path | None,
    typer.Option(
        "--only",
        metavar="FILE",
        help="Only the tasks whose ids FILE lists, one a line, as `polar tasks check --write` makes it.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FIELD=PATTERN",
        help="Only tasks with this field in task.toml or their row, like metadata.difficulty=easy; != for the others. "
        "Repeatable: all must hold.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="At most N tasks.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="In random order, which --seed determines.")]
Seed = Annotated[int, typer.Option("--seed", help="Of --shuffle.")]
Template = Annotated[
    Path | None,
    typer.Option(
        "--template",
        metavar="FILE",
        help="Part of a TaskRequest, as YAML or JSON; its fields replace the task's. A source may begin with {task}/.",
    ),
]
Harness = Annotated[str | None, typer.Option("--harness", metavar="NAME", help="The template's agent.harness.")]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Value for ${NAME} in a task's env; without =VALUE from this environment. It is kept in the task. Repeatable.",
    ),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="Each row's image, with {{field}} for values of the row."),
]
Repo = Annotated[
    list[str] | None,
    typer.Option(
        "--repo",
        metavar="NAME=PLACE",
        help="For rows whose repo is NAME: no image of the dataset, but this folder or URL of a git repository. Repeatable.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="FIELD", help="A field of the rows that may be left out. Repeatable."),
]


def selected(
    path: Path,
    dataset: str | None,
    split: str | None,
    only: Path | None,
    where: Sequence[str] | None,
    limit: int | None,
    seed: int | None,
) -> Selection:
    """The tasks that the options choose. If there are none, a message says which option excluded them. Raises InputError."""
    conditions = [Condition.parse(text) for text in where or ()]
    found = task_sets.members(path, dataset, split)
    listed = found if only is None else _listed(found, only)
    selection = task_sets.select(listed if seed is None else task_sets.shuffled(listed, seed), conditions, limit)
    readable = len(listed) - len(selection.problems)
    if not found:
        note("no task is selected: " + ("the set has none" if split is None else f"--split {split} names none"))
    elif not listed:
        note(f"none of the {len(found)} tasks of the set is selected: --only {only} lists no id")
    elif not selection.tasks and readable:
        listing = "of the set" if only is None else f"that --only {only} lists"
        options = " and ".join(f"--where {text}" for text in where or ())
        note(f"none of the {readable} tasks {listing} matches {options}")
    return selection


def _listed(found: Sequence[Found], only: Path) -> list[Found]:
    """The tasks whose ids a file lists. Raises InputError."""
    try:
        ids = set(only.read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--only", str(only), f"can't be read: {error}") from None
    by_id = [(harbor_mapping.task_id(member.name), member) for member in found]
    if missing := ids - {task_id for task_id, _ in by_id}:
        raise InputError("--only", str(only), f"it lists tasks that the set lacks: {', '.join(sorted(missing)[:5])}")
    return [member for task_id, member in by_id if task_id in ids]


def note_all(problems: Sequence[str]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        note(problem)
    if len(problems) > SHOWN_PROBLEMS:
        note(f"… and {len(problems) - SHOWN_PROBLEMS} more")


def template_of(file: Path | None, harness: str | None) -> dict[str, Any]:
    """The template, with absolute `source` paths: relative ones start at its folder, or in a task's. Raises InputError."""
    base: dict[str, Any] = {}
    folder = Path() if file is None else file.parent
    if file is not None:
        found = documents.read(str(file))
        if len(found) != 1:
            raise InputError("--template", str(file), f"must hold one part of a TaskRequest, and has {len(found)}")
        base = found[0].body
    for part in ("agent", "runtime"):
        if not isinstance(base.get(part, {}), dict):
            raise InputError(f"--template: {part}", base[part], "must be a mapping of fields")
    if harness is not None:
        base["agent"] = {**base.get("agent", {}), "harness": harness}
    return with_sources(
        base, lambda source: source if source.startswith(TASK_FOLDER) else str((folder / source).absolute())
    )


def row_options(
    image: str | None, repo: Sequence[str] | None, ignore: Sequence[str] | None, beside: Path
) -> RowOptions:
    """`beside`: the file whose folder gets the bundles of repositories."""
    folder = beside.parent / f"{beside.stem}.repositories"
    return RowOptions(image, Repositories(repositories.parse(repo or ()), folder), tuple(ignore or ()))


def upload_sources(requests: Iterable[TaskRequest]) -> set[str]:
    """The paths that the preparations upload."""
    return {action.source for request in requests for action in request.runtime.prepare if action.source is not None}


def variables_of(env: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for entry in env or ():
        name, sign, value = entry.partition("=")
        if not sign and name not in os.environ:
            raise InputError("--env", name, "no such variable in this environment; export it, or give NAME=VALUE")
        found[name] = value if sign else os.environ[name]
    return found
