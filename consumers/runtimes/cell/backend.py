"""Makes and finds cells (`runtime`), and knows whether this host can run them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from consumers.runtimes import preparation_names
from consumers.runtimes.base import (
    Exec,
    Handle,
    Labelled,
    Labels,
    SandboxError,
    Step,
)
from consumers.runtimes.cell import limits, preparations
from consumers.runtimes.cell.host import CellHost
from consumers.runtimes.cell.preparations import Preparations
from consumers.runtimes.cell.roots import Root, check_host_user, image_root
from consumers.runtimes.cell.runtime import (
    CellRuntime,
    host_disk_full,
    is_lack_of_space,
    limits_of,
    remove,
)
from consumers.runtimes.cell.storage import record_prepared
from consumers.runtimes.cell.view import IMAGE_FOLDERS, ClaimView, Folders, View, copy, give
from consumers.runtimes.images.store import Image, ImageStore
from consumers.runtimes.launch import to_the_end
from consumers.runtimes.session_folder import CLAIM_MARK, SessionFolders, check_claim_id, kill_marked
from topics.environment import cache
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import Network, RuntimeSpec, Seen

NAME = "cell"
CHECK_S = 10.0
"""A cell starts in 20 ms; a busy host takes longer."""

_FOLDERS = ("workspace", "home", "tmp", "logs", "views")
_IMAGE = "image"
"""A file in a session's folder: the digest of its image."""


