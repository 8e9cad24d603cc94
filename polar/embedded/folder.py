"""What the broker keeps under DIR/kafka: its data, its ports, its logs, and the lock that says a broker runs there.

Invariant: one broker a folder. The lock is a flock that the supervisor and the JVM inherit, so it is free exactly when
both are gone, however they went. `data` exists only when it is formatted.
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
"""Below the ports that Linux (32768) and macOS (49152) give to outgoing connections: one of those could take the dead
broker's port, even a client's own connection attempt to it."""
RELEASE_S = 3.0
"""How long a broker that was just killed may take to be gone."""


class Folder:
    """DIR/kafka of one data folder."""

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
        """The process that the lock's holder runs, or ran last."""
        text = self._lock.read_text(encoding="ascii").strip()
        return int(text) if text else None

    def clear_leftovers(self) -> None:
        """Empty what a killed broker leaves: unpacked native libraries, half a format."""
        shutil.rmtree(self.unformatted, ignore_errors=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    def ports(self, *, but: Collection[int] = ()) -> Ports:
        """The folder's ports, chosen at its first start, none of `but`, and the same ever after. Raises BrokerError."""
        if not self._ports.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self._remember(_free_ports(but))
        try:
            return Ports(**json.loads(self._ports.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise BrokerError(f"{self._ports} is damaged ({error}); delete it, and new ports are chosen") from error

    def has_ports(self) -> bool:
        """Whether they are chosen: before the first start they aren't."""
        return self._ports.exists()

    def choose_others(self) -> Ports:
        """Other ports than those that were chosen, for a folder that no client knows yet. Raises BrokerError."""
        self._remember(_free_ports(self.ports()))
        return self.ports()

    def await_free(self, ports: Ports) -> None:
        """Wait for a predecessor to let go of them. Raises BrokerError where another program has one."""
        deadline = time.monotonic() + RELEASE_S
        for port in ports:
            while not _is_free(port):
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"port {port}, which this data folder's broker has, is taken by another program; "
                        f"end that program, or delete {self._ports}, and new ports are chosen"
                    )
                time.sleep(0.05)

    def configure(self, node: Node, data: Path) -> None:
        """Write server.properties for log data in the folder `data`; nobody else may read it, since it may hold passwords."""
        private_files.replace(self.properties, server_properties(node, data.name))

    def log_tail(self, lines: int = 25) -> str:
        """The end of what the last start wrote, console first, for an error's text."""
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
        # As the broker does: connections of its predecessor in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
