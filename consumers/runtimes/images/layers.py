"""Unpacks one layer of an image, in a process that is confined (`unpack.py`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from consumers.runtimes.base import HOST_DISK_FULL, IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import children
from consumers.runtimes.images.source import FIELD
from consumers.runtimes.images.unpack import Orders, Result
from topics.types.errors import InputError

BYTES = 64 << 30
"""Of all layers that one pull unpacks: more than the largest images of coding benchmarks (some 20 GB)."""
ENTRIES = 4_000_000
CPU_S = 1800
"""For one layer. A second of it unpacks some 300 MB of gzip, or 8,000 small files."""
FREE_BYTES = 256 << 20
"""Room on the disk below which a pull stops, because others need the rest."""

_PACKAGES = str(Path(__file__).parents[3])
_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from consumers.runtimes.images.unpack import main; main()"

log = structlog.get_logger(__name__)


@dataclass
class Budget:
    """What a pull may still unpack."""

    bytes: int = BYTES
    entries: int = ENTRIES


async def unpack(name: str, blob: int, folder: Path, diff_id: str, budget: Budget) -> None:
    """Unpack the open file `blob` into the empty `folder`, whose content is on the disk then, and lower the budget.

    `name`: the image's, for errors. Raises InputError if the layer is broken or larger than allowed, SandboxError `image_unavailable` and
    HOST_DISK_FULL, and OSError.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    orders: Orders = {
        "blob": blob,
        "folder": root,
        "diff_id": diff_id,
        "bytes_limit": budget.bytes,
        "entries_limit": budget.entries,
        "cpu_s": CPU_S,
    }
    # An interpreter that was built against libraries in odd places doesn't start without the last.
    env = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
    try:
        ended = await children.run(
            (sys.executable, "-I", "-c", _CODE, _PACKAGES, json.dumps(orders)),
            env=env,
            folder=Path("/"),
            pass_fds=(blob, root),
            watch=room_in(folder),
        )
    finally:
        os.close(root)
    result = _result(name, diff_id, ended)
    budget.bytes -= result["bytes"]
    budget.entries -= result["entries"]
    figures = {key: result[key] for key in ("bytes", "entries", "skipped")}
    log.info("an image's layer was unpacked", action="image.layer_unpacked", image=name, layer=diff_id, **figures)


def room_in(folder: Path) -> Callable[[], None]:
    """A function that raises SandboxError HOST_DISK_FULL when the disk has little room left."""

    def look() -> None:
        if shutil.disk_usage(folder).free < FREE_BYTES:
            raise SandboxError(
                HOST_DISK_FULL, f"the disk of {folder} has less than {FREE_BYTES >> 20} MiB left for the image"
            )

    return look


def _result(name: str, diff_id: str, ended: children.Ended) -> Result:
    """What the program reported. Raises what `unpack` does."""
    if ended.code == -signal.SIGXCPU:
        raise InputError(FIELD, name, f"the layer {diff_id} takes more than {CPU_S} s of CPU time to unpack")
    lines = ended.output.strip().splitlines() or [""]
    try:
        result = msgspec.json.decode(lines[-1], type=Result)
    except msgspec.DecodeError:
        how = f"exit code {ended.code}" if ended.code >= 0 else f"signal {-ended.code}"
        raise SandboxError(
            IMAGE_UNAVAILABLE, f"the layer {diff_id} of the image {name} was not unpacked ({how}): {lines[-1]:.500}"
        ) from None
    match result["error"]:
        case "":
            return result
        case "layer":
            raise InputError(FIELD, name, f"the layer {diff_id} of the image can't be used: {result['text']}")
        case "disk_full":
            raise SandboxError(HOST_DISK_FULL, f"the disk is full: {result['text']} (unpacking the image {name})")
        case _:
            raise SandboxError(
                IMAGE_UNAVAILABLE, f"the layer {diff_id} of the image {name} was not unpacked: {result['text']}"
            )
