"""Runs the tests of the runtime `apptainer` on the Apptainer of this machine. More arguments are pytest's.

A user that isn't root runs pytest once. Root runs it twice: as root, and as the user `polar-apptainer`, which it makes once; see
`tests/ordinary_user.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys

from consumers.runtimes.apptainer import installation
from tests import ordinary_user
from topics.types.errors import NotReadyError

USER = "polar-apptainer"
TESTS = "tests/consumers/runtimes/apptainer"
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "apptainer", TESTS]
"""Without a cache: the user may not write to the checkout."""
FUSE = "/run/polar-fuse"


def main(arguments: list[str]) -> int:
    """The exit code."""
    try:
        installation.check()
    except NotReadyError as error:
        sys.exit(f"{error}. CONTRIBUTING.md says how to build Apptainer where there is no package of it")
    os.chdir(ordinary_user.CHECKOUT)
    runs = [[*PYTEST, *arguments]]
    if os.geteuid() == 0:
        runs.append(_as_user(runs[0]))
    codes = [subprocess.run(run, check=False).returncode for run in runs]
    return int(any(codes))  # that of a run that was killed is negative


def _as_user(command: list[str]) -> list[str]:
    """A command of root's that runs `command` as the user."""
    return ordinary_user.command_as(
        ordinary_user.user(USER),
        command,
        environment={},
        steps=[
            # All users may open the device on hosts that have udev's rules; elsewhere it may be root's alone.
            ["mkdir", "-p", FUSE],
            ["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", FUSE],
            ["mknod", "-m", "0666", f"{FUSE}/fuse", "c", "10", "229"],
            ["mount", "--bind", f"{FUSE}/fuse", "/dev/fuse"],
        ],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
