"""Runs the tests of containers as a user without privileges, on rootless Podman. More arguments are pytest's.

A user that isn't root runs pytest as it is. Root makes the user `polar-podman` once, and runs pytest as this user in a PID and a mount
namespace: when it ends, nothing of Podman is left to run. The user sees this checkout and its Python, even if they lie in a folder that is
root's alone, and begins with root's cache: the base image's files, the CLIs and Kafka.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from tests.compose import base
from topics.environment import cache

USER = "polar-podman"
"""Its home keeps Podman's images."""
TESTS = Path(__file__).parent
CHECKOUT = TESTS.parents[3]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning", "-m", "docker"]
"""Without a cache: the user may not write to the checkout. Docker's client leaves its sockets to the collector."""


def main(arguments: list[str]) -> NoReturn:
    command = [*PYTEST, str(TESTS), *arguments]
    if os.geteuid() == 0:
        command = _as_user(command)
    os.chdir(CHECKOUT)
    # In our own place: the end of this process, also by a kill, ends all.
    os.execvp(command[0], command)


def _as_user(command: list[str]) -> list[str]:
    """A command of root's that runs `command` as the user."""
    base.root_file_system()  # is made by root alone
    user = _user()
    own = Path(user.pw_dir, ".cache/polar")
    runtime = f"/run/user/{user.pw_uid}"
    environment = {
        "HOME": user.pw_dir,
        "USER": USER,
        "PATH": os.environ["PATH"],
        "HYPOTHESIS_STORAGE_DIRECTORY": str(own / "hypothesis"),  # not in the checkout
        "POLAR_CACHE": str(own),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "XDG_RUNTIME_DIR": runtime,
    }
    steps = [
        *_over(cache.root(), own, user),
        ["mkdir", "-p", runtime],
        ["mount", "-t", "tmpfs", "-o", f"uid={user.pw_uid},mode=0700", "tmpfs", runtime],
        *_shown([CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)]),
        ["cd", str(CHECKOUT)],  # again, where something else lies over it now
        [
            *("setpriv", "--reuid", USER, "--regid", str(user.pw_gid), "--init-groups", "--inh-caps=-all"),
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command),
        ],
        # Not the shell's last command, so the shell stays: as the first process it reaps what Podman leaves, which Podman waits for.
        ["exit"],
    ]
    script = "\n".join(map(shlex.join, steps))
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script]


def _user() -> pwd.struct_passwd:
    """The user, with the ids below it that `useradd` gives: containers' users have them."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", USER], check=True)
        return pwd.getpwnam(USER)


def _over(below: Path, folder: Path, user: pwd.struct_passwd) -> Iterator[list[str]]:
    """Commands that give the user a cache with all that is in root's, which its own changes leave as it is."""
    changes, work = (folder.with_name(f"{folder.name}-{name}") for name in ("changes", "work"))
    yield ["install", "-d", "-o", USER, "-g", str(user.pw_gid), *map(str, (folder.parent, folder, changes, work))]
    layers = f"lowerdir={below},upperdir={changes},workdir={work}"
    yield ["mount", "-t", "overlay", "-o", layers, "overlay", str(folder)]
    # Root alone may read those of root's.
    if manifests := sorted(below.glob("*.manifest.json")):
        yield ["chown", USER, *(str(folder / manifest.name) for manifest in manifests)]


def _shown(paths: Iterable[Path]) -> Iterator[list[str]]:
    """Commands that make folders seen by all users at their own paths, whoever may enter the folders above them."""
    closed: dict[Path, set[Path]] = {}
    for path in {path.resolve() for path in paths}:
        for above in reversed(path.parents):
            if not above.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(above, set()).add(path)
                break
    for number, (above, those) in enumerate(sorted(closed.items())):
        kept = f"/run/polar-shown-{number}"
        yield ["mkdir", "-p", kept]
        yield ["mount", "--rbind", str(above), kept]
        yield ["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(above)]
        for path in sorted(those):
            yield ["mkdir", "-p", str(path)]
            yield ["mount", "--bind", f"{kept}/{path.relative_to(above)}", str(path)]
        yield ["umount", "--lazy", kept]
        yield ["rmdir", kept]


if __name__ == "__main__":
    main(sys.argv[1:])
