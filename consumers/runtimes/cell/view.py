"""A claim's own folders in a cell: a home, a `/tmp`, and layers that take its changes to what others see too.

INIT sees the folder's own home. Each later claim has a copy of it in `views/<claim>/`, which is made at the first use: many evaluations
ask only how the run ended, and need none.

Without an image, INIT and the run write to the folder `workspace`, and an evaluation to a layer over it. With an image, INIT and the run
write to the layer `workspace` over the image's folder, and an evaluation to a layer of its own over both. All other files of the image lie
under the layer `root`, in which INIT writes. The run's changes to them go to a layer of its own, and so do an evaluation's, which lies over
what INIT left, or if the task says so over what the run left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell.bubblewrap import Overlay
from topics.environment import private_files
from topics.types.runtime import Network

IMAGE_FOLDERS = ("root", "root-work", "workspace-work")
"""Folders of a session with an image, beside those of every cell."""
_RAN = "ran"
"""A file in such a session's folder: the claim of the run."""


@dataclass(frozen=True)
class RootLayers:
    """The session's layers over an image. `lower`: the highest first."""

    lower: tuple[Path, ...]
    overlay: Overlay


@dataclass(frozen=True)
class Folders:
    """A session's folders, as INIT uses them. `prepared`: what equal actions left over an image, the highest first (`preparations`)."""

    top: Path
    has_image: bool
    prepared: tuple[Path, ...] = ()

    @property
    def home(self) -> Path:
        return self.top / "home"

    @property
    def workspace(self) -> tuple[Path, ...]:
        """The folders of the workspace, the highest first."""
        if not self.has_image:
            return (self.top / "workspace",)
        return self._layers("workspace")

    @property
    def workspace_layer(self) -> Overlay | None:
        return Overlay(self.top / "workspace", self.top / "workspace-work") if self.has_image else None

    @property
    def root(self) -> RootLayers | None:
        if not self.has_image:
            return None
        return RootLayers(self._layers("root"), Overlay(self.top / "root", self.top / "root-work"))

    def _layers(self, name: str) -> tuple[Path, ...]:
        """The prepared layers that hold something."""
        return tuple(path for one in self.prepared if any((path := one / name).iterdir()))


class View:
    """The folders of one claim. `network`: the policy for programs that aren't the harness.

    `workspace`: the folders of the workspace, the highest first; with an image they lie over the image's. `overlay`: takes changes to the
    workspace; None: they go to the folder. `root`: with an image.
    """

    def __init__(self, folders: Folders, home: Path, tmp: Path, network: Network) -> None:
        """The view of INIT."""
        self._folders = folders
        self.home = home
        self.tmp = tmp
        self.network = network
        self.workspace: tuple[Path, ...] = folders.workspace
        self.overlay = folders.workspace_layer
        self.root = folders.root

    def control(self, claim_id: str, user_id: int | None) -> ClaimView:
        """The view of an evaluation that sees only the run's workspace."""
        return ClaimView(self._folders, claim_id, Network.NONE, user_id, fresh=True)

    async def make(self) -> None:
        """Make the folders that are missing. Raises SandboxError `not_made`."""


class ClaimView(View):
    """A view with a copy of the home, and if it is `fresh` with a layer over the workspace."""

    def __init__(self, folders: Folders, claim_id: str, network: Network, user_id: int | None, *, fresh: bool) -> None:
        """`user_id`: the owner of what is made, as for `give`."""
        self._own = own = folders.top / "views" / claim_id
        super().__init__(folders, own / "home", own / "tmp", network)
        self._user_id = user_id
        self._making = asyncio.Lock()
        self._layers: list[Path] = []
        if fresh:
            if self.overlay is not None:
                self.workspace = (self.overlay.upper, *self.workspace)
            self.overlay = self._layer("upper", "work")
        if self.root is not None:
            self.root = RootLayers((self.root.overlay.upper, *self.root.lower), self._layer("root", "root-work"))

    def _layer(self, upper: str, work: str) -> Overlay:
        layer = Overlay(self._own / upper, self._own / work)
        self._layers += [layer.upper, layer.work]
        return layer

    def record_run(self) -> None:
        """Remember that this claim is the run's. Raises OSError."""
        private_files.replace(self._folders.top / _RAN, self._own.name.encode())

    def see_run(self) -> None:
        """See what the run left of the image, not only its workspace."""
        assert self.root is not None, "a cell with an image"
        try:
            left = self._own.with_name((self._folders.top / _RAN).read_text()) / "root"
        except FileNotFoundError:
            return
        if left.is_dir():  # otherwise no program of the run has started
            self.root = RootLayers((left, *self.root.lower), self.root.overlay)

    async def make(self) -> None:
        async with self._making:
            if not self._own.is_dir():
                try:
                    await asyncio.to_thread(self._make)
                except (OSError, RecursionError) as error:
                    # A half of a view would be used as a whole one by the next call.
                    await asyncio.to_thread(shutil.rmtree, self._own, ignore_errors=True)
                    raise SandboxError("not_made", f"the home of {self._own.name} can't be made: {error}") from error

    def _make(self) -> None:
        copy(self._folders.home, self.home, self._user_id)
        for path in (self.tmp, *self._layers):
            path.mkdir()
            give(path, self._user_id)


def copy(source: Path, target: Path, user_id: int | None) -> None:
    """Copy a folder and make it the user's. Sockets, pipes and devices are left out: nobody serves them in the copy."""
    shutil.copytree(source, target, symlinks=True, ignore=_special)
    give_all(target, user_id)


def _special(folder: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(f"{folder}/{name}").st_mode for name in names}
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in modes.items() if not any(is_kind(mode) for is_kind in kinds)]


def give(path: Path, user_id: int | None) -> None:
    """Make `path` the user's; None: it stays ours. Links aren't followed."""
    if user_id is not None:
        os.chown(path, user_id, user_id, follow_symlinks=False)


def give_all(top: Path, user_id: int | None) -> None:
    """As `give`, for `top` and all below it."""
    if user_id is None:
        return
    give(top, user_id)
    for parent, folders, files in os.walk(top):
        for name in (*folders, *files):
            give(Path(parent, name), user_id)
