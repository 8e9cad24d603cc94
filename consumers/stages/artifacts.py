"""Artifacts: what a session leaves behind besides its calls, in the blob store, by name.

The run gives `agent_log`, `agent_transcript` and `patch`, the evaluation `evaluation_output` or
`evaluator_traceback`; a harness or an evaluator may add more.
Invariant: no session key stands in an artifact. An artifact never fails a run: one that can't be stored is logged and left out,
if a bucket doesn't answer after a wait. The run's fact names what was left out, so that no evaluator takes it for something that the run
didn't leave.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from functools import partial
from pathlib import PurePosixPath

import structlog

from consumers.runtimes.base import Exec, Runtime
from consumers.stages.patient_blobs import KEEP_S, WAIT_S, patiently
from topics.environment.blobs import BlobStore
from topics.environment.redaction import KEY_SHOWN, redacted_bytes

AGENT_LOG = "agent_log"
"""The harness's stdout and stderr."""
TRANSCRIPT = "agent_transcript"
"""The harness's own record of its session, in its own form."""
TRACEBACK = "evaluator_traceback"
"""What an evaluator raised; `polar show` prints it."""
PATCH = "patch"
"""The run's changes to its repository; see `consumers.stages.patch`."""
SEARCH_S = 10.0
"""Limit for listing files by a pattern: one `ls` in the runtime."""

_CUT = re.compile(rb"(left out here \.\.\.\]\n)[A-Za-z0-9_.-]+")
"""The end of a word that a log cut in two: perhaps the end of a key, which can't be recognised without its beginning."""

log = structlog.get_logger()


async def stored(blobs: BlobStore, claim_id: str, found: Mapping[str, bytes], remaining_s: float) -> dict[str, str]:
    """Store artifacts without session keys; their blob references, by name. `remaining_s`: of the stage's budget, for a store that doesn't
    answer."""
    references: dict[str, str] = {}
    end = time.monotonic() + min(remaining_s, KEEP_S) + WAIT_S
    for name, data in found.items():
        try:
            references[name] = await patiently(partial(_put, blobs, data), end - time.monotonic())
        except OSError as error:
            log.warning("artifact not kept", action="artifact.lost", claim=claim_id, name=name, why=str(error))
    return references


def _put(blobs: BlobStore, data: bytes) -> str:
    return blobs.put(redacted_bytes(_CUT.sub(rb"\1" + KEY_SHOWN.encode(), data))).ref


async def newest_file(runtime: Runtime, path: PurePosixPath) -> PurePosixPath | None:
    """`path` itself if it has no `*`, otherwise the match that changed last: programs put dates and ids into the names of their records.

    None without a match. Raises SandboxError.
    """
    if "*" not in str(path):
        return path
    pattern = "*".join(shlex.quote(piece) for piece in str(path).split("*"))
    found = await runtime.exec(Exec(f"ls -td -- {pattern} 2>&-", log="newest.log", timeout_s=SEARCH_S))
    first, _, _ = found.output().decode(errors="replace").partition("\n")
    return PurePosixPath(first) if first else None
