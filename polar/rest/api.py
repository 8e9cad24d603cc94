"""The routes: tasks, their results, nodes, events and callbacks, by NVIDIA's paths and status codes.

POST /rollout/task/submit, GET and DELETE /rollout/task/<id>, GET /rollout/status, /tasks, /tasks/<id>/sessions, /events, /health; nodes and
the pause of the fleet are in `fleet_routes.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from polar.client import Client
from polar.event_streams import EventStreams
from polar.rest.answers import BodyError, answering, decoded, json_answer, read_body
from polar.rest.callbacks import PATH, Callbacks
from polar.rest.event_stream import EventBus
from polar.rest.fleet_routes import FleetRoutes
from polar.rest.result_log import ResultLog
from polar.rest.result_mapping import session_summary, task_document, task_summary
from polar.rest.task_index import Place, TaskIndex
from polar.rest.task_mapping import check_files, request_of
from polar.table import SessionTable
from polar.task_bodies import BODY_LIMIT
from polar.uploads import Uploads
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import SessionState
from topics.types.task import TaskRequest

SHOWN_S = 3.0
"""A webhook may be faster than this process' copy of the table; it waits for 15 s, of which the client has 10 s."""
LISTED = 1000
"""Most tasks in one list, as in NVIDIA's server."""
SLICE_S = 0.01
"""A list is made in slices of this duration, between which other requests are answered."""


