"""The image that all others are built on, from Debian's packages: nothing is pulled."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import docker
from docker.errors import NotFound

from topics.environment import cache

IMAGE = "polar-base:bookworm-2"
SUITE = "bookworm"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
"""Authorities that this machine trusts beyond Debian's: a registry's mirror may be signed by one."""
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ENVIRONMENT = f"ENV PIP_CERT={BUNDLE} REQUESTS_CA_BUNDLE={BUNDLE} NODE_EXTRA_CA_CERTS={BUNDLE}"


def ensure_image(client: docker.DockerClient) -> str:
    """The base image's name; it is made at first use, of a root file system that the user's cache keeps."""
    try:
        client.images.get(IMAGE)
    except NotFound:
        import_image(client, root_file_system() / "rootfs.tar", IMAGE, [ENVIRONMENT, 'CMD ["bash"]'])
    return IMAGE


def import_image(client: docker.DockerClient, archive: Path, name: str, changes: list[str]) -> None:
    """Make the image `name`, with its tag, of a root file system's tar."""
    repository, _, tag = name.partition(":")
    client.api.import_image_from_file(str(archive), repository=repository, tag=tag, changes=changes)
    if not client.images.list(name):  # Podman 4.3 reads no tag
        client.images.get(repository).tag(repository, tag)
        client.images.remove(f"{repository}:latest")


def root_file_system() -> Path:
    """The folder of the base image's `rootfs.tar`, which root makes at its first use."""
    return cache.installed(
        f"debian-{SUITE}", _bootstrap, whole=lambda entry: (entry / "rootfs.tar").is_file(), announce=print
    )


def _bootstrap(entry: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="polar-debian-", dir=entry) as root:
        # In a mount namespace of its own: debootstrap mounts /proc in the folder, and left it there when it was killed.
        subprocess.run(["unshare", "--mount", "debootstrap", "--variant=minbase", SUITE, root], check=True)
        trusted = Path(root, *CERTIFICATES.parts[1:])
        trusted.mkdir(parents=True, exist_ok=True)
        for certificate in CERTIFICATES.glob("*.crt"):
            (trusted / certificate.name).write_bytes(certificate.read_bytes())
        archive = ["tar", "--create", "--one-file-system", "--exclude=./var/cache/apt/archives/*.deb"]
        subprocess.run([*archive, "--file", str(entry / "rootfs.tar.new"), "--directory", root, "."], check=True)
    (entry / "rootfs.tar.new").rename(entry / "rootfs.tar")
