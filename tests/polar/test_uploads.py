"""A submission stores what its tasks upload, once, and equal files make equal tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from polar.uploads import Uploads
from topics.environment import archive
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.task import TaskRequest, body_hash, parse

SHELL = {"harness": "shell", "custom_shell": {"command": "true"}}
FOLDER = {"type": "upload_dir", "source": "repo", "target": "."}


def task(*actions: dict[str, Any], **runtime: Any) -> TaskRequest:
    body = {"task_id": "t", "instruction": "mend it", "agent": SHELL, "runtime": {"prepare": list(actions), **runtime}}
    return parse(body)


def blobs(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a task's file."""
    (tmp_path / "tasks/repo/src").mkdir(parents=True)
    (tmp_path / "tasks/repo/src/main.py").write_text("print(1)\n")
    return tmp_path / "tasks"


def test_sources_start_at_the_task_s_folder_and_stay_as_they_were_written(store: Path, folder: Path) -> None:
    absolute = {"type": "upload_file", "source": str(folder / "repo/src/main.py"), "target": "main.py"}
    command = {"type": "exec", "command": "git init"}
    bare = task(command)
    uploads = Uploads(FolderBlobs(store))
    assert uploads.with_content(bare, folder) is bare
    found = uploads.with_content(task(FOLDER, command, eval_prepare=[absolute]), folder).runtime
    assert [action.source for action in found.prepare] == ["repo", None]
    assert found.eval_prepare is not None
    assert found.eval_prepare[0].source == absolute["source"]
    for action in (found.prepare[0], found.eval_prepare[0]):
        assert action.content is not None
        assert len(FolderBlobs(store).get(action.content.ref)) == action.content.size
    assert found.prepare[1].content is None
    assert len(blobs(store)) == 2


def test_equal_files_make_one_task_wherever_they_lie_and_changed_ones_another(
    tmp_path: Path, store: Path, folder: Path
) -> None:
    def hashed(place: Path) -> str:
        return body_hash(Uploads(FolderBlobs(store)).with_content(task(FOLDER), place).canonical())

    first = hashed(folder)
    copy = tmp_path / "copy/repo/src"
    copy.mkdir(parents=True)
    (copy / "main.py").write_text("print(1)\n")
    os.utime(copy / "main.py", (0, 0))
    assert hashed(tmp_path / "copy") == first
    assert len(blobs(store)) == 1
    (copy / "main.py").write_text("print(2)\n")
    assert hashed(tmp_path / "copy") != first


def test_a_folder_of_many_tasks_is_read_once_until_it_changes(store: Path, folder: Path) -> None:
    read: list[int] = []
    uploads = Uploads(FolderBlobs(store), lambda _, done, total: read.append(done) if done == total else None)
    first = uploads.with_content(task(FOLDER), folder)
    assert len(read) == 2, "for its reference, and to store it"
    (blob,) = blobs(store)
    os.utime(blob, (0, 0))
    assert uploads.with_content(task(FOLDER), folder) == first
    assert len(read) == 2
    assert blob.stat().st_mtime > 0, "a submission may take longer than old blobs are kept"
    blob.unlink()
    assert uploads.with_content(task(FOLDER), folder) == first
    assert (len(read), len(blobs(store))) == (4, 1)
    (folder / "repo/src/main.py").write_text("print(2)\n")
    assert uploads.with_content(task(FOLDER), folder) != first
    assert len(read) == 6


def test_what_the_store_has_is_not_written_again(store: Path, folder: Path) -> None:
    Uploads(FolderBlobs(store)).with_content(task(FOLDER), folder)
    (blob,) = blobs(store)
    inode = blob.stat().st_ino
    os.utime(blob, (0, 0))
    Uploads(FolderBlobs(store)).with_content(task(FOLDER), folder)
    assert blob.stat().st_ino == inode
    assert blob.stat().st_mtime > 0


def test_content_that_a_task_brings_is_kept(store: Path, folder: Path) -> None:
    complete = Uploads(FolderBlobs(store)).with_content(task(FOLDER), folder)
    assert Uploads(FolderBlobs(store)).with_content(complete, Path("/nowhere")) is complete


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (FOLDER | {"source": "none"}, "can't be read: No such file"),
        (FOLDER | {"source": "repo/src/main.py"}, "is no folder"),
        (FOLDER | {"type": "upload_file"}, "is no regular file"),
        (FOLDER | {"source": "linked"}, "linked/link is a symbolic link"),
        (FOLDER | {"source": "full"}, "holds more than 3 files and folders"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_by_its_field_and_nothing_is_stored(
    store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, action: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(archive, "ENTRIES_LIMIT", 3)
    (folder / "linked").mkdir()
    (folder / "linked/link").symlink_to("/etc")
    for number in range(4):
        (folder / "full" / str(number)).mkdir(parents=True)
    with pytest.raises(InputError, match=rf"^runtime\.prepare\.0\.source: .*{reason}.*got '{action['source']}'"):
        Uploads(FolderBlobs(store)).with_content(task(action), folder)
    assert not store.exists()


def test_files_that_change_while_they_are_stored_are_refused_and_nothing_is_kept(store: Path, folder: Path) -> None:
    file = folder / "repo/src/main.py"

    def change(_: Path, done: int, total: int) -> None:
        if done == total:
            file.write_text("print(9)\n")

    with pytest.raises(InputError, match="changed while they were stored; submit again once nothing writes to"):
        Uploads(FolderBlobs(store), change).with_content(task(FOLDER), folder)
    assert blobs(store) == []


def test_a_store_that_cannot_be_written_is_named(store: Path, folder: Path) -> None:
    store.write_text("a file in its place")
    with pytest.raises(NotReadyError, match=r"repo can't be stored in the blob store \(POLAR_BLOBS\): "):
        Uploads(FolderBlobs(store)).with_content(task(FOLDER), folder)


def test_the_preparation_of_a_verifier_is_uploaded(tmp_path: Path) -> None:
    (tmp_path / "tests.txt").write_text("hidden")
    upload = {"type": "upload_file", "source": "tests.txt", "target": "tests.txt"}
    agent = {"harness": "shell", "custom_shell": {"command": "true"}}
    task = parse({"task_id": "t", "instruction": "", "agent": agent, "runtime": {"verifier": {"prepare": [upload]}}})
    with pytest.raises(InputError, match=r"runtime\.verifier\.prepare\[0\]\.source"):
        task.check_uploads()
    stored = Uploads(FolderBlobs(tmp_path / "blobs")).with_content(task, tmp_path)
    stored.check_uploads()
