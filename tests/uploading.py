"""Files of a test, stored as a submission stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from consumers.runtimes.upload import Upload
from polar.uploads import Uploads
from topics.environment.archive import list_file, list_folder
from topics.environment.blobs import BlobStore
from topics.types.task import TaskRequest, parse
from topics.types.uploads import PrepareAction

SHELL = {"harness": "shell", "custom_shell": {"command": "true"}}


def upload_of(path: Path, blobs: BlobStore) -> Upload:
    """A file or a folder, as the workers have it."""
    tree = list_folder(path) if path.is_dir() else list_file(path)
    return Upload(blobs, blobs.put_chunks(tree.chunks).ref, "" if path.is_dir() else path.name)


def actions_of(actions: Iterable[Mapping[str, Any]], blobs: BlobStore) -> list[PrepareAction]:
    """Actions of a task that was submitted in the current folder."""
    body = {"task_id": "t", "instruction": "", "agent": SHELL, "runtime": {"prepare": list(actions)}}
    return Uploads(blobs).with_content(parse(body), Path()).runtime.prepare


def submitted(task: TaskRequest, blobs: BlobStore) -> TaskRequest:
    """The task as `polar.Client` writes it to Kafka."""
    return Uploads(blobs).with_content(task, Path())
