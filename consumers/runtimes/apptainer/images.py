"""SIF files of the images that tasks name: skopeo fetches an image, as for cells, and Apptainer packs it into one file.

    sif/<source>.sif    a whole image
    sif/<source>.json   what its configuration says, written last

Both lie in the folder of the image store. A name that this host has resolved once stays, as in `images/store.py`. Delete both files to have
it fetched again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import structlog

from consumers.runtimes import file_locks
from consumers.runtimes.apptainer import command
from consumers.runtimes.base import HOST_DISK_FULL, IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import children, layout
from consumers.runtimes.images.fetch import LAYOUT
from consumers.runtimes.images.layers import room_in
from consumers.runtimes.images.store import ImageStore, storing
from topics.environment import private_files
from topics.types.errors import NotReadyError

_MADE = "image.sif"
"""Its name in the folder where it is made."""
_TEXT = 500
"""Characters of Apptainer's output in an error."""

log = structlog.get_logger(__name__)


class _Record(msgspec.Struct, frozen=True):
    environment: dict[str, str]
    workdir: str


@dataclass(frozen=True)
class Sif:
    """An image on this host."""

    path: Path
    environment: dict[str, str]
    workdir: PurePosixPath
    """Absolute; `/` where the image names none."""


class SifStore:
    """The SIF files of an image store."""

    def __init__(self, images: ImageStore) -> None:
        self._images = images
        self._folder = images.folder / "sif"

    async def get(self, name: str) -> Sif:
        """The image that a task names, made if this host doesn't have it. Raises as `ImageStore.get`."""
        key = self._images.key(name)
        if found := self._known(key):
            return found
        with storing(name):
            private_files.make_folder(self._images.folder)
            private_files.make_folder(self._folder)
            async with file_locks.held(self._folder / f"{key}.lock"):
                if found := self._known(key):
                    return found
                async with self._images.copied(name) as work:
                    fetched = await asyncio.to_thread(layout.read, name, work / LAYOUT)
                    await _build(name, work)
                    with (work / _MADE).open("rb") as made:
                        os.fsync(made.fileno())
                    (work / _MADE).rename(self._folder / f"{key}.sif")
                record = _Record(dict(fetched.environment), str(fetched.workdir))
                private_files.replace(self._folder / f"{key}.json", msgspec.json.encode(record), is_durable=True)
                return Sif(self._folder / f"{key}.sif", record.environment, fetched.workdir)

    def _known(self, key: str) -> Sif | None:
        path = self._folder / f"{key}.sif"
        try:
            record = msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError):
            return None
        return Sif(path, record.environment, PurePosixPath(record.workdir)) if path.is_file() else None


async def _build(name: str, work: Path) -> None:
    """Make _MADE in `work`. An unknown failure counts as temporary."""
    program, *arguments = command.build(_MADE)
    found = shutil.which(program)
    if found is None:
        raise NotReadyError(f"{program} isn't on PATH any more")
    # Apptainer unpacks the image in its TMPDIR, and would keep its layers in the home.
    own = {"APPTAINER_TMPDIR": str(work), "APPTAINER_CACHEDIR": str(work / "cache")}
    log.info("an image is being packed", action="image.pack_begun", image=name)
    ended = await children.run(
        (found, *arguments), env=command.environment(os.environ, own), folder=work, watch=room_in(work)
    )
    if ended.code != 0:
        text = ended.output.strip()[-_TEXT:]
        code = HOST_DISK_FULL if "no space left on device" in text.lower() else IMAGE_UNAVAILABLE
        raise SandboxError(code, f"Apptainer didn't make a SIF file of the image {name}: {text}")
    log.info("an image was packed", action="image.packed", image=name, bytes=(work / _MADE).stat().st_size)
