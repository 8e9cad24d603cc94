"""The images of a prompt, as the log names them: by the digest of their bytes, with a reference to the blob store.

Token ids hold placeholders in their place, so the digests tell prompts apart (`topics/calls/media_marks.py`). An image is stored once in a
conversation, before the first record that names it is acknowledged: later calls take it over from the call whose messages they share.

An engine in mode `tokens` reports where images stand. In mode `chat` their places are bounded: engines assign images to placeholders in the
order of the messages. If a prompt repeats all messages and the whole prompt of an earlier call, the images of that call stand in that part,
and new images stand after it. Otherwise the places are unknown, and the prompt shares tokens only with prompts that have the same images.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256

import structlog
from msgspec.structs import replace

from proxy.chat import Answer, ChatRequest
from proxy.session.history import CallHistory, Transcript
from topics.environment.blobs import BlobStore
from topics.types.completion import Medium
from topics.types.tokens import unpack_ids

STORE_S = 30.0
"""Time for the blob store to take an image; the harness waits for it."""

log = structlog.get_logger(__name__)


class PromptMedia:
    """Records the images of prompts."""

    def __init__(self, blobs: BlobStore | None) -> None:
        """`blobs`: where their bytes are stored; None: they are recorded without their bytes."""
        self._blobs = blobs

    async def of(
        self, request: ChatRequest, transcript: Transcript, history: CallHistory, answer: Answer
    ) -> list[Medium]:
        """The images of the prompt of an answer, in order, with their places."""
        if not request.has_images:
            return []
        images = request.images
        base, shared = history.base_of(transcript)
        before = history.media(base)
        inherited = before[: sum(at < shared for at, _ in images)]
        new = [await self._recorded(part.image_url.url) for _, part in images[len(inherited) :]]
        if answer.image_positions is not None and len(answer.image_positions) == len(images):
            pairs = zip([*inherited, *new], answer.image_positions, strict=True)
            return [replace(medium, position=position) for medium, position in pairs]
        prompt = unpack_ids(answer.prompt_ids)
        bound = history.continued(base, prompt) if len(inherited) == len(before) else None
        if bound is None:
            return [replace(medium, position=None) for medium in [*inherited, *new]]
        return [*inherited, *(replace(medium, position=min(bound, len(prompt) - 1)) for medium in new)]

    async def _recorded(self, url: str) -> Medium:
        medium, data = await asyncio.to_thread(_digested, url)
        if data is None or self._blobs is None:
            return medium
        try:
            async with asyncio.timeout(STORE_S):
                return replace(medium, blob=(await asyncio.to_thread(self._blobs.put, data)).ref)
        except OSError as error:  # TimeoutError is one
            reason = str(error) or f"no answer within {STORE_S:g} s"
            log.warning("image not stored", action="image_not_stored", store=self._blobs.place, reason=reason)
            return medium


def _digested(url: str) -> tuple[Medium, bytes | None]:
    """An image by its URL, and its bytes; None: the engine fetches them, or refuses the URL."""
    head, comma, body = url.partition(",")
    parameters: Sequence[str] = head[len("data:") :].split(";") if comma and head[:5].lower() == "data:" else ()
    try:
        data = b64decode(body) if parameters and parameters[-1].strip().lower() == "base64" else None
    except ValueError:
        data = None
    if data is None:
        return Medium(sha256(url.encode()).hexdigest(), unproven=True), None
    return Medium(sha256(data).hexdigest(), media_type=parameters[0].lower() or None), data
