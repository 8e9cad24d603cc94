"""The keeper of the embedded Kafka, on a disk that fills: a real one, of 700 MB in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.embedded import disk
from polar.embedded.kafka import Kafka
from polar.embedded.properties import Security
from tests.waiting import eventually

pytestmark = pytest.mark.hard

DEADLINE_S = 60.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts a disk of its own")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a disk of its own")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


async def announced(words: str, lines: list[str]) -> None:
    await eventually(lambda: any(words in line for line in lines), DEADLINE_S)


async def test_a_full_disk_is_named_and_with_room_kafka_is_back(small: Path) -> None:
    lines: list[str] = []
    kafka = Kafka(small, announce=lines.append, security=Security("SASL_PLAINTEXT"))
    await kafka.start()
    keeper = asyncio.create_task(kafka.keep(), name="keep")
    try:
        filler = small / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(disk.MIB))
        kafka._broker.kill()  # what Kafka does itself at its next write
        await announced(f"the disk of {small} is full. Make room", lines)
        filler.unlink()
        await announced("Kafka has died; starting it again", lines)
        await eventually(kafka._broker.alive, DEADLINE_S)
    finally:
        await kafka.stop(10.0)
        await keeper


async def test_a_disk_that_goes_read_only_is_named_and_once_writable_kafka_is_back(small: Path) -> None:
    lines: list[str] = []
    kafka = Kafka(small, announce=lines.append, security=Security("SASL_PLAINTEXT"))
    await kafka.start()
    kafka._broker.kill()  # what Kafka does itself at its next write; and a file system with open files can't be remounted
    remount(small, "ro")
    keeper = asyncio.create_task(kafka.keep(), name="keep")
    try:
        await announced(f"the disk of {small} is read-only. Mount it writable", lines)
        remount(small, "rw")
        await announced("Kafka has died; starting it again", lines)
        await eventually(kafka._broker.alive, DEADLINE_S)
    finally:
        remount(small, "rw")
        await kafka.stop(10.0)
        await keeper