class RestApi:
    """The handlers of one process. `table` follows all tasks."""

    def __init__(
        self, settings: Settings, table: SessionTable, bus: EventBus, *, base_url: str, files: Path | None
    ) -> None:
        """`base_url`: where webhook workers reach this service. `files`: the folder of files that tasks may upload."""
        self._settings = settings
        self._client = Client(settings)
        self._table = table
        self._index = TaskIndex(table)
        table.on_change = self._on_change
        self._bus = bus
        self._base_url = base_url
        self._files = files
        self._log = ResultLog(settings)
        self._fleet = FleetRoutes(settings)
        self._submitted: dict[str, int] = {}
        """Numbers of samples of tasks that this process sent and no coordinator has shown yet, by id."""
        self.streams = EventStreams()
        self._callbacks = Callbacks(settings, self._task_result, self._callback_url)

    def application(self, token: str) -> web.Application:
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[answering(token)])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/rollout/task/submit", self._submit),
                web.get("/rollout/task/{task_id}", self._status),
                web.delete("/rollout/task/{task_id}", self._cancel),
                web.get("/rollout/status", self._overview),
                web.get("/tasks", self._tasks),
                web.get("/tasks/{task_id}/sessions", self._sessions),
                # A stream without a body would never notice that its client has left.
                web.get("/events", self._events, allow_head=False),
                web.post(PATH, self._callbacks.forward),
            ]
        )
        app.add_routes(self._fleet.routes())
        app.on_shutdown.append(self.streams.close)
        return app

    async def close(self) -> None:
        await self._callbacks.close()

    async def _health(self, _: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def _submit(self, request: web.Request) -> web.Response:
        task = await asyncio.to_thread(self._checked, await read_body(request))
        if (known := self._known(task.task_id)) in ("running", "completed"):
            state = "is already running" if known == "running" else f"has {known}; an id names one task for ever"
            raise BodyError(409, f"task {task.task_id} {state}")
        # Before the record is sent: another request with this id must not send a second one meanwhile.
        # A refused task left nothing, so its id is free.
        self._table.refusals.pop(task.task_id, None)
        self._submitted[task.task_id] = task.num_samples
        try:
            await self._client.submit([task], self._table)
        except BaseException:
            self._submitted.pop(task.task_id, None)
            raise
        return json_answer({"task_id": task.task_id, "status": "running"})

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(
            body=await self._document(request.match_info["task_id"], is_status=True), content_type="application/json"
        )

    async def _cancel(self, request: web.Request) -> web.Response:
        if request.query.get("register_if_missing", "false").lower() not in ("false", "0"):
            raise InputError("register_if_missing", request.query["register_if_missing"], "a task must be known first")
        task_id = request.match_info["task_id"]
        known = self._known(task_id)
        if known is None:
            raise BodyError(404, "Task not found")
        # The coordinator keeps the cancel of an unknown task for its coming, so that of a refused one would end the next with its id.
        if known == "running":
            await self._client.cancel(task_id)
        return await self._status(request)

    async def _overview(self, request: web.Request) -> web.Response:
        tasks = {place.task_id: self._known(place.task_id) for place in islice(self._index.newest(), LISTED)}
        counts, pipeline = self._index.counts(), {"pending_sessions": self._index.pending_sessions}
        nodes = {"nodes": await self._fleet.nodes(request)}
        return json_answer({"tasks": tasks, "task_counts": counts, "pipeline": pipeline, "nodes": nodes})

    async def _tasks(self, request: web.Request) -> web.Response:
        limit = _integer(request, "limit", 200, LISTED)
        before = _place(request.query["cursor"]) if "cursor" in request.query else None
        since_ms = _seconds(request.query["since"]) * 1000 if "since" in request.query else 0.0
        wanted = {name: request.query.get(name, "") for name in ("status", "harness")}
        newest = takewhile(lambda place: place.updated_ms >= since_ms, self._index.newest(before=before, **wanted))
        # Read before the loop runs something else: a change of the table ends the iterator's validity.
        places = list(islice(newest, limit + 1))
        found: list[dict[str, Any]] = []
        paused_at = time.monotonic()
        for place in places[:limit]:
            if (task := self._table.tasks.get(place.task_id)) is not None:
                found.append(task_summary(task, self._rows(place.task_id), place.updated_ms))
            if time.monotonic() - paused_at > SLICE_S:
                await asyncio.sleep(0)
                paused_at = time.monotonic()
        cursor = "{}.{}".format(*places[limit - 1]) if len(places) > limit else None
        return json_answer({"tasks": found, "next_cursor": cursor})

    async def _sessions(self, request: web.Request) -> web.Response:
        task_id = request.match_info["task_id"]
        if self._known(task_id) is None:
            raise BodyError(404, "Task not found")
        sessions = [session_summary(row) for row in self._rows(task_id)]
        return json_answer({"task_id": task_id, "sessions": sessions})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self.streams.serve(request, self._bus.frames())

    def _on_change(self, task_id: str) -> None:
        self._index.update(task_id)
        if self._table.shown_hash(task_id) is not None:
            self._submitted.pop(task_id, None)

    def _checked(self, body: bytes) -> TaskRequest:
        """The task of a body, with its files stored and its callback passing through this service. Raises InputError, NotReadyError."""
        fields = decoded(body)
        if isinstance(fields, dict) and fields.get("callback_url") is not None:
            fields["callback_url"] = self._callbacks.url(self._base_url, fields["callback_url"])
        task = request_of(fields)
        check_files(task, self._files)
        if self._files is None:
            return task
        return Uploads(blob_store.of(self._settings)).with_content(task, self._files)

    def _known(self, task_id: str) -> str | None:
        """NVIDIA's status of a task; None if nobody knows the task."""
        if self._table.shown_hash(task_id) is not None:
            return "completed" if self._table.is_finished(task_id) else "running"
        if task_id in self._table.refusals:
            self._submitted.pop(task_id, None)
            return "failed"
        return "running" if task_id in self._submitted else None

    def _rows(self, task_id: str) -> list[SessionState]:
        return [row for _, row in sorted(self._table.sessions.get(task_id, {}).items())]

    async def _task_result(self, task_id: str) -> bytes:
        """The TaskResult of a finished task. Raises BodyError."""
        if not await self._table.until(lambda: self._known(task_id) == "completed", SHOWN_S):
            raise BodyError(503, f"task {task_id} isn't finished in this server's copy of the table yet")
        return await self._document(task_id, is_status=False)

    def _callback_url(self, task_id: str) -> str | None:
        task = self._table.tasks.get(task_id)
        return None if task is None or task.plan is None else task.plan.callback_url

    async def _document(self, task_id: str, *, is_status: bool) -> bytes:
        """A TaskStatus or TaskResult. Raises BodyError if the task is unknown, or a trajectory has left its topic."""
        status = self._known(task_id)
        if status is None:
            raise BodyError(404, "Task not found")
        task = self._table.tasks.get(task_id)
        ended = sorted(self._table.ended(task_id), key=lambda row: row.sample_index)
        results: Sequence[msgspec.Raw] = ()
        if task is not None and ended:
            output = task.plan.output if task.plan else None
            found = await self._log.results(output, ended, self._table.built_ms(task_id) or 0)
            results = [msgspec.Raw(found[row.session_id]) for row in ended if row.session_id in found]
            if status == "completed" and len(results) < len(ended):
                lost = len(ended) - len(results)
                raise BodyError(410, f"{lost} trajectories of task {task_id} are no longer in Kafka; the lake has them")
        total = self._submitted.get(task_id, 0) if task is None else task.num_samples
        return msgspec.json.encode(task_document(task_id, status, total, results, is_status=is_status))


def _integer(request: web.Request, name: str, default: int, largest: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= largest:
        raise InputError(name, text, f"must be an integer from 1 to {largest}")
    return int(text)


def _place(text: str) -> Place:
    """The place that a cursor names. Raises InputError."""
    updated_ms, _, task_id = text.partition(".")
    if not task_id or not updated_ms.isascii() or not updated_ms.isdigit() or len(updated_ms) > 15:
        raise InputError("cursor", text, "must be the next_cursor of an answer")
    return Place(int(updated_ms), task_id)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(found := float(text)):
            return found
    raise InputError("since", text, "must be a Unix time in seconds")
