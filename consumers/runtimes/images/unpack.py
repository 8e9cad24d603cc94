"""A program that unpacks one layer's tar into one folder, in the form that overlayfs reads.

The tar isn't trusted. The program runs as a process of its own, without capabilities and with limits of the kernel, and resolves each
path inside the layer's folder (`paths_in_root.py`), so whatever the tar holds, nothing else is written. It ignores owners, drops setuid
and setgid bits and extended attributes, and skips devices, fifos and sockets. The owner may delete everything that it makes.

Whiteouts (image-spec, layer.md) become what overlayfs with `userxattr` expects (Documentation/filesystems/overlayfs.rst): `.wh.NAME` a
character device 0/0 named NAME, `.wh..wh..opq` the attribute `user.overlay.opaque`. They concern lower layers alone, so an entry of the
same layer wins over them.

Needs no site-packages, but for zstd. `layers.py` starts it; the only line on stdout is one `Result` as JSON.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import resource
import sys
import tarfile
import zlib
from typing import IO, NoReturn, TypedDict, cast

from consumers.runtimes.images.layer_folder import DISK_FULL, LayerFolder, blaming
from consumers.runtimes.images.layer_tar import Entry, LayerError, Stream, uncompressed

MEMORY_BYTES = 1 << 30
OPEN_FILES = 1024
"""Removing a folder takes one for each level."""
ENTRY_OVERHEAD = 4096
"""Bytes of a tar that an entry may take beside its content: headers, and padding to 512 bytes."""
_BLOCKS = 32 * 1024
"""Read from the tar at a time. `tarfile` copies what remains of it for every header."""
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
"""More than any kernel has."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class Orders(TypedDict):
    """What to unpack: marshalled as JSON in the only argument. Descriptors are inherited."""

    blob: int
    folder: int
    diff_id: str
    bytes_limit: int
    """Of all files together, sparse ones at their apparent size."""
    entries_limit: int
    """Files, folders and links; also folders that the tar doesn't list."""
    cpu_s: int


class Result(TypedDict):
    """How it ended. `error`: `layer` if the layer is at fault, `disk_full`, `host`, or empty."""

    error: str
    text: str
    bytes: int
    entries: int
    skipped: int


def unpack(blob: IO[bytes], layer: LayerFolder, diff_id: str, bytes_limit: int, entries_limit: int) -> None:
    """Unpack a tar. Raises LayerError, and OSError from the disk."""
    with uncompressed(blob) as file:
        stream = Stream(file, bytes_limit + entries_limit * ENTRY_OVERHEAD)
        try:
            with tarfile.open(
                fileobj=cast("IO[bytes]", stream),
                mode="r|",
                bufsize=_BLOCKS,
                tarinfo=Entry,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                while (entry := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # a list that would hold every entry
                    if entry.size < 0:  # an extended header may say so
                        raise LayerError("its tar has an entry with a negative size")
                    with blaming(entry.name):
                        layer.add(tar, entry)
            layer.finish()
            found = stream.digest()
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as error:
            raise LayerError(f"its tar can't be read: {error or type(error).__name__}") from None
        except MemoryError:
            raise LayerError(f"its tar needs more than {MEMORY_BYTES} bytes of memory to be read") from None
    if found != diff_id:
        raise LayerError(f"its tar has the digest {found}, and the image says {diff_id}")


def confine(cpu_s: int, file_bytes: int) -> None:
    """Give up privileges, and set limits. Raises OSError."""
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        _fail("no_new_privs")
    for capability in range(_CAPABILITIES):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # only who has privileges can, and needs to
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    if _LIBC.capset(header, none) != 0:
        _fail("capset")
    os.umask(0)
    for limit, value, kill in (
        (resource.RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 5),  # SIGXCPU tells the parent why, and SIGKILL would not
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = kill if hard == resource.RLIM_INFINITY else min(kill, hard)
        resource.setrlimit(limit, (min(value, most), most))


def _fail(what: str) -> NoReturn:
    raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def run(orders: Orders) -> Result:
    """Unpack, and write all of it to the disk."""
    try:
        confine(orders["cpu_s"], orders["bytes_limit"])
        layer = LayerFolder(orders["folder"], orders["bytes_limit"], orders["entries_limit"])
        with os.fdopen(orders["blob"], "rb") as blob:
            unpack(blob, layer, orders["diff_id"], orders["bytes_limit"], orders["entries_limit"])
        if _LIBC.syncfs(orders["folder"]) != 0:
            _fail("syncfs")
    except LayerError as error:
        return _failed("layer", error)
    except OSError as error:
        return _failed("disk_full" if error.errno in DISK_FULL else "host", error)
    return {"error": "", "text": "", "bytes": layer.bytes, "entries": layer.entries, "skipped": layer.skipped}


def _failed(error: str, cause: Exception) -> Result:
    return {"error": error, "text": str(cause), "bytes": 0, "entries": 0, "skipped": 0}


def main() -> None:
    """Run the program."""
    result = run(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(result) + "\n")
