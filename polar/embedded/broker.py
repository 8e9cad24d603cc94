"""Starts, stops, kills and restarts one node of an embedded Kafka on one data folder.

Invariant: the JVM ends with this process. A supervisor (`supervisor.py`) ends it when a pipe closes that this process alone holds open.
Ports and data belong to the folder (`folder.py`) and survive restarts. The caller decides whether a broker that died, which `wait`
reports, is started again.
"""

import base64
import dataclasses
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from polar.embedded import class_archive, distribution, metadata_probe, supervisor
from polar.embedded.errors import AddressTakenError, BrokerError
from polar.embedded.folder import Folder
from polar.embedded.properties import HEAP, Node, Security

START_S = 120.0
"""A start takes two seconds on an idle machine and many times that on a busy one; nodes of a cluster also wait for each other."""
STOP_GRACE_S = 15.0
"""A clean stop takes about two seconds; after this the JVM is killed."""
END_S = 5.0
"""How long the kernel may take to end a killed process."""
PORT_TRIES = 3
"""Between the choice of a port and the broker's start, which takes seconds, another program may take it."""
ADDRESS_IN_USE = "Address already in use"
"""Java's message for a port that another program uses."""
SHUTDOWN_LINES = 400
"""More lines than Kafka logs from that message to its end."""

_PLAIN_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # Otherwise all 50 MB of the class archive are read at each start, to move them to a random address.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
    "-XX:+ExitOnOutOfMemoryError",
    # Grows as needed: the heap is a sixty-fourth of the machine's memory otherwise, and a collector that waits for it to fill touches all.
    "-Xms32m",
    f"-Xmx{HEAP}",
)


