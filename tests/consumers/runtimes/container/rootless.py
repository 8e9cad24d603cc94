"""Runs the tests of containers as a user without privileges, on rootless Podman. More arguments are pytest's.

A user that isn't root runs pytest as it is. Root runs it as the user `polar-podman`, which it makes once (`tests/ordinary_user.py`). This
user begins with root's cache: the base image's files, the CLIs and Kafka.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests import ordinary_user
from tests.compose import base
from topics.environment import cache

USER = "polar-podman"
"""Its home keeps Podman's images."""
TESTS = Path(__file__).parent
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning", "-m", "docker"]
"""Without a cache: the user may not write to the checkout. Docker's client leaves its sockets to the collector."""


def main(arguments: list[str]) -> NoReturn:
    command = [*PYTEST, str(TESTS), *arguments]
    if os.geteuid() == 0:
        command = _as_user(command)
    os.chdir(ordinary_user.CHECKOUT)
    # In our own place: the end of this process, also by a kill, ends all.
    os.execvp(command[0], command)


def _as_user(command: list[str]) -> list[str]:
    """A command of root's that runs `command` as the user."""
    base.root_file_system()  # is made by root alone
    user = ordinary_user.user(USER)
    runtime = f"/run/user/{user.pw_uid}"
    return ordinary_user.command_as(
        user,
        command,
        environment={"PYTHONUNBUFFERED": "1", "XDG_RUNTIME_DIR": runtime},
        steps=[
            *_over(cache.root(), ordinary_user.cache_of(user), user),
            ["mkdir", "-p", runtime],
            ["mount", "-t", "tmpfs", "-o", f"uid={user.pw_uid},mode=0700", "tmpfs", runtime],
        ],
    )


def _over(below: Path, folder: Path, user: pwd.struct_passwd) -> Iterator[list[str]]:
    """Commands that give the user a cache with all that is in root's, which its own changes leave as it is."""
    changes, work = (folder.with_name(f"{folder.name}-{name}") for name in ("changes", "work"))
    yield ["install", "-d", "-o", USER, "-g", str(user.pw_gid), str(changes), str(work)]
    layers = f"lowerdir={below},upperdir={changes},workdir={work}"
    yield ["mount", "-t", "overlay", "-o", layers, "overlay", str(folder)]
    # Root alone may read those of root's.
    if manifests := sorted(below.glob("*.manifest.json")):
        yield ["chown", USER, *(str(folder / manifest.name) for manifest in manifests)]


if __name__ == "__main__":
    main(sys.argv[1:])
