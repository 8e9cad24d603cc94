"""Nodes, and the routes by which a trainer pauses the fleet for new weights.

NVIDIA's pause belongs to nobody: whoever calls it pauses, and any caller resumes. So a pause here takes another one over.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from polar.fleet.errors import PausedByOtherError, PauseLostError, PauseTimeoutError
from polar.fleet.fleet import Fleet
from polar.rest.answers import BodyError, json_answer
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.session import Stage
from topics.workers import Heartbeat

PAUSE_S = 300.0
"""NVIDIA's default of `timeout_seconds`."""
HEARTBEAT_S = 2
"""Interval of our heartbeats, in whole seconds, as NVIDIA's type has them."""


class FleetRoutes:
    """Handlers. Each request has its own connection to Kafka: they are few."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/nodes", self._list),
            web.get("/nodes/{node_id}", self._one),
            web.post("/rollout/admin/inference/pause", self._pause),
            web.post("/rollout/admin/inference/resume", self._resume),
            web.post("/rollout/admin/policy_version", self._publish),
        ]

    async def nodes(self) -> list[dict[str, Any]]:
        """The live workers, by id."""
        async with Fleet(self._settings) as fleet:
            beats = await fleet.heartbeats()
        return [node(beat, datetime.now(UTC)) for beat in sorted(beats, key=lambda beat: beat.worker_id) if beat.stages]

    async def _list(self, _: web.Request) -> web.Response:
        return json_answer(await self.nodes())

    async def _one(self, request: web.Request) -> web.Response:
        for found in await self.nodes():
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
            try:
                report = await fleet.pause(deadline_s=deadline_s, force=True)
            except PauseTimeoutError as error:
                raise BodyError(504, str(error)) from None
            except (PausedByOtherError, PauseLostError) as error:
                raise BodyError(409, str(error)) from None
        paused = {"paused": True, "drained": True, "timed_out": False, "inflight": 0}
        nodes = [_acknowledged(worker_id, paused) for worker_id in report.proxies]
        return json_answer({"all_paused": True, "all_drained": True, "inflight": 0, "nodes": nodes})

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


def node(beat: Heartbeat, now: datetime) -> dict[str, Any]:
    """A `GatewayNodeInfo` of a live worker. It has no address: workers are reached through Kafka alone."""
    slots = {stage: sum(one.slots for one in beat.stages if one.stage is stage) for stage in Stage}
    busy = {stage: sum(one.slots - one.free for one in beat.stages if one.stage is stage) for stage in Stage}
    return {
        "node_id": beat.worker_id,
        "gateway_url": "",
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
