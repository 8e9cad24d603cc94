"""Rows are read from JSON Lines, JSON, Parquet and SWE-bench 5's task repositories, and chosen like other tasks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks import rows, task_sets
from polar.tasks.harbor_folder import CONFIG_LIMIT
from polar.tasks.row_rules import RowFormat, recognised
from polar.tasks.task_sets import Condition
from tests.polar.cli.commands import polar
from tests.polar.tasks.swe import a_row
from topics.types.errors import InputError

ROWS = [
    a_row(instance_id="a__b-1", difficulty="1-4 hours"),
    a_row(instance_id="a__b-2", version="2.0", difficulty="<15 min fix"),
]


def write(folder: Path, suffix: str, found: list[dict[str, Any]]) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), path)
    elif suffix == ".json":
        path.write_text(json.dumps(found))
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in found))
    return path


@pytest.mark.parametrize("suffix", rows.SUFFIXES)
def test_each_kind_of_file_has_the_rows(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, ROWS)
    found = [{name: value for name, value in row.config.items() if value is not None} for row in rows.read(path)]
    assert found == ROWS
    assert rows.is_rows(path)
    selection = task_sets.select(task_sets.members(path), [Condition.parse("version=2*")])
    assert [member.name for member, _ in selection.tasks] == ["a__b-2"]


TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=10
)


@given(st.lists(st.dictionaries(TEXT, VALUES), min_size=1))
def test_lines_are_read_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    assert [dict(row.config) for row in rows.read(path)] == found


@pytest.mark.parametrize(
    ("suffix", "text", "reason"),
    [
        (".jsonl", "", "holds no row"),
        (".jsonl", '{"a": 1}\n{', "rows.jsonl, line 2: not JSON"),
        (".jsonl", "[1]", "expected a row"),
        (".jsonl", '{"a": NaN}', "NaN is not a JSON number"),
        (".parquet", "PAR1", "not Parquet"),
    ],
)
def test_what_cant_be_read_is_named(tmp_path: Path, suffix: str, text: str, reason: str) -> None:
    (tmp_path / f"rows{suffix}").write_text(text)
    with pytest.raises(InputError, match=reason):
        rows.read(tmp_path / f"rows{suffix}")


def test_a_task_repository_has_the_columns_of_swe_bench_5(tmp_path: Path) -> None:
    task = tmp_path / "tasks/a__b-1"
    task.mkdir(parents=True)
    (tmp_path / "sweb.yaml").write_text("datasets: [a/b]\n")
    fields = {
        "instance_id": "a__b-1", "repo": "a/b", "version": "1", "base_commit": "a" * 40, "split": "test",
        "image": "swebench/x:1", "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "datasets": ["a/b"],
    }  # fmt: skip
    (task / "task.yaml").write_text(yaml.safe_dump(fields))
    (task / "tests.json").write_text(json.dumps({"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}))
    for name in rows.FILES.values():
        (task / name).write_text(f"{name}\r\n")
    (row,) = rows.read(tmp_path)
    assert recognised(row.config) is RowFormat.SWE_BENCH_5
    assert row.config == {
        **fields, "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": [],
        **{column: f"{name}\r\n" for column, name in rows.FILES.items()},
    }  # fmt: skip
    (task / rows.ASSETS).mkdir()
    assert rows.read(tmp_path)[0].config["test_assets"] is True
    code, out, _ = polar("tasks", "list", str(tmp_path), "--format", "json")
    assert (code, [row["task_id"] for row in json.loads(out)]) == (0, ["a__b-1"])


ALIASES = "a: &a [x]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{last}'] * 9)}]\n" for last, key in pairwise("abcdef")
)
"""60 thousand items as JSON. A few more lines would fill the memory."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ALIASES, "aliases aren't read"),
        ("a: 0\n" + "#" * CONFIG_LIMIT, f"at most {CONFIG_LIMIT} bytes"),
        ("[" * 1000, "not YAML"),
    ],
    ids=["aliases", "long", "deep"],
)
def test_a_hostile_task_repository_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    task = tmp_path / "tasks/a__b-1"
    task.mkdir(parents=True)
    (tmp_path / "sweb.yaml").touch()
    (task / rows.TASK).write_text(text)
    (task / rows.TESTS).write_text("{}")
    for name in rows.FILES.values():
        (task / name).touch()
    with pytest.raises(InputError, match=reason):
        rows.read(tmp_path)


def test_options_of_the_other_kind_of_set_are_refused(tmp_path: Path) -> None:
    path = str(write(tmp_path, ".jsonl", ROWS))
    for options in (["--split", "test"], ["--dataset", "a"]):
        code, _, err = polar("tasks", "list", path, *options)
        assert (code, "a set of rows has none" in err) == (2, True)
    code, _, err = polar("tasks", "list", path, "--repo", "a/b=/nowhere")
    assert (code, "there is no folder /nowhere" in err) == (2, True)
