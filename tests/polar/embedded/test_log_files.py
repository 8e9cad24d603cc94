"""Log files of a data folder: last lines, and those that come, also in a file that is emptied or made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polar.embedded import log_files
from polar.embedded.log_files import LogFile


def test_parts_are_the_logs_of_up_and_kafkas(tmp_path: Path) -> None:
    assert log_files.parts(tmp_path) == {}
    for name in ("logs/proxy.log", "logs/proxy.log.1", "kafka/logs/broker.log", "kafka/logs/broker.1.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert log_files.parts(tmp_path) == {
        "proxy": tmp_path / "logs" / "proxy.log",
        "kafka": tmp_path / "kafka" / "logs" / "broker.log",
    }


@pytest.mark.parametrize(
    ("text", "lines", "last"),
    [
        (b"", 3, []),
        (b"a\nb\nc\n", 2, ["b", "c"]),
        (b"a\nb\n", 9, ["a", "b"]),
        (b"a\nb\n", 0, []),
        (b"a\nbegun", 9, ["a"]),
        (b"a\r\n\xff\n", 9, ["a", "�"]),
    ],
)
def test_the_last_complete_lines(tmp_path: Path, text: bytes, lines: int, last: list[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    assert LogFile(path).tail(lines) == last


def test_a_long_file_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "TAIL_BYTES", 12)
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert LogFile(path).tail(100) == ["98", "line 999"]


def test_each_line_that_comes_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nbeg")
    file = LogFile(path)
    assert (file.tail(9), file.more()) == (["a"], [])
    with path.open("a") as log:
        log.write("un\nb\nc")
    assert (file.more(), file.more()) == (["begun", "b"], [])
    os.truncate(path, 0)
    assert file.more() == []
    path.write_text("new\n")
    assert file.more() == ["new"]
    path.unlink()
    assert file.more() == []
    (tmp_path / "other").write_text("another file\n")
    (tmp_path / "other").rename(path)
    assert file.more() == ["another file"]
