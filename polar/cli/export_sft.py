"""`polar export sft` writes accepted sessions as a dataset for supervised training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import export_selection, progress
from polar.cli.exits import Exit
from polar.cli.options import Data, OnlyRun
from polar.cli.output import note, show
from polar.export.sft.layout import Layout
from topics.environment import settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from polar.export.sft.report import Report


def sft(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="New folder, or one of an earlier export of this kind.")
    ],
    task: export_selection.Task = None,
    run: OnlyRun = None,
    harness: export_selection.Harness = None,
    topic: export_selection.Topic = None,
    where: export_selection.Where = None,
    layout: Annotated[
        Layout,
        typer.Option(
            "--format",
            help="messages: OpenAI's chat messages, JSONL. tokens: token ids and labels, JSONL. parquet: as tokens.",
        ),
    ] = Layout.MESSAGES,
    min_reward: Annotated[float, typer.Option("--min-reward", metavar="R", help="Lowest accepted reward.")] = 1.0,
    tests_green: Annotated[
        bool,
        typer.Option(
            "--tests-green",
            help="Only sessions whose tests ran and were as the task expects. Known of test_on_output and swebench alone.",
        ),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, metavar="N", help="Only sessions whose traces have at most N tokens."),
    ] = None,
    per_task: Annotated[
        int | None, typer.Option("--per-task", min=1, metavar="N", help="At most the best N sessions of a task.")
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            "--split", metavar="NAME=SHARE,…", help="Divide by task, each repository alike: train=0.9,val=0.1."
        ),
    ] = "train=1",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the splits.")] = 0,
    data: Data = None,
) -> None:
    """Write accepted sessions as a dataset for supervised training.

    FOLDER gets a file for each split and a card, README.md. The same command writes the same bytes again.
    """
    from polar.export.sft import writing
    from polar.export.sft.acceptance import Rules
    from polar.export.sft.splits import parse

    shares = parse(split)
    if not math.isfinite(min_reward):
        raise InputError("--min-reward", min_reward, "expected a finite number")
    found = settings.load(data)
    rules = Rules(min_reward, tests_green, max_tokens, per_task)
    wanted = export_selection.selection(found, task, run, harness, topic, where)
    with (
        export_selection.finished(found, wanted) as (reader, finished),
        progress.bar("reading sessions") as bar,
        export_selection.writing_to(out),
    ):
        report = writing.export(reader, finished, out, layout, rules, shares, seed, bar)
    _print(report, out)
    if not report.accepted:
        raise typer.Exit(Exit.FAILED)


def _print(report: Report, out: Path) -> None:
    from polar.export.sft.card import acceptance

    show(["repository", ">accepted", ">attempted", ">share"], acceptance(report))
    refused = ", ".join(f"{count} {reason}" for reason, count in report.refused.most_common())
    note(f"{out / 'README.md'} describes the dataset" + (f"; refused: {refused}" if refused else ""))
