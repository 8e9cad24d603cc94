"""`import polar` as users know it: public names, import time, and modules of the user's own named like Polar's packages."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polar

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]
CPU_LIMIT = 10
"""User and system time of a whole process, as a multiple of an empty one's."""
REPOSITORY_TOOLS = {
    "examples/train_tokenizer.py",
    "examples/vllm_cpu/install.py",
    "examples/vllm_cpu/packages.py",
    "examples/demo/run.py",
}
"""Scripts that build or start parts of this repository; they aren't for users to copy."""


def test_all_public_names_are_there() -> None:
    assert [name for name in polar.__all__ if getattr(polar, name, None) is None] == []
    with pytest.raises(AttributeError, match=r"no attribute 'Clint'; there are: ROOT, "):
        _ = polar.Clint  # type: ignore[attr-defined]


def programs() -> Iterator[tuple[str, str]]:
    """Name and text of each Python program in README, docs and examples."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            yield page.name, block
    for path in sorted((ROOT / "examples").rglob("*.py")):
        if "repo" not in path.parts and str(path.relative_to(ROOT)) not in REPOSITORY_TOOLS:
            yield str(path.relative_to(ROOT)), path.read_text()


def test_docs_and_examples_import_from_polar_and_its_trainer_alone() -> None:
    found = [
        f"{name}: {module}"
        for name, text in programs()
        for node in ast.walk(ast.parse(text))
        for module in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if module.partition(".")[0] in {"topics", "proxy", "consumers", "analytics"}
        or (module.startswith("polar.") and not module.startswith(("polar.nemo_gym", "polar.trainer")))
    ]
    assert found == []


@pytest.mark.parametrize("arguments", [["-c", "import polar"], ["-m", "polar.cli", "--version"]])
def test_import_and_version_take_little_cpu(arguments: list[str]) -> None:
    """Best of five: other processes of this machine may slow a run down, and nothing makes one faster."""

    def cpu_s(arguments: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    empty = min(cpu_s(["-c", "pass"]) for _ in range(5))
    assert min(cpu_s(arguments) for _ in range(5)) < CPU_LIMIT * empty


TRAINER = "from polar import TaskRequest\nfrom polar.trainer import TrajectoryConsumer\nprint(TaskRequest.__name__)\n"


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A training script in a folder of its own; the script's folder is the first on Python's path."""
    (folder / "train.py").write_text(program)
    return subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_a_training_script_runs_beside_other_modules(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").touch()
    (tmp_path / "analytics.py").touch()
    (tmp_path / "topics").mkdir()  # no `__init__.py`: Python takes Polar's package first
    ended = run(tmp_path, TRAINER)
    assert (ended.returncode, ended.stdout) == (0, "TaskRequest\n"), ended.stderr


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("topics.py", TRAINER),
        ("topics.py", "import topics\n" + TRAINER),
        ("topics/__init__.py", TRAINER),
        ("consumers.py", "from polar import Launch"),
        ("proxy.py", "import sys; sys.argv[1:] = ['keys', 'list']; from polar.cli import main; main()"),
    ],
)
def test_a_module_that_hides_polars_own_is_named_at_import(tmp_path: Path, name: str, program: str) -> None:
    clash = tmp_path / name
    clash.parent.mkdir(exist_ok=True)
    clash.touch()
    ended = run(tmp_path, program)
    assert ended.returncode != 0
    package = name.partition("/")[0].removesuffix(".py")
    assert f"{clash} hides Polar's own package '{package}'" in ended.stderr
    assert "rename that file" in ended.stderr
