"""Wall clocks that are an hour wrong, and that jump: Debian's libfaketime changes them for one process at a time.

Only the wall clock changes: a kernel keeps its monotonic one, however the other is set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from polar.client import SessionTable
from tests.acceptance import chaos
from tests.acceptance.fleet import Fleet, fleet
from tests.waiting import eventually

WORKERS = ("fanout-1", "coordinator-1", "builder-1", "init-1", "run-1", "evaluate-1")
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")
HOUR_S = 3600
TURNS = 40
PAUSE_S = 0.5
MORE_ANSWERS = 8
"""Answers to wait for after each change: every session goes on by some calls."""
BEGUN_S = 120.0
ENDED_S = 300.0


class Clocks:
    """A file for each process, with the difference between its clock and the machine's."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._library = library

    def variables(self, name: str) -> Mapping[str, str]:
        """Those with which a process reads its file, each second anew."""
        if not (self._folder / name).exists():
            self.set(name, 0)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._folder / name),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, name: str, ahead_s: int) -> None:
        """Atomic: a process reads the file at any time."""
        draft = self._folder / f".{name}"
        draft.write_text(f"{ahead_s:+d}")
        draft.replace(self._folder / name)


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    library = next((found for pattern in LIBRARIES for found in Path("/").glob(pattern[1:])), None)
    if library is None:
        pytest.fail("this test needs libfaketime: apt-get install faketime")
    folder = tmp_path / "clocks"
    folder.mkdir()
    return Clocks(folder, library)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("jumping", [("run-1", "coordinator-1"), ("proxy", "builder-1")], ids="-".join)
async def test_clocks_that_jump_by_an_hour_cost_nothing(
    tmp_path: Path, clocks: Clocks, jumping: tuple[str, str]
) -> None:
    """While each is wrong, the proxy is killed and starts again: it then has to tell old keys from new ones."""
    async with fleet(tmp_path / "data", WORKERS, variables=clocks.variables) as system:
        await system.start("proxy-2")
        names = [f"clock{n}" for n in range(2)]
        bodies = [system.task(name, TURNS, chaos.SAMPLES, pause_s=PAUSE_S) for name in names]
        code, _, error = await system.polar("submit", "-", stdin="\n".join(map(json.dumps, bodies)))
        assert code == 0, error
        await _more(system)
        for name in jumping:
            for ahead_s in (HOUR_S, -HOUR_S):
                clocks.set(name, ahead_s)
                await _more(system)
                await system.kill("proxy")
                await system.start("proxy")
                await _more(system)
            clocks.set(name, 0)
        async with SessionTable(system.settings) as table:
            assert await table.until(lambda: all(table.is_finished(name) for name in names), ENDED_S)
            attempts = {row.attempt for name in names for row in table.sessions[name].values()}
        assert attempts == {1}, "nobody lost an attempt"
        await chaos.check(system, names)


async def _more(system: Fleet) -> None:
    wanted = len(system.answered()) + MORE_ANSWERS
    await eventually(lambda: len(system.answered()) >= wanted, BEGUN_S)
