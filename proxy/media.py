"""The images and sounds of a prompt, as the log names them: by the digest of their bytes, with a reference to the blob store.

Token ids hold placeholders in their place, so the digests tell prompts apart (`topics/calls/media_marks.py`). A medium is stored once in a
conversation, before the first record that names it is acknowledged: later calls take it over from the call whose messages they share.

An engine in mode `tokens` reports where media stand. In mode `chat` their places are bounded: engines assign media to placeholders in the
order of the messages. If a prompt repeats all messages and the whole prompt of an earlier call, the media of that call stand in that part,
and new media stand after it. Otherwise the places are unknown, and the prompt shares tokens only with prompts that have the same media.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256

import structlog
from msgspec.structs import replace

from proxy.chat import Answer, ChatRequest, MediaPart
from proxy.session.history import CallHistory, Transcript
from topics.environment.blobs import BlobStore
from topics.types.completion import Medium
from topics.types.tokens import unpack_ids

STORE_S = 30.0
"""Time for the blob store to take a medium; the harness waits for it."""

MEDIA_TYPE = 255
"""Characters of the longest media type (RFC 6838): the sender chooses it, and each call of a trajectory repeats it."""

log = structlog.get_logger(__name__)


class PromptMedia:
    """Records the media of prompts."""

    def __init__(self, blobs: BlobStore | None) -> None:
        """`blobs`: where their bytes are stored; None: they are recorded without their bytes."""
        self._blobs = blobs

    async def of(
        self, request: ChatRequest, transcript: Transcript, history: CallHistory, answer: Answer
    ) -> list[Medium]:
        """The media of the prompt of an answer, in order, with their places."""
        if not request.has_media:
            return []
        parts = request.media
        base, shared = history.base_of(transcript)
        before = history.media(base)
        inherited = before[: sum(at < shared for at, _ in parts)]
        new = [await self._recorded(part) for _, part in parts[len(inherited) :]]
        if answer.media_positions is not None and len(answer.media_positions) == len(parts):
            pairs = zip([*inherited, *new], answer.media_positions, strict=True)
            return [replace(medium, position=position) for medium, position in pairs]
        prompt = unpack_ids(answer.prompt_ids)
        bound = history.continued(base, prompt) if len(inherited) == len(before) else None
        if bound is None:
            return [replace(medium, position=None) for medium in [*inherited, *new]]
        return [*inherited, *(replace(medium, position=min(bound, len(prompt) - 1)) for medium in new)]

    async def _recorded(self, part: MediaPart) -> Medium:
        medium, data = await asyncio.to_thread(_digested, part)
        if data is None or self._blobs is None:
            return medium
        try:
            async with asyncio.timeout(STORE_S):
                return replace(medium, blob=(await asyncio.to_thread(self._blobs.put, data)).ref)
        except OSError as error:  # TimeoutError is one
            reason = str(error) or f"no answer within {STORE_S:g} s"
            log.warning("medium not stored", action="medium_not_stored", store=self._blobs.place, reason=reason)
            return medium


def _digested(part: MediaPart) -> tuple[Medium, bytes | None]:
    """A medium and its bytes; None: the engine fetches them, or refuses the URL."""
    head, comma, body = part.url.partition(",")
    parameters: Sequence[str] = head[len("data:") :].split(";") if comma and head[:5].lower() == "data:" else ()
    try:
        data = b64decode(body) if parameters and parameters[-1].strip().lower() == "base64" else None
    except ValueError:
        data = None
    if data is None:
        return Medium(sha256(part.url.encode()).hexdigest(), part.kind, unproven=True), None
    media_type = parameters[0].lower() if 0 < len(parameters[0]) <= MEDIA_TYPE else None
    return Medium(sha256(data).hexdigest(), part.kind, media_type=media_type), data
