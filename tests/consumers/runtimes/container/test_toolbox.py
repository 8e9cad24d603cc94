"""The Python that containers run, started on this host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from consumers.runtimes.container.keeper import PLACE
from consumers.runtimes.container.toolbox import Toolbox

pytestmark = pytest.mark.contract


def test_a_container_compiles_no_module_of_its_keeper(tmp_path: Path) -> None:
    toolbox = Toolbox(tmp_path)
    folder = toolbox.folder()
    for source in folder.rglob("*.py"):
        source.write_text("raise SystemExit('compiled here')")
    *program, start = [part.replace(f"{PLACE}/tools", str(folder)) for part in toolbox.command()]
    ended = subprocess.run(
        [*program, f"{start.removesuffix('main()')}print('ready')"], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "ready\n", ended.stderr
