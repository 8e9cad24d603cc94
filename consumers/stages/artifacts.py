"""Artifacts: what a session leaves behind besides its calls, in the blob store, by name.

`agent_log`, `agent_transcript` and `patch` come from the run, `evaluation_output` from the evaluation; a harness or an evaluator may
add its own. Invariant: no session key stands in what is kept, nor in an error's words. What can't be stored is left out, and said: an
artifact is never worth a session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import structlog

from topics.environment.blobs import BlobStore
from topics.environment.keys import KEY_SHOWN, redacted_bytes

AGENT_LOG = "agent_log"
"""What the harness wrote to its stdout and stderr."""
TRANSCRIPT = "agent_transcript"
"""The harness's own record of its session, in its own form."""
PATCH = "patch"
"""What the run changed in its repository; see `consumers.stages.patch`."""

_CUT = re.compile(rb"(left out here \.\.\.\]\n)[A-Za-z0-9_.-]+")
"""A word whose beginning a log has left out: perhaps a key, which isn't known by its end."""

log = structlog.get_logger()


async def stored(blobs: BlobStore, claim_id: str, found: Mapping[str, bytes]) -> dict[str, str]:
    """Blob references by artifact name, keys taken out."""
    kept: dict[str, str] = {}
    for name, data in found.items():
        try:
            kept[name] = await asyncio.to_thread(_put, blobs, data)
        except OSError as error:
            log.warning("artifact not kept", action="artifact.lost", claim=claim_id, name=name, why=str(error))
    return kept


def _put(blobs: BlobStore, data: bytes) -> str:
    return blobs.put(redacted_bytes(_CUT.sub(rb"\1" + KEY_SHOWN.encode(), data))).ref
