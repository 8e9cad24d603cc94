"""A filled Kafka with `polar page` on it, and a load of changing sessions."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from aiokafka import AIOKafkaProducer

from tests.polar.page.filled import fill
from tests.waiting import until
from topics import sessions
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.partition import partition_of_task
from topics.types.session import Phase, SessionState, TaskState

TOKEN = "secret"
START_S = 120.0
REQUEST_S = 60.0
SESSIONS_OF_LOAD = 1000
"""The load changes so many sessions in turn; each stays in one of three phases."""


@dataclass(frozen=True)
class Served:
    """A running `polar page`."""

    settings: Settings
    url: str
    """Without a slash at its end."""

    def get(self, path: str, **query: object) -> Any:
        """A JSON document of the API."""
        request = Request(f"{self.url}/api/{path}?{urlencode(query)}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=REQUEST_S) as answer:
            return json.load(answer)


@contextmanager
def served(bootstrap: str, namespace: str, folder: Path, session_count: int) -> Iterator[Served]:
    """`polar page` on a namespace with `session_count` sessions. At the end of the context SIGTERM stops it."""
    token, ready, output = folder / "control.token", folder / "ready.json", folder / "page.log"
    token.write_text(TOKEN)
    settings = Settings(
        kafka=bootstrap,
        namespace=namespace,
        replication=1,
        min_insync=1,
        data=folder / "data",
        control_token_file=token,
    )
    asyncio.run(_filled(settings, session_count))
    environment = os.environ | {
        "POLAR_KAFKA": bootstrap,
        "POLAR_NAMESPACE": namespace,
        "POLAR_DATA": str(folder / "data"),
        "POLAR_CONTROL_TOKEN_FILE": str(token),
    }
    command = [sys.executable, "-m", "polar.cli", "page", "--port", "0", "--ready-file", str(ready)]
    with output.open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            until(lambda: ready.exists() or process.poll() is not None, START_S)
            assert process.poll() is None, output.read_text()
            found = Served(settings, json.loads(ready.read_text())["url"].rstrip("/"))
            until(lambda: found.get("overview")["live"]["reading"] is None, START_S)
            yield found
            process.terminate()
            assert process.wait(START_S) == 0, output.read_text()
        finally:
            process.kill()


async def _filled(settings: Settings, session_count: int) -> None:
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    await fill(settings, session_count)


@contextmanager
def load(settings: Settings, rate: int) -> Iterator[None]:
    """`rate` rows of sessions a second on `polar.sessions`, while the context lasts."""
    stop = threading.Event()
    writer = threading.Thread(target=lambda: asyncio.run(_write(settings, rate, stop)), name="load")
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


async def _write(settings: Settings, rate: int, stop: threading.Event) -> None:
    name = sessions.TOPIC.full_name(settings.namespace)
    partition = partition_of_task("load", await admin.partition_count(settings, name))
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap, linger_ms=5) as producer:

        async def send(key: str, record: TaskState | SessionState) -> None:
            await producer.send(name, encode(record), key=key.encode(), partition=partition)

        await send("task:load", TaskState("load", SESSIONS_OF_LOAD, "hash"))
        written, began = 0, time.monotonic()
        while not stop.is_set():
            while written < (time.monotonic() - began) * rate:
                index = written % SESSIONS_OF_LOAD
                phase = (Phase.QUEUED, Phase.READY, Phase.RUNNING)[written // SESSIONS_OF_LOAD % 3]
                await send(f"session:load.{index}", SessionState(f"load.{index}", "load", index, phase, 0))
                written += 1
            await asyncio.sleep(0.02)
