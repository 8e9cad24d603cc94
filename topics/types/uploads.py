"""Files that travel with a task, and the actions that use them: as paths of the submitter, and as content in the blob store."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from topics.environment.archive import BYTES_LIMIT
from topics.environment.blobs import REF
from topics.types.errors import InputError
from topics.types.parts import Argument, Environment, Part


class Content(Part):
    """Uploaded files: an archive (`topics/environment/archive.py`) in the blob store."""

    ref: str = Field(pattern=REF.pattern)
    """The archive's reference in the blob store."""
    size: int = Field(ge=0, le=BYTES_LIMIT)
    """Bytes of the archive."""


class UploadedFiles(Part):
    """Files that travel with a task."""

    source: str | None = Field(default=None, pattern=r"^[^\x00]*$")
    """A path on the machine of whoever submits the task, relative to the task's file. Nobody else reads it."""
    content: Content | None = None
    """What `source` held when the task was submitted; `polar submit` and `polar.Client` store it and set this field."""

    def uploaded(self, field: str) -> Content:
        """The content of an upload, which is at `field` of the task. Raises InputError if the task was submitted without it."""
        if self.content is None:
            raise InputError(
                f"{field}.source",
                self.source,
                "its content wasn't uploaded: no worker reads this path. Submit the task with `polar submit` or polar.Client, which "
                "upload it and set `content`",
            )
        return self.content


class PrepareAction(UploadedFiles):
    """One step in preparing a runtime: `upload_file` and `upload_dir` need source and target, `exec` a command."""

    type: Literal["upload_file", "upload_dir", "exec"]
    """`upload_dir` takes what is in a folder, `exec` runs a command."""
    target: str | None = None
    """Where an upload goes in the sandbox, relative to the working directory."""
    command: Argument | None = None
    """For `bash -c` with pipefail; another exit code than 0 fails the preparation."""
    cwd: str | None = None
    """The folder a command runs in. None: the working directory."""
    env: Environment = {}
    """Variables for this command alone."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = ("command",) if self.type == "exec" else ("source", "target")
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is needed where type is {self.type!r}")
        if self.type == "upload_file" and PurePosixPath(self.source or "").name in ("", ".."):
            raise ValueError(f"source {self.source!r} doesn't name a file")
        return self


class AgentFile(UploadedFiles):
    """A file, or a folder, that the agent's program reads."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name in ("", ".."):
            raise ValueError(f"source {self.source!r} doesn't name a file or folder")
        return self

    @property
    def name(self) -> str:
        return PurePosixPath(self.source or "").name


def _from_source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Skill = Annotated[AgentFile, BeforeValidator(_from_source)]
"""A folder with a SKILL.md; a text is its `source`."""
