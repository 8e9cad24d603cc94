"""The routes of the page: static files and the read API. `routes()` is the one list of them; the OpenAPI document is made from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from analytics.queries.cookbook import questions
from polar.client import Client
from polar.diagnosis.table import Finding
from polar.fleet.fleet import Fleet
from polar.page import groups
from polar.page.answers import (
    Artifact,
    FlagMeaning,
    FleetChange,
    Group,
    Overview,
    Question,
    Requested,
    Session,
    Sessions,
    SqlAnswer,
    Tokens,
    flag_meanings,
    json_answer,
    overview,
)
from polar.page.following import Following
from polar.page.sql_box import ROWS, SqlBox
from polar.page.stories import Stories
from polar.page.stream import Streams
from polar.show.reading import read_rows
from proxy.control.api import ControlError
from topics.environment.settings import Settings
from topics.types.errors import InputError

STATIC = Path(__file__).with_name("static")
BODY_BYTES = 1024 * 1024
BODY_S = 60.0
PAUSE_S = 60.0
LISTED = 10_000
"""Most sessions in one list."""
TOKENS = 10_000
"""Most tokens of a trace in one answer."""
ARTIFACT_BYTES = 8 * 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Query:
    """A parameter of a query."""

    name: str
    kind: str
    """`integer` or `string`."""
    meaning: str


@dataclass(frozen=True)
class Route:
    """One path of the API."""

    method: str
    path: str
    summary: str
    handler: Handler
    answer: Any
    """Type of the answer as JSON; None: something else, which the summary says."""
    queries: tuple[Query, ...] = ()
    body: type[msgspec.Struct] | None = None


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    limit: int = 1000


class Api:
    """The handlers of one page."""

    def __init__(
        self, settings: Settings, following: Following, document: Callable[[list[Route]], dict[str, Any]]
    ) -> None:
        """`document` makes the OpenAPI document of the routes."""
        self._settings = settings
        self._following = following
        self._stories = Stories(settings)
        self._sql = SqlBox(settings)
        self.streams = Streams(following)
        self._document = document(self.routes())

    def routes(self) -> list[Route]:
        """All routes of the API."""
        limit = Query("limit", "integer", "Most items in the answer.")
        return [
            Route("GET", "/api/openapi.json", "This document; needs no token", self._openapi, None),
            Route("GET", "/api/overview", "Figures of now, and curves of the last three hours", self._overview, Overview),
            Route("GET", "/api/sessions", "Sessions, the newest changes first", self._sessions, Sessions, (
                limit,
                Query("after", "string", "`next` of the answer before."),
                Query("source", "string", "`live`: the 10,000 newest. `lake`: all of the lake, without flags."),
                Query("q", "string", "With `source=lake`: an SQL condition over the view `sessions`."),
            )),
            Route("GET", "/api/flags", "The health flags", self._flags, list[FlagMeaning]),
            Route("GET", "/api/sessions/{session_id}", "A session: the document of `polar show --format json` without token "
                  "ids and logprobs, its row, timeline and flags", self._session, Session),
            Route("GET", "/api/sessions/{session_id}/tokens", "Tokens of one of its traces", self._tokens, Tokens, (
                Query("trace", "integer", "Number of the trace, from 0."),
                Query("start", "integer", "Position of the first token."),
                limit,
            )),
            Route("GET", "/api/sessions/{session_id}/why", "What it waits for, or why it ended so, as `polar why` says it",
                  self._why, list[Finding]),
            Route("GET", "/api/sessions/{session_id}/artifacts/{name}", "An artifact as text", self._artifact, Artifact,
                  (Query("limit", "integer", "Most bytes."),)),
            Route("GET", "/api/tasks/{task_id}", "The samples of a task side by side", self._task, Group),
            Route("GET", "/api/stream", "Server-sent events: `sessions` (rows that changed), `overview` (its newest minutes) "
                  "and `ping`", self._stream, None,
                  (Query("since", "integer", "`version` of the rows that the client has; absent: the current one."),)),
            Route("GET", "/api/questions", "The questions of docs/sql.md, each with its SQL", self._questions, list[Question]),
            Route("POST", "/api/sql", "Runs one reading query over the lake, at most 10 s, one at a time", self._ask,
                  SqlAnswer, body=SqlBody),
            Route("POST", "/api/tasks/{task_id}/cancel", "Cancels a task", self._cancel, Requested),
            Route("POST", "/api/fleet/pause", "Pauses the fleet; answers when no model call is in flight", self._pause,
                  FleetChange),
            Route("POST", "/api/fleet/resume", "Ends a pause and a drain, whoever began them", self._resume, FleetChange),
        ]  # fmt: skip

    def add_to(self, app: web.Application) -> None:
        """Add the routes and the static files."""
        for route in self.routes():
            # No HEAD: a stream without a body would never notice that its client has left.
            app.router.add_route(route.method, route.path, self._counted(route.handler))
        app.router.add_get("/", self._index)
        app.router.add_static("/static/", STATIC)
        app.on_shutdown.append(self.streams.close)

    def _counted(self, handler: Handler) -> Handler:
        """A handler whose requests are a use of the page: a person who only asks the lake looks at it, too."""

        async def counted(request: web.Request) -> web.StreamResponse:
            with self._following.in_use():
                return await handler(request)

        return counted

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _openapi(self, _: web.Request) -> web.Response:
        return json_answer(self._document)

    async def _overview(self, _: web.Request) -> web.Response:
        async with self._following.looking() as looking:
            return json_answer(overview(looking))

    async def _sessions(self, request: web.Request) -> web.Response:
        limit = _integer(request, "limit", 1000, least=1, most=LISTED)
        source = request.query.get("source", "live")
        if source == "lake":
            offset = _integer(request, "after", 0, least=0, most=10**9)
            rows = await self._sql.sessions(request.query.get("q", ""), limit, offset)
            return json_answer(Sessions(rows, str(offset + limit) if len(rows) == limit else None, None))
        if source != "live":
            raise InputError("source", source, "expected live or lake")
        after = _place(request.query["after"]) if "after" in request.query else None
        async with self._following.looking() as looking:
            rows = looking.sessions.rows(limit + 1, after)
            shown = rows[:limit]
            more = f"{shown[-1].changed_at}.{shown[-1].session_id}" if len(rows) > limit else None
            return json_answer(Sessions(shown, more, looking.sessions.version))

    async def _flags(self, _: web.Request) -> web.Response:
        return json_answer(flag_meanings())

    async def _session(self, request: web.Request) -> web.Response:
        async with self._following.looking() as looking:
            found = await self._stories.session(request.match_info["session_id"], looking)
        return await asyncio.to_thread(json_answer, found)

    async def _tokens(self, request: web.Request) -> web.Response:
        trace = _integer(request, "trace", 0, least=0, most=10**9)
        start = _integer(request, "start", 0, least=0, most=10**9)
        limit = _integer(request, "limit", 2000, least=1, most=TOKENS)
        return json_answer(await self._stories.tokens(request.match_info["session_id"], trace, start, limit))

    async def _why(self, request: web.Request) -> web.Response:
        return json_answer(await self._stories.why(request.match_info["session_id"]))

    async def _artifact(self, request: web.Request) -> web.Response:
        limit = _integer(request, "limit", 1_000_000, least=1, most=ARTIFACT_BYTES)
        names = request.match_info
        return json_answer(await self._stories.artifact(names["session_id"], names["name"], limit))

    async def _task(self, request: web.Request) -> web.Response:
        async with self._following.looking() as looking:
            found = await groups.read_group(self._settings, request.match_info["task_id"], looking)
        return await asyncio.to_thread(json_answer, found)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        since = _integer(request, "since", 0, least=0, most=2**53) if "since" in request.query else None
        return await self.streams.stream(request, since)

    async def _questions(self, _: web.Request) -> web.Response:
        return json_answer([Question(title, sql) for title, sql in questions()])

    async def _ask(self, request: web.Request) -> web.Response:
        body = _decoded(await _read(request))
        if not 1 <= body.limit <= ROWS:
            raise InputError("limit", body.limit, f"must be 1 to {ROWS}")
        return json_answer(await self._sql.ask(body.sql, body.limit))

    async def _cancel(self, request: web.Request) -> web.Response:
        task_id = request.match_info["task_id"]
        # The coordinator keeps the cancel of an unknown task for its coming.
        if (await read_rows(self._settings, task_id)).task is None:
            raise ControlError(404, "unknown", f"no coordinator knows a task {task_id[:200]!r}", field="task_id")
        await Client(self._settings).cancel(task_id)
        return json_answer(Requested(f"the end of {task_id}"))

    async def _pause(self, _: web.Request) -> web.Response:
        async with Fleet(self._settings) as fleet:
            report = await fleet.pause(deadline_s=PAUSE_S)
        return json_answer(FleetChange(True, report.generation))

    async def _resume(self, _: web.Request) -> web.Response:
        async with Fleet(self._settings) as fleet:
            await fleet.resume()
            state = (await fleet.status()).state
        return json_answer(FleetChange(state.paused, state.generation))


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise ControlError(408, "slow", f"the request's body did not come whole within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise ControlError(400, "bad_input", f"the request's body can't be read: {error}") from None


def _decoded(body: bytes) -> SqlBody:
    try:
        return msgspec.json.decode(body, type=SqlBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ControlError(400, "bad_input", f"the request's body: {error}") from None


def _integer(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    """A parameter of the query. Raises InputError."""
    text = request.query.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else -1
    if not least <= value <= most:
        raise InputError(name, text, f"must be an integer from {least} to {most}")
    return value


def _place(cursor: str) -> tuple[int, str]:
    """The time and id in a cursor. Raises InputError."""
    at, _, session_id = cursor.partition(".")
    if not (at.isascii() and at.isdecimal() and len(at) <= 16 and session_id):
        raise InputError("after", cursor, "must be `next` of an earlier answer")
    return int(at), session_id
