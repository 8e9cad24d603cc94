"""What really happened in a session, in the plainest form: whole lists, one entry for each token. It knows neither records nor builders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from topics.completions import Build
from topics.types.completion import CallOutcome, Completion, Sampling

Version = tuple[int | None, int | None]
"""Policy version and the publication that announced it; None: unknown."""
Published = tuple[int | None, str | None]
"""A publication: its version (None: an update was interrupted) and its engine (None: all). Its offset is its place in a list."""
Read = int | tuple[int, *tuple[str, ...]]
"""What a model reads in one place: a token, or a token with the digests of the images that begin there."""

UNPROVEN = "u" * 64
"""The digest of an image's URL: the engine fetched it, and nobody knows what it saw."""


@dataclass(eq=False)
class Lived:
    """A model call as it happened."""

    call_id: str
    request: str
    """The id of its request's first choice."""
    choice: int
    prompt: list[Read]
    sampled: list[int]
    logprobs: list[float]
    """One for each sampled token, as are the versions. No two tokens of a group have the same, so a logprob identifies its token."""
    versions: list[Version]
    sampling: Sampling
    logprobs_mode: str
    engine: str
    kind: str
    thread: str | None
    is_retry: bool
    """The client counts it as a retry."""
    received_at: int
    proxy: int
    """Number of the proxy process that served it."""
    outcome: CallOutcome
    finish_reason: str
    realigned: int
    completed_at: int = 0
    seen_at: int | None = None
    """When the harness had the whole answer, as its proxy knows; None: never."""
    is_disowned: bool = False
    prompt_doubt: str | None = None
    damage: str | None = None
    """What is wrong with its record: the reason code of a mask, or `gone`: it isn't on the log."""

    @cached_property
    def whole(self) -> list[Read]:
        return [*self.prompt, *self.sampled]


@dataclass
class Session:
    """One session: what happened, and what the log says."""

    calls: list[Lived]
    """In log order."""
    records: list[Completion]
    disowned: frozenset[str]
    build: Build
    words: int
    """The size of its vocabulary: with few words, prompts and answers meet by chance."""


def images_of(read: Read) -> tuple[str, ...]:
    """The digests of the images that begin in a place."""
    return () if isinstance(read, int) else read[1:]


def ids_of(prompt: Iterable[Read]) -> list[int]:
    """The token ids alone."""
    return [read if isinstance(read, int) else read[0] for read in prompt]
