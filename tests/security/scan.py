"""Looks for secrets in all that a system leaves on disk: files as they are, and what lies in them packed.

Session keys are known by their form, with or without their prefix; of the others the marks are searched for, as they are and as base64
would show them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from topics.environment.redaction import PREFIX

MARKS = (b"marked-signing-secret", b"marked-control-token", b"marked-webhook-secret", b"marked-password-of")
SURROUNDINGS = 60


def _shown(mark: bytes) -> Iterator[bytes]:
    """A mark as it is, and the middle of its base64 at each of the three alignments."""
    yield re.escape(mark)
    for shift in range(3):
        yield re.escape(base64.b64encode(b"\0" * shift + mark)[4:-4])


_KEYS = (re.escape(PREFIX.encode()), rb"eyJ[A-Za-z0-9_-]{8,}\.eyJ")
SECRET = re.compile(b"|".join([*_KEYS, *(shown for mark in MARKS for shown in _shown(mark))]))


def found_in(data: bytes, where: str) -> list[str]:
    """Where, and between what, secrets stand."""
    return [
        f"{where}: …{data[max(0, hit.start() - SURROUNDINGS) : hit.end() + 8]!r}…" for hit in SECRET.finditer(data)
    ][:3]


def in_files(folder: Path, but: Iterable[Path]) -> list[str]:
    """In every file below a folder but those, and in the rows of those that are Parquet."""
    left_out = set(but)
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or left_out & {path, *path.parents}:
            continue
        found += found_in(path.read_bytes(), str(path))
        if path.suffix == ".parquet":
            found += found_in(repr(pq.read_table(path).to_pylist()).encode(), f"{path}, decoded")
    return found
