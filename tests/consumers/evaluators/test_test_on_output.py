"""Reading a test run's output, pytest's own included, and what it is worth."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators.base import Case, EvaluationError
from consumers.evaluators.test_on_output import STATUSES, TestOnOutput, statuses
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

TESTS = """
import pytest

def test_good(): pass

def test_bad(): assert 1 == 2, "a - b"

@pytest.mark.skip(reason="not: today")
def test_skipped(): pass

@pytest.fixture
def broken(): raise OSError("no")

def test_error(broken): pass
"""
OUTCOMES = {"test_it.py::test_good": "PASSED", "test_it.py::test_bad": "FAILED", "test_it.py::test_error": "ERROR"}


@pytest.mark.parametrize("options", ["-rA", "-v --color=yes", "-rA -v --color=yes"])
async def test_pytests_own_output_is_read(case: Case, options: str) -> None:
    await case.runtime.write_file("test_it.py", TESTS.encode())
    command = f"{sys.executable} -m pytest -p no:cacheprovider {options} test_it.py"
    verdict = await TestOnOutput({"test_command": command}).evaluate(case)
    found = statuses(verdict.artifacts["evaluation_output"].decode())
    skipped = {name: status for name, status in found.items() if status == "SKIPPED"}
    assert {name: status for name, status in found.items() if name not in skipped} == OUTCOMES
    assert skipped.keys() <= {"test_it.py::test_skipped", "test_it.py:8"}
    assert skipped
    assert verdict.reward == 0.0, "pytest ended with exit code 1"


@pytest.mark.parametrize("form", ["{name}: {status}", "{name} {status}", "{status} {name}", "{name} {status}   [ 50%]"])
@given(st.dictionaries(st.from_regex(r"[a-z][a-z_./:\[\]]{0,20}[a-z\]]", fullmatch=True), st.sampled_from(STATUSES)))
def test_every_form_is_read_back(form: str, outcomes: dict[str, str]) -> None:
    lines = ["collecting ...", *(form.format(name=n, status=s) for n, s in outcomes.items()), "", "2 passed in 0.1 s"]
    assert statuses("\n".join(lines)) == outcomes


@pytest.mark.parametrize(
    "line",
    ["FAILED", "ERROR: no such file", "ERROR    root:a.py:3 said so", "all tests PASSED!", "PASSEDx", "it FAILED us"],
)
def test_prose_is_no_status(line: str) -> None:
    assert statuses(line) == {}


@pytest.mark.parametrize(
    "line",
    ["x" + " " * 10**6, "PASSED (" * 10**5, "PASSED a" + " - " * 10**6, "SKIPPED [1] " + "1:" * 10**6, "\x1b[" * 10**6],
)
def test_hostile_output_is_read_in_linear_time(line: str) -> None:
    began = time.monotonic()
    statuses(line)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("given_as", [dict, json.dumps])
@pytest.mark.parametrize(
    ("said", "expected", "reward"),
    [
        ("a: PASSED\nb: FAILED", {"a": "PASSED", "b": "FAILED"}, 1.0),
        ("a: PASSED", {"a": "PASSED", "b": "FAILED"}, 0.0),
        ("a: PASSED\nc: PASSED", {"a": "PASSED"}, 0.0),
        ("a: FAILED", {"a": "PASSED"}, 0.0),
        ("a: FAILED\na: PASSED", {"a": "PASSED"}, 1.0),
        ("nothing", {"a": "PASSED"}, 0.0),
    ],
)
async def test_the_reward_is_for_the_expected_map_and_no_other(
    case: Case, said: str, expected: dict[str, str], reward: float, given_as: Any
) -> None:
    config = {"test_command": f"printf '{said}\\n'; exit 1", "expected_output_json": given_as(expected)}
    assert (await TestOnOutput(config).evaluate(case)).reward == reward


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0)])
async def test_without_a_map_the_exit_code_decides(case: Case, code: int, reward: float) -> None:
    verdict = await TestOnOutput({"test_command": f'[ "$GREETING" = hi ] && exit {code}'}).evaluate(case)
    assert verdict.reward == reward


@pytest.mark.parametrize("expected", [None, {"a": "PASSED"}])
async def test_a_command_that_is_not_there_is_no_verdict(case: Case, expected: dict[str, str] | None) -> None:
    config = {"test_command": "no-such-runner --all", "expected_output_json": expected}
    with pytest.raises(EvaluationError, match="no-such-runner") as raised:
        await TestOnOutput(config).evaluate(case)
    assert raised.value.code == "test_command"
    assert b"not found" in raised.value.artifacts["evaluation_output"]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "test_command"),
        ({"test_command": ["pytest"]}, "test_command"),
        ({"test_command": "t", "expected": {}}, "expected"),
        ({"test_command": "t", "expected_output_json": "{"}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": {"a": "passed"}}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": ["a"]}, "expected_output_json"),
    ],
)
def test_a_bad_config_is_refused_by_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"evaluator\.config\.{field}:"):
        TestOnOutput(config)
