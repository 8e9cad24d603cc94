"""A container engine for these tests: the one that answers, else one of their own. Root starts Docker's daemon, another user Podman's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from topics.environment import cache

START_S = 120.0
STOP_S = 60.0
PODMAN = Path(__file__).parent / "podman"
"""Podman's settings for these tests."""


@contextmanager
def running() -> Iterator[docker.DockerClient]:
    """A client of a daemon that runs meanwhile. Where none answers one is started, its images kept for the user's next run."""
    try:
        client = docker.from_env()
    except DockerException as missing:
        own = _docker if os.geteuid() == 0 else _podman
        with own(missing) as host, pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", host)
            client = docker.from_env()
            yield client
            client.close()
    else:
        yield client
        client.close()


@contextmanager
def _docker(missing: Exception) -> Iterator[str]:
    """The address of Docker's daemon, with a folder, a socket and containers of its own."""
    if shutil.which("dockerd") is None:
        pytest.fail(
            f"no Docker daemon answers ({missing}) and none can be started: install docker.io, or set DOCKER_HOST"
        )
    kept = ["--storage-driver", "overlay2", "--data-root", str(cache.root() / "docker")]
    with tempfile.TemporaryDirectory(prefix="polar-dockerd-") as folder:
        host = f"unix://{folder}/docker.sock"
        own = ["--host", host, "--pidfile", f"{folder}/pid", "--exec-root", f"{folder}/run"]
        try:
            with _started(["dockerd", *own, *kept], host, Path(folder, "log")):
                _remove_left(host)
                yield host
        finally:
            # Left there by a container that used the host's network.
            for namespace in Path(folder, "run/netns").glob("*"):
                subprocess.run(["umount", str(namespace)], check=False)


def _remove_left(host: str) -> None:
    """Remove all but images: the daemon starts the containers of a run that was killed again, a whole stack of services."""
    client = docker.DockerClient(host, timeout=START_S)
    for container in client.containers.list(all=True):
        container.remove(force=True, v=True)
    for volume in client.volumes.list():
        volume.remove(force=True)
    client.networks.prune()
    client.close()


@contextmanager
def _podman(missing: Exception) -> Iterator[str]:
    """The address of Podman's service, rootless, on the user's own storage."""
    environment = os.environ | {
        "CONTAINERS_CONF": str(PODMAN / "containers.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(PODMAN / "registries.conf"),
        # Debian 12's Podman would otherwise copy the whole image for each container.
        "STORAGE_DRIVER": "overlay",
    }
    if shutil.which("podman") is None:
        pytest.fail(
            f"no container engine answers ({missing}) and none can be started: install podman, or be root, or set DOCKER_HOST"
        )
    with tempfile.TemporaryDirectory(prefix="polar-podman-") as folder:
        host = f"unix://{folder}/podman.sock"
        with _started(["podman", "system", "service", "--time", "0", host], host, Path(folder, "log"), environment):
            yield host


@contextmanager
def _started(command: list[str], host: str, log: Path, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """A daemon, from its first answer at `host` on."""
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        _wait_for(host, daemon, log)
        yield
    finally:
        daemon.terminate()
        daemon.wait(STOP_S)


def _wait_for(host: str, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            docker.DockerClient(host).close()
        except DockerException as error:
            if daemon.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{daemon.args!r} doesn't answer ({error}):\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        else:
            return
