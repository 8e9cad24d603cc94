"""The command lines and the environment of Apptainer (1.2 or newer). Pure.

Each option has its reason beside it. Sources: Apptainer's `cmd/internal/cli/action_flags.go` for names and forms, and of
`internal/pkg/runtime/` the files `launch/launcher_linux.go` (called launcher) and `engine/apptainer/{prepare,container}_linux.go` (called
prepare and container), read in version 1.5.3; every option is in 1.2.0 too.

Nothing secret is on a command line or in an environment of Apptainer: programs get their variables from the keeper, through its socket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.runtimes.images.fetch import LAYOUT

PROGRAM = "apptainer"
HELPERS = ("setsid", "unshare")
"""Programs of util-linux that start a container."""
LEAST_VERSION = (1, 2)
"""Its squashfuse doesn't fail writes over SIF files with "No data available" (its CHANGELOG)."""
KEPT = ("HOME", "LANG", "PATH", "TMPDIR")
"""Variables of the worker that Apptainer gets. Others of its own, like APPTAINER_BIND, would change the container."""
_VERSION = re.compile(r"(?:apptainer version )?(\d+)\.(\d+)")
_NOT_IN_PATHS = re.compile(r'[,:"\s\x00-\x1f]')
"""They separate parts of Apptainer's options, or quote them."""


@dataclass(frozen=True)
class Container:
    """A container to start. `image`: a SIF file, or a folder with a root file system."""

    image: Path
    overlay: Path
    """An existing folder that takes the changes; Apptainer makes `upper` and `work` in it."""
    prepared: Path | None
    """The overlay of an earlier container, shown under `overlay` and never changed."""
    mounts: Mapping[str, Path]
    """Files and folders of this host by their paths inside, all read-only."""
    has_host_network: bool


def start(container: Container, command: Sequence[str]) -> list[str]:
    """The line that starts a container, in the background and in a session of its own.

    `unshare` makes Apptainer root of a user namespace with one user, the worker's. There it uses no setuid program and no ids of
    /etc/subuid (launcher: "Already running root-mapped unprivileged"), so it behaves alike on all installations and all files stay the
    worker's. `--fakeroot` would depend on both. `unshare` stays the parent: Apptainer's later processes don't show the environment, and
    so the marks, that they were started with (`internal/pkg/util/starter/starter.go`, Exec).
    """
    overlays = ["--overlay", str(container.overlay)]
    if container.prepared is not None:
        # A folder with `:ro` shows its `upper` (container, addOverlayMount).
        overlays += ["--overlay", f"{container.prepared}:ro"]
    # `none` is the network that needs no privileges (container, prepareNetworkSetup). Loopback is up (prepare, prepareContainerConfig).
    network = [] if container.has_host_network else ["--net", "--network", "none"]
    return [
        *("setsid", "--fork"),  # it outlives its worker: the session's next stage may be another's
        *("unshare", "--map-root-user", "--kill-child"),
        *(PROGRAM, "--silent", "exec"),
        "--containall",  # namespaces of processes and IPC, an own /dev, and no variable of the host
        "--no-init",  # the keeper is the first process, so orphans become its children
        "--no-privs",  # no capabilities, and no new privileges (prepare, prepareRootCaps)
        "--no-eval",  # the keeper's arguments are no shell code
        "--no-umask",
        # With --containall, /tmp and the home would be small file systems in memory. /sys has control groups, which aren't the container's.
        *("--no-mount", "home,tmp,cwd,sys,hostfs,bind-paths"),
        *("--pwd", "/"),
        *network,
        *overlays,
        *(word for inside, path in container.mounts.items() for word in ("--mount", _mount(inside, path))),
        str(container.image),
        *command,
    ]


def _mount(inside: str, path: Path) -> str:
    return f"type=bind,src={path},dst={inside},ro"


def build(sif: str) -> list[str]:
    """The line that makes a SIF file of the layout that skopeo has made in the folder where the line runs.

    The layout has no other image. With `oci:FOLDER:TAG` Apptainer 1.4.5 looks for a folder `FOLDER:TAG` (its
    `internal/pkg/ociimage/sourcesink.go` takes `@DIGEST` alone).
    """
    return [PROGRAM, "--silent", "build", sif, f"oci:{LAYOUT}"]


def environment(worker: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of Apptainer itself. `worker`: those of this process; `own`: what is added.

    What an image preloads into its own programs isn't loaded into the keeper: a variable APPTAINERENV_X replaces the image's X, also
    with --containall (`internal/pkg/util/env/env.go`, overridesForContainerEnv).
    """
    kept = {name: worker[name] for name in KEPT if name in worker}
    return kept | {"APPTAINERENV_LD_PRELOAD": "", "APPTAINERENV_LD_AUDIT": ""} | dict(own)


def version(text: str) -> tuple[int, int] | None:
    """The version in the output of `apptainer version`, like `1.3.6-1.el9`; None if there is none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def is_usable(path: str) -> bool:
    """Whether a path can be part of a line."""
    return not _NOT_IN_PATHS.search(path)
