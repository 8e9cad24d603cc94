"""The content of a canonical message as text."""

from __future__ import annotations

import json
from collections.abc import Iterator


def texts_of(content: object) -> Iterator[str]:
    """A message's content as text: an image or a sound as its size, unknown parts as JSON."""
    if isinstance(content, str):
        if content:
            yield content
        return
    for part in content if isinstance(content, list) else ():
        match part:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith("data:"):
                yield f"[image, {len(url):,} characters of data]"
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                yield f"[image {url}]"
            case {"type": "audio_url", "audio_url": {"url": str(url)}}:
                yield f"[sound, {len(url):,} characters of data]"
            case _:
                yield json.dumps(part, ensure_ascii=False)
