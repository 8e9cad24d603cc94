"""A user's own preset is installed from its own lock: a small CLI from a stand-in for the npm registry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from consumers.harnesses.base import harness_of
from consumers.harnesses.data_harness import InstalledData
from tests.consumers.harnesses.test_poisoning import GOOD, archive, integrity, registry
from topics.environment.registry import PRESETS
from topics.types.agent import AgentSpec
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract

PRESET = "install = {npm = 'tool', version = '1.0.0', program = 'tool/cli.js', megabytes = 1}\n"


async def test_it_is_installed_from_the_lock_beside_it(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(PRESET)
    monkeypatch.setenv(PRESETS, str(tmp_path))
    mine = harness_of(AgentSpec(harness="mine"))
    assert isinstance(mine, InstalledData)
    packed = archive(GOOD)
    with registry(packed) as url:
        monkeypatch.setenv("npm_config_registry", url)
        with pytest.raises(
            NotReadyError, match=r"mine\.json is missing: .* python -m consumers\.harnesses\.relock mine"
        ):
            await mine.install()
        package = {"version": "1.0.0", "integrity": integrity(packed), "bin": {"tool": "cli.js"}}
        packages = {"": {"dependencies": {"tool": "1.0.0"}}, "node_modules/tool": package}
        (tmp_path / "mine.json").write_text(json.dumps({"lockfileVersion": 3, "packages": packages}))
        await mine.install()
    assert mine.tools == (empty_cache / "mine-1.0.0",)
    started = await asyncio.create_subprocess_exec(*mine.cli.command(), stdout=asyncio.subprocess.PIPE)
    assert (await started.communicate())[0] == b"good\n"
