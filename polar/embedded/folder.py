"""The broker's folder DIR/kafka: its data, ports, logs, and the lock of a running broker.

Invariant: one broker per folder. The lock is a flock that the supervisor and the JVM inherit: it is free exactly when both have ended, for
whatever reason. `data` exists only if it is formatted.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Collection
from pathlib import Path

from polar.embedded.errors import BrokerError
from polar.embedded.properties import Node, Ports, server_properties
from topics.environment import private_files

PORT_RANGE = range(20_000, 32_000)
"""Below the ports that Linux (from 32768) and macOS (from 49152) assign to outgoing connections: such a connection, even a
client's attempt to reach the dead broker, could occupy the broker's port."""
RELEASE_S = 3.0
"""How long the kernel may take to free the lock and the ports of a broker that was just killed."""


class Folder:
    """The folder DIR/kafka of one data folder."""

    def __init__(self, data: Path) -> None:
        self.path = data.absolute() / "kafka"
        self.data = self.path / "data"
        self.unformatted = self.path / "data.unformatted"
        self.scratch = self.path / "tmp"
        self.logs = self.path / "logs"
        self.console = self.logs / "console.log"
        self.properties = self.path / "server.properties"
        self._lock = self.path / "lock"
        self._ports = self.path / "ports.json"

    def claim(self) -> int:
        """Lock the folder and return the lock's file descriptor; closing its last copy frees it. Raises BrokerError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + RELEASE_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            if time.monotonic() > deadline:
                os.close(lock)
                raise BrokerError(
                    f"a broker (process {self.pid()}) already runs on {self.path}; "
                    "stop it, or choose another data folder (--data)"
                )
            time.sleep(0.05)

    def pid(self) -> int | None:
        """The process id of the JVM that runs, or ran last."""
        text = self._lock.read_text(encoding="ascii").strip()
        return int(text) if text else None

    def clear_leftovers(self) -> None:
        """Remove what a killed broker leaves: unpacked native libraries and an incomplete format."""
        shutil.rmtree(self.unformatted, ignore_errors=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def ports(self, *, but: Collection[int] = ()) -> Ports:
        """The folder's ports. The first call chooses free ports outside `but`; later calls return the same ports. Raises BrokerError."""
        if not self._ports.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self._remember(_free_ports(but))
        try:
            return Ports(**json.loads(self._ports.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise BrokerError(f"{self._ports} is damaged ({error}); delete it to have new ports chosen") from error

    def has_ports(self) -> bool:
        """Whether the ports are chosen, which the first start does."""
        return self._ports.exists()

    def choose_other_ports(self) -> Ports:
        """Choose different ports, for a folder whose ports no client knows yet. Raises BrokerError."""
        self._remember(_free_ports(self.ports()))
        return self.ports()

    def await_free(self, ports: Ports) -> None:
        """Wait until an earlier broker has released the ports. Raises BrokerError if another program uses one."""
        deadline = time.monotonic() + RELEASE_S
        for port in ports:
            while not _is_free(port):
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"port {port}, which belongs to this data folder's broker, is taken by another program; "
                        f"end that program, or delete {self._ports} to have new ports chosen"
                    )
                time.sleep(0.05)

    def configure(self, node: Node, data: Path) -> None:
        """Write server.properties for log data in the folder `data`, with mode 0600: it may contain passwords."""
        private_files.replace(self.properties, server_properties(node, data.name))

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the console and of the log of the last start, for an error message."""
        tail: list[str] = []
        for file in (self.console, self.logs / "broker.log"):
            with contextlib.suppress(FileNotFoundError):
                tail += file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {line}" for line in tail)

    def _remember(self, ports: Ports) -> None:
        half = self._ports.with_suffix(".tmp")
        half.write_text(json.dumps(ports._asdict()), encoding="utf-8")
        half.rename(self._ports)


def _free_ports(but: Collection[int]) -> Ports:
    free = (port for port in random.sample(PORT_RANGE, 200) if port not in but and _is_free(port))
    try:
        return Ports(broker=next(free), controller=next(free))
    except StopIteration:
        raise BrokerError(
            f"no two free ports found between {PORT_RANGE.start} and {PORT_RANGE.stop} on 127.0.0.1"
        ) from None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # The broker does so too: connections of an earlier broker in TIME_WAIT don't block it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
