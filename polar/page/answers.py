"""The forms of the API's answers, from which the OpenAPI document is made too."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from analytics.health import MEANINGS, Flag
from analytics.live.fold import Snapshot
from analytics.live.series import WINDOW, Curve, HarnessSum
from analytics.live.session_rows import SessionRow, StageTime
from polar.page.following import Looking


class Overview(msgspec.Struct, frozen=True):
    live: Snapshot
    """Figures of this moment and of the last minute."""
    runs: list[str]
    series: dict[str, Curve]
    """By run; empty: all runs together."""
    harnesses: list[HarnessSum]


class Sessions(msgspec.Struct, frozen=True):
    sessions: list[SessionRow]
    next: str | None
    """Value of `after` for the rest; null: there are no more here."""
    version: int | None
    """Value of the stream's `since` for later changes; null for rows of the lake."""


class SessionChanges(msgspec.Struct, frozen=True):
    sessions: list[SessionRow]
    version: int


class FlagMeaning(msgspec.Struct, frozen=True):
    name: str
    meaning: str


class FlaggedCalls(msgspec.Struct, frozen=True):
    name: str
    meaning: str
    calls: list[int]
    """Numbers of the calls; empty: the flag is one of the whole session."""


class Session(msgspec.Struct, frozen=True):
    """The document of `polar show --format json` without token ids and logprobs, and these fields beside its own.

    A trace has their number, `tokens`, and no `runs`.
    """

    row: SessionRow
    timeline: list[StageTime]
    flags: list[FlaggedCalls] | None
    """Null: its trajectory isn't on Kafka any longer."""


class Token(msgspec.Struct, frozen=True):
    id: int
    text: str | None
    """Null: the engine couldn't be asked."""
    trained: bool
    reason: str | None
    """Why a sampled token isn't trained in this trace; null: it is, or was only read."""
    logprob: float | None
    version: int | None
    scored: float | None
    """The logprob that the engine gave it in `polar verify`; null: it wasn't scored."""
    call: int | None
    """Number of the call that sampled it; null: the model only read it."""


class Tokens(msgspec.Struct, frozen=True):
    trace_id: str
    total: int
    first_trained: int | None
    """Position of the first token that the trace trains; null: it trains none."""
    tokens: list[Token]
    no_text: str | None
    """Why tokens have no text."""


class Artifact(msgspec.Struct, frozen=True):
    name: str
    text: str
    size: int
    """Bytes of the whole."""
    cut: bool


class CallSummary(msgspec.Struct, frozen=True):
    number: int
    kind: str
    finish_reason: str | None
    sampled_tokens: int
    text: str
    """The first characters of the answer."""
    tools: list[str]
    """Names of the tools that it calls."""


class Group(msgspec.Struct, frozen=True):
    task_id: str
    num_samples: int
    harness: str | None
    run: str | None
    instruction: str | None
    sessions: list[dict[str, Any]]
    """Each a SessionRow with `calls`: a list of CallSummary, or null for samples that weren't read."""
    common_calls: int
    """How many first main calls have equal messages in all samples that have main calls."""


class Question(msgspec.Struct, frozen=True):
    title: str
    sql: str


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class SqlAnswer(msgspec.Struct, frozen=True):
    columns: list[Column]
    rows: list[list[Any]]
    cut: bool
    """Whether there are more rows."""
    ms: int


class Requested(msgspec.Struct, frozen=True):
    requested: str
    """The request, in words; the coordinator carries it out."""


class FleetChange(msgspec.Struct, frozen=True):
    paused: bool
    generation: int


def overview(looking: Looking, minutes: int = WINDOW) -> Overview:
    """The current figures, with at most `minutes` of each curve. Raises the error that ended the reading."""
    series = looking.series
    return Overview(looking.snapshot(), series.runs, series.curves(minutes), series.harnesses())


def flag_meanings() -> list[FlagMeaning]:
    return [FlagMeaning(flag.value, MEANINGS[flag]) for flag in Flag]


def json_answer(value: object) -> web.Response:
    """A value as JSON; what JSON can't hold becomes text, NaN and infinity become null."""
    return web.Response(body=msgspec.json.encode(value, enc_hook=str), content_type="application/json")
