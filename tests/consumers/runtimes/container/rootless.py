"""Runs the tests of containers as a user without privileges, on rootless Podman. More arguments are pytest's.

A user that isn't root runs pytest as it is. Root makes the user `polar-podman` once, and runs pytest as this user in a PID and a mount
namespace: when it ends, nothing of Podman is left to run. The user sees this checkout, its Python and the base image's files, even if they
lie in a folder that is root's alone.
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

USER = "polar-podman"
"""Its home keeps Podman's images."""
CHECKOUT = Path(__file__).parents[4]
TESTS = [f"tests/consumers/runtimes/container/test_{name}.py" for name in ("conformance", "evaluation", "runtime")]
"""Not those of CLIs, which lie in another user's cache, nor those of a registry without TLS, which Podman's own settings must name."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning", "-m", "docker"]
"""Without a cache: the user may not write to the checkout. Docker's client leaves its sockets to the collector."""


def main(arguments: list[str]) -> NoReturn:
    command = [*PYTEST, *TESTS, *arguments]
    if os.geteuid() == 0:
        command = _as_user(command)
    os.chdir(CHECKOUT)
    # In our own place: the end of this process, also by a kill, ends all.
    os.execvp(command[0], command)


def _as_user(command: list[str]) -> list[str]:
    """A command of root's that runs `command` as the user."""
    user = _user()
    image = base.root_file_system()
    own = Path(user.pw_dir, ".cache/polar")
    runtime = f"/run/user/{user.pw_uid}"
    environment = {
        "HOME": user.pw_dir,
        "USER": USER,
        "PATH": os.environ["PATH"],
        "HYPOTHESIS_STORAGE_DIRECTORY": str(own / "hypothesis"),  # not in the checkout
        "POLAR_CACHE": str(own),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Podman 4.3, Debian 12's, would otherwise copy the whole image for each container.
        "STORAGE_DRIVER": "overlay",
        "XDG_RUNTIME_DIR": runtime,
    }
    owner = ["-o", USER, "-g", str(user.pw_gid)]
    steps = [
        ["install", "-d", *owner, str(own.parent), str(own)],
        *_shown([image, CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)]),
        ["cd", str(CHECKOUT)],  # again, where something else lies over it now
        ["ln", "-sfn", str(image.resolve()), str(own / image.name)],
        ["mkdir", "-p", runtime],
        ["mount", "-t", "tmpfs", "-o", f"uid={user.pw_uid},mode=0700", "tmpfs", runtime],
        [
            *("exec", "setpriv", "--reuid", USER, "--regid", str(user.pw_gid), "--init-groups", "--inh-caps=-all"),
            *("--pdeathsig", "keep"),  # `unshare` has set it, and a change of the user would clear it
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command),
        ],
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
