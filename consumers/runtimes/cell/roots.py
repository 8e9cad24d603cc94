"""The root of a cell: this host's programs beside a new workspace, or an image.

An image keeps its own programs, settings and folders. All of its files belong to the one user inside, whatever owners the image names, and
that user has no capabilities: a program can change every file, but not give one to somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.cell.bubblewrap import HOME, PATH, TMP, USER, USER_ID, WORKSPACE
from consumers.runtimes.cell.enter import ImageOrders, Mount
from consumers.runtimes.cell.view import RootLayers
from consumers.runtimes.images import merged
from consumers.runtimes.images.store import Image
from consumers.runtimes.images.workspace import workspace_of
from topics.types.errors import InputError
from topics.types.runtime import KERNELS, RuntimeSpec

_HOSTS = {"/etc/hosts": bubblewrap.FILES["/etc/hosts"]}
_PIPEFAIL = "if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi\n"
"""Not every shell has it; `set` would end one that hasn't."""


@dataclass(frozen=True)
class Root:
    """What a cell holds beside the session's folders. `shell`: a bash or a sh. `user_id`: the number that programs inside have."""

    workspace: PurePosixPath
    user_id: int
    environment: Mapping[str, str]
    search: str = PATH
    """Folders of programs, PATH, whatever an image says."""
    shell: str = "bash"
    image: Image | None = None
    folders: tuple[str, ...] = bubblewrap.FOLDERS
    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()

    def shell_command(self, text: str) -> tuple[str, ...]:
        """The arguments that run a command with pipefail."""
        if self._has_bash:
            return (self.shell, "-o", "pipefail", "-c", text)
        return (self.shell, "-c", _PIPEFAIL + text)

    def script(self, text: str) -> tuple[str, ...]:
        """The arguments that run a script of ours, which nothing in the environment changes."""
        return (self.shell, "-p", "-c", text) if self._has_bash else (self.shell, "-c", text)

    @property
    def _has_bash(self) -> bool:
        return PurePosixPath(self.shell).name == "bash"

    def is_inside(self, path: PurePosixPath) -> bool:
        """Whether a file at this path can belong to the session."""
        if self.image is None:
            return any(path.is_relative_to(top) for top in (self.workspace, HOME, TMP))
        return not any(path.is_relative_to(top) for top in KERNELS)

    def image_orders(self, layers: RootLayers | None) -> ImageOrders | None:
        """`layers`: the session's over the image."""
        if self.image is None or layers is None:
            return None
        return ImageOrders(
            layers=[str(layer) for layer in reversed(self.image.layers)],
            lower=[str(layer) for layer in layers.lower],
            upper=str(layers.overlay.upper),
            work=str(layers.overlay.work),
        )


def check_host_user(spec: RuntimeSpec) -> None:
    """Raises InputError if a task without an image asks for another user than the cell's."""
    known = {USER: USER_ID, str(USER_ID): USER_ID}
    _check_user(spec, known.get(spec.user or ""), USER_ID, USER)


def _check_user(spec: RuntimeSpec, wanted_id: int | None, user_id: int, name: str) -> None:
    """`wanted_id`: the number of `spec.user`, None without such a user. `user_id`, `name`: of the cell's."""
    if spec.user is not None and wanted_id != user_id:
        raise InputError(
            "runtime.user",
            spec.user,
            f"every program of a cell is one user, here {name} ({user_id}); leave user out if that one will do",
        )


def host_root(path: str) -> Root:
    """`path`: folders of programs, PATH."""
    mounts, links = bubblewrap.system()
    return Root(
        workspace=WORKSPACE,
        user_id=USER_ID,
        environment={"PATH": path, "LANG": "C.UTF-8", "USER": USER},
        search=path,
        links=links,
        files=bubblewrap.FILES,
        mounts=tuple(mounts),
    )


def image_root(image: Image, spec: RuntimeSpec) -> Root:
    """The workspace is the task's `workdir` if that is absolute, or the image's. Raises InputError if the image can't be used for that."""
    if not image.shell:
        raise InputError("runtime.image", spec.image, "has no program bash or sh, with which commands are run")
    _check_user(spec, merged.user_id(image.layers, spec.user or ""), image.user_id, image.user or "root")
    own = {"PATH": PATH, "LANG": "C.UTF-8", "USER": image.user.partition(":")[0] or "root"}
    workspace = workspace_of(image.workdir, spec)
    if merged.is_behind_link(image.layers, str(workspace)):
        raise InputError(
            "runtime.image",
            spec.image,
            f"its {workspace} lies behind a link, so it can't be the workspace; set runtime.workdir",
        )
    return Root(
        workspace=workspace,
        user_id=image.user_id,
        environment=own | dict(image.environment),
        shell=image.shell,
        image=image,
        folders=KERNELS[:3],  # bubblewrap mounts these anew for each program
        files=_HOSTS,
    )
