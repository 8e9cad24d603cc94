"""A whole system with a scripted model for all clients, and the table that their runs make: docs/clients.md has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumers.harnesses import clients
from tests.acceptance.up.running import STOP_S, Up
from tests.clients.page import described
from tests.clients.trials import TRIALS, Trial

COLUMNS = ("`CLIENT`", "install it with", "sets", "dialect", "version tried", "calls", "side calls", "traces", "result")
PROPERTY = "run of a client"
NOT_TRIED, FAILED = "not tried", "failed"

Tell = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this folder is named on the command line."""
    parser.addoption("--newest", action="store_true", help="install the newest version of each client, without pins")
    parser.addoption("--clients-table", metavar="FILE", help="write the table of docs/clients.md here, too")


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("clients")
    scripts = {trial.name: trial.script for trial in TRIALS}  # all trials of a client have the same turns
    # The command line of `polar up` takes files of one or more documents; JSON is YAML.
    (folder / "scripts.yaml").write_text("\n---\n".join(map(json.dumps, scripts.values())))
    running = Up(folder, "--scripts", str(folder / "scripts.yaml"))
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
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
