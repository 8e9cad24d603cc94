"""Reads one layer's tar as a stream, plain or compressed. Nothing in it is trusted.

Runs in the confined process of `unpack.py`, and needs no site-packages but for zstd.
"""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import os
import signal
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Self

HEADER_BYTES = 1 << 20
"""Of one header with long names or attributes. Linux allows 64 KiB of extended attributes in practice."""
CHUNK = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class LayerError(Exception):
    """The layer is broken, or larger than allowed."""


class Entry(tarfile.TarInfo):
    """A header. A bad one ends the reading: `tarfile` alone would take it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined] # not in typeshed
            raise
        except tarfile.HeaderError as error:
            raise LayerError(f"its tar has a bad header: {error}") from None

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Called for each header, before `tarfile` reads what belongs to it; meant to be overridden."""
        if self.size < 0:
            raise LayerError("its tar has an entry with a negative size")
        if self.type in _LONG_HEADERS and self.size > HEADER_BYTES:
            raise LayerError(f"its tar has a header of {self.size} bytes; at most {HEADER_BYTES} are allowed")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc] # not in typeshed
        return found


class Stream:
    """The uncompressed tar, hashed and counted."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = limit
        self._count = 0
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._count += len(data)
        if self._count > self._limit:
            raise LayerError(f"its tar has more than {self._limit} bytes")
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Of everything, which is read to the end."""
        while self.read(CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"


@contextmanager
def uncompressed(blob: IO[bytes]) -> Iterator[IO[bytes]]:
    """The tar in a blob, by the blob's first bytes: what the image says of it isn't always right."""
    start = blob.read(len(_ZSTD))
    blob.seek(0)
    if start.startswith(_GZIP):
        with gzip.open(blob, "rb") as file:
            yield file  # type: ignore[misc] # it reads bytes, as IO does
    elif start == _ZSTD:
        with _from_zstd(blob.fileno()) as file:
            yield file
    else:
        yield blob


@contextmanager
def _from_zstd(blob: int) -> Iterator[IO[bytes]]:
    """The library reads and writes whole files only; it gets a pipe for one, in a process of its own."""
    import cramjam  # most layers do without it, and it lies in site-packages

    reader, writer = os.pipe()
    unpacker = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(reader)
            if os.getppid() == unpacker:
                source = cramjam.File(f"/proc/self/fd/{blob}", truncate=False)
                # If it could read the pipe, it would never notice that nobody else does.
                target = cramjam.File(f"/proc/self/fd/{writer}", read=False, truncate=False)
                cramjam.zstd.decompress_into(source, target)
                code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as file:
            yield file
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if status != 0:
        raise LayerError("it is no whole zstd stream, or needs too much memory to be read")
