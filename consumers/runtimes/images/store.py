"""The images that this host has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Image:
    """An image on this host, ready to be mounted."""

    digest: str
    """Of its configuration: `sha256:` and 64 hexadecimal digits."""
    layers: tuple[Path, ...]
    """Folders, lowest first, for overlayfs with the option `userxattr`."""
    environment: Mapping[str, str]
    workdir: PurePosixPath
    """Absolute; `/` where the image names none."""
    user: str
    """As the image writes it: a name or a number, perhaps with a group behind a colon; empty for root."""
    shell: str
    """`bash`, `sh` or empty: the first of them that lies in /bin or /usr/bin."""


class ImageStore:
    """The images below `folder`, which all workers of one user share."""

    def __init__(self, folder: Path, names: Mapping[str, str], *, trusts_tasks: bool) -> None:
        self.folder = folder

    async def get(self, name: str) -> Image:
        """The image that a task names, pulled and unpacked if this host doesn't have it."""
        raise NotImplementedError

    def known(self, digest: str) -> Image:
        """An image that this host has, by its digest. SandboxError `runtime_gone`."""
        raise NotImplementedError
