"""Nodes, and the routes by which a trainer pauses the fleet for new weights.

NVIDIA's pause belongs to nobody: whoever calls it pauses, and any caller resumes. So a pause here takes another one over.

Newer versions of its bridge pause each node at the node's `gateway_url`, all at the same time. Here that is a path below this service, and
pauses the fleet: calls pass the proxies, not the workers.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from polar.fleet.errors import PausedByOtherError, PauseLostError, PauseTimeoutError
from polar.fleet.fleet import Fleet, PauseReport
from polar.rest.answers import BodyError, json_answer
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import Stage
from topics.workers import Heartbeat

PAUSE_S = 300.0
"""NVIDIA's default of `timeout_seconds`."""
HEARTBEAT_S = 2
"""Interval of our heartbeats, in whole seconds, as NVIDIA's type has them."""
PAUSED = {"paused": True, "drained": True, "timed_out": False, "inflight": 0}
"""NVIDIA's answer of a node that has paused."""


class FleetRoutes:
    """Handlers. Each request has its own connection to Kafka: they are few."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pausing = asyncio.Lock()
        self._paused_generation: int | None = None
        """The fleet's generation after the last pause by a node's address. The pause lasts while the fleet has this generation."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/nodes", self._list),
            web.get("/nodes/{node_id}", self._one),
            web.post("/nodes/{node_id}/admin/inference/pause", self._pause_node),
            web.post("/nodes/{node_id}/admin/inference/resume", self._resume_node),
            web.post("/rollout/admin/inference/pause", self._pause),
            web.post("/rollout/admin/inference/resume", self._resume),
            web.post("/rollout/admin/policy_version", self._publish),
        ]

    async def nodes(self, request: web.Request) -> list[dict[str, Any]]:
        """The live workers, by id, with addresses for the client of a request."""
        async with Fleet(self._settings) as fleet:
            beats = await fleet.heartbeats()
        now, url = datetime.now(UTC), _own_url(request)
        return [node(beat, now, url) for beat in sorted(beats, key=lambda beat: beat.worker_id) if beat.stages]

    async def _list(self, request: web.Request) -> web.Response:
        return json_answer(await self.nodes(request))

    async def _one(self, request: web.Request) -> web.Response:
        for found in await self.nodes(request):
            if found["node_id"] == request.match_info["node_id"]:
                return json_answer(found)
        raise BodyError(404, "Node not found")

    async def _pause(self, request: web.Request) -> web.Response:
        if request.query.get("wait_for_drain", "true").lower() not in ("true", "1"):
            raise InputError(
                "wait_for_drain", request.query["wait_for_drain"], "a pause always waits for calls in flight"
            )
        deadline_s = _number(request, "timeout_seconds", PAUSE_S)
        async with Fleet(self._settings) as fleet:
            report = await _paused(fleet, deadline_s)
        nodes = [_acknowledged(worker_id, PAUSED) for worker_id in report.proxies]
        return json_answer({"all_paused": True, "all_drained": True, "inflight": 0, "nodes": nodes})

    async def _pause_node(self, request: web.Request) -> web.Response:
        """Pauses the fleet. The first of the nodes' pauses does it; the others wait for it, because they would take it over.

        The node may have left since it was listed: that changes nothing.
        """
        deadline_s = _number(request, "timeout_seconds", PAUSE_S)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(deadline_s):
                await self._pausing.acquire()
        except TimeoutError:
            raise BodyError(504, f"another pause has been waiting for calls for {deadline_s:g} s") from None
        try:
            async with Fleet(self._settings) as fleet:
                state = (await fleet.status()).state
                if not (state.paused and state.generation == self._paused_generation):
                    left_s = max(0.0, began + deadline_s - asyncio.get_running_loop().time())
                    self._paused_generation = (await _paused(fleet, left_s)).generation
        finally:
            self._pausing.release()
        return json_answer(PAUSED)

    async def _resume_node(self, _: web.Request) -> web.Response:
        async with self._pausing, Fleet(self._settings) as fleet:
            await fleet.resume()
        return json_answer({"paused": False, "inflight": 0})

    async def _resume(self, _: web.Request) -> web.Response:
        async with Fleet(self._settings) as fleet:
            await fleet.resume()
            nodes = [_acknowledged(worker_id, {"paused": False}) for worker_id in await _proxies(fleet)]
        return json_answer({"all_resumed": True, "nodes": nodes})

    async def _publish(self, request: web.Request) -> web.Response:
        text = request.query.get("version", "")
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise InputError("version", text, "must be an integer of at least 0")
        version = int(text)
        async with Fleet(self._settings) as fleet:
            try:
                await fleet.publish(version)
            except InputError as error:
                raise BodyError(409, str(error)) from None
            nodes = [_acknowledged(worker_id, {"policy_version": version}) for worker_id in await _proxies(fleet)]
        return json_answer({"all_updated": True, "policy_version": version, "nodes": nodes})


def node(beat: Heartbeat, now: datetime, url: str) -> dict[str, Any]:
    """A `GatewayNodeInfo` of a live worker. Its address is a path of this service, `url`: workers are reached through Kafka alone."""
    slots = {stage: sum(one.slots for one in beat.stages if one.stage is stage) for stage in Stage}
    busy = {stage: sum(one.slots - one.free for one in beat.stages if one.stage is stage) for stage in Stage}
    return {
        "node_id": beat.worker_id,
        "gateway_url": f"{url}/nodes/{quote(beat.worker_id, safe='')}",
        "max_init_workers": slots[Stage.INIT],
        "max_run_workers": slots[Stage.RUN],
        "max_postrun_workers": slots[Stage.EVALUATE],
        "metrics": {
            "init_queue_depth": 0,
            "init_inflight": busy[Stage.INIT],
            "ready_depth": 0,
            "run_inflight": busy[Stage.RUN],
            "postrun_queue_depth": 0,
            "postrun_inflight": busy[Stage.EVALUATE],
        },
        "dispatch_reservations": 0,
        "healthy": True,
        "draining": beat.leaving,
        "heartbeat_interval_seconds": HEARTBEAT_S,
        "last_heartbeat": now.isoformat(),
    }


async def _paused(fleet: Fleet, deadline_s: float) -> PauseReport:
    """Pause the fleet, whoever may have paused it before."""
    try:
        return await fleet.pause(deadline_s=deadline_s, force=True)
    except PauseTimeoutError as error:
        raise BodyError(504, str(error)) from None
    except (PausedByOtherError, PauseLostError) as error:
        raise BodyError(409, str(error)) from None


def _own_url(request: web.Request) -> str:
    """Where the client of a request reaches this service. A reverse proxy with TLS names its scheme in a header."""
    scheme = "https" if request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https" else request.scheme
    return f"{scheme}://{request.host}"


async def _proxies(fleet: Fleet) -> list[str]:
    return sorted(beat.worker_id for beat in await fleet.heartbeats() if beat.role == "proxy")


def _acknowledged(worker_id: str, response: dict[str, Any]) -> dict[str, Any]:
    return {"node_id": worker_id, "status": "ok", "response": response}


def _number(request: web.Request, name: str, default: float) -> float:
    """A positive number of the query. Raises InputError."""
    text = request.query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 24 * 3600:
        raise InputError(name, text, "must be a positive number of seconds, at most a day")
    return value
