"""The newest file that fits a pattern, in any runtime: programs name their records by date and by ids of their own making."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from consumers.runtimes.base import Exec, Runtime

LOOK_S = 10.0


async def newest(runtime: Runtime, path: PurePosixPath) -> PurePosixPath | None:
    """`path` itself where it has no `*`, else the file changed last of those that fit; None where none does. RuntimeFault."""
    if "*" not in str(path):
        return path
    pattern = "*".join(shlex.quote(piece) for piece in str(path).split("*"))
    found = await runtime.exec(Exec(f"ls -td -- {pattern} 2>&-", log="newest.log", timeout_s=LOOK_S))
    first, _, _ = found.output().decode(errors="replace").partition("\n")
    return PurePosixPath(first) if first else None
