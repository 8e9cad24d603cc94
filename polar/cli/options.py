"""Options that several subcommands share."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import typer

from topics.environment.settings import Settings
from topics.types import ids
from topics.types.completion import ReplayField
from topics.types.errors import InputError

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Data folder of a `polar up`, in place of all settings. Default: POLAR_DATA, or .polar."
    ),
]
EngineUrl = Annotated[
    str | None, typer.Option("--engine", metavar="URL", help="Inference server, with or without /v1.")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Model at the engine. Default: its only model.")
]
EngineKeyFile = Annotated[
    Path | None,
    typer.Option("--engine-key-file", metavar="FILE", help="File with the API key that the inference server demands."),
]
EngineMode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="chat: send messages. tokens: send token ids and continue from the sampled ones. Or the name of an engine plug-in.",
    ),
]
EngineCapture = Annotated[
    list[str] | None,
    typer.Option(
        "--capture",
        metavar="VALUE",
        help="Also store this of each call: routed_experts or sampling_mask, in mode tokens of vLLM. Repeatable.",
    ),
]


def checked_capture(names: list[str] | None) -> frozenset[ReplayField]:
    """The values of `--capture`. Raises InputError."""
    known: tuple[ReplayField, ...] = get_args(ReplayField)
    for name in names or ():
        if name not in known:
            raise InputError("--capture", name, f"expected {' or '.join(known)}")
    return frozenset(field for field in known if field in (names or ()))


TrustTasks = Annotated[
    bool,
    typer.Option(
        "--trust-tasks",
        help="Allow tasks to run outside of cells, as your own user: runtimes `landlock` and `process`, network `host`.",
    ),
]


def trusting(found: Settings, trust_tasks: bool) -> Settings:
    """The settings with the option `--trust-tasks`."""
    return found.model_copy(update={"trust_tasks": True}) if trust_tasks else found


MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve /metrics, /healthz and /readyz on this port; 0 takes a free one and logs it.",
        show_default=False,
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="Address of the metrics, which need no token.")]


OnlyRun = Annotated[str | None, typer.Option("--run", metavar="NAME", help="Only what belongs to this run.")]


def checked_run(name: str | None) -> str | None:
    """The name of a run. Raises InputError."""
    if name is not None and re.fullmatch(ids.RUN, name) is None:
        raise InputError("--run", name, f"must match {ids.RUN}")
    return name


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--format", help="table: for people. json: for programs.")]
