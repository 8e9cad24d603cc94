"""Reports in JUnit XML: those that test runners write, and those that an agent would."""

from __future__ import annotations

import time
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.evaluators import junit
from consumers.evaluators.junit import DEPTH_LIMIT, SEVERITY, TESTS_LIMIT, ReportError, key, read

CHILD = {"PASSED": "", "FAILED": "<failure message='m'/>", "ERROR": "<error/>", "SKIPPED": "<skipped/>"}
NAMES = st.from_regex(r"[a-z_&<\"'éß .#-]{1,12}", fullmatch=True)
"""Without a colon or a bracket, which have a meaning in names."""


def case(name: str, status: str = "PASSED", classname: str = "c") -> str:
    return f"<testcase classname={quoteattr(classname)} name={quoteattr(name)}>{CHILD[status]}</testcase>"


def suite(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


def statuses(data: bytes) -> dict[str, str]:
    return {name: result.status for name, result in read(data).items()}


@given(st.dictionaries(NAMES, st.sampled_from(SEVERITY)))
def test_every_result_is_read_back(results: dict[str, str]) -> None:
    written = suite(*(case(name, status) for name, status in results.items()))
    assert statuses(written) == {f"c.{name}": status for name, status in results.items()}


@given(st.binary() | st.text().map(lambda text: suite(text)))
@example(b"")
@example(b"\xff\xfe<\x00")
@example(b'<?xml version="1.0" encoding="nonesuch"?><testsuite/>')
@example(b'<?xml version="1.0" encoding="punycode"?><testsuite/>')
@example(b'<?xml version="1.0" encoding="utf-7"?><testsuite/>')
@example(b'<?xml version="1.0" encoding="idna"?><testsuite/>')
@example(b'<?xml version="1.0" encoding="base64"?><testsuite/>')
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    try:
        results = read(data)
    except ReportError:
        return
    assert all(result.status in SEVERITY for result in results.values())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "isn't well-formed XML"),
        (b"<testsuite><testcase name='a'/>", "isn't well-formed XML"),
        (b"<testsuite/><testsuite/>", "isn't well-formed XML"),
        (b"<testsuite>\xff</testsuite>", "isn't well-formed XML"),
        (b"<html/>", "its root is 'html'"),
        (b"<!DOCTYPE testsuite><testsuite/>", "has a document type"),
        (b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite name="&x;"/>', "has a document type"),
        (suite("<testcase name='a'><testcase name='b'/><failure/></testcase>"), "a testcase within a testcase"),
        (b"<testsuite>" * (DEPTH_LIMIT + 1), "nested deeper"),
        (suite(*(f"<testcase name='{n}'/>" for n in range(TESTS_LIMIT + 1))), "more than 100000 tests"),
        (b"<testsuite>" + b" " * junit.SIZE_LIMIT, "is larger than"),
    ],
    ids=range(11),
)
def test_what_is_no_report_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(ReportError, match=why):
        read(data)


def test_entities_that_would_grow_without_end_are_never_expanded() -> None:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    began = time.monotonic()
    with pytest.raises(ReportError, match="document type"):
        read(f'<!DOCTYPE t [<!ENTITY l0 "x">{entities}]><testsuite name="&l11;"/>'.encode())
    assert time.monotonic() - began < 1


def test_the_largest_report_is_read_in_linear_time() -> None:
    filler = "<properties>" + "<property name='x'/>" * 700_000 + "</properties>"
    began = time.monotonic()
    assert statuses(suite(filler, case("a"))) == {"c.a": "PASSED"}
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("one", "other"), [("PASSED", "FAILED"), ("FAILED", "ERROR"), ("PASSED", "SKIPPED")])
def test_the_worst_result_of_a_test_counts(one: str, other: str, order: int) -> None:
    """pytest writes two test cases for a test that fails and whose fixture then raises."""
    assert statuses(suite(*[case("a", one), case("a", other)][::order])) == {"c.a": other}
    assert statuses(suite(f"<testcase classname='c' name='a'>{CHILD[one]}{CHILD[other]}</testcase>")) == {"c.a": other}


@pytest.mark.parametrize("status", ["notrun", "disabled", "Skipped"])
def test_a_test_that_did_not_run_has_not_passed(status: str) -> None:
    assert statuses(suite(f"<testcase name='a' status='{status}'/>")) == {"a": "SKIPPED"}


@pytest.mark.parametrize(
    ("in_task", "classname", "name"),
    [
        ("tests/test_a.py::test_b", "tests.test_a", "test_b"),
        ("tests/test_a.py::TestC::test_b", "tests.test_a.TestC", "test_b"),
        ("test_a.py::test_b[x/y.py::z]", "test_a", "test_b[x/y.py::z]"),
        ("tests.test_a::test_b", "tests.test_a", "test_b"),
        ("example.com/pkg::TestX", "example.com/pkg", "TestX"),
        ("krate::module::tests::works", "krate", "module::tests::works"),
        ("adds two numbers", "", "adds two numbers"),
    ],
)
def test_a_test_is_found_by_its_runners_name(in_task: str, classname: str, name: str) -> None:
    assert list(read(suite(case(name, classname=classname)))) == [key(in_task)]


def test_a_failures_message_is_kept_in_short() -> None:
    (result,) = read(suite(f"<testcase name='a'><failure message='{'x' * 5000}'>long</failure></testcase>")).values()
    assert result.message == "x" * junit.MESSAGE_LIMIT
