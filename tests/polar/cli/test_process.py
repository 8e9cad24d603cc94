"""What signals do to a command that runs until it is told to stop. Each is a process, since signals are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topics.environment.keys import ensure_keys_file, read_keys_file
from topics.environment.redaction import SECRET_SHOWN

pytestmark = pytest.mark.contract

PROGRAM = """
import asyncio
from polar.cli import process

hurry = asyncio.Event() if {hurries} else None

async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stop", flush=True)
    if hurry is not None:
        await hurry.wait()
        print("hurry", flush=True)
    await asyncio.sleep(60)

process.serve(main, hurry)
"""


@contextmanager
def running(*, hurries: bool) -> Iterator[subprocess.Popen[str]]:
    program = PROGRAM.format(hurries=hurries)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "ready"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_service_may_open_as_many_files_as_it_may_allow_itself() -> None:
    program = "import resource; from polar.cli import process\n"
    program += "async def main(stop): print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\nprocess.serve(main)"
    shell = ("bash", "-c", 'ulimit -Sn 300; ulimit -Hn 700; exec "$@"', "-", sys.executable, "-c", program)
    assert subprocess.check_output(shell, text=True) == "700\n"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_with_a_grace_a_second_signal_hurries_and_a_third_ends(second: signal.Signals) -> None:
    with running(hurries=True) as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stop"
        process.send_signal(second)
        assert said(process) == "hurry"
        process.send_signal(second)
        assert process.wait(15) != 0


def test_without_a_grace_a_second_signal_ends_the_process() -> None:
    with running(hurries=False) as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stop"
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == -signal.SIGTERM


@pytest.mark.parametrize(
    "role",
    [
        "coordinator",
        *(pytest.param(role, marks=pytest.mark.hard) for role in ("fanout", "builder", "analytics", "webhooks")),
    ],
)
def test_a_consumer_whose_kafka_answers_nothing_leaves_when_it_is_told_to(role: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kafka = {"POLAR_KAFKA": f"127.0.0.1:{silent.getsockname()[1]}", "POLAR_DATA": str(tmp_path)}
        (tmp_path / "webhook.secret").write_text("whsec_" + "A" * 43 + "=")
        ensure_keys_file(tmp_path / "keys.json")
        command = [sys.executable, "-m", "polar.cli", "worker", role]
        with subprocess.Popen(command, env=os.environ | kafka) as process:
            try:
                silent.settimeout(60)
                with silent.accept()[0]:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(30) == 0
            finally:
                process.kill()


LOGGING = """
import logging, sys
from pathlib import Path
import structlog
from polar.cli import process
from topics.environment import redaction
from topics.environment.settings import Settings

process.log_events()
redaction.cover(Settings(data=Path(sys.argv[1])))
secret = Path(sys.argv[1], "keys.json").read_text()
structlog.get_logger().warning("an event", why=secret + " sk-polar-abc.def")
logging.getLogger("library").error("a message %s", secret + " sk-polar-abc.def")
try:
    raise ValueError(secret)
except ValueError:
    structlog.get_logger().exception("failed")
    logging.getLogger("library").exception("failed")
"""


def test_no_secret_of_the_fleet_and_no_key_is_in_a_log(tmp_path: Path) -> None:
    ensure_keys_file(tmp_path / "keys.json")
    (secret,) = read_keys_file(tmp_path / "keys.json").values()
    logged = subprocess.run(
        [sys.executable, "-c", LOGGING, tmp_path], capture_output=True, text=True, check=True
    ).stderr
    assert logged.count(SECRET_SHOWN) == 4, logged
    assert secret not in logged
    assert "sk-polar-" not in logged


def test_at_sigusr1_a_service_writes_what_its_tasks_await_and_goes_on() -> None:
    program = """
import asyncio
from polar.cli import process

async def told(stop):
    asyncio.get_running_loop().call_soon(print, "ready")
    await stop.wait()
    print("stop", flush=True)

async def main(stop):
    await told(stop)

process.serve(main)
"""
    command = [sys.executable, "-uc", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert said(process) == "ready"
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stop"
        assert process.wait(15) == 0
        assert process.stderr is not None
        written = process.stderr.read()
    assert "in main\n" in written
    assert "in told\n" in written
