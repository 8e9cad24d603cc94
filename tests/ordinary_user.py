"""Runs a command of root's as an ordinary user, in a PID and a mount namespace: when it ends, nothing that it started is left.

The user sees this checkout and its Python, even if they lie in a folder that is root's alone.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def user(name: str) -> pwd.struct_passwd:
    """The user, which is made if there is none, with the ids below it that `useradd` gives: containers' users have them."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "--create-home", name], check=True)
        return pwd.getpwnam(name)


def cache_of(who: pwd.struct_passwd) -> Path:
    """The user's own cache of Polar, which exists when the command runs."""
    return Path(who.pw_dir, ".cache/polar")


def command_as(
    who: pwd.struct_passwd,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    steps: Iterable[list[str]] = (),
) -> list[str]:
    """A command of root's that runs `command` as the user, in the checkout.

    `environment`: variables beside those that every test needs. `steps`: commands that root runs before, in the mount namespace.
    """
    cache = cache_of(who)
    variables = {
        "HOME": who.pw_dir,
        "USER": who.pw_name,
        "PATH": os.environ["PATH"],
        "HYPOTHESIS_STORAGE_DIRECTORY": str(cache / "hypothesis"),  # not in the checkout
        "POLAR_CACHE": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    lines = [
        ["install", "-d", "-o", who.pw_name, "-g", str(who.pw_gid), str(cache.parent), str(cache)],
        *steps,
        *_shown([CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)]),
        ["cd", str(CHECKOUT)],  # again, where something else lies over it now
        [
            *("setpriv", "--reuid", who.pw_name, "--regid", str(who.pw_gid), "--init-groups", "--inh-caps=-all"),
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command),
        ],
        # Not the shell's last command, so the shell stays: as the first process it reaps what Podman leaves, which Podman waits for.
        ["exit"],
    ]
    script = "\n".join(map(shlex.join, lines))
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script]


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
