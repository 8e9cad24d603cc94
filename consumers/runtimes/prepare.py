"""Prepares a new runtime as a task asks. Uses the interface of runtimes alone, so it works with every backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath

from consumers.runtimes.base import Exec, Runtime, SandboxError, Step
from consumers.runtimes.upload import CONTENT, Upload
from topics.environment.blobs import BlobStore
from topics.types.errors import InputError, NotReadyError
from topics.types.uploads import PrepareAction


class TargetError(InputError):
    """A target takes no upload, and the run can't be the cause."""


async def prepare(
    runtime: Runtime, actions: Sequence[PrepareAction], blobs: BlobStore, *, field: str = "runtime.prepare"
) -> None:
    """Carry out `actions` in order. The caller's cancellation is the only deadline, because the whole stage shares one budget.

    `blobs`: has the content of uploads. `field`: the actions' place in the task, for errors. Raises InputError if content or a target can't
    be used, NotReadyError if the store lacks content, and SandboxError `prepare_failed` if a command ends with another exit code than 0.
    """
    for step in steps(actions, blobs, field=field):
        await step(runtime)


def steps(actions: Sequence[PrepareAction], blobs: BlobStore, *, field: str = "runtime.prepare") -> list[Step]:
    """One step for each action; together they are `prepare`."""
    return [
        partial(_carry_out, action=action, blobs=blobs, field=field, index=index)
        for index, action in enumerate(actions)
    ]


async def _carry_out(runtime: Runtime, action: PrepareAction, blobs: BlobStore, field: str, index: int) -> None:
    where = f"{field}[{index}]"
    if action.type == "exec":
        await _execute(runtime, action, where, log=f"{field.rpartition('.')[2]}-{index}.log")
    else:
        await _upload(runtime, action, blobs, where)


async def _execute(runtime: Runtime, action: PrepareAction, where: str, log: str) -> None:
    assert action.command is not None
    try:
        result = await runtime.exec(Exec(action.command, cwd=action.cwd, env=action.env, log=log))
    except InputError as error:
        raise InputError(f"{where}.cwd", action.cwd, error.reason) from error
    if result.exit_code != 0:
        raise SandboxError(
            "prepare_failed",
            f"{where}: {action.command!r} ended with exit code {result.exit_code}; {result.output_end}",
        )


async def _upload(runtime: Runtime, action: PrepareAction, blobs: BlobStore, where: str) -> None:
    assert action.source is not None
    assert action.target is not None
    file_name = PurePosixPath(action.source).name if action.type == "upload_file" else ""
    files = Upload(blobs, action.uploaded(where).ref, file_name)
    try:
        await runtime.upload(files, action.target)
    except InputError as error:
        if error.field == CONTENT:
            raise InputError(f"{where}.{CONTENT}", error.value, error.reason) from error
        place = PurePosixPath(os.path.normpath(runtime.workspace / action.target))
        is_runs = any(place.is_relative_to(top) for top in runtime.written)
        kind = InputError if is_runs else TargetError
        raise kind(f"{where}.target", action.target, error.reason) from error
    except NotReadyError as error:
        raise NotReadyError(f"{where}: {error}") from error
