"""`polar tasks` reads task sets in Harbor's format and rows, shows what their fields become, imports them, and checks them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from polar.cli import documents, task_check
from polar.cli.exits import Exit, ended
from polar.cli.options import Format, Output
from polar.cli.output import note, print_json, say, show
from polar.cli.task_selection import (
    Dataset,
    Env,
    Harness,
    Ignore,
    Image,
    Limit,
    Only,
    Repo,
    Seed,
    SetPath,
    Shuffle,
    Split,
    Template,
    Where,
    note_all,
    row_options,
    selected,
    template_of,
    upload_sources,
    variables_of,
)
from polar.tasks import mapping, task_sets
from polar.tasks.harbor_mapping import Finding, Mapped
from polar.tasks.harbor_rules import Outcome
from polar.tasks.row_options import RowOptions
from polar.tasks.rows import Row
from polar.tasks.task_sets import Found, Member, Selection, Task
from topics.environment import cache, private_files
from topics.types.errors import InputError
from topics.types.task import TaskRequest

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, import and check tasks: Harbor's format, rows of SWE-bench and others; every field of a task (docs).",
    rich_markup_mode=None,
)

app.command("check")(task_check.check)

ANY_AGENT = {"agent": {"harness": "shell", "custom_shell": {"command": "true"}}}
"""For what TaskRequest says of a task's other fields."""


@app.command("list")
def list_tasks(
    path: SetPath,
    dataset: Dataset = None,
    split: Split = None,
    only: Only = None,
    where: Where = None,
    limit: Limit = None,
    shuffle: Shuffle = False,
    seed: Seed = 0,
    template: Template = None,
    image: Image = None,
    repo: Repo = None,
    ignore: Ignore = None,
    output: Output = Format.TABLE,
) -> None:
    """List the tasks of a set, with the fields for which an import with this template refuses them."""
    base = template_of(template, None)
    selection = selected(path, dataset, split, only, where, limit, seed if shuffle else None)
    options = row_options(image, repo, ignore, path)
    rows = [_row(member, task, base, options) for member, task in selection.tasks]
    if output is Format.JSON:
        print_json(rows)
    else:
        show(
            ["task", "dataset", ">agent s", "refused for"],
            ((row["name"], row["dataset"], row["agent_s"], ", ".join(row["refused"]) or None) for row in rows),
        )
    _end_if_unread(selection)


def _row(member: Found, task: Task, template: Mapping[str, Any], options: RowOptions) -> dict[str, Any]:
    mapped = mapping.mapped(member, task, template, options=options)
    agent_s: float | None = None
    if isinstance(task, Row):
        marked = mapped.body.get("metadata", {})
        metadata = marked.get("swe", marked.get("nemo_gym"))
    else:
        agent_s = task.config.agent.timeout_sec
        metadata = task.config.model_dump(mode="json", include={"metadata"})["metadata"]
    return {
        "name": member.name,
        "task_id": mapped.body["task_id"],
        "dataset": member.dataset,
        "folder": str(member.folder) if isinstance(member, Member) else None,
        "agent_s": agent_s,
        "metadata": metadata,
        "refused": [finding.name for finding in _refusals(mapped, template)],
    }


