"""Finds the tasks of a set in Harbor's format: a task's folder, a folder of such folders, a `registry.json` or a `dataset.toml`; and the
rows of a set that is rows (`rows.py`).

A folder is read as its `registry.json`, or else its `dataset.toml`, if it has one. Beside a registry, `splits.json` may name tasks by
split. Nothing is fetched: what a registry keeps in a repository is an error that names the repository.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel

from polar.tasks import harbor_digest, harbor_folder, row_rules, rows
from polar.tasks.harbor_folder import CONFIG, DOCUMENT_LIMIT, HarborTask, decoded, inside, read_task, read_text
from polar.tasks.harbor_schema import Dataset, RegistryDataset
from polar.tasks.rows import Row
from topics.types.errors import InputError

REGISTRY = "registry.json"
DATASET = "dataset.toml"
SPLITS = "splits.json"


@dataclass(frozen=True)
class Member:
    """A task of a set, not yet read."""

    name: str
    """In the set."""
    folder: Path
    dataset: str | None = None
    """`name@version`, if a document defines the set."""
    digest: str | None = None
    """The digest that the set demands."""

    def read(self) -> HarborTask:
        """Raises InputError, also if the files aren't those that the set means."""
        try:
            task = read_task(self.folder)
        except OSError as error:
            raise InputError(self.name, str(self.folder), f"can't be read: {error.strerror}") from None
        if self.digest is not None and (found := harbor_digest.digest(self.folder)) != self.digest:
            raise InputError(
                f"{self.name}: digest", self.digest, f"the files of {self.folder} have {found}; get the set's version"
            )
        return task


@dataclass(frozen=True)
class RowMember:
    """A row of a set."""

    name: str
    row: Row
    dataset: str | None = None

    def read(self) -> Row:
        return self.row


Found = Member | RowMember
Task = HarborTask | Row


def members(path: Path, dataset: str | None = None, split: str | None = None) -> Sequence[Found]:
    """The tasks of a set, each folder once. `dataset`: only those of this dataset, `name` or `name@version`. Raises InputError."""
    by_folder: dict[Path, Member] = {}
    try:
        if rows.is_rows(path):
            return _of_rows(path, dataset, split)
        for member in _members(path, dataset):
            by_folder.setdefault(member.folder.resolve(), member)
    except OSError as error:
        raise InputError("SET", str(path), f"can't be read: {error.strerror}") from None
    found = list(by_folder.values())
    if split is not None:
        names = _split(path if path.is_dir() else path.parent, split)
        if missing := names - {member.name for member in found}:
            raise InputError(
                "--split", split, f"{SPLITS} names tasks that the set lacks: {', '.join(sorted(missing)[:5])}"
            )
        found = [member for member in found if member.name in names]
    return found


def _of_rows(path: Path, dataset: str | None, split: str | None) -> list[RowMember]:
    for option, value in (("--dataset", dataset), ("--split", split)):
        if value is not None:
            raise InputError(option, value, "a set of rows has none; choose by a field of the rows: --where split=test")
    return [RowMember(row_rules.name_of(row.config, number), row) for number, row in enumerate(rows.read(path), 1)]


def _members(path: Path, dataset: str | None) -> Iterator[Member]:
    if path.name == REGISTRY or (path / REGISTRY).is_file():
        yield from _of_registry(path if path.name == REGISTRY else path / REGISTRY, dataset)
        return
    if path.name == DATASET or (path / DATASET).is_file():
        found = list(_of_dataset(path if path.name == DATASET else path / DATASET))
        _check_dataset(dataset, [found[0].dataset or ""] if found else [])
        yield from found
        return
    if dataset is not None:
        raise InputError("--dataset", dataset, f"{path} has no {REGISTRY} or {DATASET}, which name datasets")
    if (path / CONFIG).is_file():
        yield Member(path.resolve().name, path)
        return
    folders = _task_folders(path)
    if not folders:
        raise InputError(
            "SET",
            str(path),
            f"neither a task's folder ({CONFIG}), nor a folder of those, nor a {REGISTRY} or {DATASET}, nor rows "
            f"({', '.join(rows.SUFFIXES)}, or a folder with {rows.REPOSITORY})",
        )
    yield from (Member(folder.name, folder) for folder in folders)


def _task_folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if (folder / CONFIG).is_file())


