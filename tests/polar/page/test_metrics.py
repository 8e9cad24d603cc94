"""`polar page --metrics-port`: requests of the page, and whether it reads Kafka, which it doesn't until somebody looks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from polar.page.service import serve
from proxy.addresses import Binding
from tests.serving import free_port
from topics.environment.settings import Settings


async def test_the_page_tells_its_requests_on_a_port_of_their_own(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    settings = Settings(kafka="127.0.0.1:1", control_token_file=token, data=tmp_path)
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    at = Binding("127.0.0.1", free_port())
    serving = asyncio.create_task(
        serve(settings, Binding("127.0.0.1", 0), stop=stop, ready=url.set_result, metrics_binding=at)
    )
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    async with aiohttp.ClientSession() as client:
        for path, status in (("/", 200), ("/api/flags", 401), ("/api/sessions/t.0", 401)):
            async with client.get(f"{url.result()}{path}") as answer:
                assert answer.status == status
        async with client.get(f"http://{at.host}:{at.port}/metrics") as answer:
            text = await answer.text()
        async with client.get(f"http://{at.host}:{at.port}/readyz") as answer:
            assert answer.status == 200
    stop.set()
    await serving
    assert 'polar_http_requests_total{role="page",route="/",status="200"} 1.0' in text
    assert 'polar_http_requests_total{role="page",route="/api/sessions/{session_id}",status="401"} 1.0' in text
    assert 'polar_http_request_seconds_count{role="page"} 3.0' in text
    assert 'polar_page_follows{role="page"} 0.0' in text
    assert "process_resident_memory_bytes" in text
