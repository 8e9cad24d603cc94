"""The tree of the `polar` command: each subcommand and its module."""

from __future__ import annotations

from typing import Annotated

import typer

import polar
from polar.cli import (
    cancel,
    dead_letters,
    doctor,
    export,
    fleet,
    keys,
    process,
    proxy,
    rebuild,
    session,
    show,
    sql,
    status,
    submit,
    tasks,
    topics,
    trajectories,
    up,
    verify,
    watch,
    worker,
)
from polar.cli.exits import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Token-faithful rollouts of real coding agents, on a durable log.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"polar {polar.__version__}")
        raise typer.Exit


@app.callback()
def before(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    # No docstring: typer would show it in place of the help above.
    process.log_warnings()


for command in (
    up.up, doctor.doctor, submit.submit, watch.watch, status.status, show.show, cancel.cancel, trajectories.trajectories,
    rebuild.rebuild, verify.verify, sql.sql, worker.worker, proxy.proxy,
):  # fmt: skip
    app.command()(command)
app.add_typer(export.app, name="export")
app.add_typer(keys.app, name="keys")
app.add_typer(tasks.app, name="tasks")
app.add_typer(session.app, name="session")
app.add_typer(fleet.app, name="fleet")
app.add_typer(fleet.policy_app, name="policy")
app.add_typer(topics.app, name="topics")
app.add_typer(dead_letters.app, name="dead-letters")
