"""The workspace of a session with an image: which folder of the image the agent's work lies in."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from consumers.runtimes.cell.bubblewrap import WORKSPACE
from topics.types.errors import InputError
from topics.types.runtime import OWN_FOLDERS, RuntimeSpec


def workspace_of(image_workdir: PurePosixPath, spec: RuntimeSpec) -> PurePosixPath:
    """The task's `workdir` if that is absolute, or the image's, or WORKSPACE. Raises InputError for a folder that can't be one."""
    wanted = PurePosixPath(spec.workdir or "")
    is_tasks = wanted.is_absolute()
    if not is_tasks and image_workdir == PurePosixPath("/"):
        return WORKSPACE
    found = PurePosixPath(os.path.normpath(wanted if is_tasks else image_workdir))
    if any(found.is_relative_to(other) or PurePosixPath(other).is_relative_to(found) for other in OWN_FOLDERS):
        place = "" if is_tasks else f"its working directory {found} "
        raise InputError(
            "runtime.workdir" if is_tasks else "runtime.image",
            str(wanted) if is_tasks else spec.image,
            f"{place}can't be the workspace; set runtime.workdir to a folder outside of {', '.join(OWN_FOLDERS)}",
        )
    return found
