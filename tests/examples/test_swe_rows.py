"""The tasks of examples/swe as SWE-bench rows: they get the rewards that the same tasks get in Harbor's format. In cells."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from consumers.runtimes.base import RuntimeBackend
from examples.swe.rows import REPOSITORIES, ROWS, row, write
from polar.tasks import mapping, task_sets
from polar.tasks.repositories import Repositories
from polar.tasks.row_options import RowOptions
from tests.examples.swe import AGENT, NAMES, ROOT, RUNS, TASKS, evaluated, skip_without_programs, solution
from topics.types.task import TaskRequest

ALWAYS = "glyphs"
"""Its fix changes a binary file."""
QUICK = (ALWAYS, "solve.sh")
"""The other runs are of tier hard."""
OTHER_TESTS = "sed -i 's/assertEqual.*/assertTrue(True)/; s/with self.assertRaises.*/if True:/' tests/test_glyphs.py"


def imported(name: str, folder: Path) -> TaskRequest:
    """As `polar tasks import` makes it."""
    made = row(TASKS / name, folder / REPOSITORIES / name)
    (folder / ROWS).write_text(json.dumps(made) + "\n")
    repositories = Repositories({f"swe/{name}": str(folder / REPOSITORIES / name)}, folder / "bundles")
    (member,) = task_sets.members(folder / ROWS, None)
    template = yaml.safe_load((ROOT / "rows.yaml").read_text()) | AGENT
    request = mapping.mapped(member, member.read(), template, options=RowOptions(repositories=repositories)).request()
    assert isinstance(request, TaskRequest), request
    repositories.write({action.source for action in request.runtime.prepare if action.source is not None})
    return request


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param(name, file, marks=pytest.mark.contract if (name, file) == QUICK else pytest.mark.hard)
        for name in NAMES
        for file in RUNS
    ],
)
async def test_a_row_gives_the_reward_that_its_folder_gives(
    backend: RuntimeBackend, tmp_path: Path, name: str, file: str
) -> None:
    skip_without_programs(name)
    verdict = await evaluated(backend, tmp_path, imported(name, tmp_path), solution(name, file) if file else "true")
    assert verdict.reward == RUNS[file], verdict.reason


@pytest.mark.contract
async def test_edited_tests_of_a_row_gain_nothing(backend: RuntimeBackend, tmp_path: Path) -> None:
    verdict = await evaluated(backend, tmp_path, imported(ALWAYS, tmp_path), OTHER_TESTS)
    assert verdict.reward == 0.0


@pytest.mark.contract
async def test_the_fix_is_in_the_repository_and_not_in_the_sandbox(backend: RuntimeBackend, tmp_path: Path) -> None:
    task = imported(ALWAYS, tmp_path)
    found = commits(tmp_path / REPOSITORIES / ALWAYS)
    assert len(found) == 3
    base, *later = reversed(found)
    command = f'test "$(git rev-list --all)" = {base} || exit 3\n' + "\n".join(
        f"! git cat-file -e {commit} || exit 4; ! git checkout --quiet {commit} -- . || exit 5" for commit in later
    )
    assert (await evaluated(backend, tmp_path, task, f"{command}\ntrue")).reward == 0.0


def commits(repository: Path) -> list[str]:
    """All of them, the newest first."""
    command = ["git", "rev-list", "--all"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.contract
def test_the_same_tasks_make_the_same_rows(tmp_path: Path) -> None:
    rows = [row(TASKS / ALWAYS, tmp_path / each / ALWAYS) for each in ("one", "other")]
    assert rows[0] == rows[1]
    assert "GIT binary patch" in rows[0]["patch"]
    assert "tests/" not in rows[0]["patch"]
    assert "solution" not in json.dumps(rows[0]["test_command"])


@pytest.mark.hard
def test_a_folder_of_rows_and_repositories_is_written(tmp_path: Path) -> None:
    rows = write(tmp_path)
    assert [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()] == rows
    assert sorted(path.name for path in (tmp_path / REPOSITORIES).iterdir()) == NAMES
