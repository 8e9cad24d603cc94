"""A whole system with a scripted model for all clients, the table that their runs make, and what they send anew."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumers.harnesses import clients
from tests.acceptance.up.running import STOP_S, Up
from tests.clients import form
from tests.clients.page import described
from tests.clients.trials import TRIALS, Trial
from tests.harnesses.recording import Recording, recording
from tests.serving import free_port

COLUMNS = ("`CLIENT`", "install it with", "sets", "dialect", "version tried", "calls", "side calls", "traces", "result")
PROPERTY = "run of a client"
SENT = "what a client sent"
NOT_TRIED, FAILED = "not tried", "failed"

RELAY_S = 30.0
"""To begin or to end."""

Tell = Callable[..., None]
TellSent = Callable[[Trial], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this folder is named on the command line."""
    parser.addoption("--newest", action="store_true", help="install the newest version of each client, without pins")
    parser.addoption("--clients-table", metavar="FILE", help="write the table of docs/clients.md here, too")
    parser.addoption("--record-sent", action="store_true", help="rewrite tests/clients/sent")


@pytest.fixture(scope="session")
def proxy_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def relay(proxy_port: int) -> Iterator[Recording]:
    """Between the clients and the system's proxy. Its loop has a thread of its own: a test waits for its client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    relaying = recording(f"http://127.0.0.1:{proxy_port}")
    try:
        yield asyncio.run_coroutine_threadsafe(relaying.__aenter__(), loop).result(RELAY_S)
        asyncio.run_coroutine_threadsafe(relaying.__aexit__(None, None, None), loop).result(RELAY_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, proxy_port: int, relay: Recording) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("clients")
    scripts = {trial.name: trial.script for trial in TRIALS}  # all trials of a client have the same turns
    # The command line of `polar up` takes files of one or more documents; JSON is YAML.
    (folder / "scripts.yaml").write_text("\n---\n".join(map(json.dumps, scripts.values())))
    # The proxy gives this URL to sessions.
    (folder / "polar.toml").write_text(f'proxy_url = "{relay.url}"\n')
    running = Up(folder, "--scripts", str(folder / "scripts.yaml"), "--port", str(proxy_port))
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(STOP_S)


@pytest.fixture
def newest(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--newest", default=False))


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Puts a run into the table."""

    def told(trial: Trial, version: str, calls: int, side_calls: int, traces: int) -> None:
        result = trial.note or "captured, one trace"
        record_property(PROPERTY, (*described(trial.name), trial.dialect, version, calls, side_calls, traces, result))

    return told


@pytest.fixture
def tell_sent(relay: Recording, record_property: Callable[[str, object], None]) -> TellSent:
    """Puts the form of what came since the test's begin into the report."""
    before = len(relay.requests)

    def told(trial: Trial) -> None:
        # `polar session run` itself first asks for the length of the engine's context, if the client's settings depend on it.
        own = 1 if clients.uses_context(trial.name) else 0
        record_property(SENT, (str(trial), form.form(relay.requests[before + own :])))

    return told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _tell_table(terminalreporter)
    _tell_changes(terminalreporter)


def _tell_changes(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the differences between each client's requests and its recording. With `--record-sent`, rewrite the recordings of clients that
    worked."""
    is_recording = terminalreporter.config.getoption("--record-sent", default=False)
    reports = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, [])]
    properties = [dict(each.user_properties) for each in reports if each.when == "call"]
    lines: list[str] = []
    for told in sorted((each for each in properties if SENT in each), key=lambda each: each[SENT][0]):
        trial, calls = told[SENT]
        version = told[PROPERTY][COLUMNS.index("version tried")] if PROPERTY in told else FAILED
        result, *changes = _compared(form.read(trial), calls)
        lines += [f"{trial} {version}: {result}", *(f"  {change}" for change in changes)]
        if is_recording and version != FAILED:
            form.write(trial, form.Recorded(version, calls))
    if lines:
        terminalreporter.section("what clients send, compared with tests/clients/sent")
        terminalreporter.write_line("\n".join(lines))


def _compared(recorded: form.Recorded | None, calls: form.Calls) -> list[str]:
    """The result, and behind it the changes."""
    if recorded is None:
        return ["no recording"]
    changes = form.differences(recorded.calls, calls)
    return [f"differs from {recorded.version}" if changes else "as recorded", *changes]


def _tell_table(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("passed", [])
    rows = [row for each in reports if each.when == "call" for name, row in each.user_properties if name == PROPERTY]
    ended_badly = [report.nodeid for report in terminalreporter.stats.get("failed", [])]
    failed = [trial for trial in TRIALS if any(nodeid.endswith(f"[{trial}]") for nodeid in ended_badly)]
    rows += [(*described(trial.name), trial.dialect, "", "", "", "", FAILED) for trial in failed]
    if not rows:
        return
    tried = {row[0] for row in rows}
    others = [name for name in clients.names() if f"`{name}`" not in tried]
    rows += [(*described(name), "", "", "", "", "", NOT_TRIED) for name in others]
    lines = [f"| {' | '.join(map(str, row))} |" for row in (COLUMNS, ["---"] * len(COLUMNS), *sorted(map(tuple, rows)))]
    terminalreporter.section("runs of clients")
    terminalreporter.write_line("\n".join(lines))
    if file := terminalreporter.config.getoption("--clients-table", default=None):
        Path(file).write_text("\n".join(lines) + "\n")
