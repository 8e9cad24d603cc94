"""What a trainer on Tinker's API pushes after a crash; tests/vllm trains at a real server. The server and the fleet are stand-ins."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from polar.trainer.tinker import Trainer


class Server:
    """Both clients of a server: an adapter's archive holds the weights."""

    def __init__(self, folder: Path, weights: str) -> None:
        self._archive = folder / f"{weights}.tar"
        with tarfile.open(self._archive, "w") as file:
            member = tarfile.TarInfo("adapter")
            member.size = len(weights)
            file.addfile(member, io.BytesIO(weights.encode()))

    async def save_weights_for_sampler_async(self, name: str) -> Any:
        async def saved() -> Any:
            return SimpleNamespace(path=f"tinker://run/{name}")

        return saved()

    def create_rest_client(self) -> Any:
        return self

    async def get_checkpoint_archive_url_async(self, *_: str) -> Any:
        return SimpleNamespace(url=self._archive.as_uri())

    async def create_training_client_from_state_with_optimizer_async(self, _: str) -> Any:
        return self


class Fleet:
    """Remembers which pauses and versions were forced."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    @asynccontextmanager
    async def paused(self, *, force: bool = False) -> AsyncIterator[Any]:
        self.calls.append(("paused", force))
        yield self

    async def publish(self, version: int, *, force: bool = False) -> int:
        self.calls.append((f"published {version}", force))
        return version


@pytest.fixture(autouse=True)
def tinker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", ModuleType("tinker"))


async def resumed(server: Server, version: int) -> Trainer:
    return await Trainer.resume(server, {"weights": "tinker://run/state", "version": version})


async def test_a_resumed_trainer_pushes_its_own_weights_not_those_of_the_killed_one(tmp_path: Path) -> None:
    loras: Any = tmp_path / "loras"
    fleet: Any = Fleet()
    await (await resumed(Server(tmp_path, "killed"), 6)).push(fleet, [], "policy", loras)
    before = {path.name for path in loras.iterdir()}
    await (await resumed(Server(tmp_path, "resumed"), 6)).push(fleet, [], "policy", loras)
    [added] = [path for path in loras.iterdir() if path.name not in before]
    assert (added / "adapter").read_text() == "resumed"


async def test_only_the_first_push_after_a_resume_may_roll_back(tmp_path: Path) -> None:
    fleet: Any = Fleet()
    trainer = await resumed(Server(tmp_path, "weights"), 5)
    await trainer.push(fleet, [], "policy", tmp_path)
    trainer.version += 1
    await trainer.push(fleet, [], "policy", tmp_path)
    assert fleet.calls == [("paused", True), ("published 5", True), ("paused", False), ("published 6", False)]
