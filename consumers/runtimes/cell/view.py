"""A claim's own folders in a cell: a home, a `/tmp`, and for an evaluation a layer that takes its changes to the workspace.

INIT sees the folder's own home. Each later claim has a copy of it in `views/<claim>/`, which is made at the first use: many evaluations
ask only how the run ended, and need none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell.bubblewrap import Overlay
from topics.types.task import Network


class View:
    """The folders of one claim. `network`: the policy for programs that aren't the harness."""

    def __init__(self, home: Path, tmp: Path, network: Network, overlay: Overlay | None = None) -> None:
        self.home = home
        self.tmp = tmp
        self.network = network
        self.overlay = overlay

    async def make(self) -> None:
        """Make the folders that are missing. Raises SandboxError `not_made`."""


class ClaimView(View):
    """A view with a copy of the home, and if it is `fresh` with a layer over the workspace."""

    def __init__(self, folder: Path, claim_id: str, network: Network, user_id: int | None, *, fresh: bool) -> None:
        """`folder`: the cell's. `user_id`: the owner of what is made, as for `give`."""
        self._own = folder / "views" / claim_id
        overlay = Overlay(self._own / "upper", self._own / "work") if fresh else None
        super().__init__(self._own / "home", self._own / "tmp", network, overlay)
        self._prepared = folder / "home"
        self._user_id = user_id
        self._making = asyncio.Lock()

    async def make(self) -> None:
        async with self._making:
            if not self._own.is_dir():
                try:
                    await asyncio.to_thread(self._make)
                except OSError as error:
                    # A half of a view would be used as a whole one by the next call.
                    await asyncio.to_thread(shutil.rmtree, self._own, ignore_errors=True)
                    raise SandboxError("not_made", f"the home of {self._own.name} can't be made: {error}") from error

    def _make(self) -> None:
        shutil.copytree(self._prepared, self.home, symlinks=True)
        give_all(self.home, self._user_id)
        layers = (self.overlay.upper, self.overlay.work) if self.overlay else ()
        for path in (self.tmp, *layers):
            path.mkdir()
            give(path, self._user_id)


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
