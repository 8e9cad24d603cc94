"""`polar logs` on a data folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polar.cli.commands import polar
from tests.waiting import until

START_S = 30.0
"""For the start of the command."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "proxy.log").write_text("one\ntwo\n\x1b[2Jthree\n")
    (tmp_path / "logs" / "stages.log").write_text("four\n")
    return tmp_path


def test_a_part_s_last_lines_control_no_terminal(data: Path) -> None:
    assert data.exists()
    assert polar("logs", "proxy", "-n", "2") == (0, "two\n\\x1b[2Jthree\n", "")


def test_lines_of_all_parts_begin_with_its_name(data: Path) -> None:
    assert data.exists()
    assert polar("logs", "--lines", "1") == (0, "proxy   \\x1b[2Jthree\nstages  four\n", "")


def test_an_unknown_part_is_an_error_that_names_the_parts(data: Path) -> None:
    assert data.exists()
    code, stdout, stderr = polar("logs", "nope")
    assert (code, stdout) == (2, "")
    assert "PART: no such part; there are: proxy, stages (got 'nope')" in stderr


def test_a_folder_without_logs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path / "none"))
    code, _, stderr = polar("logs")
    assert code == 3
    assert f"no logs in {tmp_path / 'none' / 'logs'}" in stderr


@pytest.mark.contract
def test_lines_that_come_are_followed_until_a_signal(data: Path) -> None:
    command = [sys.executable, "-m", "polar.cli", "logs", "proxy", "--follow"]
    printed = data / "printed"
    with printed.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            until(lambda: "three" in printed.read_text(), START_S)
            with (data / "logs" / "proxy.log").open("a") as log:
                log.write("five\n")
            until(lambda: "five" in printed.read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(START_S) == 0
        finally:
            process.kill()
    assert printed.read_text() == "one\ntwo\n\\x1b[2Jthree\nfive\n"
