"""`polar submit` stores the files that its tasks upload, and writes their references to Kafka."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.polar.cli.commands import polar
from topics import tasks
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.log.owner import read_back

pytestmark = pytest.mark.contract

WAYS = pytest.mark.parametrize("way", [[], ["--max-in-flight", "8"]], ids=["at once", "one by one"])
UPLOAD = {"type": "upload_dir", "source": "repo", "target": "."}
BODY: dict[str, Any] = {
    "instruction": "mend it",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
    "runtime": {"prepare": [UPLOAD]},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two tasks that upload one folder, beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("polar.client.ANSWER_S", 0.5)
    (tmp_path / "tasks/repo/src").mkdir(parents=True)
    (tmp_path / "tasks/repo/src/main.py").write_text("print(1)\n")
    lines = (json.dumps(BODY | {"task_id": name}) for name in ("a", "b"))
    (tmp_path / "tasks/both.jsonl").write_text("\n".join(lines))
    return "tasks/both.jsonl"


def written(settings: Settings) -> list[dict[str, Any]]:
    """The tasks on Kafka."""

    async def read() -> list[dict[str, Any]]:
        topic, partitions = tasks.TOPIC.full_name(settings.namespace), range(tasks.TOPIC.partition_count(True))
        return [json.loads(one.value or b"") for at in partitions async for one in read_back(settings, topic, at)]

    return sorted(asyncio.run(read()), key=lambda body: str(body["task_id"]))


@WAYS
def test_a_folder_of_two_tasks_is_stored_once_and_both_name_it(settings: Settings, file: str, way: list[str]) -> None:
    code, _, stderr = polar("submit", file, *way)
    assert code == 0, stderr
    found = [body["runtime"]["prepare"][0] for body in written(settings)]
    assert [action["source"] for action in found] == ["repo", "repo"]
    (content,) = {json.dumps(action["content"]) for action in found}
    assert len(blob_store.of(settings).get(json.loads(content)["ref"])) == json.loads(content)["size"]
    assert len([path for path in (settings.data / "blobs").rglob("*") if path.is_file()]) == 1


@WAYS
def test_a_link_in_the_folder_is_refused_with_its_task_s_place(settings: Settings, file: str, way: list[str]) -> None:
    Path("tasks/repo/link").symlink_to("/etc/passwd")
    code, _, stderr = polar("submit", file, *way)
    assert code == 2
    at = f"{Path.cwd()}/tasks/repo/link"
    assert f"polar: {file}, line 1: runtime.prepare.0.source: {at} is a symbolic link, which isn't uploaded" in stderr
    assert written(settings) == []
    assert not (settings.data / "blobs").exists()
