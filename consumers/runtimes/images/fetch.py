"""Copies an image from its source to a folder of this host, with skopeo.

skopeo reads the user's own file of credentials (`skopeo login`), so no secret is ever in an argument or a setting of ours. It verifies the
digest of everything that it copies. Layers that an image keeps at other URLs ("foreign" ones) are not copied: a task could name any URL.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from consumers.runtimes.base import HOST_DISK_FULL, IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import children
from consumers.runtimes.images.layers import room_in
from consumers.runtimes.images.source import FIELD, Source
from topics.types.errors import InputError, NotReadyError

LAYOUT = "layout"
"""Folder with the copy, an OCI image layout."""
TAG = "image"
"""The tag of the copy in the layout."""
_TEMPORARY = "tmp"
"""Both are relative to the folder where skopeo runs: a whole path may hold a colon, which would begin a tag."""
FETCHED_BYTES = 32 << 30
"""Limit on one image as it is copied, compressed. An archive counts twice, because skopeo unpacks it first."""
PROGRESS_S = 10.0
_TEXT = 500
"""Characters of skopeo's last line in an error."""
_POLICIES = (Path("~/.config/containers/policy.json"), Path("/etc/containers/policy.json"))
"""Where skopeo looks for the host's rules on signatures; without such a file it refuses every image."""

_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_PASSING = re.compile(
    r"toomanyrequests|too many requests|\b(?:429|5\d\d) \(|status(?: code)?:? (?:from .{0,200}: )?(?:429|5\d\d)\b"
    r"|timeout|timed out|deadline exceeded|connection re|unexpected EOF|no such host|tls: |x509: ",
    re.IGNORECASE,
)
_LASTING = re.compile(
    r"manifest unknown|name unknown|name invalid|repository name not known|404 \(not found\)|\b404\b"
    r"|unauthorized|authentication required|access to the resource is denied|denied:|\b40[13]\b|invalid username"
    r"|no image found in (?:manifest list|image index)|unsupported (?:manifest|mime|media|schema)|unknown media type"
    r"|mime type .{0,200} not|unrecognized manifest",
    re.IGNORECASE,
)
_LASTING_PATH = re.compile(
    r"no such file or directory|no descriptor found|no image with|not found|is not a directory|not a directory"
    r"|permission denied|invalid tar|no such|more than one image|must contain exactly|invalid|unexpected EOF",
    re.IGNORECASE,
)
_LOGRUS = re.compile(r'\bmsg="((?:[^"\\]|\\.)*)"')
_QUERY = re.compile(r"\?[^\s\"\\]+")
"""The query of a URL. Registries sign the queries of their stores' URLs."""

log = structlog.get_logger(__name__)


async def fetch(name: str, source: Source, folder: Path) -> None:
    """Copy the image to the new folder LAYOUT in `folder`, for Linux and this machine's architecture.

    Raises NotReadyError without skopeo; InputError if the image doesn't exist, may not be read, or is for other machines; SandboxError
    `image_unavailable` for all that may pass, and HOST_DISK_FULL.
    """
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise NotReadyError(
            "skopeo, which gets images, isn't installed: install the package `skopeo` of this host's distribution "
            "(apt-get install skopeo, dnf install skopeo)"
        )
    (folder / _TEMPORARY).mkdir(mode=0o700)
    begun = time.monotonic()
    log.info("an image is being fetched", action="image.fetch_begun", image=name, source=source.location)
    ended = await children.run(
        (skopeo, *_arguments(source)),
        env={key: value for key, value in os.environ.items() if not key.startswith("POLAR_")} | {"TMPDIR": _TEMPORARY},
        folder=folder,
        watch=_watch(name, folder),
    )
    if ended.code != 0:
        error = error_of(name, source, ended)
        log.warning("an image was not fetched", action="image.fetch_failed", image=name, error=str(error))
        raise error
    shutil.rmtree(folder / _TEMPORARY)
    seconds = round(time.monotonic() - begun, 1)
    log.info("an image was fetched", action="image.fetched", image=name, bytes=size_of(folder), seconds=seconds)


def _arguments(source: Source) -> list[str]:
    has_policy = any(path.expanduser().exists() for path in _POLICIES)
    return [
        *("--override-os", "linux", "--tmpdir", _TEMPORARY),
        *(() if has_policy else ("--insecure-policy",)),
        *("copy", "--quiet", "--remove-signatures", "--dest-oci-accept-uncompressed-layers"),
        *(() if source.has_tls else ("--src-tls-verify=false",)),
        *("--", source.location, f"oci:{LAYOUT}:{TAG}"),
    ]


def _watch(name: str, folder: Path) -> Callable[[], None]:
    """A function to call while skopeo runs. It raises InputError and SandboxError."""
    check_room = room_in(folder)
    reported = time.monotonic()

    def look() -> None:
        nonlocal reported
        check_room()
        size = size_of(folder)
        if size > FETCHED_BYTES:
            raise InputError(FIELD, name, f"has more than {FETCHED_BYTES >> 30} GiB of compressed layers")
        if time.monotonic() - reported >= PROGRESS_S:
            reported = time.monotonic()
            log.info("an image is being fetched", action="image.fetching", image=name, bytes=size)

    return look


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder that another process changes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for file in names:
            try:
                total += os.lstat(Path(parent, file)).st_size
            except FileNotFoundError:
                continue
    return total


def error_of(name: str, source: Source, ended: children.Ended) -> InputError | SandboxError:
    """The error that a failed skopeo stands for. An unknown failure counts as temporary."""
    text = _last_line(ended.output)
    if _FULL.search(text):
        return SandboxError(HOST_DISK_FULL, f"the disk is full: {text} (fetching the image {name})")
    is_lasting = (
        _LASTING_PATH.search(text) or _LASTING.search(text)
        if source.is_path
        else _LASTING.search(text) and not _PASSING.search(text)
    )
    if ended.code > 0 and is_lasting:
        return InputError(FIELD, name, f"can't be had from {source.location}: {text}")
    how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
    return SandboxError(
        IMAGE_UNAVAILABLE,
        f"the image {name} was not fetched from {source.location} ({how}): {text}. [images] in the workers' polar.toml can name another "
        "place (docs/images.md)",
    )


def _last_line(output: str) -> str:
    """The last line of skopeo's output, for people: without quotes, and without the queries of URLs."""
    lines = [line for line in output.splitlines() if line.strip()] or ["skopeo wrote nothing"]
    found = _LOGRUS.search(lines[-1])
    text = found[1].replace('\\"', '"').replace("\\\\", "\\") if found else lines[-1].strip()
    return _QUERY.sub("?…", text)[:_TEXT]
