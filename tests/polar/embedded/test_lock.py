"""One `polar up` a data folder, and a new one waits for the leftovers of one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.embedded import lock
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

HOLDER = """
import sys, time
from pathlib import Path
from polar.embedded import lock
claimed = lock.claim(Path(sys.argv[1]), announce=print)
if len(sys.argv) > 2:
    import subprocess
    subprocess.Popen(["sleep", sys.argv[2]], pass_fds=(claimed,), stdout=subprocess.DEVNULL)
print("claimed", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def hold(holders: list[subprocess.Popen[str]], data: Path, *leftover_s: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data), *leftover_s], stdout=subprocess.PIPE, text=True
    )
    holders.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def test_a_second_up_on_the_same_folder_is_refused(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    process = hold(holders, tmp_path)
    assert not lock.is_free(tmp_path)
    with pytest.raises(InputError, match=rf"a `polar up` \(process {process.pid}\) already runs there"):
        lock.claim(tmp_path, announce=print)


def test_a_killed_up_leaves_the_folder_free(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    process = hold(holders, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert lock.is_free(tmp_path)
    os.close(lock.claim(tmp_path, announce=print))


def test_processes_of_a_killed_up_are_waited_for(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    process = hold(holders, tmp_path, "1.5")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not lock.is_free(tmp_path)
    lines: list[str] = []
    os.close(lock.claim(tmp_path, announce=lines.append))
    assert lines == [f"waiting for processes of a killed `polar up` on {tmp_path} to end"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--data: the folder can't be made: Not a directory; choose another one"):
        lock.claim(tmp_path / "file" / "data", announce=print)


def test_a_new_folder_is_private_and_an_open_one_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    os.close(lock.claim(tmp_path / "new", announce=said.append))
    assert ((tmp_path / "new").stat().st_mode & 0o777, said) == (0o700, [])
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.close(lock.claim(shared, announce=said.append))
    assert said == [f"warning: other users can enter {shared} (mode 0755); chmod 700 {shared}"]
