"""Having an agent CLI of the Python Package Index on this host. What any installation keeps is in `test_npm.py`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.harnesses.mini_swe_agent import MiniSweAgent
from consumers.harnesses.pypi import RECORD
from topics.environment import cache
from topics.types.agent import AgentSpec
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract

CLI = MiniSweAgent.cli


def environment(folder: Path, *packages: str) -> Path:
    """A folder like the environment in which `packages` are installed."""
    for name in packages:
        info = folder / "lib/python3/site-packages" / f"{name}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    CLI._seal(folder)
    return folder


def test_an_installation_that_lacks_a_package_its_version_or_its_python_is_not_whole(tmp_path: Path) -> None:
    assert not CLI.is_whole(tmp_path)
    folder = environment(tmp_path / "environment", f"mini_swe_agent-{CLI.version}", "litellm-1.0")
    assert CLI.is_whole(folder)
    assert not replace(CLI, version="0.0.1").is_whole(folder)
    assert not replace(CLI, package="mini-swe").is_whole(folder)
    python = folder / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert not CLI.is_whole(folder)
    python.unlink()
    python.symlink_to(sys.executable)
    (folder / "lib/python3/site-packages/litellm-1.0.dist-info/RECORD").unlink()
    assert not CLI.is_whole(folder)
    (folder / RECORD).write_text("[")
    assert not CLI.is_whole(folder)


async def test_an_index_that_cannot_be_reached_is_said_with_ways_out(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty_cache))
    with pytest.raises(NotReadyError) as raised:
        await MiniSweAgent(AgentSpec(harness="mini_swe_agent")).install()
    output = str(raised.value)
    assert f"pip could not install {CLI.package} {CLI.version} from the package index that is configured" in output
    for way_out in ("HTTPS_PROXY", "PIP_INDEX_URL=URL", str(empty_cache / CLI.entry)):
        assert way_out in output
    assert "secret" not in output
    assert not CLI.folder.exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "is full. Free 1470 MB, or set POLAR_CACHE"),
        ("WARNING: Retrying after ReadTimeoutError\nERROR: No matching", "can't be reached (ReadTimeout)"),
        ("WARNING: old\nERROR: No matching distribution", "pip reported: No matching distribution"),
        ("Killed", "pip reported: Killed"),
        ("", "pip reported: nothing"),
    ],
)
def test_what_pip_says_becomes_a_sentence(output: str, expected: str) -> None:
    assert expected in str(CLI._error(output))


def test_a_python_without_ensurepip_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLI.runs_on().startswith("Python 3.")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "ensurepip", raising=False)
    with pytest.raises(NotReadyError, match="apt-get install python3-venv"):
        CLI.runs_on()


@pytest.mark.harnesses
async def test_mini_is_installed_for_the_suite_and_nothing_else_is_left() -> None:
    await MiniSweAgent(AgentSpec(harness="mini_swe_agent")).install()
    assert CLI.is_whole(CLI.folder)
    assert any(
        name.endswith(f"{CLI.beside[0].replace('==', '-')}.dist-info")
        for name in json.loads((CLI.folder / RECORD).read_text())
    )
    assert not list(cache.root().glob(".mini*.downloads"))
