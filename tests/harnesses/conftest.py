"""Runs of real CLIs, and the table that they make: docs/harnesses.md has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import Cli, CliHarness
from consumers.runtimes.base import RuntimeBackend
from tests.consumers.conftest import claim, runtime  # noqa: F401 - fixtures
from tests.consumers.harnesses.conftest import model  # noqa: F401 - a fixture
from tests.harnesses.outcome import Outcome
from tests.harnesses.speakers import Speaker
from topics.environment import registry
from topics.types.agent import AgentSpec

COLUMNS = (
    "CLI",
    "version",
    "dialect",
    "case",
    "calls",
    "other kinds",
    "traces",
    "merged",
    "trainable tokens",
    "seconds",
)
PROPERTY = "run of a harness"

Told = Callable[[Speaker, str, Outcome], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this folder is named on the command line."""
    parser.addoption("--table", metavar="FILE", help="write the table of runs of harnesses here, too")
    parser.addoption("--runtime", metavar="NAME", default="cell", help="run the CLIs in this runtime")
    parser.addoption("--record", metavar="DIR", help="write down what each CLI sends, private text removed")


def cli_of(speaker: Speaker) -> Cli:
    harness = harness_of(AgentSpec(harness=speaker.specimen.harness))
    assert isinstance(harness, CliHarness)
    return harness.cli


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> RuntimeBackend:
    name = request.config.getoption("--runtime", default="cell")
    made: RuntimeBackend = registry.load(registry.Kind.RUNTIME, name)(tmp_path / "runtimes")
    return made


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Told:
    """Puts a run into the table."""
    began = time.monotonic()

    def told(speaker: Speaker, case: str, outcome: Outcome) -> None:
        cli = cli_of(speaker)
        row = (
            " ".join([cli.name, *map(str, speaker.settings.values())]),
            cli.version,
            speaker.dialect,
            case,
            len(outcome.calls),
            ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.kinds.items())) or "–",
            len(outcome.trajectory.traces),
            f"{outcome.merge_rate:.2f}",
            outcome.trajectory.stats.trainable_tokens,
            f"{time.monotonic() - began:.1f}",
        )
        record_property(PROPERTY, row)

    return told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, [])]
    rows = [row for each in reports if each.when == "call" for name, row in each.user_properties if name == PROPERTY]
    if not rows:
        return
    lines = [f"| {' | '.join(map(str, row))} |" for row in (COLUMNS, ["---"] * len(COLUMNS), *sorted(map(tuple, rows)))]
    terminalreporter.section("runs of harnesses")
    terminalreporter.write_line("\n".join(lines))
    if file := terminalreporter.config.getoption("--table", default=None):
        Path(file).write_text("\n".join(lines) + "\n")
