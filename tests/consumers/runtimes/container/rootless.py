"""Runs the tests of containers as a user without privileges, on rootless Podman. More arguments are pytest's.

A user that isn't root runs pytest as it is. Root makes the user `polar-podman` once, and runs pytest as this user in a PID and a mount
namespace: when it ends, nothing of Podman is left to run. The user sees this checkout, its Python and the base image's files, even if they
lie in a folder that is root's alone.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tests import ordinary_user
from tests.compose import base

USER = "polar-podman"
"""Its home keeps Podman's images."""
TESTS = [f"tests/consumers/runtimes/container/test_{name}.py" for name in ("conformance", "evaluation", "runtime")]
"""Not those of CLIs, which lie in another user's cache, nor those of a registry without TLS, which Podman's own settings must name."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning", "-m", "docker"]
"""Without a cache: the user may not write to the checkout. Docker's client leaves its sockets to the collector."""


def main(arguments: list[str]) -> NoReturn:
    command = [*PYTEST, *TESTS, *arguments]
    if os.geteuid() == 0:
        command = _as_user(command)
    os.chdir(ordinary_user.CHECKOUT)
    # In our own place: the end of this process, also by a kill, ends all.
    os.execvp(command[0], command)


def _as_user(command: list[str]) -> list[str]:
    """A command of root's that runs `command` as the user."""
    user = ordinary_user.user(USER)
    image = base.root_file_system()
    runtime = f"/run/user/{user.pw_uid}"
    return ordinary_user.command_as(
        user,
        command,
        environment={
            # Podman 4.3, Debian 12's, would otherwise copy the whole image for each container.
            "STORAGE_DRIVER": "overlay",
            "XDG_RUNTIME_DIR": runtime,
        },
        shown=[image],
        steps=[
            ["ln", "-sfn", str(image.resolve()), str(ordinary_user.cache_of(user) / image.name)],
            ["mkdir", "-p", runtime],
            ["mount", "-t", "tmpfs", "-o", f"uid={user.pw_uid},mode=0700", "tmpfs", runtime],
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
