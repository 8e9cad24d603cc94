"""Stores the files that tasks upload, and puts their references into the tasks.

Invariant: a task is written to Kafka only after all its files are in the blob store. Files that the store has aren't written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from topics.environment.archive import ArchiveError, Tree, list_file, list_folder
from topics.environment.blobs import BlobStore, BlobStoreError
from topics.types.agent import AgentSpec
from topics.types.errors import InputError, NotReadyError
from topics.types.runtime import UPLOADING
from topics.types.task import TaskRequest
from topics.types.uploads import AgentFile, Content, PrepareAction, UploadedFiles

F = TypeVar("F", bound=UploadedFiles)
SKILL_FILE = "SKILL.md"

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
        runtime = request.runtime
        changes: dict[str, object] = {
            name: self._actions(actions, folder, f"runtime.{name}")
            for name in UPLOADING
            if (actions := getattr(runtime, name)) is not None
        }
        if (verifier := runtime.verifier) is not None:
            prepare = self._actions(verifier.prepare, folder, "runtime.verifier.prepare")
            changes["verifier"] = verifier.model_copy(update={"prepare": prepare})
        runtime = runtime.model_copy(update=changes)
        return request.model_copy(update={"runtime": runtime, "agent": self._agent(request.agent, folder)})

    def _actions(self, actions: list[PrepareAction], folder: Path, field: str) -> list[PrepareAction]:
        return [
            self._with_content(action, action.type, folder, f"{field}.{index}") if _needs_content(action) else action
            for index, action in enumerate(actions)
        ]

    def _agent(self, agent: AgentSpec, folder: Path) -> AgentSpec:
        skills = [
            skill if skill.content else self._skill(skill, folder, f"agent.skills.{index}")
            for index, skill in enumerate(agent.skills)
        ]
        instructions = agent.instructions
        if isinstance(instructions, AgentFile) and instructions.content is None:
            instructions = self._with_content(instructions, "upload_file", folder, "agent.instructions")
        return agent.model_copy(update={"skills": skills, "instructions": instructions})

    def _skill(self, skill: AgentFile, folder: Path, field: str) -> AgentFile:
        assert skill.source is not None, "checked"
        if not (folder / skill.source / SKILL_FILE).is_file():
            raise InputError(
                f"{field}.source",
                skill.source,
                f"is no skill: a folder with {SKILL_FILE}; name one folder for each skill",
            )
        return self._with_content(skill, "upload_dir", folder, field)

    def _with_content(self, upload: F, kind: str, folder: Path, field: str) -> F:
        assert upload.source is not None, "an upload has a source"
        try:
            content = self._content(kind, (folder / upload.source).absolute())
        except ArchiveError as error:
            raise InputError(f"{field}.source", upload.source, str(error)) from None
        return upload.model_copy(update={"content": content})

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
    actions = (action for _, action in request.runtime.actions())
    return any(map(_needs_content, actions)) or any(file.content is None for _, file in request.agent.files())


def _needs_content(action: PrepareAction) -> bool:
    return action.type != "exec" and action.content is None
