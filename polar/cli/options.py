"""Options that several subcommands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of a `polar up`: stands for all settings. Else POLAR_DATA, else .polar here."),
]
EngineUrl = Annotated[
    str | None, typer.Option("--engine", metavar="URL", help="Inference server, with or without /v1.")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Model at the engine; its only one where none is said.")
]

EngineMode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="How the engine is asked: chat; tokens, going on from the tokens that were sampled; or an engine plug-in.",
    ),
]


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--format", help="For people, or for programs.")]
