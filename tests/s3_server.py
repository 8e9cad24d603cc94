"""A real S3 server on loopback: S3Proxy on a folder, its jars pinned by `s3proxy.lock` and run by the Java of the embedded Kafka.

The jars are a part of S3Proxy's dependencies: what its file system backend loads, without the clients of other clouds.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polar.embedded import distribution
from polar.embedded.distribution import Jar
from tests.serving import free_port
from topics.environment import cache

KEY_ID = "polar-tests"
SECRET = "the-secret-of-the-tests"
BUCKET = "rollouts"
START_S = 200.0
"""Two seconds on an idle machine."""
STOP_S = 10.0
_LOCK = Path(__file__).with_name("s3proxy.lock")


class S3Server:
    """The server on one port and one folder, whatever happens to its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data" / BUCKET).mkdir(parents=True)
        (folder / "s3proxy.conf").write_text(
            f"s3proxy.endpoint={self.url}\n"
            "s3proxy.authorization=aws-v4\n"
            f"s3proxy.identity={KEY_ID}\n"
            f"s3proxy.credential={SECRET}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={folder / 'data'}\n"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def variables(self) -> dict[str, str]:
        """What names this server and its credentials."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self) -> None:
        """Returns when the server answers."""
        command = [
            str(distribution.java()), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", _class_path(),
            "org.gaul.s3proxy.Main", "--properties", str(self._folder / "s3proxy.conf"),
        ]  # fmt: skip
        with (self._folder / "s3proxy.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._answers():
            log_text = (self._folder / "s3proxy.log").read_text()
            assert self._process.poll() is None, log_text
            assert time.monotonic() < end, log_text
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        assert self._process is not None, "started"
        self._process.kill()
        self._process.wait(STOP_S)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.url, timeout=1).close()
        except urllib.error.HTTPError:  # it refuses who doesn't sign
            return True
        except OSError:
            return False
        return True


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server that runs, with the empty bucket BUCKET."""
    folder.mkdir(parents=True, exist_ok=True)
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _class_path() -> str:
    jars = [_jar(line) for line in _LOCK.read_text().splitlines()]
    (version,) = (jar.version for jar in jars if jar.artifact == "s3proxy")
    folder = cache.installed(
        f"s3proxy-{version}",
        lambda partial: distribution.download(jars, partial, _ignored),
        whole=lambda entry: all(jar.matches(entry / jar.name) for jar in jars),
        announce=_ignored,
    )
    return os.pathsep.join(str(folder / jar.name) for jar in jars)


def _ignored(_line: str) -> None:
    """The lines of a download say that it is Kafka's."""


def _jar(line: str) -> Jar:
    sha256, size, coordinates = line.split()
    return Jar(sha256, int(size), *coordinates.split(":"))
