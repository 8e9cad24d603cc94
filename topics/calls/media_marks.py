"""Images and audio in the identity of prompts.

Token ids name the place of an image and not its content: two prompts that differ in an image alone may have equal ids. So prompts are
compared as *marked* prompts. Before the first token that may depend on a medium stand MARKS negative numbers, made from its digest; a token
id is never negative. Marked prompts exist in memory alone: in the index that writes deltas, in the hash chain, and in the token tree. The
log and trajectories hold token ids. A prompt without media is its own marked prompt, so its record and its chain don't change.

A record lists the media that begin in its delta's `rest` (`listed`); the media before them are those of its base (`whole`). So a session
writes each medium once. If the base's media differ in what is known of them, for example because one was stored later, the record lists
the media of the whole prompt.
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
    media: Sequence[Medium]
    """Those of the whole prompt."""


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


def listed(media: Sequence[Medium], shared: int, base: Sequence[Medium]) -> list[Medium]:
    """The media of a prompt as its record lists them; `whole` reverses it.

    `media` are those of the whole prompt, `base` those of its base's, and `shared` counts the token ids that it shares with its base.
    """
    media, new = list(media), _from(media, shared)
    return new if [*_before(base, shared), *new] == media else media


def whole(listed: Sequence[Medium], shared: int, base: Sequence[Medium]) -> Sequence[Medium] | None:
    """The media of a whole prompt, in its order, from those that its record lists; None if the record contradicts the base."""
    inherited, again = _before(base, shared), _before(listed, shared)
    if again:
        return listed if _identities(again) == _identities(inherited) else None
    # Calls of equal media share one list, so a long conversation holds few.
    return base if not listed and len(inherited) == len(base) else [*inherited, *listed]


def continuation(shared: int, rest: Ids, listed: Sequence[Medium], base: Sequence[Medium]) -> Continuation | None:
    """The marked prompt of a delta's `shared` and `rest`, which count token ids; None if its record contradicts its base.

    `listed` are the media as the record lists them, `base` those of the base's whole prompt.
    """
    media = whole(listed, shared, base)
    if media is None:
        return None
    new = _from(media, shared)
    return Continuation(shared + MARKS * (len(media) - len(new)), marked(rest, new, shared), media)


def place_of(medium: Medium) -> int:
    """Number of the prompt's tokens that don't depend on the medium, as far as is known."""
    return medium.position or 0


def _before(media: Sequence[Medium], shared: int) -> list[Medium]:
    return [medium for medium in media if place_of(medium) < shared]


def _from(media: Sequence[Medium], shared: int) -> list[Medium]:
    return [medium for medium in media if place_of(medium) >= shared]


def _identities(media: Iterable[Medium]) -> list[tuple[int, str, str]]:
    """In the order of the marks."""
    found = ((place_of(medium), medium.kind, medium.digest) for medium in media)
    return sorted(found, key=lambda each: each[0])
