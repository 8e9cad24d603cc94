"""The scripted engine's HTTP side: vLLM's routes, and its own under `/scripted`.

Every answer names the engine in its `Server` header. A call is recorded before the last part of its answer is sent. If the client
disconnects before that, the call ends and is recorded as aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from polar.scripted.engine import Engine, Work
from polar.scripted.faults import Cut, Fault, Garbage, Hang, Slow, Status, spoil
from polar.scripted.request import ApiError, DetokenizeRequest, NamedWeights, decode_chat, decode_tokenize, decoded
from polar.scripted.response import Wire
from polar.scripted.token_routes import decode_derender, decode_generate, generated
from polar.scripted.weights import NamedSpan

NAME: Final = "polar-scripted"
VERSION: Final = version("polar-rollouts")
WHAT_IT_IS: Final = "the scripted engine of Polar: a stand-in that plays scripts, not a model"
MAX_BODY_BYTES: Final = 64 * 2**20
# For calls in flight when the engine stops. aiohttp waits this long twice: before it cancels them and after.
SHUTDOWN_S: Final = 1.0
ENGINE: Final = web.AppKey("engine", Engine)

log = structlog.get_logger(__name__)


def create_app(engine: Engine) -> web.Application:
    """The application that serves an engine. Run it with `handler_cancellation`, as `running` does: a client's disconnect then
    ends its call."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    app[ENGINE] = engine
    app.on_response_prepare.append(_sign)
    app.add_routes(
        [
            web.post("/v1/chat/completions", _chat),
            web.post("/v1/chat/completions/render", _render),
            web.post("/inference/v1/generate", _generate),
            web.post("/v1/chat/completions/derender", _derender),
            web.get("/v1/models", _models),
            web.get("/health", _health),
            web.get("/metrics", _metrics),
            web.get("/version", _version),
            web.post("/tokenize", _tokenize),
            web.post("/detokenize", _detokenize),
            web.post("/update_weight_version", _update_weight_version),
            web.get("/weight_info", _weight_info),
            web.get("/scripted/record", _record),
            web.get("/scripted/faults", _list_faults),
            web.post("/scripted/faults", _add_fault),
            web.delete("/scripted/faults", _clear_faults),
        ]
    )
    return app


