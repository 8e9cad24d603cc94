"""A proxy and the scripted engine as processes of their own, spoken to byte by byte, and what must hold of every answer they give."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import jsonschema_rs
import psutil
import requests

from proxy.dialects.base import dialects
from proxy.openapi import document
from proxy.peers.forwarding import REFUSED
from tests.proxy.conftest import Bench, benched
from tests.waiting import until
from topics.environment.keys import Limits
from topics.environment.redaction import PREFIX

READY_S = 60.0
ANSWER_S = 10.0
"""Of any request that came whole: no engine here is slow."""
CALLS_OF_A_KEY = 40
"""Then its session ends, as sessions do."""
EXPECTED = frozenset({200, 400, 401, 403, 404, 409, 413, 417, 426})
REFUSED_UNREAD = frozenset({400, 417})
"""Of requests that aren't HTTP: aiohttp's own answer, in no provider's shape."""
KEY = "<key>"
T = TypeVar("T")
_document = document(dialects())
ERRORS = {
    dialect.name: jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{dialect.name}.Error", "components": _document["components"]}
    )
    for dialect in dialects()
}


@dataclass(frozen=True)
class Shot:
    """A request, in bytes."""

    method: str
    target: str
    """Path and query, as they stand on the wire; latin-1."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    dialect: str | None = None
    """Whose shape an answer must have; None: anybody's."""
    key: str = "good"
    """Which key stands where its head says KEY."""

    @property
    def is_elsewhere(self) -> bool:
        """It is meant for another kind of server: of no path here."""
        return self.method == "CONNECT" or not self.target.startswith("/")

    def raw(self, key: str) -> bytes:
        """As it is sent. Framing headers are the shot's own."""
        head = [f"{self.method} {self.target} HTTP/1.1", "Host: polar", *(f"{name}: {v}" for name, v in self.headers)]
        return "\r\n".join([*head, "", ""]).replace(KEY, key).encode("latin-1") + self.body


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Served:
    """The proxy under fire."""

    def __init__(self, url: str, control_url: str, process: psutil.Process, log: Path, keys: Keys) -> None:
        split = urlsplit(url)
        assert split.hostname is not None
        assert split.port is not None
        self.address = split.hostname, split.port
        self.keys = keys
        self.process = process
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.slowest_s = 0.0
        self.fds = 0
        """Open where fuzzing began."""
        self.weights: list[tuple[int, int]] = []
        """Requests, and the bytes that the process had after them."""
        self.control_url = control_url
        self._log = log
        self._connection: socket.socket | None = None

    def connect(self) -> socket.socket:
        """A new connection."""
        connection = socket.create_connection(self.address, timeout=ANSWER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def fire(self, shot: Shot) -> Answer:
        """Sends a request on the open connection, or a new one; fails where no answer comes in time."""
        began = time.monotonic()
        fresh = self._connection is None
        connection = self._connection or self.connect()
        self._connection = None
        try:
            answer = ask(connection, shot.raw(self.keys.named(shot.key)), shot.method)
        except (ConnectionError, http.client.BadStatusLine):
            connection.close()
            if fresh:
                raise
            return self.fire(shot)  # the other end had closed it
        # After a CONNECT nothing is a request any more.
        if answer.headers.get("Connection", "").lower() == "close" or shot.method == "CONNECT":
            connection.close()
        else:
            self._connection = connection
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.statuses[shot.dialect or "none", answer.status] += 1
        return answer

    def metric(self, name: str) -> float:
        """A figure of the proxy's, all its labels together."""
        text = requests.get(self.control_url + "/metrics", timeout=ANSWER_S).text
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def at_rest(self) -> None:
        """Returns once no call is under way; fails after 10 s."""
        until(lambda: not self.metric("polar_proxy_calls_in_flight"), ANSWER_S)

    def begin(self) -> None:
        """Notes what is open when nobody asks anything."""
        self.hang_up()
        self.at_rest()
        self.fds = self.process.num_fds()

    def weigh(self) -> None:
        """Notes the process's memory."""
        self.weights.append((self.statuses.total(), self.process.memory_info().rss))

    def hang_up(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def assert_log_is_clean(self) -> None:
        """Nothing failed unforeseen, and no key was told."""
        log = self._log.read_text(errors="replace")
        for words in ("request failed", "Traceback", "never retrieved", "Error handling request: ", PREFIX):
            at = log.find(words)
            assert at < 0, log[max(0, at - 300) : at + 3000]


def ask(connection: socket.socket, raw: bytes, method: str = "POST") -> Answer:
    """One request on a connection, and its answer, whole. Raises TimeoutError, ConnectionError, BadStatusLine."""
    try:
        connection.sendall(raw)
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before it came whole: the answer may be there
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        response.close()


def judge(shot: Shot, answer: Answer) -> None:
    """Fails for an answer that no provider would give, whatever was asked."""
    told = f"{shot}\n{answer}"
    assert REFUSED not in answer.headers, told  # as only proxies tell one another
    assert answer.status in EXPECTED, told
    assert PREFIX.encode() not in answer.body, told
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    if kind == "text/plain" and (answer.status in REFUSED_UNREAD or shot.is_elsewhere):
        return
    if answer.status == 200:
        _judge_success(kind, answer, told)
    elif shot.method != "HEAD":
        assert kind == "application/json", told
        error = json.loads(answer.body)
        valid = ERRORS.values() if shot.dialect is None else [ERRORS[shot.dialect]]
        assert any(one.is_valid(error) for one in valid), told
        assert 0 < len(answer.body) < 20_000, told


def _judge_success(kind: str, answer: Answer, told: str) -> None:
    if kind == "text/event-stream":
        datas = [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]
        assert datas, told
        for data in datas:
            assert data == "[DONE]" or json.loads(data), told
    elif answer.body:
        assert kind == "application/json", told
        json.loads(answer.body)


@dataclass
class Keys:
    """Sessions' keys: the one in use, and such as open nothing."""

    bench: Bench
    _loop: asyncio.AbstractEventLoop
    _used: int = CALLS_OF_A_KEY
    _key: str = ""
    _claim: str = ""
    closed: str = ""
    """The last key whose session has ended."""

    def key(self) -> str:
        """A session's that is open, of one session for some calls."""
        if self._used >= CALLS_OF_A_KEY:
            if self._key:
                self._wait(self.bench.close_key(self._claim, self._claim))
                self.closed = self._key
            self._claim = f"fuzz-{secrets.token_hex(6)}.0"
            self._key = self.bench.key(self._claim, self._claim)
            self._used = 0
        self._used += 1
        return self._key

    def named(self, kind: str) -> str:
        """A key of a kind in KEYS; of any other kind: the open session's."""
        return KEYS.get(kind, Keys.key)(self)

    def _wait(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(READY_S)


KEYS: dict[str, Callable[[Keys], str]] = {
    "closed": lambda keys: keys.closed,
    "forged": lambda keys: keys.bench.key("forged.0")[:-4] + "AAAA",
    "expired": lambda keys: keys.bench.key("old.0", expires_at=1),
    "spent": lambda keys: keys.bench.key("spent.0", "spent", limits=Limits(calls=0)),
    "unknown": lambda keys: "sk-proj-unknown",
    "prefix": lambda keys: PREFIX,
    "cut": lambda keys: keys.key()[:-1],
    "long": lambda keys: keys.key() * 3,
    "none": lambda keys: "",
}
"""Kinds of keys that open nothing."""


@contextmanager
def served(kafka: str, folder: Path) -> Iterator[Served]:
    """A proxy, its engine and a bench on a real Kafka; the log of both processes stays in the folder."""
    with ExitStack() as stack:
        loop, bench = stack.enter_context(_bench(kafka, folder / "data"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}
        engine, _ = stack.enter_context(_process(["polar.scripted", "--port", "0"], environment, folder / "engine"))
        settings = bench.settings
        environment |= {
            "POLAR_DATA": str(settings.data), "POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace
        }  # fmt: skip
        arguments = ["polar.cli", "proxy", "--engine", engine["url"], "--port", "0", "--control-port", "0"]
        told, process = stack.enter_context(_process(arguments, environment, folder / "proxy"))
        served = Served(told["url"], told["control_url"], process, folder / "proxy.log", Keys(bench, loop))
        stack.callback(served.hang_up)
        yield served


@contextmanager
def _bench(kafka: str, folder: Path) -> Iterator[tuple[asyncio.AbstractEventLoop, Bench]]:
    """A bench on a loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bench")
    thread.start()
    opened = benched(kafka, f"t{secrets.token_hex(4)}", folder)
    try:
        bench = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(READY_S)
        yield loop, bench
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(READY_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _process(
    module: list[str], environment: dict[str, str], at: Path
) -> Iterator[tuple[dict[str, Any], psutil.Process]]:
    """`python -m <module>` until the end; what its ready file tells. Its output goes to `<at>.log`."""
    ready = at.with_suffix(".ready")
    with at.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *module, "--ready-file", str(ready)], env=environment, stdout=log, stderr=log
        )
        try:
            until(lambda: ready.exists() or process.poll() is not None, READY_S)
            assert ready.exists(), at.with_suffix(".log").read_text()
            yield json.loads(ready.read_text()), psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
                process.wait()
