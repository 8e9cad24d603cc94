"""The tasks of a set: which, in which order, and from which folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks.harbor_digest import digest
from polar.tasks.task_sets import Condition, Found, Member, members, select, shuffled
from tests.polar.tasks.writing import read, write
from topics.types.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, level in (("a", "easy"), ("b", "hard"), ("c", "hard")):
        write(
            tmp_path / "tasks" / name,
            {"task": {"name": f"org/{name}"}, "metadata": {"level": level, "tags": [name, "x"]}},
        )
    return tmp_path


def registry(folder: Path, *tasks: dict[str, Any], **more: Any) -> None:
    entries = [{"name": "set", "version": "1.0", "description": "", "tasks": list(tasks), **more}]
    (folder / "registry.json").write_text(json.dumps(entries))


def names(found: Sequence[Found]) -> list[str]:
    return [member.name for member in found]


def folder_of(found: Found) -> str:
    assert isinstance(found, Member)
    return found.folder.name


def test_a_folder_of_tasks_and_a_task(folder: Path) -> None:
    assert names(members(folder / "tasks")) == ["a", "b", "c"]
    assert names(members(folder / "tasks/b")) == ["b"]
    with pytest.raises(InputError, match="neither a task's folder"):
        members(folder)


@pytest.mark.parametrize("name", ["nowhere", "x" * 5000])
def test_a_set_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="can't be read"):
        members(tmp_path / name)


def test_a_registry_names_its_tasks(folder: Path) -> None:
    registry(
        folder,
        {"name": "one", "path": "tasks/a"},
        {"name": "two", "path": "tasks/b"},
        {"name": "again", "path": "tasks/a"},
    )
    for path in (folder, folder / "registry.json"):
        assert [(one.name, folder_of(one), one.dataset) for one in members(path)] == [
            ("one", "a", "set@1.0"),
            ("two", "b", "set@1.0"),
        ]
    assert len(members(folder, "set")) == len(members(folder, "set@1.0")) == 2
    with pytest.raises(InputError, match=r"there are: set@1\.0"):
        members(folder, "set@2")


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"name": "a", "path": "../../etc"}, "leads out of"),
        ({"name": "a", "path": "/etc"}, "leads out of"),
        ({"name": "a", "path": "link"}, "leads out of"),
        ({"name": "a", "path": "\0"}, "leads out of"),
        ({"name": "a", "path": "t", "git_url": "https://example.org/r.git"}, "clone it"),
        ({"name": "a", "paths": "t"}, "do you mean path?"),
    ],
)
def test_a_registry_leads_nowhere_else(folder: Path, task: dict[str, str], reason: str) -> None:
    (folder / "link").symlink_to("/etc")
    registry(folder, task)
    with pytest.raises(InputError, match=reason.replace("?", r"\?")):
        members(folder)


def test_a_dataset_finds_its_tasks_by_name_and_digest(folder: Path) -> None:
    tasks = folder / "tasks"
    lines = [f'[[tasks]]\nname = "org/{name}"\ndigest = "{digest(tasks / name)}"\n' for name in ("c", "a")]
    (tasks / "dataset.toml").write_text('[dataset]\nname = "org/set"\nversion = "2"\n' + "".join(lines))
    found = members(tasks)
    assert [(one.name, folder_of(one), one.dataset) for one in found] == [
        ("org/c", "c", "org/set@2"),
        ("org/a", "a", "org/set@2"),
    ]
    assert len(select(found).tasks) == 2
    (tasks / "a/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    selection = select(found)
    assert [member.name for member, _ in selection.tasks] == ["org/c"]
    assert "get the set's version" in str(selection.problems[0])


def test_a_dataset_without_its_tasks(folder: Path) -> None:
    text = f'[dataset]\nname = "org/set"\n[[tasks]]\nname = "org/z"\ndigest = "sha256:{"0" * 64}"\n'
    (folder / "tasks/dataset.toml").write_text(text)
    with pytest.raises(InputError, match="download the set first"):
        members(folder / "tasks")


@pytest.mark.parametrize("broken", ["wrong = 1", "[agent", None])
def test_a_folder_that_a_dataset_does_not_name_may_be_broken(folder: Path, broken: str | None) -> None:
    tasks = folder / "tasks"
    entry = '[[tasks]]\nname = "org/{0}"\ndigest = "{1}"\n'
    named = entry.format("a", digest(tasks / "a"))
    (tasks / "dataset.toml").write_text('[dataset]\nname = "org/set"\n' + named)
    if broken is None:
        (tasks / "b/instruction.md").unlink()
    else:
        (tasks / "b/task.toml").write_text(broken)
    assert names(members(tasks)) == ["org/a"]
    (tasks / "dataset.toml").write_text('[dataset]\nname = "org/set"\n' + named + entry.format("b", f"sha256:{0:064}"))
    with pytest.raises(InputError, match=r"download the set first; 1 folder can't be read: .*tasks/b/") as error:
        members(tasks)
    assert error.value.value == "'org/b'"


def test_a_split_names_tasks(folder: Path) -> None:
    (folder / "tasks/splits.json").write_text(json.dumps({"val": ["b"], "odd": ["nobody"]}))
    assert names(members(folder / "tasks", split="val")) == ["b"]
    for split, reason in (("train", "there are: val, odd"), ("odd", "the set lacks: nobody")):
        with pytest.raises(InputError, match=reason):
            members(folder / "tasks", split=split)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1}', "[1]", "\x00"])
def test_a_bad_registry_is_named(folder: Path, text: str) -> None:
    (folder / "registry.json").write_text(text)
    with pytest.raises(InputError) as error:
        members(folder)
    assert "registry.json" in error.value.field


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["metadata.level=hard"], ["b", "c"]),
        (["metadata.level!=hard"], ["a"]),
        (["metadata.level=h*", "task.name=org/c"], ["c"]),
        (["metadata.tags=a"], ["a"]),
        (["metadata.tags!=a"], ["b", "c"]),
        (["verifier.timeout_sec=600"], ["a", "b", "c"]),
        (["metadata.level=none"], []),
    ],
)
def test_conditions_on_fields(folder: Path, conditions: list[str], found: list[str]) -> None:
    selection = select(members(folder / "tasks"), [Condition.parse(text) for text in conditions])
    assert [member.name for member, _ in selection.tasks] == found


@pytest.mark.parametrize("text", ["metadata.levle=hard", "metadata.levle!=hard", "level=hard"])
def test_a_field_that_no_task_has_is_a_mistake(folder: Path, text: str) -> None:
    with pytest.raises(InputError, match="no task of the set has this field"):
        select(members(folder / "tasks"), [Condition.parse(text)])


@pytest.mark.parametrize("text", ["metadata.level", "=x", "!=x", ""])
def test_a_condition_has_a_field_and_a_pattern(text: str) -> None:
    with pytest.raises(InputError, match="FIELD=PATTERN"):
        Condition.parse(text)


def test_an_unreadable_task_leaves_the_others(folder: Path) -> None:
    (folder / "tasks/b/task.toml").write_text("wrong = 1")
    selection = select(members(folder / "tasks"))
    assert [member.name for member, _ in selection.tasks] == ["a", "c"]
    assert "wrong" in str(selection.problems[0])


def test_a_folder_that_cannot_be_read_leaves_the_others(folder: Path) -> None:
    registry(folder, {"name": "long", "path": "x" * 5000}, {"name": "a", "path": "tasks/a"})
    selection = select(members(folder))
    assert [member.name for member, _ in selection.tasks] == ["a"]
    assert "File name too long" in str(selection.problems[0])


def test_no_more_tasks_are_read_than_wanted(folder: Path) -> None:
    (folder / "tasks/c/task.toml").write_text("wrong = 1")
    selection = select(members(folder / "tasks"), limit=2)
    assert (len(selection.tasks), selection.problems) == (2, [])


@given(st.lists(st.text(), unique=True), st.integers(), st.randoms())
def test_the_seed_alone_determines_the_order(found: list[str], seed: int, random: Any) -> None:
    listed = [Member(name, Path(name)) for name in found]
    mixed = random.sample(listed, len(listed))
    assert shuffled(listed, seed) == shuffled(mixed, seed)
    assert sorted(names(shuffled(listed, seed))) == sorted(found)


def test_another_seed_is_another_order() -> None:
    listed = [Member(f"t{number}", Path("t")) for number in range(50)]
    assert shuffled(listed, 1) != shuffled(listed, 2)


def test_values_are_compared_as_toml_writes_them(tmp_path: Path) -> None:
    task = read(tmp_path, {"environment": {"cpus": 1}, "metadata": {"is_old": True, "depth": 5}})
    for text in ("environment.cpus=1", "metadata.is_old=true", "metadata.depth=5"):
        assert Condition.parse(text).holds(task)
