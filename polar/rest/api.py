"""The routes: tasks, their results, nodes, events and callbacks, by NVIDIA's paths and status codes.

POST /rollout/task/submit, GET and DELETE /rollout/task/<id>, GET /rollout/status, /tasks, /tasks/<id>/sessions, /events, /health; nodes and
the pause of the fleet are in `fleet_routes.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from polar.client import Client
from polar.rest.answers import BodyError, answering, decoded, json_answer, read_body
from polar.rest.callbacks import FORWARD_S, PATH, Callbacks
from polar.rest.event_stream import EventBus
from polar.rest.fleet_routes import FleetRoutes
from polar.rest.result_log import ResultLog
from polar.rest.result_mapping import session_summary, task_document, task_summary
from polar.rest.task_mapping import check_files, request_of
from polar.table import SessionTable
from polar.task_bodies import BODY_LIMIT
from polar.uploads import Uploads
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import SessionState, TaskState
from topics.types.task import TaskRequest

SHOWN_S = 3.0
"""A webhook may be faster than this process' copy of the table; it waits for 15 s, of which the client has 10 s."""
LISTED = 1000
"""Most tasks in one list, as in NVIDIA's server."""
STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class RestApi:
    """The handlers of one process. `table` follows all tasks."""

    def __init__(
        self, settings: Settings, table: SessionTable, bus: EventBus, *, base_url: str, files: Path | None
    ) -> None:
        """`base_url`: where webhook workers reach this service. `files`: the folder of files that tasks may upload."""
        self._settings = settings
        self._client = Client(settings)
        self._table = table
        self._bus = bus
        self._base_url = base_url
        self._files = files
        self._log = ResultLog(settings)
        self._fleet = FleetRoutes(settings)
        self._submitted: dict[str, int] = {}
        """Numbers of samples of tasks that this process sent and no coordinator has shown yet, by id."""
        self._streams: set[asyncio.Task[None]] = set()
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=FORWARD_S), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        self._callbacks = Callbacks(settings, self._http, self._task_result, self._callback_url)

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
                web.get("/events", self._events),
                web.post(PATH, self._callbacks.forward),
            ]
        )
        app.add_routes(self._fleet.routes())
        app.on_shutdown.append(self._end_streams)
        return app

    async def close(self) -> None:
        await self._http.close()

    async def _health(self, _: web.Request) -> web.Response:
        return json_answer({"status": "ok"})

    async def _submit(self, request: web.Request) -> web.Response:
        body = decoded(await read_body(request))
        if isinstance(body, dict) and body.get("callback_url") is not None:
            body["callback_url"] = self._callbacks.url(self._base_url, body["callback_url"])
        task = await asyncio.to_thread(self._checked, body)
        if (known := self._known(task.task_id)) is not None:
            state = "is already running" if known == "running" else f"has {known}; an id names one task for ever"
            raise BodyError(409, f"task {task.task_id} {state}")
        # Before the record is sent: another request with this id must not send a second one meanwhile.
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
        if self._known(task_id) is None:
            raise BodyError(404, "Task not found")
        await self._client.cancel(task_id)
        return await self._status(request)

    async def _overview(self, _: web.Request) -> web.Response:
        tasks = {task.task_id: self._known(task.task_id) for task in self._shown()}
        pending = sum(task.num_samples - len(self._table.ended(task.task_id)) for task in self._shown())
        nodes = {"nodes": await self._fleet.nodes()}
        return json_answer({"tasks": tasks, "pipeline": {"pending_sessions": pending}, "nodes": nodes})

    async def _tasks(self, request: web.Request) -> web.Response:
        limit = _integer(request, "limit", 200, LISTED)
        found = [task_summary(task, self._rows(task.task_id)) for task in self._shown()]
        for name in ("status", "harness"):
            if wanted := request.query.get(name):
                found = [one for one in found if one[name] == wanted]
        if "since" in request.query:
            since = _seconds(request.query["since"])
            found = [one for one in found if (one["updated_at"] or 0) >= since]
        found.sort(key=lambda one: one["updated_at"] or 0, reverse=True)
        return json_answer({"tasks": found[:limit]})

    async def _sessions(self, request: web.Request) -> web.Response:
        task_id = request.match_info["task_id"]
        if self._known(task_id) is None:
            raise BodyError(404, "Task not found")
        sessions = [session_summary(row) for row in self._rows(task_id)]
        return json_answer({"task_id": task_id, "sessions": sessions})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        current = asyncio.current_task()
        assert current is not None, "a handler runs in a task"
        self._streams.add(current)
        try:
            async with aclosing(self._bus.frames()) as frames:
                async for frame in frames:
                    await response.write(frame)
        finally:
            self._streams.discard(current)
        return response

    async def _end_streams(self, _: web.Application) -> None:
        for stream in self._streams:
            stream.cancel()

    def _checked(self, body: object) -> TaskRequest:
        """The task with its files stored. Raises InputError, NotReadyError."""
        task = request_of(body)
        check_files(task, self._files)
        if self._files is None:
            return task
        return Uploads(blob_store.of(self._settings)).with_content(task, self._files)

    def _known(self, task_id: str) -> str | None:
        """NVIDIA's status of a task; None if nobody knows the task."""
        task = self._table.tasks.get(task_id)
        if task is not None and task.body_hash is not None:
            self._submitted.pop(task_id, None)
            return "completed" if self._table.is_finished(task_id) else "running"
        if task_id in self._table.refusals:
            return "failed"
        return "running" if task_id in self._submitted else None

    def _shown(self) -> list[TaskState]:
        return [task for task in self._table.tasks.values() if task.body_hash is not None]

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
            found = await self._log.results(task.plan.output if task.plan else None, ended)
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


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(found := float(text)):
            return found
    raise InputError("since", text, "must be a Unix time in seconds")
