"""`polar export`: finished sessions for other programs, a subcommand for each form."""

from __future__ import annotations

import typer

from polar.cli import export_metrics, export_otlp, export_sft, export_viewing

app = typer.Typer(
    no_args_is_help=True,
    help="Write finished sessions as files for other programs, send them to a tracing backend, or write a run's curves.",
)
app.command("sft")(export_sft.sft)
app.command("atif")(export_viewing.atif)
app.command("harbor")(export_viewing.harbor)
app.command("inspect")(export_viewing.inspect)
app.command("otlp")(export_otlp.otlp)
app.command("metrics")(export_metrics.metrics)
