"""Makes SWE-bench rows and git repositories of the tasks of this folder, so that nothing is written down twice.

    python -m examples.swe.rows --out DIR

DIR/rows.jsonl has a row of SWE-bench's format for each task, and DIR/repositories/NAME its repository: the commit that the agent gets
(`base_commit`), and after it the fix and the tests, as a project's own history has them. The same tasks make the same commits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.swe.scripts import TASKS

ROWS = "rows.jsonl"
REPOSITORIES = "repositories"
PARSERS: Mapping[str, str] = {"python": "unittest", "javascript": "tap", "go": "go", "c": "tap"}
"""The form of the output of `tests/run.sh`, by language (docs/evaluators.md)."""
DATE = "2026-01-01T00:00:00Z"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in
       (("NAME", "swe"), ("EMAIL", "swe@example.org"), ("DATE", DATE))},
}  # fmt: skip
"""The same for everyone, so that commits have the same hashes."""


def main() -> None:
    """Write the rows and the repositories into a new folder."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.swe.rows", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder; what it has of these names is replaced")
    rows = write(parser.parse_args().out)
    print(f"{len(rows)} rows")


def write(folder: Path) -> list[dict[str, Any]]:
    """The rows, as they are written."""
    shutil.rmtree(folder / REPOSITORIES, ignore_errors=True)
    rows = [row(task, folder / REPOSITORIES / task.name) for task in sorted(TASKS.iterdir())]
    (folder / ROWS).write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in rows))
    return rows


def row(task: Path, repository: Path) -> dict[str, Any]:
    """The row of a task's folder; its repository is made."""
    shutil.copytree(task / "environment" / "repo", repository)
    _git(repository, "init", "--quiet", "--initial-branch=main")
    base = _commit(repository, "As found")
    subprocess.run(["bash", str((task / "solution" / "solve.sh").absolute())], cwd=repository, check=True)
    fix = _commit(repository, "Fix")
    shutil.copytree(task / "tests" / "files", repository, dirs_exist_ok=True)
    tests = _commit(repository, "Test the fix")
    language = tomllib.loads((task / "task.toml").read_text())["metadata"]["language"]
    return {
        "instance_id": f"swe__{task.name}",
        "repo": f"swe/{task.name}",
        "version": "1",
        "base_commit": base,
        "created_at": DATE,
        "problem_statement": (task / "instruction.md").read_text(),
        "patch": _git(repository, "diff", "--binary", base, fix),
        "test_patch": _git(repository, "diff", "--binary", fix, tests),
        "FAIL_TO_PASS": json.dumps(_names(task, "fail_to_pass")),
        "PASS_TO_PASS": json.dumps(_names(task, "pass_to_pass")),
        "test_command": (task / "tests" / "run.sh").read_text(),
        "parser": PARSERS[language],
    }


def _names(task: Path, which: str) -> list[str]:
    return (task / "tests" / f"{which}.txt").read_text().splitlines()


def _commit(repository: Path, subject: str) -> str:
    """Commit everything; the hash."""
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message", subject)
    return _git(repository, "rev-parse", "HEAD").strip()


def _git(repository: Path, *arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=repository, env=os.environ | GIT, stdout=subprocess.PIPE, text=True, check=True
    )
    return ended.stdout


if __name__ == "__main__":
    main()
