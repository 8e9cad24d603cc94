"""A Docker daemon for these tests: the one that answers, else one of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from topics.environment import cache

START_S = 120.0
STOP_S = 60.0


@contextmanager
def running() -> Iterator[docker.DockerClient]:
    """A client of a daemon that runs meanwhile. Where none answers one is started, its images kept in the user's cache."""
    try:
        client = docker.from_env()
    except DockerException as missing:
        with _own(missing) as host, pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", host)
            client = docker.from_env()
            yield client
            client.close()
    else:
        yield client
        client.close()


@contextmanager
def _own(missing: Exception) -> Iterator[str]:
    """The address of a daemon that we start, as root, with a folder, a socket and containers of its own."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.fail(
            f"no Docker daemon answers ({missing}) and none can be started: install docker.io and be root, or set DOCKER_HOST"
        )
    with tempfile.TemporaryDirectory(prefix="polar-dockerd-") as folder:
        host = f"unix://{folder}/docker.sock"
        log = Path(folder, "log")
        kept = ["--storage-driver", "overlay2", "--data-root", str(cache.root() / "docker")]
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                ["dockerd", "--host", host, "--pidfile", f"{folder}/pid", "--exec-root", f"{folder}/run", *kept],
                stdout=output,
                stderr=output,
            )
        try:
            _wait_for(host, daemon, log)
            yield host
        finally:
            daemon.terminate()
            daemon.wait(STOP_S)
            # Left there by a container that used the host's network.
            for namespace in Path(folder, "run/netns").glob("*"):
                subprocess.run(["umount", str(namespace)], check=False)


def _wait_for(host: str, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            docker.DockerClient(host).close()
        except DockerException as error:
            if daemon.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"dockerd does not answer ({error}):\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        else:
            return
