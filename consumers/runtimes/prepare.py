"""Prepares a new runtime as a task asks. Uses the interface of runtimes alone, so it works with every backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consumers.runtimes.base import Exec, Runtime, SandboxError
from topics.types.errors import InputError
from topics.types.task import PrepareAction


async def prepare(runtime: Runtime, actions: Sequence[PrepareAction], *, field: str = "runtime.prepare") -> None:
    """Carry out `actions` in order. The caller's cancellation is the only deadline, because the whole stage shares one budget.

    `field`: the actions' place in the task, for errors. Raises InputError if a source or target can't be used, and SandboxError
    `prepare_failed` if a command ends with another exit code than 0.
    """
    for index, action in enumerate(actions):
        where = f"{field}[{index}]"
        if action.type == "exec":
            await _execute(runtime, action, where, log=f"{field.rpartition('.')[2]}-{index}.log")
        else:
            await _upload(runtime, action, where)


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


async def _upload(runtime: Runtime, action: PrepareAction, where: str) -> None:
    assert action.source is not None
    assert action.target is not None
    source = Path(action.source)
    found = source.is_file() if action.type == "upload_file" else source.is_dir()
    if not found:
        kind = "file" if action.type == "upload_file" else "folder"
        raise InputError(f"{where}.source", action.source, f"is no {kind} on the worker's host")
    try:
        await runtime.upload(source, action.target)
    except InputError as error:
        raise InputError(f"{where}.target", action.target, error.reason) from error
