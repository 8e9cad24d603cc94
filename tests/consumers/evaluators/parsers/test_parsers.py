"""Each parser on outputs recorded from the real tool, and on what a tested program might print into them.

`recorded/` has outputs of pytest 9.2, unittest of Python 3.11, Go 1.26, cargo 1.95, Jest 30.5 and Vitest 4.1, and TAP of node 20 and of
Perl's Test::More 1.302. Each has stdout and stderr together, as a worker's log has them. The names of folders were replaced.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators.junit import SEVERITY
from consumers.evaluators.parsers import FORMS, NAMES_LIMIT, SWEBENCH_FORMS, statuses
from consumers.evaluators.parsers.output import NAME_LIMIT

RECORDED = Path(__file__).parent / "recorded"
GO = {
    "PASSED": "TestGood TestPrints TestParts/first_part TestParts/third TestParts/third/deep ExampleSum",
    "FAILED": "TestBad TestParts TestParts/second/1 TestPanics",
    "SKIPPED": "TestSkipped",
}
CARGO = {
    "PASSED": "tests::good, tests::panics, good, other, src/lib.rs - add (line 3), src/lib.rs - add (line 7), src/lib.rs - add (line 11)",
    "FAILED": "tests::bad, tests::result",
    "SKIPPED": "tests::ignored, tests::ignored_why",
}
RESULTS = {
    ("pytest", "pytest"): {
        "test_pt.py::test_good": "PASSED",
        "test_pt.py::test_bad": "FAILED",
        "test_pt.py::test_skipped": "SKIPPED",
        "test_pt.py::test_error": "ERROR",
        "test_pt.py:7": "SKIPPED",
    },
    ("r2e", "pytest"): {"test_good": "PASSED", "test_error": "ERROR", "test_bad": "FAILED"},
    ("unittest", "unittest"): {
        "unittest.loader._FailedTest.test_import": "ERROR",
        "test_sums.Broken.setUpClass": "ERROR",
        "test_sums.Skipped.test_one": "SKIPPED",
        "test_sums.Sums.test_bad": "FAILED",
        "test_sums.Sums.test_described": "PASSED",
        "test_sums.Sums.test_error": "ERROR",
        "test_sums.Sums.test_expected": "PASSED",
        "test_sums.Sums.test_good": "PASSED",
        "test_sums.Sums.test_good_parts": "PASSED",
        "test_sums.Sums.test_parts": "FAILED",
        "test_sums.Sums.test_prints": "PASSED",
        "test_sums.Sums.test_skipped": "SKIPPED",
        "test_sums.Sums.test_surprise": "FAILED",
    },
    ("go", "go_verbose"): {name: status for status, names in GO.items() for name in names.split()},
    ("go", "go_json"): {name: status for status, names in GO.items() for name in names.split()},
    ("cargo", "cargo"): {name: status for status, names in CARGO.items() for name in names.split(", ")},
    ("cargo", "cargo_nocapture"): {name: status for status, names in CARGO.items() for name in names.split(", ")},
    ("jest", "jest_verbose"): {
        "sums.test.js": "FAILED",
        "sums.test.js > good": "PASSED",
        "sums.test.js > sums > adds 1 + 2": "PASSED",
        "sums.test.js > sums > bad": "FAILED",
        "sums.test.js > sums > after deep": "PASSED",
        "sums.test.js > sums > not today": "SKIPPED",
        "sums.test.js > sums > later": "SKIPPED",
        "sums.test.js > sums > deep > waits (5 ms)": "PASSED",
        "sums.test.js > sums > deep > 1 > 2": "PASSED",
        "more.test.js": "PASSED",
        "more.test.js > good": "PASSED",
        "more.test.js > two": "PASSED",
        "broken.test.js": "FAILED",
    },
    ("jest", "jest_default"): {"sums.test.js": "FAILED", "broken.test.js": "FAILED", "more.test.js": "PASSED"},
    ("vitest", "vitest_verbose"): {
        "sums.test.js > good": "PASSED",
        "sums.test.js > sums > adds 1 + 2": "PASSED",
        "sums.test.js > sums > bad": "FAILED",
        "sums.test.js > sums > not today": "SKIPPED",
        "sums.test.js > sums > later": "SKIPPED",
        "sums.test.js > sums > deep > waits (5 ms)": "PASSED",
        "sums.test.js > sums > deep > 1 > 2": "PASSED",
        "sums.test.js > sums > after deep": "PASSED",
        "more.test.js > good": "PASSED",
        "more.test.js > two": "PASSED",
        "broken.test.js": "FAILED",
    },
    ("vitest", "vitest_default"): {
        "sums.test.js": "FAILED",
        "broken.test.js": "FAILED",
        "more.test.js": "PASSED",
        "sums.test.js > sums > bad": "FAILED",
    },
    ("tap", "tap_node"): {
        "good": "PASSED",
        r"with # hash \ and backslash": "PASSED",
        "sums > adds": "PASSED",
        "sums > bad": "FAILED",
        "sums > skipped": "SKIPPED",
        "sums > later": "SKIPPED",
        "sums > deep > one": "PASSED",
        "sums > deep": "PASSED",
        "sums": "FAILED",
    },
    ("tap", "tap_perl"): {
        "good": "PASSED",
        "2": "PASSED",
        "bad": "FAILED",
        "sums > adds": "PASSED",
        "sums > wrong # hash": "FAILED",
        "sums": "FAILED",
        "5": "SKIPPED",
        "later": "SKIPPED",
    },
}
KNOWN = {
    "pytest": ("t.py::known PASSED", "t.py::known"),
    "unittest": ("known (t.T.known) ... ok", "t.T.known"),
    "go": ("--- PASS: TestKnown (0.00s)", "TestKnown"),
    "cargo": ("test known ... ok", "known"),
    "jest": ("PASS ./known.js\n  group\n    ✓ known (3 ms)", "known.js > group > known"),
    "vitest": (" ✓ known.js > group > known 3ms", "known.js > group > known"),
    "tap": ("ok 1 - known", "known"),
    "r2e": ("= short test summary info =\nPASSED t.py::known", "known"),
}
"""Of each form the output of one test, and its name."""
PIECES = st.sampled_from(
    [
        *("test ", " ... ", "ok", "not ok ", "FAILED", "PASSED ", " ERROR", "FAIL ", "PASS ", "skipped 'x'", "ignored"),
        *(
            "--- PASS: ",
            "--- FAIL: T (0.1s)",
            '{"Action":"pass","Test":',
            '"T"}',
            "{",
            "[" * 2000,
            "1" * 5000,
            "=== RUN",
        ),
        *("✓ ", "✕ ", "× ", "○ skipped ", "✎ todo ", "❯ ", "↓ ", " FAIL  ", " [ x ]", "● ", " (5 ms)", " 5ms", " > "),
        *("# Subtest: a", "---", "...", "# SKIP", "#TODO", "1..2", "Bail out!", "TAP version 14", "\\#", "- "),
        *("f (a.B.f)", "f (a.B)", "    ", "  ", " ", "\n", "\r", "\x1b[31m", "\x1b[", "\0", "é", "\u2028", "name"),
    ]
)
RUBBISH = st.lists(st.one_of(PIECES, st.text(max_size=10)), max_size=60).map("".join)
"""Pieces of all forms, in any order."""


@pytest.mark.parametrize(("form", "recorded"), RESULTS)
def test_the_output_of_the_real_tool_is_read(form: str, recorded: str) -> None:
    output = (RECORDED / f"{recorded}.txt").read_text()
    assert statuses(output, (), form) == RESULTS[form, recorded]


def test_every_form_has_a_recorded_output() -> None:
    assert {form for form, _ in RESULTS} == set(FORMS) == set(KNOWN)


@pytest.mark.parametrize(
    ("form", "output", "found"),
    [
        # Python 3.10
        ("unittest", "test_a (tests.t.T) ... ok", {"tests.t.T.test_a": "PASSED"}),
        ("unittest", "test_a (t.T.test_a) ... skipped 'see ... there'", {"t.T.test_a": "SKIPPED"}),
        # a test that prints a good status, and fails
        ("unittest", "test_a (t.T.test_a) ... ok\nFAIL\n", {"t.T.test_a": "FAILED"}),
        (
            "unittest",
            "test_a (t.T.test_a) ... ok\ntest_b (t.T.test_b) ... \nFAIL: test_a (t.T.test_a)",
            {"t.T.test_a": "FAILED"},
        ),
        ("cargo", "test a ... \nok, here we go\n", {}),
        ("cargo", "test a ... ok\nFAILED\ntest result: FAILED. 0 passed", {"a": "FAILED"}),
        # stdout that comes behind the summary
        ("unittest", "FAILED (failures=1)\nok", {}),
        ("cargo", "test a ... ok <0.001s>\ntest b ... bench:   5 ns/iter (+/- 1)", {"a": "PASSED", "b": "PASSED"}),
        # a project with a name, a slow file, memory
        ("jest", "PASS  web  src/a.test.js (5.1 s) (45 MB heap size)", {"src/a.test.js": "PASSED"}),
        ("vitest", " ✓ a.test.ts > slow  1200ms (retry x2) 12 MB heap used", {"a.test.ts > slow": "PASSED"}),
        ("vitest", " ❯ a.test.ts:5:33", {}),
        # TAP 14's example of subtests, and points without numbers
        (
            "tap",
            "# Subtest: a\n    ok - b\n    1..1\nok - a\n    ok - c",
            {"a > b": "PASSED", "a": "PASSED", "c": "PASSED"},
        ),
        ("tap", "okay\nnot okay\nok", {}),
        ("tap", "not ok 1 - a # todo later\nok 2 - b # Skipped: why", {"a": "SKIPPED", "b": "SKIPPED"}),
    ],
)
def test_other_versions_and_options_are_read(form: str, output: str, found: dict[str, str]) -> None:
    assert statuses(output, (), form) == found


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"pytest", "r2e"}))
def test_another_test_of_the_same_name_hides_no_failure(form: str) -> None:
    line, name = KNOWN[form]
    worse = {
        "unittest": line.replace("ok", "ERROR"),
        "go": line.replace("PASS", "FAIL"),
        "cargo": line.replace("ok", "FAILED"),
        "jest": line.replace("✓", "✕"),
        "vitest": line.replace("✓", "×"),
        "tap": f"not {line}",
    }[form]
    for output in (f"{line}\n{worse}", f"{worse}\n{line}"):
        assert statuses(output, (), form)[name] in ("FAILED", "ERROR")


@pytest.mark.parametrize("form", sorted(FORMS))
@given(rubbish=RUBBISH)
def test_rubbish_raises_nothing_and_hides_no_later_test(form: str, rubbish: str) -> None:
    found = statuses(rubbish, (), form)
    assert set(found.values()) <= set(SEVERITY)
    line, name = KNOWN[form]
    assert statuses(f"{rubbish}\n{line}\n", (), form)[name] == "PASSED"


@pytest.mark.parametrize("form", sorted(FORMS))
def test_names_are_bounded_in_number_and_length(form: str) -> None:
    line, name = KNOWN[form]
    last = line.rpartition("nown")
    many = "\n".join(f"{last[0]}nown{n}{last[2]}" for n in range(NAMES_LIMIT + 10))
    long = "known" + "n" * 5000
    output = f"{many}\n{line.replace('known', long).replace('TestKnown', 'T' + long)}\n{line}"
    found = statuses(output, {name}, form)
    assert found[name] == "PASSED"
    assert len(found) <= NAMES_LIMIT + 1
    assert max(map(len, found)) <= NAME_LIMIT


HOSTILE = {
    "spaces": " " * 10**6 + "x",
    "a name without an end": "test " + "x" * 10**6,
    "names": "\n".join("ok 1 - " + "x" * 100 for _ in range(10**4)),
    "an open event": '{"Action":"pass","Test":' + "[" * 10**6,
    "dots": "test a" + " ... " * 10**5,
    "results": "--- PASS: " * 10**5,
    "details": "PASS a" + " (5 ms)" * 10**5,
    "times": " ✓ a" + " 5ms" * 10**5,
    "tests": " ✓ a" + " (5 tests" * 10**5,
    "brackets": " FAIL  a" + " [ " * 10**5,
    "hashes": "ok 1 - a" + " # " * 10**5,
    "escapes": "ok 1 - a" + "\\" * 10**6,
    "levels": "PASS a\n" + "\n".join(" " * 2 * n + "x" * 1000 for n in range(1, 1000)),
    "deep tests": "PASS a\n  " + "x" * 10**6 + "\n    ✓ b" * 10**5,
    "deep subtests": "# Subtest: " + "x" * 10**6 + "\n    ok - b" * 10**5,
    "parentheses": "f " + "(" * 10**6,
    "words": "f (a." + "a" * 10**6,
}


PARSERS = {read: form for form, read in {**SWEBENCH_FORMS, **FORMS}.items()}.values()
"""A name of each parser."""
REPEATED = [
    *("FAILED[", "FAILED [", "FAILED ", "PASSED [", "PASSED (", "FAILED[]", "SKIPPED [1", "a[/", "a:1", "\x1b[1", "[1"),
    *("--- PASS: (", "--- PASS: a (1", "test a ... ", "test  ", "ok 1 - # ", "ok ", "# skip", " - ", " ... ", "::", "_ a.py:"),
    *(" ✓ a (5 ms", "PASS  ", " FAIL a [ a ]", " ❯ a 5ms (retry x1", "f (a.", "FAIL: ", "short test summary info", '{"a":', "(", "[", "  "),
    *("[err]: a in ", " (1  ", "[OK] (", "-Dtest=a ", ". = ", ":   ", " ....", "A (a", "Starting browser\n  a\n   b\n", "a.T > b\n"),
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("form", PARSERS)
def test_hostile_output_is_read_in_linear_time(form: str, hostile: str) -> None:
    began = time.process_time()
    statuses(hostile, (), form)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("form", PARSERS)
def test_a_line_of_one_piece_is_read_in_linear_time(form: str) -> None:
    """A second is fifty times what one takes; quadratic time would be several."""
    for piece in REPEATED:
        began = time.process_time()
        statuses(piece * (400_000 // len(piece)), (), form)
        assert time.process_time() - began < 1, piece
