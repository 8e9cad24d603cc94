"""What long work says of itself on stderr: bars on a terminal, lines elsewhere, and nothing where it is quick."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from polar.cli import progress
from polar.cli.output import bars
from tests.polar.cli.terminal import Terminal

pytestmark = pytest.mark.contract

DOWNLOAD = """
import asyncio, time, typer
from polar.cli import progress
meter = progress.download_bar()
assert meter is not None
with meter(50_000_000) as tell:
    for done in range(0, 50_000_001, 5_000_000):
        tell(done)
        time.sleep(0.05)
        if done == 25_000_000:
            typer.echo("polar: one jar did not come whole", err=True)
typer.echo("polar: after", err=True)
"""
READING = """
import asyncio
from polar.cli import progress
done = 0
async def work():
    global done
    for done in range(0, 3001, 100):
        await asyncio.sleep(0.08)
asyncio.run(progress.reading(work(), lambda: (done, 3000), "the table"))
print("read")
"""


UPLOADING = """
import time
from pathlib import Path
from polar.cli import progress
with progress.uploading() as on_bytes:
    for done in range(0, 50_000_001, 1_000_000):
        on_bytes(Path("a [bold]folder\x1b[31m"), done, 50_000_000)
        time.sleep(0.04)
print("stored")
"""


def on_terminal(program: str) -> str:
    """All that a program wrote to a terminal of 80 characters; it ended well."""
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with closing(Terminal([sys.executable, "-c", program], environment, 80, 24)) as terminal:
        assert terminal.end() == 0, terminal.wrote
        return terminal.wrote


def test_a_download_is_a_bar_on_a_terminal_which_leaves_other_lines_whole() -> None:
    wrote = on_terminal(DOWNLOAD)
    assert "50.0/50.0 MB" in wrote
    assert "polar: one jar did not come whole" in wrote
    assert wrote.rstrip().endswith("polar: after")
    assert wrote.rindex("\x1b[?25h") > wrote.rindex("\x1b[?25l")


def test_results_that_go_to_a_file_stay_there_while_a_bar_is_shown(tmp_path: Path) -> None:
    results = tmp_path / "results"
    wrote = on_terminal(
        f"import sys; sys.stdout = open({str(results)!r}, 'w')\n" + READING.replace("global", "print(1); global")
    )
    assert "reading the table" in wrote
    assert results.read_text() == "1\nread\n"


def test_reading_is_a_bar_on_a_terminal_and_gone_afterwards() -> None:
    wrote = on_terminal(READING)
    assert "reading the table" in wrote
    assert "/3000" in wrote
    assert wrote.rstrip().endswith("read")
    assert wrote.rindex("\x1b[2K") > wrote.rindex("reading the table")


async def test_reading_elsewhere_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUICK_S", 0.0)
    monkeypatch.setattr(progress, "STEP_S", 0.01)
    done = asyncio.Event()
    far = [0]

    async def work() -> None:
        await done.wait()

    def how_far() -> tuple[int, int]:
        far[0] += 1
        if far[0] == 20:
            done.set()
        return far[0], 20

    await progress.reading(work(), how_far, "the table")
    assert capsys.readouterr().err == "polar: reading the table: 1 of 20\n"


def test_an_upload_is_a_bar_on_a_terminal_and_gone_afterwards() -> None:
    wrote = on_terminal(UPLOADING)
    assert "uploading a [bold]folder\\x1b[31m" in wrote, "a path is no markup and no code of the terminal"
    assert "/50.0 MB" in wrote
    assert wrote.rstrip().endswith("stored")


def test_an_upload_elsewhere_is_a_line_now_and_then_and_a_quick_one_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.uploading() as on_bytes:
        on_bytes(Path("quick"), 1, 1)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress, "QUICK_S", 0.0)
        for done in (5, 10):
            on_bytes(Path("repo"), done * 1_000_000, 10_000_000)
    assert capsys.readouterr().err == "polar: uploading repo: 5.0 of 10.0 MB\n"


async def test_quick_reading_says_nothing_and_what_it_raises_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await progress.reading(fail(), lambda: (0, 0), "the table")
    assert capsys.readouterr().err == ""


async def test_reading_that_is_cancelled_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    reading = asyncio.create_task(progress.reading(work(), lambda: (0, 0), "the table"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended.is_set()


@pytest.mark.parametrize(
    ("rewards", "shown"),
    [
        ([0.0, 0.5, 1.0, None], "▁▅█·"),
        ([], ""),
        ([-1.0, 0.0, 1.0], "▁▅█"),
        ([5.0, 10.0], "▅█"),
        ([0.3, 0.3], "▃▃"),
    ],
)
def test_rewards_stand_between_0_and_1_or_as_far_as_they_reach(rewards: list[float | None], shown: str) -> None:
    assert bars(rewards) == shown
