"""`polar export metrics` as a process, beside the real libraries; what was written is read back with each library's own reader.

The libraries lie in the user's cache (`sinks.txt`), so that Polar's environment stays without them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests import installed
from tests.polar.export.metrics.known import RUN, TRUTH
from tests.polar.export.metrics.test_curves import settings_of
from tests.serving import free_port
from tests.waiting import until

pytestmark = pytest.mark.hard

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
COMMAND_S = 120.0
FIRST_HALF = 1950
"""Before this second of the story all but the last points are final."""


@pytest.fixture(scope="module")
def libraries() -> Path:
    return installed.packages("metrics-sinks", HERE / "sinks.txt", sys.executable)


class Program:
    """A program that shows curves, with a folder of its own."""

    def __init__(self, name: str, folder: Path, libraries: Path) -> None:
        self.name = name
        self.folder = folder
        variables = {
            "PYTHONPATH": f"{ROOT}:{libraries}",
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(folder),
            "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("POLAR_")
        } | variables

    def export(self, data: Path) -> int:
        """Run the command; returns the number of points that it wrote."""
        return int(json.loads(self._run(*self._command(data), "--format", "json"))["points"])

    def start(self, data: Path, *options: str) -> subprocess.Popen[bytes]:
        """Start the command with further options."""
        command = [sys.executable, *map(str, self._command(data)), *options]
        return subprocess.Popen(command, env=self._environment, cwd=self.folder)

    def _command(self, data: Path) -> list[str | Path]:
        options: list[str | Path] = ["--logdir", self.folder] if self.name == "tensorboard" else []
        return ["-m", "polar.cli", "export", "metrics", "--run", RUN, "--to", self.name, *options, "--data", data]

    def read(self) -> dict[str, list[list[float]]]:
        """The points that it has, by curve."""
        arguments: dict[str, list[str | Path]] = {
            "tensorboard": [self.folder / RUN],
            "wandb": [self.folder, RUN],
            "mlflow": ["polar", RUN],
        }
        found: dict[str, list[list[float]]] = json.loads(
            self._run(HERE / "read_back.py", self.name, *arguments[self.name])
        )
        return found

    def _run(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self._environment, cwd=self.folder, capture_output=True, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the run before its last session ended."""
    return settings_of(tmp_path_factory.mktemp("half"), FIRST_HALF).data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return settings_of(tmp_path_factory.mktemp("whole")).data


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_the_program_has_each_point_once_after_a_second_start(
    name: str, libraries: Path, half: Path, whole: Path, tmp_path: Path
) -> None:
    program = Program(name, tmp_path, libraries)
    assert program.export(half) == 4
    if name == "tensorboard":
        # A crash has cut off the last record, that of the second point by version.
        [file] = tmp_path.glob(f"{RUN}/*")
        file.write_bytes(file.read_bytes()[:-3])
        assert program.export(whole) == 3
    else:
        assert program.export(whole) == 2
    found = program.read()
    if name == "tensorboard":
        # Values of event files have 32 bits.
        assert found.keys() == TRUTH.keys()
    assert found == {curve: [pytest.approx(list(one), rel=1e-6) for one in points] for curve, points in TRUTH.items()}


def test_an_export_that_follows_tells_its_metrics_until_it_is_stopped(
    libraries: Path, whole: Path, tmp_path: Path
) -> None:
    program, port = Program("tensorboard", tmp_path, libraries), free_port()
    address = f"http://127.0.0.1:{port}"
    following = program.start(whole, "--follow", "--metrics-port", str(port))

    def complete_text() -> str:
        assert following.poll() is None
        try:
            with urllib.request.urlopen(f"{address}/metrics", timeout=COMMAND_S) as answer:
                text: str = answer.read().decode()
        except OSError:
            return ""
        return text if 'polar_export_points_total{role="export"} 6.0' in text else ""

    try:
        text = until(complete_text, COMMAND_S)
        with urllib.request.urlopen(f"{address}/readyz", timeout=COMMAND_S) as answer:
            assert answer.status == 200
    finally:
        following.terminate()
    assert following.wait(COMMAND_S) == 0
    assert 'polar_export_failures{role="export"} 0.0' in text
    assert program.read().keys() == TRUTH.keys()


def test_a_library_that_is_missing_is_named_with_its_extra(whole: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "polar.cli", "export", "metrics", "--run", RUN, "--to", "mlflow", "--data", whole]
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode == 0:
        pytest.skip("this environment has MLflow")
    assert done.returncode == 3
    assert "package mlflow is missing" in done.stderr
    assert "mlflow]" in done.stderr
