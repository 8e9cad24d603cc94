"""`serve` as a process of its own: it says when it is ready, and on SIGTERM lets calls under way finish."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest
from openai import AsyncOpenAI

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow
from tests.proxy.conftest import Bench
from tests.waiting import eventually

pytestmark = pytest.mark.contract

SERVE = """
import sys, uvloop
from pathlib import Path
from topics.environment.settings import Settings
from proxy.addresses import Binding
from proxy.run import serve
data, kafka, namespace, engine = sys.argv[1:]
engines = {"default": {"urls": [engine], "model": "polar-scripted"}}
uvloop.run(serve(Settings(data=Path(data), kafka=kafka, namespace=namespace, engines=engines),
    Binding("127.0.0.1", 0), Binding("127.0.0.1", 0), ready=lambda url, _: print("ready", url, flush=True)))
"""


async def test_sigterm_lets_calls_under_way_finish(bench: Bench, scripted: ScriptedEngine, engine_url: str) -> None:
    settings = bench.settings
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVE,
        str(settings.data),
        settings.bootstrap,
        settings.namespace,
        engine_url,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while not (line := await process.stdout.readline()).startswith(b"ready"):
                assert line, "it ended before it was ready"
            url = line.split()[1].decode()
            scripted.faults.add(Slow(delay_s=1.0))
            async with AsyncOpenAI(base_url=url + "/v1", api_key=bench.key(), max_retries=0) as client:
                call = asyncio.ensure_future(
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                )
                await eventually(lambda: not scripted.faults.pending())
                process.send_signal(signal.SIGTERM)
                assert (await call).choices
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
