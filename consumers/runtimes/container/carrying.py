"""Carries the run's changes to the workspace from its container into that of an evaluation (`difference.py`)."""

from __future__ import annotations

import asyncio
import os

from consumers.runtimes.base import HOST_DISK_FULL, SandboxError
from consumers.runtimes.container.line import Line
from consumers.runtimes.container.sandbox import Names

_LISTING = "listing"
"""A file in a session's folder: the workspace as `prepare` left it."""


async def record(line: Line, names: Names) -> None:
    """Record the workspace before the run changes it. Raises as `Line.ask`."""
    listing = os.open(names.session / _LISTING, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    await line.ask({"op": "record", "claim": names.claim}, [listing], within_s=None)


async def carry(source: Line, target: Line, names: Names) -> None:
    """Carry what has changed since `record`. Raises SandboxError HOST_DISK_FULL and `not_made`."""
    listing = os.open(names.session / _LISTING, os.O_RDONLY)
    reader, writer = os.pipe()
    claim = {"claim": names.claim}
    ends: list[object] = await asyncio.gather(
        source.ask({"op": "pack", **claim}, [listing, writer], within_s=None),
        target.ask({"op": "apply", **claim}, [reader], within_s=None),
        return_exceptions=True,
    )
    errors = [error for error in ends if isinstance(error, BaseException)]
    for error in errors:
        if isinstance(error, SandboxError) and error.code == HOST_DISK_FULL:
            raise error
    for error in errors:
        raise SandboxError("not_made", f"the run's changes can't be carried into its evaluation: {error}") from error
