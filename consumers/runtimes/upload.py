"""Files that a task uploads into its sandbox, in the blob store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from topics.environment import archive
from topics.environment.archive import ArchiveError
from topics.environment.blobs import BlobReader, BlobStore, DamagedBlobError
from topics.types.errors import InputError, NotReadyError

CONTENT = "content"
"""The field of the error for content that is at fault, whatever the target is."""


@dataclass(frozen=True)
class Upload:
    """One file, or all that is in a folder."""

    blobs: BlobStore
    ref: str
    file_name: str = ""
    """Name of the file in a target that is a folder. Empty: the upload is a folder."""

    def write(self, target: Path) -> None:
        """Write the file to `target` on this host, or the folder's content into it. No link there is followed. Blocks.

        The content is verified while it is written, so after an error a part of it may be there. Raises InputError for CONTENT that isn't
        one file, or a folder; NotReadyError if this worker's blob store doesn't have it whole; OSError for the target.
        """
        unpack = archive.unpack_file if self.file_name else archive.unpack_folder
        with self.opened() as blob:
            unpack(blob, target)

    @contextmanager
    def opened(self) -> Iterator[BlobReader]:
        """The archive, for `archive.unpack_file` or `unpack_folder`. Raises InputError in place of an ArchiveError, and NotReadyError, both
        as `write`."""
        try:
            with ExitStack() as reading:
                try:
                    blob = reading.enter_context(self.blobs.open(self.ref))
                except OSError as error:
                    raise NotReadyError(
                        f"{self.ref} can't be read from this worker's blob store ({error.strerror or error}); every host, and whoever "
                        "submits tasks, needs the same POLAR_BLOBS"
                    ) from error
                yield blob
        except ArchiveError as error:
            raise InputError(CONTENT, self.ref, str(error)) from error
        except DamagedBlobError as error:
            raise NotReadyError(f"{error}; delete it from POLAR_BLOBS and submit the task again") from error
