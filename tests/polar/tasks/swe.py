"""A small git repository of our own, and rows about it in the formats of SWE-bench."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = "mine/calc"
COMMAND = "python3 -m unittest -v tests.test_calc"
FAIL_TO_PASS = ["tests.test_calc.TestPower.test_three"]
PASS_TO_PASS = ["tests.test_calc.TestAdd.test_adds"]
TESTS = """\
import unittest
import calc


class TestAdd(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(calc.add(1, 2), 3)
"""
NEW_TEST = """

class TestPower(unittest.TestCase):
    def test_three(self):
        self.assertEqual(calc.power(2, 3), 8)
"""
BROKEN = """\
def add(a, b):
    return a + b


def power(a, b):
    return a * b
"""
FIXED = BROKEN.replace("a * b", "a**b")
AGENT: Mapping[str, Any] = {"agent": {"harness": "shell", "custom_shell": {"command": "true"}}}


TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1 +1 @@
-old
+new
diff --git a/tests/data.json b/tests/data.json
new file mode 100644
--- /dev/null
+++ b/tests/data.json
@@ -0,0 +1 @@
+{}
"""


def a_row(**fields: Any) -> dict[str, Any]:
    """A row of SWE-bench 4, of no repository that there is. A field that is None is left out."""
    row = {
        "instance_id": "mine__calc-1",
        "repo": REPO,
        "version": "1.0",
        "base_commit": "a" * 40,
        "problem_statement": "power(2, 3) is 6.",
        "patch": "diff --git a/calc.py b/calc.py\n",
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": json.dumps(FAIL_TO_PASS),
        "PASS_TO_PASS": json.dumps(PASS_TO_PASS),
        **fields,
    }
    return {name: value for name, value in row.items() if value is not None}


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "init.defaultBranch=trunk")
    ended = subprocess.run(
        ["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    return ended.stdout.strip()


@dataclass(frozen=True)
class Calc:
    """The repository, with the fix and its test in its newest commit."""

    folder: Path
    base: str
    fix: str

    @property
    def row(self) -> dict[str, Any]:
        """In SWE-bench 4's format, with the two fields of Polar's own."""
        return {
            "instance_id": "mine__calc-1",
            "repo": REPO,
            "base_commit": self.base,
            "problem_statement": "power(2, 3) is 6.",
            "hints_text": "",
            "patch": self.diff("calc.py"),
            "test_patch": self.diff("tests"),
            "FAIL_TO_PASS": json.dumps(FAIL_TO_PASS),
            "PASS_TO_PASS": PASS_TO_PASS,
            "test_command": COMMAND,
            "parser": "unittest",
        }

    def diff(self, path: str) -> str:
        return git(self.folder, "diff", self.base, self.fix, "--", path) + "\n"


def make(folder: Path) -> Calc:
    (folder / "tests").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "calc.py").write_text(BROKEN)
    (folder / "tests/test_calc.py").write_text(TESTS)
    base = _commit(folder, "The beginning")
    (folder / "calc.py").write_text(FIXED)
    (folder / "tests/test_calc.py").write_text(TESTS + NEW_TEST)
    (folder / "tests/test_new.py").write_text("")
    return Calc(folder, base, _commit(folder, "Powers are powers"))


def _commit(folder: Path, message: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")
