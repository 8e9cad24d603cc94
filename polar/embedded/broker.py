"""One embedded Kafka broker: started, stopped, killed and started again on one data folder.

Invariant: while a Broker is started, its JVM hangs on a supervisor that hangs on a pipe held here, so the JVM ends with
this process (`supervisor.py`). Ports and data stay the folder's (`folder.py`). Whether to start a broker again that
died is the caller's to decide: `wait` tells, `start` does it.
"""

import base64
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from polar.embedded import distribution, supervisor
from polar.embedded.errors import BrokerError
from polar.embedded.folder import Folder
from polar.embedded.properties import HEAP, Ports

START_S = 60.0
"""Two seconds on an idle machine; many times that where every core is busy."""
STOP_GRACE_S = 15.0
"""A clean stop takes about two seconds; after this the JVM is killed."""
END_S = 5.0
"""How long the kernel may take to end a killed process."""

_PLAIN_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    f"-Xmx{HEAP}",
)


def new_cluster_id() -> str:
    """A random UUID in base64url, 22 characters. Never one that begins with a dash: the tool would take it for an option."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


class Broker:
    """Apache Kafka on `data`/kafka. Its methods block: from asyncio call them in a thread."""

    def __init__(self, data: Path, *, announce: Callable[[str], None], meter: distribution.Meter | None = None) -> None:
        """`announce` gets a line for each thing that takes the user's time: the first download, mostly, whose bytes `meter` is told."""
        self._folder = Folder(data)
        self._announce = announce
        self._meter = meter
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._ports: Ports | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients; the same at every start on this data folder. Needs a start before."""
        if self._ports is None:
            raise BrokerError("the broker has no address before its first start: call start()")
        return f"127.0.0.1:{self._ports.broker}"

    @property
    def pid(self) -> int:
        """The JVM's process id. Raises BrokerError when it isn't running."""
        pid = self._folder.pid() if self.alive() else None
        if pid is None:
            raise BrokerError("the broker is not running: call start()")
        return pid

    def start(self) -> None:
        """Install Kafka if need be, start it, and return when it serves. Raises BrokerError, cache.CacheError.

        Works after any end of an earlier broker on this folder, kill -9 included.
        """
        if self.alive():
            raise BrokerError(f"this broker already runs (process {self.pid}): stop() it first")
        self.kill()  # lets go of what is left of one that died
        class_path = distribution.class_path(self._announce, self._meter)
        lock = self._folder.claim()
        try:
            self._ports = self._folder.ports()
            self._folder.clear_leftovers()
            if not self._folder.data.exists():
                self._format(class_path, self._ports, lock)
            self._folder.configure(self._ports, self._folder.data)
            self._supervisor = self._spawn(class_path, ["kafka.Kafka", str(self._folder.properties)], lock)
        finally:
            os.close(lock)
        try:
            self._await_serving(self._ports.broker)
        except BaseException:
            self.kill()
            raise

    def alive(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the broker ends, and return its exit code (128 + signal); None after `timeout` seconds."""
        if self._supervisor is None:
            raise BrokerError("there is no broker to wait for: call start()")
        try:
            return self._supervisor.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Stop cleanly, within `STOP_GRACE_S`, else by force. A broker that doesn't run is left as it is."""
        self._end(b"T", STOP_GRACE_S + END_S)

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        self._end(b"K", END_S)

    def _end(self, order: bytes, patience: float) -> None:
        if self._supervisor is None:
            return
        _end(self._supervisor, order, patience)

    def _format(self, class_path: str, ports: Ports, lock: int) -> None:
        """Make the empty log folder, whole or not at all."""
        self._announce(f"preparing a new Kafka log in {self._folder.path}")
        new = self._folder.unformatted
        self._folder.configure(ports, new)
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "-t",
            new_cluster_id(),
            "-c",
            str(self._folder.properties),
        ]
        process = self._spawn(class_path, tool, lock)
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process, b"K", END_S)
        if code != 0:
            raise BrokerError(f"Kafka could not format {new} (exit code {code}):\n{self._folder.log_tail()}")
        new.rename(self._folder.data)

    def _spawn(self, class_path: str, main: list[str], lock: int) -> subprocess.Popen[bytes]:
        """Run a Java main class under a supervisor, in a session of its own: Ctrl-C is for us, the JVM ends when we say."""
        options = [
            *_PLAIN_JVM,
            # Otherwise each thread keeps a native buffer as large as the largest message it ever sent.
            "-Djdk.nio.maxCachedBufferSize=262144",
            f"-Djava.io.tmpdir={self._folder.scratch}",
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.xml').as_uri()}",
        ]
        command = [str(distribution.java()), *options, "-cp", class_path, *main]
        watch = [sys.executable, "-I", "-S", supervisor.__file__, str(lock), str(STOP_GRACE_S), *command]
        with self._folder.console.open("wb") as console:
            return subprocess.Popen(
                watch,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self._folder.path,
                # Nothing of the user's: neither secrets nor a JAVA_TOOL_OPTIONS that changes the JVM. One arena for
                # each core costs tens of megabytes.
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
                pass_fds=(lock,),
                start_new_session=True,
            )

    def _await_serving(self, port: int) -> None:
        deadline = time.monotonic() + START_S
        while not _serves(port):
            if not self.alive():
                raise BrokerError(f"Kafka ended with code {self.wait()} while it started:\n{self._folder.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka did not serve within {START_S:.0f} s:\n{self._folder.log_tail()}")
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], order: bytes, patience: float) -> None:
    """Give the supervisor its order and wait for it; a supervisor that hangs is killed, and the kernel ends the JVM."""
    assert process.stdin is not None
    try:
        process.stdin.write(order)
    except (BrokenPipeError, ValueError):  # it has ended, or was ended here before
        pass
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_S)
    process.stdin.close()


def _serves(port: int) -> bool:
    """Whether a broker answers on `port` and lists itself: before that its leaders serve nobody.

    A Metadata request, version 1, for no topics (Kafka protocol guide): the answer starts with its size, the
    correlation id and the number of brokers, 4 bytes each.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0))
            answer = b""
            while len(answer) < 12:
                more = connection.recv(64)
                if not more:
                    return False
                answer += more
    except OSError:
        return False
    brokers: int = struct.unpack(">iii", answer[:12])[2]
    return brokers > 0
