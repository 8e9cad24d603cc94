"""Reads task sets that are rows: a file of JSON Lines, JSON or Parquet, or a task repository of SWE-bench 5.

A row is a mapping of fields. Nothing is fetched. Parquet needs the package pyarrow. A task repository is a folder with `sweb.yaml` and
`tasks/<instance_id>/` (swebench 5.0.2, task/repo.py); its files are read as the columns that swebench publishes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from polar.tasks.harbor_folder import CONFIG_LIMIT, DOCUMENT_LIMIT, read_text
from topics.types.errors import InputError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
REPOSITORY = "sweb.yaml"
TASK = "task.yaml"
FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
"""Columns of a task repository that are files of a task's folder."""
HINTS = "hints.md"
TESTS = "tests.json"
ASSETS = "test_assets"
"""A folder of a task's with files that no patch can carry; as a column, whether it is there."""
BATCH_ROWS = 64
UNREAD = ("parsed_commit_content", "execution_result_content", "modified_entity_summaries")
"""Columns of R2E-Gym with megabytes a row that no task needs. They aren't read from Parquet, and their value is None."""


@dataclass(frozen=True)
class Row:
    """A row of a set."""

    place: str
    """For messages: `tasks.jsonl, line 3`."""
    config: Mapping[str, Any]
    """The row's fields. The name is the one that a Harbor task's fields have, since conditions read either."""


def is_rows(path: Path) -> bool:
    """Whether the set is rows, and not of Harbor's format."""
    if path.is_dir():
        return (path / REPOSITORY).is_file()
    return path.name == REPOSITORY or (path.suffix.lower() in SUFFIXES and path.name != "registry.json")


def read(path: Path) -> list[Row]:
    """All rows of a set. Raises InputError, and OSError for a file that can't be read."""
    if path.is_dir() or path.name == REPOSITORY:
        found = list(_of_repository(path if path.is_dir() else path.parent))
    elif path.suffix.lower() == ".parquet":
        found = list(_of_parquet(path))
    elif path.suffix.lower() == ".json":
        found = list(_of_json(path))
    else:
        found = list(_of_lines(path))
    if not found:
        raise InputError("SET", str(path), "holds no row")
    return found


def _of_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield Row(place, _mapping(place, _decoded(place, line)))


def _of_json(path: Path) -> Iterator[Row]:
    found = _decoded(str(path), path.read_bytes())
    for number, each in enumerate(found if isinstance(found, list) else [found], 1):
        place = f"{path}, item {number}"
        yield Row(place, _mapping(place, each))


def _of_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            unread = dict.fromkeys(name for name in names if name in UNREAD)
            number = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=[name for name in names if name not in unread]):
                for each in batch.to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    yield Row(place, _plain(place, {**each, **unread}))
    except (pa.ArrowException, ValueError) as error:
        raise InputError("SET", str(path), f"not Parquet: {error}") from None


def _of_repository(folder: Path) -> Iterator[Row]:
    tasks = folder / "tasks"
    if not tasks.is_dir():
        raise InputError("SET", str(folder), f"has {REPOSITORY} and no folder tasks")
    for task in sorted(tasks.iterdir()):
        if (task / TASK).is_file():
            yield Row(str(task), _task(task))


def _task(folder: Path) -> Mapping[str, Any]:
    text = read_text(folder, TASK, CONFIG_LIMIT)
    try:
        found = yaml.load(text, _NoAliases)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(str(folder / TASK), folder.name, f"not YAML: {error}") from None
    fields = _mapping(str(folder / TASK), found)
    files = {column: read_text(folder, name, DOCUMENT_LIMIT) for column, name in FILES.items()}
    if (folder / HINTS).is_file():
        files["hints_text"] = read_text(folder, HINTS, DOCUMENT_LIMIT)
    tests = _mapping(str(folder / TESTS), _decoded(str(folder / TESTS), read_text(folder, TESTS, DOCUMENT_LIMIT)))
    assets = {ASSETS: True} if (folder / ASSETS).is_dir() else {}
    return _plain(str(folder / TASK), {**fields, **files, **tests, **assets})


class _NoAliases(yaml.SafeLoader):
    """Aliases within aliases make a few lines as large as the memory once they are written as JSON; no task needs one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(problem="aliases aren't read; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)


def _decoded(place: str, text: str | bytes) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(place, text[:40], f"not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _mapping(place: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(place, value, "expected a row, a mapping of fields")
    return value


def _plain(place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON has them: times as text. Raises InputError for what has no form in JSON."""
    try:
        found = json.loads(json.dumps(fields, default=_text, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(place, "…", f"a field has no form in JSON: {error}") from None
    return dict(found)


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise TypeError(f"{type(value).__name__} {value!r:.40}")
