"""Stores the files that tasks upload, and puts their references into the tasks.

Invariant: a task is written to Kafka only after all its files are in the blob store. Files that the store has aren't written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from topics.environment.archive import ArchiveError, Tree, list_file, list_folder
from topics.environment.blobs import BlobStore, BlobStoreError
from topics.types.errors import InputError, NotReadyError
from topics.types.task import UPLOADING, Content, PrepareAction, TaskRequest

OnBytes = Callable[[Path, int, int], None]
"""Gets the path that is being read, the number of bytes read of it, and their total. Content that is new to the store is read twice."""


class Uploads:
    """The files of one submission; what several tasks upload is read once, unless it changes meanwhile."""

    def __init__(self, blobs: BlobStore, on_bytes: OnBytes = lambda *_: None) -> None:
        self._blobs = blobs
        self._on_bytes = on_bytes
        self._stored: dict[tuple[str, Path], tuple[bytes, Content]] = {}
        """Fingerprint and content, by type of action and path."""

    def with_content(self, request: TaskRequest, folder: Path) -> TaskRequest:
        """The task with the content of each upload that has none, which is stored. `folder`: where relative sources start. Blocks.

        Raises InputError for a source that can't be uploaded, and NotReadyError if the store can't be written.
        """
        if not lacks_content(request):
            return request
        changes = {
            name: [
                self._with_content(action, folder, f"runtime.{name}.{index}") if _needs_content(action) else action
                for index, action in enumerate(actions)
            ]
            for name in UPLOADING
            if (actions := getattr(request.runtime, name)) is not None
        }
        return request.model_copy(update={"runtime": request.runtime.model_copy(update=changes)})

    def _with_content(self, action: PrepareAction, folder: Path, field: str) -> PrepareAction:
        assert action.source is not None, "an upload has a source"
        try:
            content = self._content(action.type, (folder / action.source).absolute())
        except ArchiveError as error:
            raise InputError(f"{field}.source", action.source, str(error)) from None
        return action.model_copy(update={"content": content})

    def _content(self, kind: str, path: Path) -> Content:
        tree = list_file(path) if kind == "upload_file" else list_folder(path)
        fingerprint = tree.fingerprint()
        known = self._stored.get((kind, path))
        try:
            if known is not None and known[0] == fingerprint and self._blobs.refresh(known[1].ref):
                return known[1]
            stored = self._blobs.put_chunks(lambda: self._reported(tree, path))
        except ValueError as error:
            raise ArchiveError(f"{error}; submit again once nothing writes to {path}") from None
        except BlobStoreError as error:
            raise NotReadyError(f"{path} wasn't stored: {error}; nothing is lost, submit again") from error
        except OSError as error:
            raise NotReadyError(f"{path} can't be stored in the blob store (POLAR_BLOBS): {error}") from error
        content = Content(ref=stored.ref, size=stored.size)
        self._stored[kind, path] = fingerprint, content
        return content

    def _reported(self, tree: Tree, path: Path) -> Iterator[bytes]:
        done, total = 0, tree.size
        for chunk in tree.chunks():
            yield chunk
            done += len(chunk)
            self._on_bytes(path, done, total)


def lacks_content(request: TaskRequest) -> bool:
    """Whether `Uploads.with_content` has anything to store for the task."""
    actions = (*request.runtime.prepare, *(request.runtime.eval_prepare or ()))
    return any(map(_needs_content, actions))


def _needs_content(action: PrepareAction) -> bool:
    return action.type != "exec" and action.content is None
