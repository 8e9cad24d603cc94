"""Images and audio in the identity of prompts.

Token ids name the place of an image and not its content: two prompts that differ in an image alone may have equal ids. So prompts are
compared as *marked* prompts. Before the first token that may depend on a medium stand MARKS negative numbers, made from its digest; a token
id is never negative. Marked prompts exist in memory alone: in the index that writes deltas, in the hash chain, and in the token tree. The
log and trajectories hold token ids. A prompt without media is its own marked prompt, so its record and its chain don't change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from topics.types.completion import Medium
from topics.types.tokens import IDS, WIDTH, Ids

MARKS = 4
"""Numbers that stand for one medium, of 31 bits each."""
SIGN = np.int32(np.iinfo(np.int32).min)


class Continuation(NamedTuple):
    """A marked prompt as a base's beginning and what follows."""

    shared: int
    """Marked tokens of the base."""
    rest: Ids
    """Marked tokens."""


def marks_of(medium: Medium) -> Ids:
    """The numbers that stand for a medium."""
    content = f"{medium.kind}:{medium.digest}".encode()
    return np.frombuffer(blake2b(content, digest_size=MARKS * WIDTH).digest(), dtype=IDS) | SIGN


def marked(ids: Ids, media: Sequence[Medium], start: int = 0) -> Ids:
    """The prompt's tokens from `start` on, with the marks of `media`, all of which begin there. Media at one place keep their order."""
    if not media:
        return ids
    places = np.clip([place_of(medium) - start for medium in media], 0, len(ids))
    return np.insert(ids, np.repeat(places, MARKS), np.concatenate([marks_of(medium) for medium in media]))


def first_tokens(media: Sequence[Medium], length: int) -> list[tuple[int, Medium]]:
    """By medium, in the order of the marks: the index of the first token behind its marks. `length`: tokens of the marked prompt."""
    if not media:
        return []
    ordered = sorted(media, key=place_of)
    places = np.clip([place_of(medium) for medium in ordered], 0, length - MARKS * len(media))
    marks = MARKS * np.searchsorted(places, places, side="right")
    return list(zip((places + marks).tolist(), ordered, strict=True))


def unmarked(tokens: Ids) -> Ids:
    """The token ids alone."""
    return tokens[tokens >= 0]


def continuation(shared: int, rest: Ids, media: Sequence[Medium], base: Sequence[Medium]) -> Continuation | None:
    """The marked prompt of a delta's `shared` and `rest`, which count token ids; None if it doesn't share the media of its base.

    `media` are those of the whole prompt, `base` those of the base's.
    """
    before = [medium for medium in media if place_of(medium) < shared]
    if _identities(before) != _identities(medium for medium in base if place_of(medium) < shared):
        return None
    new = [medium for medium in media if place_of(medium) >= shared]
    return Continuation(shared + MARKS * len(before), marked(rest, new, shared))


def place_of(medium: Medium) -> int:
    """Number of the prompt's tokens that don't depend on the medium, as far as is known."""
    return medium.position or 0


def _identities(media: Iterable[Medium]) -> list[tuple[int, str, str]]:
    """In the order of the marks."""
    found = ((place_of(medium), medium.kind, medium.digest) for medium in media)
    return sorted(found, key=lambda each: each[0])
