"""Reading a test run's output or report, pytest's own included, and what it is worth: also where an agent has shaped all of it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators.base import REASON_LIMIT, Case, EvaluationError
from consumers.evaluators.command import OUTPUT, Command
from consumers.evaluators.parsers import NAMES_LIMIT, statuses
from consumers.evaluators.test_on_output import REPORT, STATUSES, TestOnOutput
from consumers.runtimes.base import Exec, ExecResult, RuntimeBackend, SandboxError
from consumers.runtimes.process import ProcessRuntime
from tests.uploading import upload_of
from topics.environment.blobs import FolderBlobs
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[3]

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
IN_REACH = pytest.mark.parametrize("backend", ["process"], indirect=True)
"""For what programs of the sandbox `process` can reach; a cell keeps it out of theirs."""
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
        ("a: PASSED\nc: FAILED", {"a": "PASSED"}, 1.0),
        ("a: FAILED", {"a": "PASSED"}, 0.0),
        ("a: FAILED\na: PASSED", {"a": "PASSED"}, 1.0),
        ("nothing", {"a": "PASSED"}, 0.0),
    ],
)
async def test_the_reward_is_for_the_expected_tests_whatever_others_do(
    case: Case, said: str, expected: dict[str, str], reward: float, given_as: Any
) -> None:
    config = {"test_command": f"printf '{said}\\n'; exit 1", "expected_output_json": given_as(expected)}
    assert (await TestOnOutput(config).evaluate(case)).reward == reward


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0)])
async def test_without_a_map_the_exit_code_decides(case: Case, code: int, reward: float) -> None:
    verdict = await TestOnOutput({"test_command": f'[ "$GREETING" = hi ] && exit {code}'}).evaluate(case)
    assert verdict.reward == reward


async def test_unittests_own_output_is_read(case: Case) -> None:
    tests = b"import unittest\nclass T(unittest.TestCase):\n def test_a(self): print('ok')\n def test_b(self): self.fail()\n"
    await case.runtime.write_file("test_it.py", tests)
    config = {
        "test_command": f"{sys.executable} -m unittest -v",
        "expected_output_json": {"test_it.T.test_a": "PASSED", "test_it.T.test_b": "FAILED"},
        "exact": True,
        "parser": "unittest",
    }
    verdict = await TestOnOutput(config).evaluate(case)
    assert (verdict.reward, verdict.reason) == (1.0, None)


@pytest.mark.parametrize(
    ("parser", "output", "reward"),
    [
        ("go", "--- PASS: TestSum (0.00s)", 1.0),
        ("go", "--- FAIL: TestSum (0.00s)", 0.0),
        ("go", "TestSum PASSED", 0.0),
        ("tap", "ok 1 - TestSum", 1.0),
        ("tap", "--- PASS: TestSum (0.00s)", 0.0),
    ],
)
async def test_the_parser_of_the_task_reads_the_output(case: Case, parser: str, output: str, reward: float) -> None:
    config = {
        "test_command": f"printf '%s\\n' '{output}'",
        "expected_output_json": {"TestSum": "PASSED"},
        "parser": parser,
    }
    assert (await TestOnOutput(config).evaluate(case)).reward == reward


@pytest.mark.parametrize(
    ("said", "reward"),
    [("a: PASSED", 1.0), ("a: PASSED\nb: PASSED", 0.0), ("a: PASSED\n" + "b" * 5000 + ": PASSED", 0.0)],
)
async def test_an_exact_map_allows_no_other_test(case: Case, said: str, reward: float) -> None:
    config = {"test_command": f"printf '{said}\n'", "expected_output_json": {"a": "PASSED"}, "exact": True}
    assert (await TestOnOutput(config).evaluate(case)).reward == reward


async def test_a_lost_reward_says_which_tests_differ_and_how(case: Case) -> None:
    expected = {"a": "PASSED", "b": "PASSED", "c": "SKIPPED"}
    lines = "a: FAILED\nb: PASSED\nd: PASSED\n"
    config = {"test_command": f"printf '{lines}'; exit 1", "expected_output_json": expected, "exact": True}
    verdict = await TestOnOutput(config).evaluate(case)
    assert verdict.reward == 0.0
    assert verdict.reason == (
        "3 of 3 tests differ: a is FAILED, not PASSED; c is not reported, not SKIPPED; d is PASSED, and isn't expected"
    )
    report = json.loads(verdict.artifacts[REPORT])
    assert (report["reason"], report["exit_code"], report["differing"]) == (verdict.reason, 1, 3)
    assert report["tests"] == {"FAILED": 1, "PASSED": 2}
    assert report["first"][1] == {"test": "c", "expected": "SKIPPED", "found": None, "message": ""}
    assert REPORT not in (await TestOnOutput({"test_command": "true"}).evaluate(case)).artifacts


# --- README's task


def readme_config() -> dict[str, Any]:
    """The evaluator of README's `mend-1`."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (task,) = (parsed for parsed in map(yaml.safe_load, blocks) if parsed["task_id"] == "mend-1")
    assert task["evaluator"]["strategy"] == "test_on_output"
    config: dict[str, Any] = task["evaluator"]["config"]
    return config