class CellBackend:
    """Makes and finds cells under `root`, which all workers of a pool on this host share."""

    def __init__(self, root: Path, images: ImageStore | None = None) -> None:
        """`images`: of this host; None: those that any worker may use. Raises NotReadyError if this host can't run cells."""
        self.host = CellHost(SessionFolders(root, NAME))
        self.folders = self.host.folders
        self._preparations = Preparations(self.folders.root)
        self._images = images or ImageStore(cache.root() / "images", {}, trusts_tasks=False)

    async def create(self, labels: Labels, spec: RuntimeSpec, steps: Sequence[Step] = ()) -> CellRuntime:
        """Raises SandboxError `runtime_exists` if the claim has made a runtime before, InputError for a `workdir` outside, and as
        `ImageStore.get`."""
        check_claim_id(labels.claim_id)
        if spec.gpus > (count := len(self.host.gpus.devices)):
            raise InputError(
                "runtime.gpus",
                spec.gpus,
                f"this worker's host has {count} GPUs that programs can use; name a pool whose workers have more (runtime.pool)",
            )
        image = None if spec.image is None else await self._images.get(spec.image)
        runtime = self._new(labels, spec, image)
        if image is not None and steps:
            return await self._prepared(runtime, image, spec, steps)
        for step in steps:
            await step(runtime)
        return runtime

    async def _prepared(
        self, runtime: CellRuntime, image: Image, spec: RuntimeSpec, steps: Sequence[Step]
    ) -> CellRuntime:
        """A new runtime, prepared. Takes only the steps whose preparations this host lacks."""
        folder = self.folders.root / runtime.handle["id"]
        names, kept = preparation_names.names_of(image.digest, spec), self._preparations
        if done := await kept.use(names, folder):
            runtime = await self._begun(folder, image, spec)
        is_new = done < len(names)
        for name, group in zip(names[done:], preparation_names.grouped(steps)[done:], strict=True):
            async with preparation_names.locked(self.folders.root, name):
                if not await kept.use([name], folder):
                    for step in group:
                        await step(runtime)
                    await kept.keep(name, self._folders_of(folder, image))
                    await kept.use([name], folder)
            runtime = await self._begun(folder, image, spec)
        if is_new:
            await kept.forget_others()
        return runtime

    async def _begun(self, folder: Path, image: Image, spec: RuntimeSpec) -> CellRuntime:
        """The runtime of a session that begins with the preparation that it uses, in its own copies of home and /tmp."""
        folders = self._folders_of(folder, image)
        try:
            # To its end, however often it is cancelled: whoever removes the session must not meet a thread that writes to it.
            await to_the_end(asyncio.to_thread(self._copy, folders.prepared[0], folder))
        except (OSError, RecursionError) as error:
            if isinstance(error, OSError) and is_lack_of_space(error):
                raise host_disk_full(folder) from error
            raise SandboxError("not_made", f"what was prepared can't be copied: {error!r:.300}") from error
        view = View(folders, folder / "home", folder / "tmp", spec.setup_network)
        return CellRuntime(self.host, folder, folder.name, spec, view, self._root(image, spec))

    def _new(self, labels: Labels, spec: RuntimeSpec, image: Image | None) -> CellRuntime:
        folder = self.folders.root / labels.claim_id
        view = View(Folders(folder, image is not None), folder / "home", folder / "tmp", spec.setup_network)
        runtime = CellRuntime(self.host, folder, labels.claim_id, spec, view, self._root(image, spec))
        self.folders.new(labels, _FOLDERS if image is None else (*_FOLDERS, *IMAGE_FOLDERS))
        if image is not None:
            (folder / _IMAGE).write_text(image.digest)
        for name in ("workspace", "home", "tmp", *(IMAGE_FOLDERS if image else ())):
            give(folder / name, self.host.user_id(folder.name))
        runtime.make_workdir()
        return runtime

    def _copy(self, prepared: Path, folder: Path) -> None:
        for name in preparations.COPIES:
            shutil.rmtree(folder / name)
            copy(prepared / name, folder / name, self.host.user_id(folder.name))

    async def attach(self, handle: Handle, claim_id: str, spec: RuntimeSpec, *, fresh: bool = False) -> CellRuntime:
        check_claim_id(claim_id)
        folder = self.folders.live(handle)
        image = self._image_of(folder)
        network = spec.verifier_network if fresh else Network.NONE
        view = ClaimView(
            self._folders_of(folder, image), claim_id, network, self.host.user_id(folder.name), fresh=fresh
        )
        runtime = CellRuntime(self.host, folder, claim_id, spec, view, self._root(image, spec))
        if fresh:
            if image is not None and spec.verifier_sees is Seen.EVERYTHING:
                view.see_run()
            return runtime
        try:
            await asyncio.to_thread(record_prepared, folder)
            view.record_run()
        except OSError as error:
            if not is_lack_of_space(error):
                raise
            raise host_disk_full(folder) from error
        return runtime

    def _folders_of(self, folder: Path, image: Image | None) -> Folders:
        return Folders(folder, image is not None, () if image is None else self._preparations.used_by(folder))

    def _root(self, image: Image | None, spec: RuntimeSpec) -> Root:
        if image is not None:
            return image_root(image, spec)
        check_host_user(spec)
        return self.host.root

    def _image_of(self, folder: Path) -> Image | None:
        """The image of a session, which this host has."""
        try:
            return self._images.known((folder / _IMAGE).read_text())
        except FileNotFoundError:
            return None

    def unenforced(self, spec: RuntimeSpec) -> list[str]:
        return sorted(limits.host().unenforced(limits_of(spec)))

    async def labelled(self) -> list[Labelled]:
        return self.folders.labelled()

    async def remove(self, handle: Handle) -> None:
        await remove(self.folders.found(handle))

    async def kill_claim(self, claim_id: str) -> None:
        check_claim_id(claim_id)
        await kill_marked(CLAIM_MARK, claim_id)


async def check() -> None:
    """Run an empty program in a cell. Raises NotReadyError with what this host lacks."""
    with tempfile.TemporaryDirectory(prefix="polar-check-") as root:
        labels = Labels("", "check.0", 1, f"check-{secrets.token_hex(8)}")
        made = await CellBackend(Path(root)).create(labels, RuntimeSpec())
        try:
            ended = await made.exec(Exec(("true",), timeout_s=CHECK_S))
        except SandboxError as error:
            raise NotReadyError(str(error)) from None
        finally:
            await made.remove()
    if ended.exit_code != 0:
        raise NotReadyError(f"an empty program in a cell ended with exit code {ended.exit_code}; {ended.output_end}")
