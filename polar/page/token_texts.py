"""The text of single token ids, which the engine is asked for once each."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from polar.show.detokenize import detokenize
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

KEPT = 300_000
"""Texts kept: more than usual vocabularies have."""


class TokenTexts:
    """A cache of texts by id. One token may be part of a character, whose text then is a replacement character."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[int, str] = {}

    def of(self, ids: Collection[int]) -> tuple[dict[int, str], str | None]:
        """Text by id; and, if some are missing, why."""
        missing = sorted(set(ids) - self._known.keys())
        if missing:
            try:
                texts = detokenize(self._settings, [np.array([token], dtype=np.int32) for token in missing])
            except NotReadyError as error:
                return {token: self._known[token] for token in ids if token in self._known}, str(error)
            if len(self._known) > KEPT:
                self._known.clear()
            self._known |= dict(zip(missing, texts, strict=True))
        return {token: self._known[token] for token in ids if token in self._known}, None
