"""`polar proxy --processes N`: proxies that share one port. A process that dies is restarted.

Invariant: this process holds every port, bound and not listening, from before the first start to after the last end. A restarted proxy
therefore gets its old ports, which tells the other proxies at once that its sessions need an owner, and no other program can take them
meanwhile. A connection to a port without a live process is refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from polar.embedded import readiness
from polar.embedded.child_process import ChildProcess
from proxy import addresses
from proxy.addresses import Binding
from topics.waiting.first_done import first_done

START_S = 120.0
"""Deadline for one proxy to serve."""
STOP_S = 25.0
"""Deadline for a process to drain and end, which takes at most 20 s."""


class ProxyProcesses:
    """Proxies with the same `arguments`, each with its own ports."""

    def __init__(
        self, arguments: Sequence[str], count: int, calls: Binding, controls: Binding, advertise: str | None
    ) -> None:
        """Bind the ports. `advertise` has no port: each process adds its own. Raises OSError for a port in use."""
        self._arguments = arguments
        self._advertise = advertise
        self._sockets: list[socket.socket] = []
        try:
            self._calls = self._bind(calls)
            self._peers = [self._bind(Binding(calls.host, 0)) for _ in range(count)]
            first = controls.port
            ports = range(first, first + count) if first else [0] * count
            self._controls = [self._bind(Binding(controls.host, port)) for port in ports]
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Base URL of the model API."""
        return addresses.url(self._calls)

    @property
    def control_urls(self) -> list[str]:
        """One URL per process."""
        return [addresses.url(port_socket) for port_socket in self._controls]

    def close(self) -> None:
        for port_socket in self._sockets:
            port_socket.close()

    async def keep(self, stop: asyncio.Event, *, ready: Callable[[], None], announce: Callable[[str], None]) -> None:
        """Run the proxies until `stop`; call `ready` once all serve. Raises NotReadyError if one can't start or dies too often."""
        with TemporaryDirectory(prefix="polar-proxy-") as folder:
            files = [Path(folder) / f"{number}.json" for number in range(len(self._peers))]
            children = [self._child(number, file, announce) for number, file in enumerate(files)]
            keepers = [asyncio.create_task(child.keep(), name=child.name) for child in children]
            serving = asyncio.create_task(_all_serve(children, files, ready), name="all serve")
            waiting = {serving, *keepers}
            try:
                while not stop.is_set():
                    waiting -= (await first_done(stop, *waiting)).keys()
            finally:
                serving.cancel()
                await asyncio.gather(*(child.stop(STOP_S) for child in children))
                await asyncio.gather(*keepers, serving, return_exceptions=True)

    def _bind(self, binding: Binding) -> socket.socket:
        if binding.port:
            addresses.bound(binding).close()  # as a shared port it could be bound beside another listener
        port_socket = addresses.bound(Binding(binding.host, binding.port, shared=True))
        self._sockets.append(port_socket)
        return port_socket

    def _child(self, number: int, ready_file: Path, announce: Callable[[str], None]) -> ChildProcess:
        ports = {"--port": self._calls, "--peer-port": self._peers[number], "--control-port": self._controls[number]}
        options = [word for flag, port_socket in ports.items() for word in (flag, str(port_socket.getsockname()[1]))]
        if self._advertise is not None:
            options += ["--advertise", f"{self._advertise}:{self._peers[number].getsockname()[1]}"]
        # The last of repeated options counts.
        arguments = ["polar.cli", *self._arguments, "--processes", "1", *options, "--ready-file", str(ready_file)]
        return ChildProcess(f"proxy process {number}", arguments, environment=os.environ, announce=announce)


async def _all_serve(children: Sequence[ChildProcess], files: Sequence[Path], ready: Callable[[], None]) -> None:
    for child, file in zip(children, files, strict=True):
        await readiness.file(file, child.name, deadline_s=START_S)
        child.has_answered = True
    ready()
