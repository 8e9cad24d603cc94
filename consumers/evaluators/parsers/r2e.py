"""Pytest's output (`-rA`) as R2E-Gym names tests: without the file, `TestClass.test_name` (r2egym, repo_analysis/execution_log_parser.py).

Only what comes after pytest's summary headline counts.
"""

from __future__ import annotations

from consumers.evaluators.parsers.output import Found, lines

SUMMARY = "short test summary info"
_STATUSES = ("PASSED", "FAILED", "ERROR")


def name_of(test: str) -> str:
    """The name without the reason behind it, which R2E-Gym compares no more than colours."""
    return test.partition(" - ")[0]


def read(text: str) -> Found:
    is_summary = False
    for line in lines(text):
        if not is_summary:
            is_summary = SUMMARY in line
        elif status := next((one for one in _STATUSES if one in line), None):
            yield name_of(".".join(line.split("::")[1:])), status
