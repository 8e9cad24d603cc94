"""The first exchange with a new container, with a keeper that the test plays."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from consumers.runtimes.base import SandboxError
from consumers.runtimes.container import keeper
from consumers.runtimes.container.greeting import greeting


async def answered(folder: Path, writable: list[str]) -> dict[str, object]:
    """The keeper's answer as a worker gets it."""

    async def ended() -> bool:
        return False

    async def output() -> str:
        return ""

    with greeting(folder) as waiting, socket.socket(socket.AF_UNIX) as line:
        line.connect(str(waiting.line / Path(keeper.FIRST_SOCKET).name))
        data = json.dumps({"missing": [], "writable": writable, "files": 1024}).encode()
        line.sendall(len(data).to_bytes(4, "big") + data)
        return await waiting.answer("c", [], ["/tools"], is_over=ended, output=output)


async def test_a_container_that_can_write_to_the_host_is_refused(tmp_path: Path) -> None:
    assert (await answered(tmp_path / "whole", []))["files"] == 1024
    with pytest.raises(SandboxError, match="can write to this host's /tools") as refused:
        await answered(tmp_path / "open", ["/tools"])
    assert refused.value.code == "not_made"


def test_a_keeper_knows_a_mount_that_is_not_read_only(tmp_path: Path) -> None:
    assert keeper._is_writable(str(tmp_path))
    assert not keeper._is_writable(str(tmp_path / "absent"))
