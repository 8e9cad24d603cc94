"""Kafka's class archive: its classes as the JVM holds them after loading, which later JVMs map into memory instead of loading each class.

The archive is Java's AOT cache (JEP 483 and 514), made once per machine in the user's cache, beside the jars. Java refuses an
archive of other jars, another Java or damaged bytes, and then loads the classes itself: an archive saves time and changes nothing else.
How the archive is recorded is `broker.py`'s matter.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from polar.embedded import distribution
from polar.embedded.errors import BrokerError
from topics.environment import cache

_FILE = "classes.aot"


def options(class_path: str, make: Callable[[Path], None], announce: Callable[[str], None]) -> list[str]:
    """JVM options that use the archive of `class_path`, which `make(file)` makes if it is missing.

    If it can't be made, there are no options, and the reason is announced.
    """

    def build(partial: Path) -> None:
        announce(f"making Kafka's class archive in {cache.root()}: once, about ten seconds, for faster starts")
        make(partial / _FILE)

    entry = folder(class_path)
    try:
        cache.installed(entry.name, build, whole=lambda built: (built / _FILE).is_file(), announce=announce)
    except (BrokerError, cache.CacheError, OSError, subprocess.SubprocessError) as error:
        announce(f"Kafka starts without its class archive, which could not be made: {error}")
        return []
    # VerifySharedSpaces checks the file's checksums (20 ms): damaged bytes would crash the JVM.
    return [f"-XX:AOTCache={entry / _FILE}", "-XX:+VerifySharedSpaces", "-Xlog:aot*=error"]


def is_refused(console: str) -> bool:
    """Whether Java, by what it wrote to the console, loaded the classes itself."""
    return "][aot]" in console  # the tag of the errors that `options` lets through


def folder(class_path: str) -> Path:
    """Where the archive lies: the name holds the jars, with the times of change that Java compares, and the Java."""
    release = distribution.java().parent.parent / "release"
    key = hashlib.sha256(f"{platform.system()} {platform.machine()} {release.read_text(encoding='utf-8')}".encode())
    for jar in class_path.split(os.pathsep):
        key.update(f"{jar} {Path(jar).stat().st_mtime_ns}\n".encode())
    return cache.root() / f"kafka-{distribution.KAFKA_VERSION}-classes-{key.hexdigest()[:12]}"
