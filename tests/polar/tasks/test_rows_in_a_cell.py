"""A row of SWE-bench's format about a local repository runs in a cell: the solution gets 1, and nothing else does."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.swebench import SweBench
from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.prepare import steps
from polar.cli import documents
from tests.polar.cli.commands import polar
from tests.polar.tasks import swe
from tests.polar.tasks.swe import Calc
from tests.uploading import submitted
from topics.environment.blobs import BlobStore
from topics.types.session import Status
from topics.types.task import TaskRequest, parse

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("swebench_is_installed")]

FIX = "sed -i 's/a \\* b/a**b/' calc.py"
CHEAT = """cat > tests/test_calc.py <<'END'
import unittest
class TestAdd(unittest.TestCase):
    def test_adds(self): pass
class TestPower(unittest.TestCase):
    def test_three(self): pass
END
"""


@pytest.fixture
def calc(tmp_path: Path) -> Calc:
    return swe.make(tmp_path / "calc")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[CellBackend]:
    made = CellBackend(tmp_path / "runtimes")
    yield made
    for left in await made.labelled():
        await made.remove(left.handle)


@pytest.fixture
def task(tmp_path: Path, calc: Calc) -> TaskRequest:
    return imported(tmp_path, calc.row, calc)


def imported(folder: Path, row: dict[str, object], calc: Calc) -> TaskRequest:
    """As `polar tasks import` and `polar submit` make it."""
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "template.yaml").write_text(json.dumps(swe.AGENT))
    code, out, err = polar(
        *("tasks", "import", str(folder / "rows.jsonl"), "--out", str(folder / "tasks.jsonl")),
        *("--template", str(folder / "template.yaml"), "--repo", f"{swe.REPO}={calc.folder}"),
    )
    assert code == 0, out + err
    (document,) = documents.read(str(folder / "tasks.jsonl"))
    return submitted(parse(document.body), BlobStore(folder / "blobs"))


async def judged(folder: Path, backend: CellBackend, task: TaskRequest, agent: str) -> tuple[Verdict, str]:
    """The verdict on what an agent's command left, and what it printed."""
    evaluator = SweBench(task.evaluator.config)
    blobs = BlobStore(folder / "blobs")
    labels = Labels("polar", "calc.0", 1, claim())
    made = await backend.create(labels, task.runtime, steps(task.runtime.prepare, blobs))
    await evaluator.keep(made)
    run = await backend.attach(made.handle, claim(), task.runtime)
    ended = await run.exec(Exec(agent, timeout_s=60))
    fresh = await backend.attach(made.handle, claim(), task.runtime, fresh=True)
    if (reason := await evaluator.restore(fresh)) is not None:
        return Verdict(0.0, reason=reason), ended.tail
    case = Case(fresh, "calc.0", Status.COMPLETED, 0, None, {}, budget_s=120)
    return await evaluator.evaluate(case), ended.tail


def claim() -> str:
    return f"claim-{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    ("agent", "reward"),
    [
        pytest.param(FIX, 1.0, id="the solution"),
        pytest.param(f"{FIX} && git commit -qam done", 1.0, id="a solution that is committed"),
        pytest.param(f"{FIX} && rm -rf .git tests", 1.0, id="a solution without the repository and the tests"),
        pytest.param(f"{FIX} && rm tests/test_calc.py && mkdir -p tests/test_calc.py/x", 1.0, id="a folder in a test's place"),
        pytest.param("true", 0.0, id="nothing"),
        pytest.param(f"{FIX} && sed -i 's/a + b/a - b/' calc.py", 0.0, id="a test that passed fails"),
        pytest.param("echo >> calc.py syntax error", 0.0, id="no test can run"),
        pytest.param(CHEAT, 0.0, id="other tests"),
        pytest.param(f"{CHEAT} git commit -qam tests; git replace HEAD~1 HEAD", 0.0, id="other tests in the history"),
        pytest.param(f"{CHEAT} mv tests mine; ln -s mine tests", 0.0, id="tests behind a link"),
        pytest.param(f"{CHEAT} rm -rf .git", 0.0, id="other tests and no repository"),
        pytest.param(f"{FIX} && git commit -qam fix && git reset -q --hard HEAD~1", 0.0, id="a commit with the solution"),
        pytest.param("echo 'import os; os._exit(0)' > sitecustomize.py", 0.0, id="a module that ends Python"),
        pytest.param("echo 'import os; os._exit(0)' >> calc.py", 0.0, id="code that ends the tests"),
    ],
)  # fmt: skip
async def test_only_a_solution_gets_the_reward(
    tmp_path: Path, backend: CellBackend, task: TaskRequest, agent: str, reward: float
) -> None:
    verdict, _ = await judged(tmp_path, backend, task, agent)
    assert verdict.reward == reward, verdict.reason
    assert (verdict.reason is None) == (reward == 1.0)


async def test_neither_the_future_nor_the_tests_are_in_the_sandbox(
    tmp_path: Path, backend: CellBackend, task: TaskRequest, calc: Calc
) -> None:
    secrets = [calc.fix, calc.row["patch"], "TestPower", "a**b"]
    look = f"git log --format=%H --all; git cat-file -e {calc.fix} || echo gone; git remote; git tag"
    _, printed = await judged(tmp_path, backend, task, look)
    assert printed.split() == [calc.base, "gone"]
    everything = (
        "git cat-file --batch-all-objects --batch; grep -rs . . ~ /tmp --exclude-dir=.git | head -c 1000000; ls -a"
    )
    _, printed = await judged(tmp_path, backend, task, everything)
    assert [secret for secret in secrets if secret in printed] == []
    assert "a * b" in printed, "it is about the right repository"
    assert "bundle" not in printed


async def test_a_test_patch_that_doesnt_fit_leaves_no_reward(tmp_path: Path, backend: CellBackend, calc: Calc) -> None:
    row = calc.row
    row["test_patch"] = row["test_patch"].replace("calc.add(1, 2)", "calc.add(1, 3)")
    with pytest.raises(
        EvaluationError, match=r"test_patch doesn't apply to the files that runtime\.prepare left"
    ) as failure:
        await judged(tmp_path, backend, imported(tmp_path, row, calc), FIX)
    assert failure.value.code == "test_patch"


def test_an_import_is_the_same_each_time(tmp_path: Path, calc: Calc, task: TaskRequest) -> None:
    (bundle,) = (tmp_path / "tasks.repositories").iterdir()
    before = bundle.read_bytes()
    bundle.unlink()
    assert imported(tmp_path, calc.row, calc).canonical() == task.canonical()
    assert bundle.read_bytes() == before


def test_a_commit_that_the_repository_lacks_is_named(tmp_path: Path, calc: Calc) -> None:
    row = {**calc.row, "base_commit": "0" * 40}
    with pytest.raises(AssertionError, match="git fetch failed"):
        imported(tmp_path, row, calc)
    assert not (tmp_path / "tasks.jsonl").exists()
