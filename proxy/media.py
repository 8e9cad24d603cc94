"""The images and sounds of a prompt, as the log names them: by the digest of their bytes, with a reference to the blob store.

Token ids hold placeholders in their place, so the digests tell prompts apart (`topics/calls/media_marks.py`). A medium is stored once in a
conversation, before the first record that names it is acknowledged: later calls take it over from the call whose messages they share. One
that could not be stored is tried again at each call that repeats it.

An engine in mode `tokens` reports where media stand. In mode `chat` their places are bounded: engines assign media to placeholders in the
order of the messages. If a prompt repeats all messages and the whole prompt of an earlier call, the media of that call stand in that part,
and new media stand after it. Otherwise the places are unknown, and the prompt shares tokens only with prompts that have the same media.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from msgspec.structs import replace

from proxy.blob_writer import Batch, BlobWriter, UnstoredError
from proxy.chat import Answer, ChatRequest, MediaPart
from proxy.metrics import ProxyMetrics
from proxy.session.history import CallHistory, Transcript
from topics.types.completion import Medium
from topics.types.tokens import unpack_ids

MEDIA_TYPE = re.compile(r"[a-z0-9.+/-]{1,64}")
"""Others aren't recorded: the type stands in each trajectory, and an agent chooses it."""


class PromptMedia:
    """Records the media of prompts."""

    def __init__(self, writer: BlobWriter, metrics: ProxyMetrics) -> None:
        """`writer`: without a store, media are recorded without their bytes."""
        self._writer = writer
        self._metrics = metrics
        self._under_way: dict[int, asyncio.Task[Medium]] = {}
        """By identity of the part, which the task keeps alive. The choices of a request share their parts."""

    async def of(
        self, request: ChatRequest, transcript: Transcript, history: CallHistory, answer: Answer, batch: Batch
    ) -> list[Medium]:
        """The media of the prompt of an answer, in order, with their places."""
        if not request.has_media:
            return []
        parts = request.media
        base, shared = history.base_of(transcript)
        before = history.media(base)
        inherited = before[: sum(at < shared for at, _ in parts)]
        again = [self._kept(medium, part, batch) for medium, (_, part) in zip(inherited, parts, strict=False)]
        first = [self._recorded(part, batch) for _, part in parts[len(inherited) :]]
        media = await asyncio.gather(*again, *first)
        if answer.media_positions is not None and len(answer.media_positions) == len(parts):
            return [_placed(medium, at) for medium, at in zip(media, answer.media_positions, strict=True)]
        prompt = unpack_ids(answer.prompt_ids)
        bound = history.continued(base, prompt) if len(inherited) == len(before) else None
        if bound is None:
            return [_placed(medium, None) for medium in media]
        new = media[len(inherited) :]
        return [*media[: len(inherited)], *(_placed(medium, min(bound, len(prompt) - 1)) for medium in new)]

    async def _kept(self, medium: Medium, part: MediaPart, batch: Batch) -> Medium:
        """An earlier call's medium, stored now if it wasn't."""
        if medium.blob is not None or medium.unproven or not self._writer.has_store:
            return medium
        stored = await self._recorded(part, batch)
        return medium if stored.blob is None else replace(medium, blob=stored.blob)

    async def _recorded(self, part: MediaPart, batch: Batch) -> Medium:
        task = self._under_way.get(id(part))
        if task is None:
            task = self._under_way[id(part)] = asyncio.create_task(self._stored(part, batch), name="store medium")
            task.add_done_callback(lambda _: self._under_way.pop(id(part)))
        # If one choice is cancelled, another may wait for it.
        return await asyncio.shield(task)

    async def _stored(self, part: MediaPart, batch: Batch) -> Medium:
        medium, data = await self._writer.computed(partial(_digested, part))
        if data is None:
            return medium
        try:
            return replace(medium, blob=await self._writer.put(len(data), lambda: data, batch))
        except UnstoredError as error:
            self._metrics.media_unstored.labels(error.reason).inc()
            return medium


def _placed(medium: Medium, position: int | None) -> Medium:
    """The medium itself where its place is known: calls share it in memory."""
    return medium if medium.position == position else replace(medium, position=position)


def _digested(part: MediaPart) -> tuple[Medium, bytes | None]:
    """A medium and its bytes; None: the engine fetches them, refuses the URL, or decodes what isn't base64 in its own way."""
    head, comma, body = part.url.partition(",")
    parameters: Sequence[str] = head[len("data:") :].split(";") if comma and head[:5].lower() == "data:" else ()
    try:
        data = b64decode(body, validate=True) if parameters and parameters[-1].strip().lower() == "base64" else None
    except ValueError:
        data = None
    if data is None:
        return Medium(sha256(part.url.encode()).hexdigest(), part.kind, unproven=True), None
    media_type = parameters[0].lower()
    is_type = MEDIA_TYPE.fullmatch(media_type) is not None
    return Medium(sha256(data).hexdigest(), part.kind, media_type=media_type if is_type else None), data
