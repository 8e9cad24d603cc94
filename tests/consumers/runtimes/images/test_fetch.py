"""Errors of skopeo: which of them another attempt can mend."""

from __future__ import annotations

import pytest

from consumers.runtimes.base import HOST_DISK_FULL, IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import fetch
from consumers.runtimes.images.children import Ended
from consumers.runtimes.images.source import Source
from topics.types.errors import InputError

REGISTRY = Source("docker://docker.io/library/python:3.12")
ARCHIVE = Source("oci-archive:/images/a.tar", is_path=True)


def error(text: str, source: Source = REGISTRY, code: int = 1) -> InputError | SandboxError:
    output = (
        f'time="2026-01-01T00:00:00Z" level=warning msg="first"\ntime="2026-01-01T00:00:00Z" level=fatal msg="{text}"\n'
    )
    return fetch.error_of("python:3.12", source, Ended(code, output))


@pytest.mark.parametrize(
    "text",
    [
        "initializing source docker://python:9: reading manifest 9 in docker.io/library/python: manifest unknown",
        "reading manifest latest in ghcr.io/a/b: name unknown: repository name not known to registry",
        "initializing source docker://ghcr.io/a/b: Requesting bear token: invalid status code from registry 403 (Forbidden)",
        "reading manifest x in docker.io/a/b: errors:\\ndenied: requested access to the resource is denied\\nunauthorized: x",
        "unable to retrieve auth token: invalid username/password: unauthorized: authentication required",
        r"choosing image: no image found in manifest list for architecture amd64, variant \"\", OS linux",
        "unsupported manifest media type application/x",
        "Error reading manifest: StatusCode: 404, not found",
    ],
)
def test_what_stays_is_the_tasks_fault(text: str) -> None:
    found = error(text)
    assert isinstance(found, InputError)
    assert found.field == "runtime.image"
    assert text[:20] in found.reason


@pytest.mark.parametrize(
    "text",
    [
        "reading manifest latest in docker.io/library/python: toomanyrequests: You have reached your pull rate limit",
        "initializing source docker://x: pinging container registry x: invalid status code from registry 503 (Service)",
        "copying system image: reading blob sha256:0: fetching blob: invalid status code from registry 500 (Internal)",
        r"pinging container registry x: Get \"https://x/v2/\": dial tcp 10.0.0.1:443: connect: connection refused",
        r"Get \"https://x/v2/\": dial tcp: lookup x: no such host",
        r"Get \"https://x/v2/\": net/http: TLS handshake timeout",
        r"Get \"https://x/v2/\": x509: certificate signed by unknown authority",
        "writing blob: happened during read: unexpected EOF",
        "writing blob: Digest did not match, expected sha256:0, got sha256:1",
        "open /etc/containers/policy.json: no such file or directory",
        "error denied: 429 (Too Many Requests)",
        "something that nobody has seen",
        "",
    ],
)
def test_what_may_pass_is_tried_again(text: str) -> None:
    found = error(text)
    assert isinstance(found, SandboxError)
    assert found.code == IMAGE_UNAVAILABLE


def test_a_missing_path_stays() -> None:
    assert isinstance(error("open /images/a.tar: no such file or directory", ARCHIVE), InputError)
    assert isinstance(error("something else", ARCHIVE), SandboxError)


@pytest.mark.parametrize("source", [REGISTRY, ARCHIVE])
def test_a_full_disk_is_the_hosts_fault(source: Source) -> None:
    found = error("writing blob: write /x/oci-put-blob: no space left on device", source)
    assert isinstance(found, SandboxError)
    assert found.code == HOST_DISK_FULL


def test_a_killed_skopeo_says_nothing_about_the_image() -> None:
    assert isinstance(error("manifest unknown", code=-9), SandboxError)


def test_a_message_is_short_and_has_no_signed_url() -> None:
    text = str(error(r"Get \"https://store/blob?X-Amz-Signature=secret&x=1\": " + "x" * 10_000))
    assert 'Get "https://store/blob?…": xxx' in text
    assert len(text) < 1000
