"""A Dockerfile of a Harbor task, beside what the task itself says."""

from __future__ import annotations

from pathlib import PurePosixPath

from polar.tasks import dockerfile
from polar.tasks.harbor_folder import CONFIG_LIMIT, HarborTask, inside, read_text


def translated(task: HarborTask, name: str, workdir: str | None) -> dockerfile.Translation:
    """`name`: the file, whose folder is its context. `workdir`: the task's own. Raises ValueError, also as InputError."""
    text = read_text(task.folder, name, CONFIG_LIMIT)
    context = inside(task.folder, name).parent
    return dockerfile.translated(text, context, has_workdir=PurePosixPath(workdir or "").is_absolute())


def workdir_of(dockerfiles: str | None, given: str | None) -> str | None:
    """The working directory of a task with a Dockerfile. Raises ValueError."""
    if given is not None:
        return str(PurePosixPath(dockerfiles or "") / given)
    if dockerfiles == "/":
        raise ValueError("its working directory is /, which can't be the workspace; set environment.workdir")
    return dockerfiles
