"""Whether this host has an Apptainer that can be used."""

from __future__ import annotations

import os
import shutil
import subprocess

from consumers.runtimes.apptainer import command
from topics.types.errors import NotReadyError

_ANSWER_S = 30.0
"""Its programs may lie on a slow network file system."""


def check() -> None:
    """Raises NotReadyError with what this host lacks. Blocks."""
    for name in (command.PROGRAM, *command.HELPERS):
        if shutil.which(name) is None:
            raise NotReadyError(
                f"the runtime 'apptainer' needs the program {name} on PATH; install it, or load its module"
            )
    try:
        ended = subprocess.run(
            [command.PROGRAM, "version"],
            env=command.environment(os.environ, {}),
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReadyError(f"`apptainer version` failed: {error}") from error
    least = ".".join(map(str, command.LEAST_VERSION))
    found = command.version(ended.stdout)
    if found is None or found < command.LEAST_VERSION:
        raise NotReadyError(
            f"the runtime 'apptainer' needs Apptainer {least} or newer; `apptainer version` says {ended.stdout + ended.stderr!r:.200}"
        )
