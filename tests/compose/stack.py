"""The stack of compose/, brought up through testcontainers, and what a test does to it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from testcontainers.compose import DockerCompose

from tests.waiting import until

COMPOSE = Path(__file__).parents[2] / "compose"
FILES = "docker-compose.yml:docker-compose.offline.yml"
CLI_S = 900.0
"""What a command builds on a bare machine included."""


class Stack:
    """One project of compose/docker-compose.yml, its brokers built here."""

    def __init__(self, client: docker.DockerClient, project: str) -> None:
        self.project = project
        self._client = client
        self.compose = DockerCompose(COMPOSE, build=True, wait=False)

    def containers(self, service: str | None = None) -> list[Container]:
        """Those that run, of one service or of all."""
        return list(self._client.containers.list(filters={"label": self._labels(service)}))

    def polar(self, *arguments: str, stdin: str = "") -> str:
        """What a `polar` command prints, run as the README does; its container is gone afterwards."""
        return self._run(["run", "--rm", "-T", "cli", "polar", *arguments], stdin=stdin)

    def shell(self, command: str) -> str:
        """What a line of the README prints, run in compose/ by a shell."""
        return _checked(["bash", "-c", command], stdin="")

    def scale(self, **replicas: int) -> None:
        """Also starts what isn't running yet of the services named; `up` leaves the others as they are."""
        scales = [flag for service, count in replicas.items() for flag in ("--scale", f"{service}={count}")]
        self._run(["--profile", "prometheus", "up", "--detach", "--no-recreate", *scales, *replicas])

    def inside(self, service: str, *command: str) -> str:
        """What a command prints in one of the service's containers."""
        code, output = self.containers(service)[0].exec_run(list(command))
        assert code == 0, output.decode()
        return str(output.decode())

    def asked(self, query: str) -> list[dict[str, Any]]:
        """Prometheus' answer to an instant query, asked for inside the network."""
        answer = self._of_prometheus("query", "--data-urlencode", f"query={query}")
        return list(answer["result"])

    def answered(self, query: str, within_s: float) -> list[dict[str, Any]]:
        """The first answer that isn't empty."""
        return until(lambda: self.asked(query), within_s, every_s=0.5)

    def targets(self) -> Counter[tuple[str, str]]:
        """Prometheus' targets, counted by role and health."""
        found = self._of_prometheus("targets")["activeTargets"]
        return Counter((target["labels"]["role"], target["health"]) for target in found)

    def left(self) -> list[str]:
        """Everything of this project that still exists."""
        labels = {"label": self._labels(None)}
        kinds = (
            self._client.containers.list(all=True, filters=labels),
            self._client.volumes.list(filters=labels),
            self._client.networks.list(filters=labels),
        )
        return [thing.name for kind in kinds for thing in kind]

    def _of_prometheus(self, what: str, *arguments: str) -> dict[str, Any]:
        curl = ("curl", "-sf", "--retry", "30", "--retry-delay", "1", "--retry-all-errors", "--get")
        answer = json.loads(self.inside("proxy", *curl, f"http://prometheus:9090/api/v1/{what}", *arguments))
        assert answer["status"] == "success", answer
        return dict(answer["data"])

    def _labels(self, service: str | None) -> list[str]:
        labels = [f"com.docker.compose.project={self.project}"]
        return labels if service is None else [*labels, f"com.docker.compose.service={service}"]

    def _run(self, arguments: Sequence[str], stdin: str = "") -> str:
        return _checked([*self.compose.docker_compose_command(), *arguments], stdin=stdin)


@contextmanager
def environment(base: str, project: str, folder: Path) -> Iterator[None]:
    """The variables of these tests, and a `docker compose` on PATH whichever of the two is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_FILE", FILES)
        patch.setenv("COMPOSE_PROJECT_NAME", project)
        patch.setenv("POLAR_BASE", base)
        # Without buildx, which Debian doesn't have, the daemon itself builds.
        patch.setenv("DOCKER_BUILDKIT", "0")
        patch.setenv("COMPOSE_DOCKER_CLI_BUILD", "0")
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
            patch.setenv("PATH", f"{_stand_in(folder)}:{os.environ['PATH']}")
        yield


def _stand_in(folder: Path) -> Path:
    """A folder with a `docker` whose `compose` is the program docker-compose, as Debian packs it."""
    real, compose = shutil.which("docker"), shutil.which("docker-compose")
    if real is None or compose is None:
        pytest.fail("neither `docker compose` nor `docker-compose` is installed; Debian's package is docker-compose")
    script = folder / "docker"
    # The whole path: Debian's program runs on Debian's Python, whatever else is on PATH.
    script.write_text(
        f'#!/bin/sh\n[ "$1" = compose ] || exec {shlex.quote(real)} "$@"\nshift\nexec {shlex.quote(compose)} "$@"\n'
    )
    script.chmod(0o755)
    return folder


def _checked(command: Sequence[str], stdin: str) -> str:
    ended = subprocess.run(
        command, cwd=COMPOSE, input=stdin, capture_output=True, text=True, timeout=CLI_S, check=False
    )
    assert ended.returncode == 0, f"{shlex.join(command)} gave {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
