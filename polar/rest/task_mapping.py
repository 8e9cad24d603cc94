"""A task in the words of NVIDIA's Polar, as one of ours.

`TaskRequest` already has most of NVIDIA's fields. This module maps the others and sets NVIDIA's defaults where they differ from ours. An
unknown field is refused by name, although NVIDIA's server ignores it: it could be one that changes a result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topics.types import task
from topics.types.errors import InputError
from topics.types.task import TaskRequest
from topics.types.uploads import UploadedFiles

TIMEOUT_S = 600.0
"""NVIDIA's default of `timeout_seconds`."""
BUILDER = "per_request"
"""NVIDIA's default builder."""
RENAMED = {"dispatch_priority": "priority"}
"""Our names of NVIDIA's fields that mean the same."""
NULLABLE = ("agent", "runtime", "builder", "evaluator")
"""Parts whose fields may be null for "left out", as a dumped model of NVIDIA's has them."""


def request_of(body: object) -> TaskRequest:
    """The task of a body of `POST /rollout/task/submit`, without its files' content. Raises InputError for the first error."""
    if not isinstance(body, dict):
        raise InputError("task", type(body).__name__, "must be a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    for theirs, ours in RENAMED.items():
        if theirs in fields:
            _refuse_both(fields, theirs, ours)
            fields[ours] = fields.pop(theirs)
    if "early_stop_min_usable_sessions" in fields:
        _refuse_both(fields, "early_stop_min_usable_sessions", "early_stop")
        fields["early_stop"] = {"usable": fields.pop("early_stop_min_usable_sessions")}
    for part in NULLABLE:
        if part in fields:
            fields[part] = _without_nulls(fields[part])
    fields.setdefault("builder", {"strategy": BUILDER})
    return task.parse(_with_budget(fields))


def check_files(request: TaskRequest, folder: Path | None) -> None:
    """Raise InputError for an upload whose source isn't below `folder`; None: no upload is allowed.

    NVIDIA's server reads any path of its host. Here a caller could read other people's files in that way.
    """
    uploads: list[tuple[str, UploadedFiles]] = [
        (f"runtime.{place}", action)
        for place, action in request.runtime.actions()
        if action.type != "exec" and action.content is None
    ]
    uploads += [(field, file) for field, file in request.agent.files() if file.content is None]
    for field, upload in uploads:
        source = upload.source or ""
        if folder is None:
            raise InputError(f"{field}.source", source, "this server reads no files: start it with --files FOLDER")
        if not (folder / source).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{field}.source", source, f"must be below {folder}, the folder of --files")


def _with_budget(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the agent's budget: the shorter of `timeout_seconds` and NVIDIA's `metadata.agent_timeout`."""
    metadata = fields.get("metadata")
    agent_s = metadata.get("agent_timeout") if isinstance(metadata, dict) else None
    if agent_s is None:
        has_own = isinstance(fields.get("timeouts"), dict) and "run" in fields["timeouts"]
        return dict(fields) if has_own else {"timeout_seconds": TIMEOUT_S, **fields}
    if isinstance(agent_s, bool) or not isinstance(agent_s, int | float) or not 0 < agent_s < math.inf:
        raise InputError("metadata.agent_timeout", agent_s, "must be a positive finite number of seconds")
    _refuse_both({**fields, "metadata.agent_timeout": agent_s}, "metadata.agent_timeout", "timeouts")
    total_s = fields.get("timeout_seconds", TIMEOUT_S)
    return {**fields, "timeout_seconds": min(agent_s, total_s) if isinstance(total_s, int | float) else total_s}


def _refuse_both(fields: Mapping[str, Any], theirs: str, ours: str) -> None:
    if theirs in fields and ours in fields:
        raise InputError(theirs, fields[theirs], f"{ours} says the same; give one")


def _without_nulls(part: Any) -> Any:
    """A part without null fields, its own and those of the parts in its lists. Free-form values keep theirs."""
    if not isinstance(part, dict):
        return part
    found = {name: value for name, value in part.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = [_without_nulls(each) for each in value]
    if isinstance(command := found.get("custom_shell"), dict):
        found["custom_shell"] = _without_nulls(command)
    return found
