"""What the evaluator `swebench` makes of an output, by SWE-bench's rules; and its settings. `test_rows_in_a_cell.py` runs it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators import test_patch
from consumers.evaluators.base import Case
from consumers.evaluators.command import ObstructedError
from consumers.evaluators.parsers import SWEBENCH_FORMS, statuses
from consumers.evaluators.swebench import SweBench
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

CONFIG: dict[str, Any] = {"test_command": "true", "fail_to_pass": ["a"], "pass_to_pass": ["b"]}


@pytest.mark.parametrize(
    ("printed", "exit_code", "reward", "reason"),
    [
        ("PASSED a\nPASSED b", 0, 1.0, None),
        ("PASSED a\nXFAIL b", 0, 1.0, None),
        ("PASSED a\nSKIPPED b", 0, 1.0, None),
        ("PASSED a\nPASSED b\nFAILED c - why", 1, 1.0, None),
        ("SKIPPED a\nPASSED b", 0, 0.0, "a is SKIPPED, not PASSED"),
        ("PASSED a\nFAILED b - why", 1, 0.0, "b is FAILED, not PASSED"),
        ("PASSED a", 0, 0.0, "b is not reported, not PASSED"),
        ("PASSED a\nPASSED b", 1, 0.0, "ended with exit code 1, though it reports no failed test"),
        ("PASSED b\n+ : '>>>>> Start Test Output'\nPASSED a\n+ : '>>>>> End Test Output'\nPASSED b", 0, 0.0, "b is not reported"),
        ("FAILED a\n+ : '>>>>> Start Test Output'\nPASSED a\nPASSED b", 0, 1.0, None),
    ],
)  # fmt: skip
async def test_the_lists_decide(case: Case, printed: str, exit_code: int, reward: float, reason: str | None) -> None:
    await case.runtime.write_file("printed", printed.encode())
    config = {**CONFIG, "test_command": f"cat printed; echo; exit {exit_code}", "parser": "parse_log_pytest"}
    verdict = await SweBench(config).evaluate(case)
    assert verdict.reward == reward
    assert (reason or "") in (verdict.reason or "")
    assert (verdict.reason is None) == (reason is None)


@pytest.mark.parametrize(
    ("printed", "reward"),
    [
        ("PASSED t[a b]\nPASSED t[a c]", 1.0),
        ("PASSED t[a b]\nFAILED t[a c]\nFAILED x", 0.0),
        ("PASSED t[b]", 0.0),
    ],
)
async def test_a_name_cut_within_its_brackets_stands_for_all_that_begin_so(
    case: Case, printed: str, reward: float
) -> None:
    await case.runtime.write_file("printed", printed.encode())
    config = {"test_command": "cat printed", "fail_to_pass": ["t[a"], "parser": "parse_log_pytest_v2"}
    assert (await SweBench(config).evaluate(case)).reward == reward


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"fail_to_pass": []}, "fail_to_pass"),
        ({"fail_to_pass": "a"}, "fail_to_pass"),
        ({"pass_to_pass": [1]}, "pass_to_pass"),
        ({"parser": "parse_log_doctest"}, "parser"),
        ({"test_patch": "no patch"}, "test_patch"),
        ({"test_patch": "diff --git a/../x b/../x"}, "test_patch"),
        ({"test_patch": "diff --git a/.git/config b/.git/config"}, "test_patch"),
        ({"protected": False}, "protected"),
        ({"report": "junit.xml"}, "report"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"evaluator\.config\.{field}"):
        SweBench({**CONFIG, **change})


def test_the_paths_of_a_patch_are_all_that_it_names() -> None:
    patch = 'diff --git a/old.py b/new.py\nrename from old.py\ndiff --git "a/a b.py" "b/a b.py"\n'
    assert test_patch.paths_of(patch) == ("old.py", "new.py", "a b.py")


async def test_a_patch_whose_files_cant_be_written_is_no_patch_that_doesnt_apply(case: Case) -> None:
    """As on a disk that the run filled. Here the target of a symbolic link is too long for any disk."""
    patch = (
        "diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1111111\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n"
        f"+{'x' * 5000}\n\\ No newline at end of file\n"
    )
    with pytest.raises(ObstructedError, match="unable to write file"):
        await test_patch.apply(case.runtime, patch, ("l",))


OUTPUTS = {
    "parse_log_pytest": (
        "PASSED t/a.py::b\nSKIPPED [2] t/a.py:3: why\nFAILED t/a.py::c - a - b",
        {"t/a.py::b": "PASSED", "t/a.py::c": "FAILED"},
    ),
    "parse_log_requests": ("PASSED t.py::a[/x/y/z]\nPASSED t.py::b[//x/y]", {"t.py::a[/z]": "PASSED", "t.py::b[//x/y]": "PASSED"}),
    "parse_log_sphinx": ("\x1b[32mPASSED\x1b[0m t.py::a[b c]\nt.py::d FAILED", {"t.py::a[b c]": "PASSED", "t.py::d": "FAILED"}),
    "parse_log_matplotlib": ("PASSED t.py::a[MouseButton.LEFT]", {"t.py::a[1]": "PASSED"}),
    "parse_log_seaborn": ("t.py::a PASSED [ 1%]\nFAILED t.py::b - why", {"t.py::a": "PASSED", "t.py::b": "FAILED"}),
    "parse_log_django": (
        "test_a (m.T) ... ok\ntest_b (m.T) ... Internal Server Error: /x/\nok\ntest_c (m.T) ... FAIL\ntest_d (m.T) ... skipped 'why'",
        {"test_a (m.T)": "PASSED", "test_b (m.T)": "PASSED", "test_c (m.T)": "FAILED", "test_d (m.T)": "SKIPPED"},
    ),
    "parse_log_sympy": (
        "test_a ok\ntest_b F\n____ sympy/core/tests/test_x.py:test_b ____",
        {"test_a": "PASSED", "test_b": "FAILED", "sympy/core/tests/test_x.py:test_b": "FAILED"},
    ),
    "parse_log_pytest_pydantic": ("t.py::a PASSED\nFAILED [ 50%]\nFAILED t.py::b - why", {"t.py::a": "PASSED", "t.py::b": "FAILED"}),
    "parse_log_gotest": ("    --- PASS: TestA/b (0.00s)\n--- SKIP: TestC (0.00s)", {"TestA/b": "PASSED", "TestC": "SKIPPED"}),
    "parse_log_cargo": ("test a::b ... ok\ntest a::c ... FAILED\ntest a::d ... ignored", {"a::b": "PASSED", "a::c": "FAILED"}),
    "parse_log_redis": (
        "[ok]: SET works (3 ms)\n[err]: GET in SET fails in tests/unit/a.tcl\n[ignore]: slow: why\n[ready]: 1",
        {"SET works": "PASSED", "GET in SET fails": "FAILED", "slow: why": "SKIPPED"},
    ),
    "parse_log_jq": ("PASS: tests/a\n  FAIL: tests/b c\n# PASS: 1", {"tests/a": "PASSED", "tests/b c": "FAILED"}),
    "parse_log_micropython_test": (
        "pass  a.py\nskip  b.py\nFAIL  c.py\n3 tests performed",
        {"a.py": "PASSED", "b.py": "SKIPPED", "c.py": "FAILED"},
    ),
    "parse_log_googletest": (
        "1: [ RUN      ] a.b\n1: [       OK ] a.b (0 ms)\n[  FAILED  ] a.c (x) (1 ms)\n[  FAILED  ] a.c",
        {"a.b": "PASSED", "a.c (x)": "FAILED"},
    ),
    "parse_log_maven": (
        "+ mvn -Dtest=A#b\n+ mvn -Dtest=A#c -q\n[INFO] BUILD SUCCESS\n[INFO] BUILD FAILURE\n[INFO] BUILD SUCCESS\n+ mvn -Dtest=D",
        {"A#b": "PASSED", "A#c": "FAILED", "D": "PASSED"},
    ),
    "parse_log_ant": ("    [junit] [PASS] a(b.C)\n    [junit] [ERR] d\n[junit] Tests run: 2", {"a(b.C)": "PASSED", "d": "FAILED"}),
    "parse_log_gradle_custom": (
        "a.T > b PASSED\n> Task :c FAILED\na.T > d\nwarning\nFAILED\nPASSED",
        {"a.T > b": "PASSED", "a.T > d": "FAILED"},
    ),
    "parse_log_jest": (
        "  ✓ adds (2) (3 ms)\n  ✕ takes\n  ○ skipped later",
        {"adds (2)": "PASSED", "takes": "FAILED", "skipped later": "SKIPPED"},
    ),
    "parse_log_jest_json": ("[PASSED] a > b\n[FAILED] a > c\n[PENDING] d", {"a > b": "PASSED", "a > c": "FAILED"}),
    "parse_log_vitest": (
        " ✓ a.ts > b 12ms\n × a.ts > c\n ↓ a.ts > d [skipped]\n ✓ a.ts > e 2 3ms",
        {"a.ts > b": "PASSED", "a.ts > c": "FAILED", "a.ts > d": "SKIPPED", "a.ts > e 2": "PASSED"},
    ),
    "parse_log_tap": ("ok 1 a\n  not ok 2 b # c\nok\n1..2", {"a": "PASSED", "b # c": "FAILED"}),
    "parse_log_karma": (
        "  ✔ x\nStarting browser Chrome\n  outer\n    inner\n      ✔ a\n      ✖ b\n  \n  next\n    ✔ c\nSUMMARY:\n  ✖ d",
        {"outer > inner > a": "PASSED", "outer > inner > b": "FAILED", "outer > c": "PASSED"},
    ),
    "parse_log_phpunit": (
        "✔ early\nSum (Tests\\Sum)\n ✔ Adds two\n ✘ Takes  [0.1 ms]\n ↩ Later",
        {"None > early": "PASSED", "Sum > Adds two": "PASSED", "Sum > Takes  [0.1 ms]": "FAILED", "Sum > Later": "SKIPPED"},
    ),
    "parse_log_minitest": (
        "T#test_: a b. c. = 0.01 s = .\nT#test_d. = 1.20 s = E\nFinished in 0.1 s",
        {"T#test_: a b. c": "PASSED", "T#test_d": "FAILED"},
    ),
    "parse_log_cucumber": ("a.feature:3 ....\na.feature:9 ..F-\nb .", {"a.feature:3": "PASSED", "a.feature:9": "FAILED"}),
    "parse_log_ruby_unit": (
        "  test: adds: 1:\t.: (0.1)\n  takes:   F\n  later: O\n  test: x",
        {"adds: 1": "PASSED", "takes": "FAILED", "later": "SKIPPED"},
    ),
    "parse_log_rspec_transformed_json": ("adds - 1 - passed\ntakes - failed\nlater - pending", {"adds - 1": "PASSED", "takes": "FAILED"}),
}  # fmt: skip


@pytest.mark.parametrize("form", OUTPUTS)
def test_each_of_swe_benchs_forms_is_read(form: str) -> None:
    printed, found = OUTPUTS[form]
    assert statuses(printed, (), form) == found


def test_every_parser_is_tried() -> None:
    assert {SWEBENCH_FORMS[form] for form in OUTPUTS} == set(SWEBENCH_FORMS.values())


PIECES = [
    *("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "t[a", "b]", " - ", " ... ", "ok", "F", "___", ".py:"),
    *("--- PASS: ", "test ", " ", "\t", "\n", "\x1b[1m"),
    *(
        "[ok]: ",
        "[err]: ",
        " in ",
        " (3 ms)",
        "[ OK ] ",
        "-Dtest=",
        "BUILD SUCCESS",
        " > ",
        "PASS: ",
        "pass ",
        "✓ ",
        "✕ ",
        "✔ ",
        "✘ ",
    ),
    *(
        "Starting browser",
        "SUMMARY:",
        "    ",
        " (T)",
        ". ",
        "=",
        "..",
        ": .",
        " - passed",
        "[junit] ",
        "[PASS] ",
        "ok 1 ",
    ),
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5)).map("".join), st.sampled_from(sorted(SWEBENCH_FORMS)))
def test_no_output_breaks_a_parser(output: str, form: str) -> None:
    assert set(statuses(output, (), form).values()) <= {"PASSED", "FAILED", "ERROR", "SKIPPED"}


def test_r2e_gyms_names_have_no_file() -> None:
    summary = "PASSED r2e_tests/test_1.py::TestA::test_b\nFAILED r2e_tests/test_1.py::test_c - why"
    printed = f"PASSED r2e_tests/test_1.py::x\n=== short test summary info ===\n{summary}"
    assert statuses(printed, (), "r2e") == {"TestA.test_b": "PASSED", "test_c": "FAILED"}
