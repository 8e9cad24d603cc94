"""The `polar` command's tree: which subcommand lies in which module."""

from __future__ import annotations

import typer

from polar.cli import cancel, logs, proxy, status, submit, topics, trajectories, up, worker
from polar.cli.exits import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Token-faithful rollouts of real coding agents, on a durable log.",
    rich_markup_mode=None,
)
app.callback()(logs.for_command)
app.command("up")(up.up)
app.command("submit")(submit.submit)
app.command("status")(status.status)
app.command("cancel")(cancel.cancel)
app.command("trajectories")(trajectories.trajectories)
app.command("worker")(worker.worker)
app.command("proxy")(proxy.proxy)
app.add_typer(topics.app, name="topics")


def main() -> None:
    """The console script."""
    app(prog_name="polar")