@asynccontextmanager
async def running(engine: Engine, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve an engine and yield its base URL, without `/v1`; port 0 means any free port.

    At the end, calls in flight are aborted after `SHUTDOWN_S`. Raises OSError if the port is taken.
    """
    runner = web.AppRunner(create_app(engine), handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound_host, bound_port = runner.addresses[0][:2]
        yield f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


async def _chat(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    work = engine.begin(*decode_chat(await request.read()))
    wire = Wire(work.generation, engine.tokenizer)
    return await _answered(request, _Answer(request, work, lambda _: wire.body()))


async def _generate(request: web.Request) -> web.StreamResponse:
    tokens_request, fields = decode_generate(await request.read())
    engine = request.app[ENGINE]
    work = engine.begin_tokens(tokens_request, fields, request.headers.get("X-Session-ID"))
    replayed = engine.replayed(tokens_request, work.generation)
    return await _answered(
        request, _Answer(request, work, lambda weights: generated(work.generation, weights, replayed))
    )


async def _render(request: web.Request) -> web.Response:
    return _json(request.app[ENGINE].render(*decode_chat(await request.read())))


async def _derender(request: web.Request) -> web.Response:
    return _json(request.app[ENGINE].derender(decode_derender(await request.read())))


async def _answered(request: web.Request, answer: _Answer) -> web.StreamResponse:
    engine, work = request.app[ENGINE], answer.work
    match work.fault:
        case Hang():
            await asyncio.Event().wait()
        case Status(status=status, retry_after_s=seconds):
            headers = {} if seconds is None else {"Retry-After": str(seconds)}
            raise ApiError(status, f"an injected fault: status {status}", headers=headers)
        case Cut(after_bytes=None):
            _close(request)
            return web.Response()
    try:
        return await (answer.stream() if work.request.stream else answer.body())
    finally:
        if not answer.is_written_down:
            engine.write_down(work, "aborted", answer.tokens_sent)


class _Answer:
    def __init__(self, request: web.Request, work: Work, body: Callable[[list[NamedSpan]], dict[str, Any]]) -> None:
        """`body` makes the complete answer from the weights that sampled it; streams are chat completions."""
        self.is_written_down = False
        self.tokens_sent = 0
        self._request = request
        self._engine = request.app[ENGINE]
        self.work = work
        self._body = body
        self._bytes_left = work.fault.after_bytes if isinstance(work.fault, Cut) else None

    async def body(self) -> web.StreamResponse:
        await self._wait()
        encoded = _encode(self._body(self._write_down()), self.work.fault)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(encoded)
        await response.prepare(self._request)
        await self._send(response, encoded)
        return response

    async def stream(self) -> web.StreamResponse:
        await self._wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(self._request)
        pause = self.work.fault.chunk_delay_s if isinstance(self.work.fault, Slow) else 0.0
        options = self.work.request.stream_options
        total = len(self.work.generation.token_ids)
        wire = Wire(self.work.generation, self._engine.tokenizer)
        for chunk, sent in wire.chunks():
            if sent:
                await asyncio.sleep(pause)
            if sent == total:
                self._write_down()
            if not await self._send(response, _event(_encode(chunk, self.work.fault))):
                return response
            self.tokens_sent = sent
        if options is not None and options.include_usage:
            await self._send(response, _event(_encode(wire.usage_chunk(), self.work.fault)))
        await self._send(response, _event(b"[DONE]"))
        return response

    async def _wait(self) -> None:
        fault = self.work.fault
        await asyncio.sleep(self.work.delay_s + (fault.delay_s if isinstance(fault, Slow) else 0.0))

    def _write_down(self) -> list[NamedSpan]:
        """Record the whole call; returns the weights that sampled it."""
        self.is_written_down = True
        return self._engine.write_down(self.work, "completed", len(self.work.generation.token_ids))

    async def _send(self, response: web.StreamResponse, data: bytes) -> bool:
        """Send a part of the body; returns False once the connection is cut."""
        if self._bytes_left is None:
            await response.write(data)
            return True
        await response.write(data[: self._bytes_left])
        self._bytes_left -= len(data)
        if self._bytes_left > 0:
            return True
        _close(self._request)
        return False


def _close(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _encode(payload: dict[str, object], fault: Fault | None) -> bytes:
    return spoil(fault.form, payload) if isinstance(fault, Garbage) else msgspec.json.encode(payload)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def _models(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    model = {
        "id": engine.model,
        "object": "model",
        "created": 0,
        "owned_by": NAME,
        "root": engine.model,
        "parent": None,
        "max_model_len": engine.max_model_len,
        "description": WHAT_IT_IS,
    }
    return _json({"object": "list", "data": [model]})


async def _health(_: web.Request) -> web.Response:
    return _json({"status": "ok", "engine": NAME, "description": WHAT_IT_IS})


async def _metrics(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    return web.Response(body=engine.metrics.text(engine.started), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _version(_: web.Request) -> web.Response:
    return _json({"version": f"{NAME}-{VERSION}", "description": WHAT_IT_IS})


async def _tokenize(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    ids = engine.tokenize(*decode_tokenize(await request.read()))
    return _json({"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids, "token_strs": None})


async def _detokenize(request: web.Request) -> web.Response:
    wanted, _ = decoded(await request.read(), DetokenizeRequest)
    return _json({"prompt": request.app[ENGINE].detokenize(wanted)})


async def _update_weight_version(request: web.Request) -> web.Response:
    named, _ = decoded(await request.read(), NamedWeights)
    request.app[ENGINE].weights.update(named.new_version, time.monotonic())
    return _json({"success": True, "new_version": named.new_version})


async def _weight_info(request: web.Request) -> web.Response:
    return _json({"weight_version": request.app[ENGINE].weights.name})


async def _record(request: web.Request) -> web.StreamResponse:
    """The record, one JSON line per call."""
    response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
    await response.prepare(request)
    for line in request.app[ENGINE].record.lines():
        await response.write(line)
    return response


async def _list_faults(request: web.Request) -> web.Response:
    return _json({"faults": request.app[ENGINE].faults.pending()})


async def _add_fault(request: web.Request) -> web.Response:
    faults = request.app[ENGINE].faults
    try:
        faults.add(msgspec.json.decode(await request.read(), type=Fault))
    except (msgspec.DecodeError, ValueError) as error:
        raise ApiError(400, str(error)) from error
    return _json({"faults": faults.pending()})


async def _clear_faults(request: web.Request) -> web.Response:
    request.app[ENGINE].faults.clear()
    return _json({"faults": []})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = f"{NAME}/{VERSION}"


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors, including those of the router, in vLLM's format."""
    try:
        return await handler(request)
    except ApiError as error:
        refused = error
    except web.HTTPException as error:
        refused = ApiError(error.status, error.reason)
    except ConnectionError:
        raise
    except Exception:
        log.exception("a request failed", action="request_failed", path=request.path)
        refused = ApiError(500, "the scripted engine failed; its log shows the error")
    return web.Response(
        body=refused.body(), status=refused.status, headers=refused.headers, content_type="application/json"
    )
