"""The skills and the instructions of a task, in the places where a harness's program looks for its user's own.

Those places are in the sandbox's home, so the workspace stays as the task made it, and the patch has none of them.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from consumers.harnesses.base import Harness
from consumers.runtimes.base import Exec, Runtime
from consumers.runtimes.upload import CONTENT, Upload
from topics.environment.blobs import BlobStore
from topics.types.agent import AgentSpec
from topics.types.errors import InputError
from topics.types.uploads import AgentFile

COPY_S = 60.0
"""Limit for a copy of text files inside of the sandbox."""


async def place(runtime: Runtime, harness: Harness, agent: AgentSpec, blobs: BlobStore) -> None:
    """Write the files. `harness` has a place for them (`AgentSpec.check_supported`).

    Raises InputError for content or a `skills_path` that can't be used, and NotReadyError if the store lacks content.
    """
    if agent.skills_path is not None:
        await _copy_skills(runtime, agent.skills_path, _inside(runtime, harness, "skills_folder"))
    for index, skill in enumerate(agent.skills):
        target = _inside(runtime, harness, "skills_folder") / skill.name
        await _upload(runtime, skill, f"agent.skills.{index}", target, blobs)
    if agent.instructions is None:
        return
    target = _inside(runtime, harness, "instructions_file")
    if isinstance(agent.instructions, str):
        await runtime.write_file(target, agent.instructions.encode())
    else:
        await _upload(runtime, agent.instructions, "agent.instructions", target, blobs, file_name=target.name)


def _inside(runtime: Runtime, harness: Harness, attribute: str) -> PurePosixPath:
    return runtime.home / PurePosixPath(getattr(harness, attribute))


async def _upload(
    runtime: Runtime, file: AgentFile, field: str, target: PurePosixPath, blobs: BlobStore, file_name: str = ""
) -> None:
    """`file_name`: its name, if it is a file and no folder."""
    try:
        await runtime.upload(Upload(blobs, file.uploaded(field).ref, file_name), target)
    except InputError as error:
        name = CONTENT if error.field == CONTENT else "source"
        raise InputError(f"{field}.{name}", error.value, error.reason) from error


async def _copy_skills(runtime: Runtime, path: str, target: PurePosixPath) -> None:
    """Before the run, nothing in the sandbox is the agent's."""
    source, folder = shlex.quote(f"{path}/."), shlex.quote(str(target))
    command = f"mkdir -p {folder} && cp -R {source} {folder}"
    copying = Exec(command, cwd=str(runtime.workspace), log="skills.log", timeout_s=COPY_S, is_ours=True)
    ended = await runtime.exec(copying)
    if ended.exit_code != 0:
        raise InputError(
            "agent.skills_path",
            path,
            f"can't be copied: no folder of the sandbox, or it can't be read; {ended.output_end}",
        )