BY_OUTPUT = {
    "test_command": "python -m pytest -rA",
    "expected_output_json": {"tests/test_powers.py::test_powers_are_taken_from_the_right": "PASSED"},
}
"""The same expectation, read from the output: one of eight tests."""
FIX = {
    "calc/tokens.py": [(r"[-+*/()]|\*\*)", r"\*\*|[-+*/()])")],
    "calc/parser.py": [
        ("self.expression(PRECEDENCE[name] + 1)", 'self.expression(PRECEDENCE[name] + (name != "**"))'),
        ('return ("-", 0.0, self.operand())', 'return ("-", 0.0, self.expression(PRECEDENCE["**"]))'),
    ],
}


@pytest.mark.parametrize("config", [readme_config(), BY_OUTPUT], ids=["as in README", "by its output"])
async def test_readmes_task_is_worth_1_with_the_right_fix_and_0_without(
    case: Case, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    case = replace(case, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    repository = upload_of(ROOT / "examples" / "demo" / "calc" / "repo", FolderBlobs(tmp_path / "blobs"))
    await case.runtime.upload(repository, ".")
    unfixed = await TestOnOutput(config).evaluate(case)
    assert unfixed.reward == 0.0
    assert "test_powers_are_taken_from_the_right is FAILED, not PASSED" in (unfixed.reason or "")
    for name, edits in FIX.items():
        text = (await case.runtime.read_file(name, 10_000)).decode()
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        await case.runtime.write_file(name, text.encode())
    fixed = await TestOnOutput(config).evaluate(case)
    assert (fixed.reward, fixed.reason) == (1.0, None)


# --- reports


def suite(*cases: str) -> str:
    return f"<testsuite>{''.join(cases)}</testsuite>"


GOOD = "<testcase classname='t' name='a'/>"
BAD = "<testcase classname='t' name='b'><failure message='1 != 2'/></testcase>"


@pytest.mark.parametrize(
    ("report", "code", "expected", "reward", "reason"),
    [
        (suite(GOOD), 0, {"t::a": "PASSED"}, 1.0, None),
        (suite(GOOD), 0, None, 1.0, None),
        (suite(GOOD, BAD), 0, {"t::a": "PASSED"}, 1.0, None),
        (suite(GOOD, BAD), 0, {"t::a": "PASSED", "t::b": "FAILED"}, 1.0, None),
        (suite(GOOD), 1, {"t::a": "PASSED"}, 0.0, "the test command ended with exit code 1"),
        (suite(GOOD), 1, None, 0.0, "the test command ended with exit code 1"),
        (suite(GOOD, BAD), 0, None, 0.0, "1 of 2 tests differ: t::b is FAILED, not PASSED"),
        (suite(), 0, None, 0.0, "the report has no test that passed"),
        (suite(GOOD), 0, {"t::c": "PASSED"}, 0.0, "1 of 1 tests differ: t::c is not reported, not PASSED"),
        (suite(GOOD)[:-3], 0, {"t::a": "PASSED"}, 0.0, "the report isn't well-formed XML"),
        ("", 0, {"t::a": "PASSED"}, 0.0, "the test command wrote no report, and ended with exit code 0"),
    ],
)
async def test_a_report_and_the_exit_code_decide_together(
    case: Case, report: str, code: int, expected: dict[str, str] | None, reward: float, reason: str | None
) -> None:
    command = f'echo "t::c: PASSED"; printf %s "{report}" >{{report}}; exit {code}'
    config = {"test_command": command, "report": "junit.xml", "expected_output_json": expected}
    verdict = await TestOnOutput(config).evaluate(case)
    assert verdict.reward == reward
    assert verdict.reason is None if reason is None else (verdict.reason or "").startswith(reason)


async def test_a_reports_failure_is_told_with_its_message(case: Case) -> None:
    config = {
        "test_command": f'printf %s "{suite(BAD)}" >{{report}}',
        "report": "r",
        "expected_output_json": {"t::b": "PASSED"},
    }
    verdict = await TestOnOutput(config).evaluate(case)
    first = {"test": "t::b", "expected": "PASSED", "found": "FAILED", "message": "1 != 2"}
    assert json.loads(verdict.artifacts[REPORT])["first"] == [first]


async def test_pytests_own_report_is_read_in_place_of_its_output(case: Case) -> None:
    await case.runtime.write_file("test_it.py", TESTS.encode())
    command = f"{sys.executable} -m pytest -p no:cacheprovider -q --junitxml={{report}} test_it.py || test $? = 1"
    expected = OUTCOMES | {"test_it.py::test_skipped": "SKIPPED"}
    config = {"test_command": command, "report": "junit.xml", "expected_output_json": expected, "exact": True}
    assert (await TestOnOutput(config).evaluate(case)).reward == 1.0


async def test_a_reports_path_is_new_each_time_below_the_home_and_known_by_a_variable(case: Case) -> None:
    config = {"test_command": 'echo {report} "$POLAR_REPORT" "${report}"', "report": "junit.xml"}
    said = [(await TestOnOutput(config).evaluate(case)).artifacts[OUTPUT].decode().split() for _ in range(2)]
    for placed, variable in said:
        assert placed == variable
        assert PurePosixPath(placed).is_relative_to(case.runtime.home)
        assert PurePosixPath(placed).name == "junit.xml"
    assert said[0] != said[1]


@pytest.mark.parametrize(
    "instead",
    [
        "rm {report}",
        "rm {report}; mkdir {report}",
        "rm {report}; mkfifo {report}",
        "rm {report}; ln -s /etc/passwd {report}",
        "rm {report}; ln -s {report} {report}",
        "rm -r $(dirname {report}); ln -s / $(dirname {report})",
        "printf '\\377\\376' >{report}",
        "head -c 17000000 /dev/zero >{report}",
        "printf '<!DOCTYPE x><testsuite><testcase name=\"a\"/></testsuite>' >{report}",
    ],
)
async def test_whatever_stands_in_a_reports_place_is_worth_0_with_a_reason(case: Case, instead: str) -> None:
    config = {"test_command": instead, "report": "junit.xml", "expected_output_json": {"a": "PASSED"}}
    verdict = await TestOnOutput(config).evaluate(case)
    assert verdict.reward == 0.0
    assert "report" in (verdict.reason or "")


# --- what an agent's files can cause


async def test_a_command_that_hangs_is_worth_0(case: Case) -> None:
    config = {"test_command": "echo begun; sleep 60", "timeout_s": 0.5}
    verdict = await TestOnOutput(config).evaluate(case)
    assert (verdict.reward, verdict.artifacts[OUTPUT]) == (0.0, b"begun\n")
    assert verdict.reason == "the test command was stopped. It didn't end within timeout_s = 0.5 s."


@pytest.mark.parametrize(
    ("timeout_s", "budget_s", "limit"),
    [
        (None, 600.0, 540.0),
        (None, 60.0, 50.0),
        (None, 10.0, 5.0),
        (30.0, 600.0, 30.0),
        (599.0, 600.0, 540.0),
        (7.0, None, 7.0),
    ],
)
def test_a_command_ends_before_the_evaluations_budget(
    timeout_s: float | None, budget_s: float | None, limit: float
) -> None:
    assert Command("test_command", "t", timeout_s).limit_s(budget_s) == limit


async def test_a_hang_without_a_setting_of_its_own_is_worth_0_within_the_budget(case: Case) -> None:
    verdict = await TestOnOutput({"test_command": "sleep 60"}).evaluate(replace(case, budget_s=1.0))
    assert (verdict.reward, verdict.reason) == (
        0.0,
        "the test command was stopped. It didn't end within timeout_s = 0.5 s.",
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("bash tests/run.sh", "exit code 127"),
        ("./run.sh", "exit code 127"),
        ("touch run.sh; ./run.sh", "exit code 126"),
        ("exit 127", "exit code 127"),
        ("(exit 126)", "exit code 126"),
    ],
)
@pytest.mark.parametrize("report", [None, "junit.xml"])
async def test_a_command_that_the_agent_could_have_broken_is_worth_0(
    case: Case, command: str, reason: str, report: str | None
) -> None:
    verdict = await TestOnOutput({"test_command": command, "report": report}).evaluate(case)
    assert verdict.reward == 0.0
    assert reason in (verdict.reason or "")


async def test_a_program_that_the_agents_shim_hides_is_worth_0(case: Case, backend: RuntimeBackend, claim: str) -> None:
    """PATH leads through the workspace first, so that the agent decides what a bare name starts."""
    spec = RuntimeSpec(env={"PATH": f"{case.runtime.workspace}/bin:/usr/bin:/bin"})
    runtime = await backend.attach(case.runtime.handle, claim, spec)
    for name in ("no-such-runner", "bash"):
        await runtime.write_file(f"bin/{name}", b"#!/bin/sh\nexit 127\n", 0o700)
        assert (await TestOnOutput({"test_command": name}).evaluate(replace(case, runtime=runtime))).reward == 0.0
    verdict = await TestOnOutput({"test_command": "never-installed"}).evaluate(replace(case, runtime=runtime))
    assert verdict.reward == 0.0, "the agent could have removed it from the workspace"


async def test_a_bash_of_the_workspace_that_cannot_start_is_worth_0(
    case: Case, backend: RuntimeBackend, claim: str
) -> None:
    spec = RuntimeSpec(env={"PATH": f"{case.runtime.workspace}/bin"})
    runtime = await backend.attach(case.runtime.handle, claim, spec)
    await runtime.write_file("bin/bash", b"\x7fELF, and no more", 0o700)
    verdict = await TestOnOutput({"test_command": "true"}).evaluate(replace(case, runtime=runtime))
    assert verdict.reward == 0.0


async def test_a_script_of_the_workspace_has_no_say_in_what_the_worker_lacks(case: Case) -> None:
    """BASH_ENV names a script that every bash of the task runs first; the agent has written it anew."""
    await case.runtime.write_file("env.sh", b"PATH=/usr/bin; type() { return 1; }")
    env = {"BASH_ENV": f"{case.runtime.workspace}/env.sh", "PATH": f"{case.runtime.workspace}/bin:/usr/bin:/bin"}
    assert (await TestOnOutput({"test_command": "runner"}).evaluate(replace(case, env=env))).reward == 0.0


@IN_REACH
@pytest.mark.parametrize("name", ["evaluation.log", "control.log"])
async def test_a_folder_in_the_place_of_a_log_is_worth_0(case: Case, name: str) -> None:
    await case.runtime.exec(Exec(f"mkdir -p ../logs/evaluation.log/x ../logs/{name}/x"))
    verdict = await TestOnOutput({"test_command": "true"}).evaluate(case)
    assert verdict.reward == 0.0
    assert verdict.reason


@pytest.mark.parametrize("env", [{"PATH": "/no"}, {"PATH": "/no:/nowhere"}])
async def test_a_path_without_bash_is_no_verdict(case: Case, env: dict[str, str]) -> None:
    """The task's mistake, or its worker's: the agent can't change it."""
    with pytest.raises(SandboxError, match="bash"):
        await TestOnOutput({"test_command": "true"}).evaluate(replace(case, env=env))


@pytest.mark.parametrize("expected", [None, {"a": "PASSED"}])
async def test_a_program_that_the_worker_lacks_is_no_verdict(
    case: Case, expected: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    config = {"test_command": "no-such-runner --all", "expected_output_json": expected}
    with pytest.raises(EvaluationError, match="no folder of PATH has the program 'no-such-runner'") as raised:
        await TestOnOutput(config).evaluate(case)
    assert raised.value.code == "test_command"
    assert b"not found" in raised.value.artifacts[OUTPUT]


@pytest.mark.parametrize(
    "left",
    ["rm -rf ../workspace/sub", "rm -rf sub; ln -s / sub", "rm -rf sub; touch sub", "rm -rf ../home; ln -s / ../home"],
)
async def test_a_folder_that_the_run_replaced_is_worth_0(
    case: Case, backend: RuntimeBackend, claim: str, left: str
) -> None:
    await case.runtime.exec(Exec(f"mkdir sub; {left}"))
    config = {"test_command": "cd sub && true", "report": "junit.xml"}
    verdict = await TestOnOutput(config).evaluate(case)
    assert verdict.reward == 0.0
    assert verdict.reason


@IN_REACH
async def test_a_workspace_that_is_gone_is_worth_0(case: Case) -> None:
    await case.runtime.exec(Exec("rm -rf ../workspace"))
    verdict = await TestOnOutput({"test_command": "true"}).evaluate(case)
    assert verdict.reward == 0.0
    assert "couldn't be started in the workspace that the run left" in (verdict.reason or "")


@IN_REACH
@pytest.mark.parametrize("code", ["not_started", "supervisor_lost", "unkillable", "runtime_gone"])
async def test_a_failure_of_the_machine_is_no_verdict(case: Case, code: str) -> None:
    """A sandbox that starts no program at all, in the place of a machine without memory or processes."""

    class Failing(ProcessRuntime):
        async def exec(self, what: Exec, stop: asyncio.Event | None = None) -> ExecResult:
            raise SandboxError(code, "the machine is out of order")

    failing = Failing.__new__(Failing)
    failing.__dict__.update(case.runtime.__dict__)
    with pytest.raises(SandboxError, match="out of order"):
        await TestOnOutput({"test_command": "true"}).evaluate(replace(case, runtime=failing))


@IN_REACH
async def test_a_worker_without_descriptors_is_no_verdict(case: Case) -> None:
    """A runtime whose worker has run out of descriptors."""

    class Exhausted(ProcessRuntime):
        async def read_file(self, path: str | PurePosixPath, limit: int) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

    exhausted = Exhausted.__new__(Exhausted)
    exhausted.__dict__.update(case.runtime.__dict__)
    with pytest.raises(SandboxError, match="Too many open files"):
        await TestOnOutput({"test_command": "true", "report": "r"}).evaluate(replace(case, runtime=exhausted))


@pytest.mark.parametrize(
    ("printing", "reason"),
    [
        ("printf '\\377\\376 PASSED\\n'", "a is not reported, not PASSED"),
        ("yes 'a: FAILED' | head -c 20000000", "a is FAILED, not PASSED; the output was longer than 16777216 bytes"),
        ("seq -f 'n%.0f: PASSED' 300000", "a is not reported, not PASSED"),
        ("rm ../logs/evaluation.log; mkdir ../logs/evaluation.log", "a is not reported, not PASSED"),
    ],
    ids=["no UTF-8", "endless", "fake lines", "log replaced"],
)
async def test_output_of_any_kind_is_worth_0_with_a_reason(case: Case, printing: str, reason: str) -> None:
    config = {"test_command": printing, "expected_output_json": {"a": "PASSED"}}
    verdict = await TestOnOutput(config).evaluate(case)
    assert verdict.reward == 0.0
    assert verdict.reason is not None
    assert verdict.reason.startswith("1 of 1 tests differ: " + reason)
    assert len(verdict.reason) < REASON_LIMIT
    assert len(verdict.artifacts[REPORT]) < 100_000


def test_fake_lines_cannot_push_out_the_expected_tests() -> None:
    lines = "".join(f"n{n}: PASSED\n" for n in range(2 * NAMES_LIMIT))
    found = statuses(f"{lines}a: PASSED\nb: FAILED\n{lines}b: PASSED\n", {"a": "PASSED", "b": "PASSED"})
    assert (found["a"], found["b"], len(found)) == ("PASSED", "PASSED", NAMES_LIMIT + 2)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "test_command"),
        ({"test_command": ["pytest"]}, "test_command"),
        ({"test_command": "t", "expected": {}}, "expected"),
        ({"test_command": "t", "expected_output_json": "{"}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": {"a": "passed"}}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": ["a"]}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": {}}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": "[" * 100_000}, "expected_output_json"),
        ({"test_command": "t", "expected_output_json": {"a": ["PASSED"]}}, "expected_output_json"),
        (
            {"test_command": "t", "expected_output_json": {"a.py::b": "PASSED", "a::b": "FAILED"}, "report": "r"},
            "expected_output_json",
        ),
        ({"test_command": "t\0"}, "test_command"),
        ({"test_command": "t {report}"}, "test_command"),
        ({"test_command": "t", "exact": True}, "exact"),
        ({"test_command": "t", "exact": "yes", "expected_output_json": {"a": "PASSED"}}, "exact"),
        *(
            ({"test_command": "t", "expected_output_json": {"a": "PASSED"}, "parser": wrong}, "parser")
            for wrong in ("mocha", 3, ["go"], "")
        ),
        ({"test_command": "t", "parser": "go"}, "parser"),
        ({"test_command": "t", "parser": "go", "report": "r", "expected_output_json": {"a": "PASSED"}}, "parser"),
        (
            {"test_command": "t", "parser": "go", "expected_output_json": {"a" * 1001: "PASSED"}},
            "expected_output_json",
        ),
        *(({"test_command": "t", "report": wrong}, "report") for wrong in ("", "..", "a/b", ".a", "a b", 3, True)),
        *(
            ({"test_command": "t", "timeout_s": wrong}, "timeout_s")
            for wrong in (0, -1, "60", True, float("nan"), float("inf"))
        ),
    ],
)
def test_a_bad_config_is_refused_by_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"evaluator\.config\.{field}:"):
        TestOnOutput(config)
