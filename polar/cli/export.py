"""`polar export`: finished sessions as files for other programs, a subcommand for each form."""

from __future__ import annotations

import typer

from polar.cli import export_sft

app = typer.Typer(no_args_is_help=True, help="Write finished sessions as files for other programs.")
app.command("sft")(export_sft.sft)


@app.callback()
def group() -> None:
    # With a callback, typer keeps the subcommand's name even while there is only one.
    pass