def _of_registry(file: Path, dataset: str | None) -> Iterator[Member]:
    registry = decoded(list[RegistryDataset], _json(file), file)
    ids = [f"{each.name}@{each.version}" for each in registry]
    _check_dataset(dataset, ids)
    for entry, dataset_id in zip(registry, ids, strict=True):
        if dataset not in (None, entry.name, dataset_id):
            continue
        for task in entry.tasks:
            if task.git_url is not None:
                reason = f"task {task.name} is in a repository, which isn't fetched; clone it, and leave git_url out"
                raise InputError(f"{file}: git_url", task.git_url, reason)
            yield Member(task.name, inside(file.parent, task.path), dataset_id)


def _of_dataset(file: Path) -> Iterator[Member]:
    text = read_text(file.parent, file.name, DOCUMENT_LIMIT)
    document = decoded(Dataset, harbor_folder.parse_toml(text, file), file)
    by_name: dict[str, Path] = {}
    unread: list[InputError] = []
    for folder in _task_folders(file.parent):
        try:
            by_name.setdefault(Member(folder.name, folder).read().name, folder)
        except InputError as error:
            unread.append(error)
    for task in document.tasks:
        if task.name not in by_name:
            reason = f"no folder beside {file} has a task of this name, and none is fetched; download the set first"
            if unread:
                reason += f"; {len(unread)} folder{'s'[: len(unread) - 1]} can't be read: {unread[0]}"
            raise InputError(f"{file}: tasks", task.name, reason)
        dataset_id = document.dataset.name + (f"@{document.dataset.version}" if document.dataset.version else "")
        yield Member(task.name, by_name[task.name], dataset_id, task.digest)


def _check_dataset(wanted: str | None, ids: Sequence[str]) -> None:
    if wanted is not None and not any(wanted in (one, one.partition("@")[0]) for one in ids):
        raise InputError("--dataset", wanted, f"no such dataset; there are: {', '.join(ids)}")


def _split(folder: Path, split: str) -> set[str]:
    file = folder / SPLITS
    if not file.is_file():
        raise InputError("--split", split, f"{folder} has no {SPLITS}")
    splits = decoded(dict[str, list[str]], _json(file), file)
    if split not in splits:
        raise InputError("--split", split, f"no such split; there are: {', '.join(splits)}")
    return set(splits[split])


def _json(file: Path) -> object:
    text = read_text(file.parent, file.name, DOCUMENT_LIMIT)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(str(file), text[:40], f"not JSON: {error}") from None


def shuffled(found: Sequence[Found], seed: int) -> list[Found]:
    """The tasks in an order that depends on the seed alone, not on the order in the set's documents."""
    ordered = sorted(found, key=lambda member: (member.name, str(member.dataset)))
    random.Random(seed).shuffle(ordered)
    return ordered


@dataclass(frozen=True)
class Condition:
    """A condition on a field of `task.toml` or of a row: `metadata.difficulty=medium`, `environment.cpus!=1`, `task.name=org/a*`."""

    field: str
    glob: str
    is_equal: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises InputError."""
        name, sign, glob = text.partition("=")
        if not sign or not name.rstrip("!"):
            raise InputError("--where", text, "must be FIELD=PATTERN or FIELD!=PATTERN, like metadata.difficulty=easy")
        return cls(name.removesuffix("!"), glob, not name.endswith("!"))

    def value(self, task: Task) -> object:
        """The field's value; None if the task hasn't got it."""
        found: object = task.config
        for name in self.field.split("."):
            if isinstance(found, BaseModel):
                found = getattr(found, name) if name in type(found).model_fields else None
            else:
                found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def holds(self, task: Task) -> bool:
        """A list's condition holds if it holds for one of its items."""
        value = self.value(task)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return any(fnmatchcase(_shown(one), self.glob) for one in values) is self.is_equal


def _shown(value: object) -> str:
    """As TOML writes it: `true`, `1` for 1.0."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Selection:
    tasks: list[tuple[Found, Task]]
    problems: list[InputError]
    """Of tasks that can't be read."""


def select(found: Iterable[Found], conditions: Sequence[Condition] = (), limit: int | None = None) -> Selection:
    """The first `limit` readable tasks for which all conditions hold; no more are read than that takes.

    Raises InputError for a condition on a field that none of the tasks has, which is a mistake in spelling.
    """
    selection = Selection([], [])
    missing = set(conditions)
    is_any_read = False
    for member in found:
        if limit is not None and len(selection.tasks) >= limit:
            break
        try:
            task = member.read()
        except InputError as error:
            selection.problems.append(error)
            continue
        is_any_read = True
        missing = {condition for condition in missing if condition.value(task) is None}
        if all(condition.holds(task) for condition in conditions):
            selection.tasks.append((member, task))
    if missing and is_any_read:
        reason = "no task of the set has this field; `polar tasks show` prints those that there are"
        raise InputError("--where", min(condition.field for condition in missing), reason)
    return selection