def new_cluster_id() -> str:
    """A random UUID in base64url, 22 characters. It never begins with a dash, which Kafka's formatting tool would read as an option."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


class Broker:
    """Apache Kafka on `data`/kafka. Its methods block: from asyncio call them in a thread."""

    def __init__(
        self,
        data: Path,
        *,
        announce: Callable[[str], None],
        meter: distribution.Meter | None = None,
        node: Node | None = None,
        security: Security | None = None,
        record_classes: Path | None = None,
    ) -> None:
        """`announce` receives a line before each step that takes seconds; `meter` shows the progress of the first download.

        `node`: the broker's place in a cluster; None: a single node on free ports, which admits every client or has `security`.
        `record_classes`: the file to which the JVM, as it stops, writes the classes that it loaded; None: the JVM uses the class archive.
        """
        self._folder = Folder(data)
        self._announce = announce
        self._meter = meter
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._node = node
        self._security = security
        self._record_classes = record_classes
        self._class_options: list[str] | None = None
        """JVM options about the class archive; None before the first start: restarts don't try again to make an archive."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients, the same at every start on this data folder. Raises BrokerError before the first start."""
        if self._node is None:
            raise BrokerError("the broker has no address before its first start: call start()")
        return self._node.address

    @property
    def pid(self) -> int:
        """The JVM's process id. Raises BrokerError if the JVM isn't running."""
        pid = self._folder.pid() if self.alive() else None
        if pid is None:
            raise BrokerError("the broker is not running: call start()")
        return pid

    def start(self) -> None:
        """Install Kafka if it is missing, start it, and return when it serves. Raises BrokerError, cache.CacheError.

        Works after any end of an earlier broker on this folder, kill -9 included. A node of a cluster waits until most nodes run.
        """
        if self.alive():
            raise BrokerError(f"this broker already runs (process {self.pid}): stop() it first")
        is_first = self._node is None and not self._folder.has_ports()
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                self._start()
                return
            except AddressTakenError:
                if self._node is None or not (is_first and tries_left):
                    raise
                self._node = dataclasses.replace(self._node, cluster=(self._folder.choose_other_ports(),))

    def _start(self) -> None:
        self.kill()  # clean up after a broker that died
        class_path = distribution.class_path(self._announce, self._meter)
        if self._class_options is None and self._record_classes is None:
            make = partial(_make_class_archive, class_path)
            self._class_options = class_archive.options(class_path, make, self._announce)
        lock = self._folder.claim()
        try:
            if self._node is None:
                self._node = Node(1, (self._folder.ports(),), new_cluster_id(), self._security)
            node = self._node
            self._folder.await_free(node.ports)
            self._folder.clear_leftovers()
            if not self._folder.data.exists():
                self._format(class_path, node, lock)
            self._folder.configure(node, self._folder.data)
            if self._record_classes is not None:
                self._class_options = ["-XX:AOTMode=record", f"-XX:AOTConfiguration={self._record_classes}"]
            self._supervisor = self._spawn(class_path, ["kafka.Kafka", str(self._folder.properties)], lock)
        finally:
            os.close(lock)
        try:
            self._await_serving(node)
        except BaseException:
            self.kill()
            raise
        if class_archive.is_refused(self._folder.console.read_text(encoding="utf-8", errors="replace")):
            self._announce(
                "Kafka starts without its class archive, which Java refuses; delete "
                f"{class_archive.folder(class_path)} and the next start makes it again"
            )

    def alive(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the broker ends, and return its exit code (128 + signal), or None after `timeout` seconds."""
        if self._supervisor is None:
            raise BrokerError("there is no broker to wait for: call start()")
        try:
            return self._supervisor.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Stop cleanly, or by force after `STOP_GRACE_S`. Does nothing if the broker isn't running."""
        self._end(b"T", STOP_GRACE_S + END_S)

    def kill(self) -> None:
        """End the broker at once, as kill -9 does."""
        self._end(b"K", END_S)

    def _end(self, order: bytes, timeout_s: float) -> None:
        if self._supervisor is not None:
            _end(self._supervisor, order, timeout_s)

    def _format(self, class_path: str, node: Node, lock: int) -> None:
        """Create the empty log folder, completely or not at all."""
        self._announce(f"preparing a new Kafka log in {self._folder.path}")
        new = self._folder.unformatted
        self._folder.configure(node, new)
        options = [*node.format_options(), "-c", str(self._folder.properties)]
        tool = ["kafka.tools.StorageTool", "format", *options]
        self._run(class_path, tool, lock, f"format {new}")
        new.rename(self._folder.data)

    def _run(self, class_path: str, main: list[str], lock: int, purpose: str) -> None:
        """Run a Java main class to its end. Raises BrokerError where it fails."""
        process = self._spawn(class_path, main, lock)
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process, b"K", END_S)
        if code != 0:
            raise BrokerError(f"Kafka could not {purpose} (exit code {code}):\n{self._folder.log_tail()}")

    def _assemble_class_archive(self, class_path: str, archive: Path) -> None:
        """Make the archive of the recorded classes, once the recording broker has stopped."""
        self._class_options = [
            "-XX:AOTMode=create",
            f"-XX:AOTConfiguration={self._record_classes}",
            f"-XX:AOTCache={archive}",
        ]
        lock = self._folder.claim()
        try:
            self._run(class_path, [], lock, f"make {archive}")
        finally:
            os.close(lock)

    def _spawn(self, class_path: str, main: list[str], lock: int) -> subprocess.Popen[bytes]:
        """Run a Java main class under a supervisor, in a session of its own so that Ctrl-C doesn't reach the JVM."""
        options = [
            *_PLAIN_JVM,
            *(self._class_options or ()),
            # Without it each thread keeps a native buffer as large as the largest message that it ever sent.
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
                # Not the user's environment: no secrets, no JAVA_TOOL_OPTIONS that changes the JVM. An arena for each
                # core would cost tens of megabytes.
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
                pass_fds=(lock,),
                start_new_session=True,
            )

    def _await_serving(self, node: Node) -> None:
        """Return when the broker lists itself in its metadata: before that its partition leaders serve nobody."""
        deadline = time.monotonic() + START_S
        while (
            seen := metadata_probe.metadata(node.ports.broker, node.security)
        ) is None or node.id not in seen.brokers:
            if not self.alive():
                reason = f"Kafka ended with code {self.wait()} while it started:\n{self._folder.log_tail()}"
                # The controller's and the broker's shutdown follow the message, with more lines than an error shows.
                is_taken = ADDRESS_IN_USE in self._folder.log_tail(SHUTDOWN_LINES)
                raise AddressTakenError(reason) if is_taken else BrokerError(reason)
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka did not serve within {START_S:.0f} s:\n{self._folder.log_tail()}")
            time.sleep(0.05)


def _make_class_archive(class_path: str, archive: Path) -> None:
    """Start and stop a broker of its own beside `archive`, and make the archive of the classes that it loaded."""
    folder = archive.with_name("recording")
    broker = Broker(folder, announce=lambda _line: None, record_classes=folder / "classes.recorded")
    with broker:
        pass
    broker._assemble_class_archive(class_path, archive)
    shutil.rmtree(folder)


def _end(process: subprocess.Popen[bytes], order: bytes, timeout_s: float) -> None:
    """Send the supervisor its order and wait for its end. A supervisor that hangs is killed, and then the kernel kills the JVM."""
    assert process.stdin is not None
    try:
        process.stdin.write(order)
    except (BrokenPipeError, ValueError):  # it has ended already
        pass
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_S)
    process.stdin.close()
