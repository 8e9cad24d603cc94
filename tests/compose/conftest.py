"""One daemon and one base image for all tests that need Docker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.compose import base, daemon
from tests.compose.stack import Stack, environment


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    with daemon.running() as client:
        yield client


@pytest.fixture(scope="module")
def stack(docker_client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, not yet up; whatever a test left of it is removed."""
    image = base.ensure_image(docker_client)
    project = f"polar-test-{secrets.token_hex(4)}"
    folder: Path = tmp_path_factory.mktemp("bin")
    with environment(image, project, folder):
        made = Stack(docker_client, project)
        try:
            yield made
        finally:
            made.compose.stop()
