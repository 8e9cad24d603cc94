"""Files that stand for living processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from analytics.lake import locks

pytestmark = pytest.mark.contract

HOLD = """
import sys
from pathlib import Path
from analytics.lake import locks
with locks.locked_file(Path(sys.argv[1])) as mark:
    mark.write("7")
    print(mark.name, flush=True)
    sys.stdin.read()
"""


def test_a_mark_lives_with_its_holder_and_is_buried_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        buried: list[str] = []
        assert locks.living(tmp_path, buried.append) == {name: "7"}
        assert buried == []
        process.kill()
        process.wait()
    assert locks.living(tmp_path, buried.append) == {}
    assert locks.living(tmp_path, buried.append) == {}
    assert buried == [name]


def test_a_released_mark_leaves_nothing(tmp_path: Path) -> None:
    with locks.locked_file(tmp_path) as mark:
        assert list(locks.living(tmp_path)) == [mark.name]
    assert list(tmp_path.iterdir()) == []


def test_no_mark_is_buried_while_it_is_being_made(tmp_path: Path) -> None:
    """One thread buries as fast as it can; of all marks that were made, each is there while it is held."""
    buried: list[str] = []

    def hold(_: int) -> bool:
        with locks.locked_file(tmp_path) as mark:
            return (tmp_path / mark.name).exists()

    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(hold, number) for number in range(500)]
        while not all(each.done() for each in held):
            locks.living(tmp_path, buried.append)
        assert all(each.result() for each in held)
