"""`polar export metrics` writes a run's curves to TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import following
from polar.cli.options import Data, Format, MetricsHost, MetricsPort, Output, checked_run
from polar.cli.output import note, print_json, say
from topics.environment import redaction, settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from polar.export.metrics.sinks.base import Sink


class Program(StrEnum):
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    MLFLOW = "mlflow"


def metrics(
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="The run (`polar submit --run`).")],
    to: Annotated[Program, typer.Option("--to", help="The program that shows the curves.")],
    logdir: Annotated[
        Path | None,
        typer.Option("--logdir", metavar="FOLDER", help="TensorBoard: its folder gets a folder of the run."),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="NAME", help="Project of W&B, or experiment of MLflow. Default: polar."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also write the points that come, until SIGINT or SIGTERM.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Write the curves of a run, by policy version and by minute: rewards, failures, tokens, staleness and others.

    A point is written once it can't change any more. Started again, the command writes only what is missing. The variables of
    W&B (WANDB_…) and MLflow (MLFLOW_TRACKING_URI, …) hold.
    """
    from polar.export.metrics.run import Export

    if (to is Program.TENSORBOARD) != (logdir is not None):
        raise InputError(
            "--logdir", logdir, "names the folder of TensorBoard: give it with --to tensorboard, and only then"
        )
    if to is Program.TENSORBOARD and project is not None:
        raise InputError("--project", project, "TensorBoard has none")
    checked_run(run)
    found = settings.load(data)
    redaction.cover(found)
    sink = _sink(to, run, logdir, project or "polar")
    export = Export(found, run, sink)
    try:
        if follow:
            note(f"writing the curves of {run} to {sink.address}")
            following.follow(
                export.follow, {"points": lambda: export.points}, lambda: export.failures, metrics_port, metrics_host
            )
            return
        export.write_all()
    finally:
        sink.close()
    if output is Format.JSON:
        print_json({"address": sink.address, "points": export.points})
        return
    say(f"{sink.address}: {export.points} points")


def _sink(to: Program, run: str, logdir: Path | None, project: str) -> Sink:
    """The program's run. Raises SinkError."""
    if to is Program.WANDB:
        from polar.export.metrics.sinks.weights_and_biases import WeightsAndBiases

        return WeightsAndBiases(project, run)
    if to is Program.MLFLOW:
        from polar.export.metrics.sinks.mlflow import MLflow

        return MLflow(project, run)
    from polar.export.metrics.sinks.tensorboard import TensorBoard

    assert logdir is not None, "checked above"
    return TensorBoard(logdir / run)
