"""`polar proxy --processes N`: proxies that share one port, each kept alive.

Invariant: every port is held here, bound and not listened on, from before the first process starts to after the last has ended. So what
dies comes back on the ports that it had, which tells the others at once that its sessions need an owner, and nobody else gets them
meanwhile; a connection to a port whose process is gone is refused.
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
STOP_S = 25.0
"""For a process to drain and end; it takes some 20 s at most."""


class Processes:
    """Proxies of one command line, each of which gets `arguments` and its own ports."""

    def __init__(
        self, arguments: Sequence[str], count: int, calls: Binding, controls: Binding, advertise: str | None
    ) -> None:
        """Takes the ports. `advertise` has none: each process adds its own. Raises OSError for a port that is taken."""
        self._arguments = arguments
        self._advertise = advertise
        self._held: list[socket.socket] = []
        try:
            self._calls = self._hold(calls)
            self._peers = [self._hold(Binding(calls.host, 0)) for _ in range(count)]
            first = controls.port
            ports = range(first, first + count) if first else [0] * count
            self._controls = [self._hold(Binding(controls.host, port)) for port in ports]
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Base of the model API."""
        return addresses.url(self._calls)

    @property
    def control_urls(self) -> list[str]:
        """One a process."""
        return [addresses.url(door) for door in self._controls]

    def close(self) -> None:
        """Gives the ports back."""
        for door in self._held:
            door.close()

    async def keep(self, stop: asyncio.Event, *, ready: Callable[[], None], announce: Callable[[str], None]) -> None:
        """Runs them until `stop`; `ready` is called once all serve. Raises NotReady for one that can't start or dies too often."""
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

    def _hold(self, binding: Binding) -> socket.socket:
        if binding.port:
            addresses.bound(binding).close()  # a shared port would be given to us beside whoever listens there
        door = addresses.bound(Binding(binding.host, binding.port, shared=True))
        self._held.append(door)
        return door

    def _child(self, number: int, ready_file: Path, announce: Callable[[str], None]) -> ChildProcess:
        ports = {"--port": self._calls, "--peer-port": self._peers[number], "--control-port": self._controls[number]}
        own = [word for flag, door in ports.items() for word in (flag, str(door.getsockname()[1]))]
        if self._advertise is not None:
            own += ["--advertise", f"{self._advertise}:{self._peers[number].getsockname()[1]}"]
        # Of an option that is given twice the last counts.
        arguments = ["polar.cli", *self._arguments, "--processes", "1", *own, "--ready-file", str(ready_file)]
        return ChildProcess(f"proxy process {number}", arguments, environment=os.environ, announce=announce)


async def _all_serve(children: Sequence[ChildProcess], files: Sequence[Path], ready: Callable[[], None]) -> None:
    for child, file in zip(children, files, strict=True):
        await readiness.file(file, child.name, deadline_s=START_S)
        child.has_answered = True
    ready()
