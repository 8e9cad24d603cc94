"""An engine whose servers demand an API key gets it, and nobody else does.

The server is the scripted engine behind a check of the key, as vLLM's `--api-key` makes one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from polar.scripted.app import create_app
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.chat import ChatRequest, Message
from proxy.engines import capabilities, probe, retry
from proxy.engines.api_key import ApiKey
from proxy.engines.pool import Engines
from proxy.errors import EngineError
from tests.proxy.engines.recorded import started
from topics.environment.settings import EngineSettings
from topics.types.errors import InputError, NotReadyError

ASKED = ChatRequest([Message("user", "hi")])
MODEL = "polar-scripted"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guarded:
    """A server that demands `key`; `seen` are the credentials of all requests."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.seen: list[str | None] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = create_app(ScriptedEngine())

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.seen.append(request.headers.get("Authorization"))
            if request.path != "/health" and self.seen[-1] != f"Bearer {self.key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        app.middlewares.insert(0, check)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.key"
    path.write_text("first-key\n")
    return path


def replace(file: Path, text: str) -> None:
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 1, before + 1))  # a file system may show the time in steps of some ms


async def test_every_request_to_the_engine_carries_its_key_and_follows_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", ())
    guarded, other = Guarded("first-key"), Guarded("")
    async with guarded.running() as url, other.running() as other_url:
        settings = {
            "hosted": EngineSettings(urls=(url,), model=MODEL, models=("hosted",), api_key_file=file),
            "own": EngineSettings(urls=(other_url,), model=MODEL, models=("own",)),
        }
        named = await asyncio.to_thread(probe.with_models, {"hosted": settings["hosted"]})
        assert (await asyncio.to_thread(probe.with_detected, named, print))["hosted"].logprobs_mode is None
        async with started(Engines.of(settings, deadline_s=5.0)) as engines:
            await engines.for_model("hosted").complete(ASKED, "t.0")
            await engines.for_model("hosted").count_tokens(ASKED)
            assert set(guarded.seen) == {"Bearer first-key"}
            guarded.key = "second-key"
            with pytest.raises(EngineError, match=r"refuses the proxy's API key \(set api_key_file") as refused:
                await engines.for_model("hosted").complete(ASKED, "t.0")
            assert (refused.value.code, refused.value.status) == ("misconfigured", 401)
            replace(file, "second-key")
            await engines.for_model("hosted").complete(ASKED, "t.0")
            with capture_logs() as logs:
                replace(file, "")
                await engines.for_model("hosted").complete(ASKED, "t.0")
            assert [entry["action"] for entry in logs] == ["api_key_unreadable"]
            with pytest.raises(EngineError):
                await engines.for_model("own").complete(ASKED, "t.0")
            assert set(other.seen) == {None}


async def test_the_checks_before_a_start_need_the_key_and_name_the_setting(file: Path) -> None:
    async with Guarded("first-key").running() as url:
        key = ApiKey(file, field="--engine-key-file")
        served = await asyncio.to_thread(probe.find_model, url, None, api_key=key)
        assert "first-key" not in repr(served)
        await probe.try_call(served)
        assert await capabilities.detect(url, MODEL, key) is None, "the scripted engine is told by its version"
        with pytest.raises(
            NotReadyError, match=rf"the engine at {url} demands another API key \(401\): set api_key_file"
        ):
            await asyncio.to_thread(probe.find_model, url, None)


@pytest.mark.parametrize("text", ["", "two keys", "a\nb", "x" * 5000, "clé"])
def test_a_file_without_a_key_is_refused_by_its_field(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=r"engines\.e\.api_key_file: must hold one API key") as refused:
        Engines.of({"e": EngineSettings(urls=("http://h",), model=MODEL, api_key_file=file)})
    assert text not in str(refused.value) or not text


def test_a_file_that_is_not_there_is_refused_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="engine-key-file: can't be read"):
        ApiKey(tmp_path / "none", field="--engine-key-file")
