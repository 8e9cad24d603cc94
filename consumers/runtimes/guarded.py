"""The runtime `landlock`: a `process` whose programs are under Landlock and a seccomp filter, for hosts that can't run cells.

Most containers are such hosts: bubblewrap needs rights there that these two don't need. A program reads the system's programs, its tools
and its own folder, writes to its own folder, and connects by TCP to the proxy's port only. It can't trace or signal processes outside, and
reads neither their memory nor their environment. It has no capabilities.

Not enforced: UDP, so names can be resolved; another host at the proxy's port; named Unix sockets, such as Docker's; limits of CPU,
memory, processes and disk; names and arguments of all processes of the host are visible; the session's key is in the harness's
environment; an evaluation has the home that the run left. So only workers that trust their tasks run this kind.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import ClassVar

from yarl import URL

from consumers.runtimes import landlock, process, seccomp
from consumers.runtimes.base import Exec
from consumers.runtimes.cell import bubblewrap
from consumers.runtimes.forkserver import ForkServer
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from consumers.runtimes.session_folder import SessionFolders
from consumers.runtimes.supervisor import GuardOrders
from topics.types.errors import NotReadyError
from topics.types.runtime import Network, RuntimeSpec

NAME = "landlock"
LEAST_ABI = landlock.SINCE[landlock.Guard.PORTS]
"""Without rules for ports a program could reach Kafka and everything else. Linux 6.7 has them."""
ACCOUNTS = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf")
"""Files of /etc beside those of a cell: names of users and hosts."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
"""No /dev/shm: all sessions would share it."""
OWN = ("workspace", "home", "tmp")


def instead_of_cells() -> str:
    """The kind of runtimes for trusted tasks on a host that can't run cells."""
    return NAME if landlock.abi() >= LEAST_ABI else process.NAME


class GuardedRuntime(ProcessRuntime):
    """One folder, used by one claim; see `base.Runtime`."""

    def __init__(
        self,
        folders: SessionFolders,
        folder: Path,
        claim_id: str,
        spec: RuntimeSpec,
        forks: ForkServer,
        *,
        network: Network,
        seccomp_filter: bytes,
    ) -> None:
        """`network`: the policy for programs that aren't the harness. Raises InputError as `ProcessRuntime` does."""
        super().__init__(folders, folder, claim_id, spec, forks)
        self._of_harness = spec.network or Network.PROXY_ONLY
        self._of_others = network
        self._filter = seccomp_filter

    def environment(self) -> dict[str, str]:
        # Without the right to look for /etc/gitconfig git gives up.
        return super().environment() | {"GIT_CONFIG_NOSYSTEM": "1"}

    def guard(self, what: Exec) -> GuardOrders:
        return {
            "read": [*_system(), *map(str, what.tools)],
            "write": [*(str(self.folder / name) for name in OWN), *(f"/dev/{name}" for name in DEVICES)],
            "ports": self._ports(what),
            "filter": self._filter,
        }

    def _ports(self, what: Exec) -> list[int] | None:
        policy = self._of_harness if what.model else self._of_others
        if policy is Network.HOST:
            return None
        port = URL(what.model.proxy_url).port if what.model and policy is not Network.NONE else None
        return [port] if port else []


class GuardedBackend(ProcessBackend):
    """Makes and finds `landlock` runtimes under `root`, which all workers of a pool on this host share."""

    name: ClassVar[str] = NAME
    enforced: ClassVar[tuple[str, ...]] = ("host_files", "network", "system_calls")

    def __init__(self, root: Path) -> None:
        """Raises NotReadyError if the kernel can't guard programs."""
        super().__init__(root)
        if (found := landlock.abi()) < LEAST_ABI:
            raise NotReadyError(
                f"the runtime 'landlock' needs Landlock's ABI {LEAST_ABI} (Linux 6.7), and this kernel has {found}"
            )
        self._filter = seccomp.program(platform.machine())

    def _runtime(self, folder: Path, claim_id: str, spec: RuntimeSpec, network: Network) -> GuardedRuntime:
        return GuardedRuntime(
            self.folders, folder, claim_id, spec, self.forks, network=network, seccomp_filter=self._filter
        )


def _system() -> list[str]:
    """Paths of this host that every program may read."""
    mounts, _ = bubblewrap.system()
    search = os.environ.get("PATH", os.defpath).split(":")
    return [
        *(path for mount in mounts for path in mount["sources"]),
        *(f"/etc/{name}" for name in ACCOUNTS),
        *("/proc", sys.prefix, sys.base_prefix),
        *(folder for folder in search if folder.startswith("/")),
    ]
