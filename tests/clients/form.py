"""The form of what a client sends: fields, headers and paths, without what they say. `sent/` has what was recorded of each trial.

Two runs of the same version have the same form: ids, times, folders, versions and the number of calls aren't in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

RECORDINGS = Path(__file__).with_name("sent")
TOLD = (
    "type",
    "role",
    "stream",
    "store",
    "status",
    "tool_choice",
    "effort",
    "include[]",
    "mode",
    "responseModalities[]",
)
"""Fields whose values are words of the dialect, not of the conversation."""
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
FREE = (
    *(
        "parameters",
        "parametersJsonSchema",
        "input_schema",
        "inputSchema",
        "schema",
        "responseSchema",
        "responseJsonSchema",
    ),
    *("arguments", "args", "input", "output", "response", "metadata", "client_metadata", "labels", "logit_bias"),
)
"""Fields whose maps have keys of the tools' authors, the model or the client's user."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")
VARIES = re.compile(r"(?<=/)v?\d[\w.+-]*|\d+(?:\.\d+)+[\w.+-]*|\b(?:linux|darwin|x64|arm64|x86_64|aarch64)\b")
"""Versions and the machine, in a User-Agent."""
ID = re.compile(r"(?=[^/]*\d)[^/]{8,}")

Calls = dict[str, list[str]]
"""By method and path: sorted lines, `header NAME`, `user-agent TEXT` or the dotted path of a field of the body."""


@dataclass(frozen=True)
class Recorded:
    """The form of the requests that one version of a client sent."""

    version: str
    calls: Calls

    @property
    def text(self) -> str:
        """Text of the recording's file."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def form(requests: Iterable[Mapping[str, Any]]) -> Calls:
    """`requests`: as of `tests/harnesses/recording.py`."""
    calls: dict[str, set[str]] = {}
    for request in requests:
        lines = calls.setdefault(f"{request['method']} {_path(request['path'])}", set())
        lines.update(map(_header, request["headers"].items()), _fields(request["body"]))
    return {name: sorted(lines) for name, lines in sorted(calls.items())}


def differences(before: Calls, now: Calls) -> list[str]:
    """`+ LINE` and `- LINE` below the method and path that they belong to. Empty if the forms are equal."""
    told: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = (set(calls.get(name, ())) for calls in (before, now))
        if name in before and name in now:
            changed = [f"+ {line}" for line in sorted(new - old)] + [f"- {line}" for line in sorted(old - new)]
            told += [name, *changed] if changed else []
        else:
            told.append(f"{'+' if name in now else '-'} {name}")
    return told


def read(trial: str) -> Recorded | None:
    """None without a recording."""
    file = _file(trial)
    return Recorded(**json.loads(file.read_text())) if file.exists() else None


def write(trial: str, recorded: Recorded) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    _file(trial).write_text(recorded.text)


def _file(trial: str) -> Path:
    return RECORDINGS / f"{trial}.json"


def _path(path_qs: str) -> str:
    """With the names of a query's parameters alone: Google's clients may send their key in one."""
    path, query = urlsplit(path_qs).path, urlsplit(path_qs).query
    names = sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)})
    shown = "/".join("*" if ID.fullmatch(part) else part for part in path.split("/"))
    return f"{shown}?{'&'.join(names)}" if names else shown


def _header(header: tuple[str, str]) -> str:
    name, value = header[0].lower(), header[1]
    return f"user-agent {VARIES.sub('*', value)}" if name == "user-agent" else f"header {name}"


def _fields(value: Any, path: str = "", name: str = "") -> Iterator[str]:
    """`path` of the value, and `name`, its last part."""
    if isinstance(value, dict) and value and name not in FREE:
        for key, each in value.items():
            shown = key if NAME.fullmatch(key) else "*"
            yield from _fields(each, f"{path}.{shown}" if path else shown, shown)
    elif isinstance(value, list) and value:
        for each in value:
            yield from _fields(each, f"{path}[]", f"{name}[]")
    elif name in TOLD and (isinstance(value, bool) or (isinstance(value, str) and WORD.fullmatch(value))):
        yield f"{path}={str(value).lower() if isinstance(value, bool) else value}"
    elif path:
        yield path
