"""This host's NVIDIA GPUs in cells: their device files, the driver's libraries, and who has which.

A program that gets GPUs has them to itself while it runs: it holds a lock for each, in a folder that all workers of one user share. The
others' device files aren't in its cell, so CUDA doesn't see them either. A worker that dies loses its locks, and its programs end with it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import filelock

from consumers.runtimes import file_locks
from consumers.runtimes.base import SandboxError
from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.cell.enter import Mount
from topics.environment import cache, private_files

WAIT_S = 30.0
"""Limit of a program's wait for its GPUs, which its stage's budget is charged for. Then the session is tried again."""
WAIT_SHARE = 0.1
"""Of a program's own time limit: an evaluation has a tenth more than its command, so a wait can't make it run out of time."""
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Device files that CUDA needs beside those of its GPUs."""
LIBRARIES = (
    *("libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ml.so.1"),
    *("libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1"),
)
"""The driver's part of CUDA, which must be the host's; NVIDIA's container toolkit brings the same into containers."""
FOLDERS = (
    *("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/usr/lib64", "/usr/lib/wsl/lib"),
)
"""Where installations of the driver put its libraries."""
PLACE = PurePosixPath("/usr/local/nvidia/lib64")
"""Where an image has them; NVIDIA's images look there."""
_GPU = re.compile(r"nvidia\d+")
_PAUSE_S = 0.25


@dataclass(frozen=True)
class GpuView:
    """What a program with GPUs has of them. `devices`: files in /dev."""

    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    libraries: str = ""
    """The folder of the driver's libraries inside; empty without GPUs."""

    def search(self, environment: Mapping[str, str]) -> dict[str, str]:
        """A program's variables, with the driver's libraries behind those that it looks for anyway."""
        if not self.libraries:
            return dict(environment)
        folders = [environment.get("LD_LIBRARY_PATH", ""), self.libraries]
        return {**environment, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a host. `devices`: their names in /dev. `locks`: a folder. `libraries`: of the driver; None: it has none."""

    devices: Sequence[str]
    locks: Path
    control: Sequence[str] = ()
    libraries: Path | None = None
    program: str | None = None
    """Path of nvidia-smi."""

    @asynccontextmanager
    async def held(
        self, count: int, *, in_image: bool, stop: asyncio.Event | None = None, limit_s: float | None = None
    ) -> AsyncIterator[GpuView]:
        """Hold `count` GPUs, which must not exceed those there are. `limit_s`: the program's time limit.

        Raises SandboxError `gpus_busy` when others held them for WAIT_S, or for WAIT_SHARE of the limit, or until `stop`.
        """
        if not count:
            yield GpuView()
            return
        private_files.make_folder(self.locks)
        wait_s = WAIT_S if limit_s is None else min(WAIT_S, WAIT_SHARE * limit_s)
        until = asyncio.get_running_loop().time() + wait_s
        while True:
            with ExitStack() as stack:
                taken = self._take(count, stack)
                if len(taken) == count:
                    yield self._view(taken, in_image=in_image)
                    return
            # What was taken is free again here: two programs that each hold a part would wait for one another.
            if asyncio.get_running_loop().time() > until or (stop and stop.is_set()):
                raise SandboxError(
                    "gpus_busy",
                    f"{count} of this host's {len(self.devices)} GPUs weren't free in time; give the stages run and evaluate "
                    "no more slots together than there are GPUs for",
                )
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5))

    def _take(self, count: int, stack: ExitStack) -> list[str]:
        taken: list[str] = []
        for device in self.devices:
            if len(taken) == count:
                break
            lock = file_locks.lock(self.locks / f"{device}.lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            stack.callback(lock.release)
            taken.append(device)
        return taken

    def _view(self, taken: Sequence[str], *, in_image: bool) -> GpuView:
        devices = tuple(f"/dev/{name}" for name in (*taken, *self.control))
        if self.libraries is None:
            return GpuView(devices)
        if not in_image:
            return GpuView(devices, tuple(bubblewrap.tools([self.libraries])), str(self.libraries))
        files = {self.libraries / name: PLACE / name for name in LIBRARIES}
        if self.program:
            files[Path(self.program)] = PurePosixPath("/usr/bin/nvidia-smi")
        mounts = [bubblewrap.mount(file.resolve(), inside) for file, inside in files.items() if file.exists()]
        return GpuView(devices, tuple(mounts), str(PLACE))


def of_host() -> Gpus:
    """Those that any user of this host may use, since a cell's programs have a user of their own."""
    here = sorted(name for name in os.listdir("/dev") if _is_open(name))  # noqa: PTH208 - names
    return Gpus(
        devices=sorted((name for name in here if _GPU.fullmatch(name)), key=lambda name: int(name[len("nvidia") :])),
        locks=cache.root() / "gpus",
        control=[name for name in CONTROL if name in here],
        libraries=next((Path(folder) for folder in FOLDERS if Path(folder, LIBRARIES[0]).exists()), None),
        program=shutil.which("nvidia-smi"),
    )


def _is_open(name: str) -> bool:
    if not name.startswith("nvidia"):
        return False
    try:
        return Path("/dev", name).lstat().st_mode & 0o006 == 0o006
    except FileNotFoundError:
        return False