def _refusals(mapped: Mapped, template: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Why a task is refused. Without an agent in the template a shell stands for it, which has no place for what a task gives its agent."""
    return (mapped if "agent" in template else replace(mapped, body=mapped.body | ANY_AGENT)).all_refusals()


@app.command("show")
def show_task(
    path: SetPath,
    name: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Name of the task, if the set has several.")
    ] = None,
    dataset: Dataset = None,
    template: Template = None,
    harness: Harness = None,
    env: Env = None,
    image: Image = None,
    repo: Repo = None,
    ignore: Ignore = None,
    output: Output = Format.TABLE,
) -> None:
    """Show a task, and what each of its fields and files becomes."""
    member = _named(task_sets.members(path, dataset), name)
    options = row_options(image, repo, ignore, path)
    base = template_of(template, harness)
    mapped = mapping.mapped(member, member.read(), base, variables_of(env), options)
    findings = [*mapped.findings, *(one for one in _refusals(mapped, base) if one not in mapped.findings)]
    if output is Format.JSON:
        print_json({"task": mapped.body, "fields": msgspec.to_builtins(findings)})
        return
    show(
        ["field", "outcome", "becomes", "value"],
        ((one.name, one.outcome.value, one.becomes, _shown(one.value)) for one in findings),
    )
    say(f"\n{mapped.body['instruction']}")


def _shown(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _named(found: Sequence[Found], name: str | None) -> Found:
    if name is None and len(found) == 1:
        return found[0]
    named = [member for member in found if member.name == name]
    if len(named) == 1:
        return named[0]
    names = ", ".join(member.name for member in found[:5])
    reason = (
        "two datasets have it; give --dataset" if named else f"name one of the set's {len(found)} tasks: {names}, …"
    )
    if name is None:
        raise ended(f"TASK: {reason}", Exit.BAD_INPUT)
    raise InputError("TASK", name, reason)


@app.command("docs")
def docs() -> None:
    """Describe every field of a task, as Markdown: docs/task.md. Needs no running system."""
    from polar.tasks import task_page

    typer.echo(task_page.page(), nl=False)


@app.command("import")
def import_tasks(
    path: SetPath,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .jsonl or .yaml file for `polar submit`.")],
    dataset: Dataset = None,
    split: Split = None,
    only: Only = None,
    where: Where = None,
    limit: Limit = None,
    shuffle: Shuffle = False,
    seed: Seed = 0,
    template: Template = None,
    harness: Harness = None,
    env: Env = None,
    image: Image = None,
    repo: Repo = None,
    ignore: Ignore = None,
    skip_refused: Annotated[
        bool, typer.Option("--skip-refused", help="Import the other tasks; otherwise one refused task refuses all.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Write the tasks of a set as TaskRequests, and report what each field became.

    Exits with 2 if a task can't be read or is refused; without --skip-refused nothing is written then.
    """
    write = _writer(out)
    base = template_of(template, harness)
    if "agent" not in base:
        raise ended(
            "--harness: a task of a set names no agent; give --harness, or an agent in --template", Exit.BAD_INPUT
        )
    variables = variables_of(env)
    selection = selected(path, dataset, split, only, where, limit, seed if shuffle else None)
    options = row_options(image, repo, ignore, out)
    results = [(member, mapping.mapped(member, task, base, variables, options)) for member, task in selection.tasks]
    tasks, refusals = _importable(results)
    counts = Counter((one.name, one.outcome.value, one.becomes) for mapped, _ in tasks for one in mapped.findings)
    counts.update((one.name, one.outcome.value, one.becomes) for _, one in refusals)
    is_whole = not refusals and not selection.problems
    written = tasks if is_whole or skip_refused else []
    if written:
        options.repositories.write(upload_sources(request for _, request in written))
        write([mapped.body for mapped, _ in written])
    _report(counts, len(results), len(written), output)
    note_all([*map(str, selection.problems), *_grouped(refusals)])
    if not written:
        note("nothing was written")
    if not written or not is_whole:
        raise typer.Exit(Exit.BAD_INPUT)


Refusal = tuple[str, Finding]
"""A task's name, and why it isn't imported."""


def _importable(
    results: Sequence[tuple[Found, Mapped]],
) -> tuple[list[tuple[Mapped, TaskRequest]], list[Refusal]]:
    """The tasks that are TaskRequests, with these, and why the others aren't."""
    found: dict[str, tuple[Mapped, TaskRequest]] = {}
    refusals: list[Refusal] = []
    for member, mapped in results:
        request = mapped.request()
        if isinstance(request, Finding):
            refusals += [(member.name, finding) for finding in mapped.refusals or (request,)]
        elif request.task_id in found:
            reason = "another task of the set has the same name, and so the same task_id; rename one"
            refusals.append((member.name, Finding("name", member.name, Outcome.REFUSED, reason)))
        else:
            found[request.task_id] = mapped, request
    return list(found.values()), refusals


def _grouped(refusals: Sequence[Refusal]) -> list[str]:
    """One message for each field and reason: how many tasks, the first of them, and its value."""
    found: dict[tuple[str, str], list[Refusal]] = {}
    for name, refusal in refusals:
        found.setdefault((refusal.name, refusal.becomes), []).append((name, refusal))
    messages = []
    for (field, reason), group in found.items():
        first, refusal = group[0]
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        value = "" if refusal.value is None else f" (got {_shown(refusal.value)})"
        messages.append(f"{first}{others}: {field}: {reason}{value}")
    return messages


def _report(counts: Mapping[tuple[str, str, str], int], tasks: int, imported: int, output: Format) -> None:
    """Print in how many tasks each field has which outcome, and what it became. `counts`: by these three."""
    if output is Format.JSON:
        fields = [
            {"name": name, "outcome": outcome, "becomes": becomes, "tasks": count}
            for (name, outcome, becomes), count in counts.items()
        ]
        print_json({"tasks": tasks, "imported": imported, "fields": fields})
        return
    show(
        ["field", "outcome", ">tasks", "becomes"],
        ((name, outcome, count, becomes) for (name, outcome, becomes), count in counts.items()),
    )
    say(f"\n{imported} of {tasks} tasks imported")


def _end_if_unread(selection: Selection) -> None:
    if selection.problems:
        note_all(list(map(str, selection.problems)))
        raise typer.Exit(Exit.BAD_INPUT)


def _writer(out: Path) -> Callable[[list[dict[str, Any]]], None]:
    """Writes bodies in the format of the file's suffix, for its owner alone: `env` may hold secrets. Raises InputError."""
    encode = ENCODERS.get(out.suffix.lower())
    if encode is None:
        raise InputError("--out", str(out), f"must end with one of {', '.join(sorted(ENCODERS))}")

    def write(bodies: list[dict[str, Any]]) -> None:
        try:
            private_files.replace(out, encode(bodies))
        except OSError as error:
            if error.errno in cache.FULL:
                raise
            raise InputError("--out", str(out), f"can't be written: {error.strerror}") from None

    return write


def _lines(bodies: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n" for body in bodies)


def _yaml(bodies: list[dict[str, Any]]) -> str:
    return str(yaml.safe_dump_all(bodies, allow_unicode=True, sort_keys=False))


ENCODERS = {**dict.fromkeys(documents.LINES_SUFFIXES, _lines), **dict.fromkeys(documents.YAML_SUFFIXES, _yaml)}
"""By the file's suffix."""
