"""Reads a JUnit XML report, which the tested code may have shaped.

Form: `testsuites` or `testsuite` as the root, and below it `testcase` elements with `name`, `classname` and a child `failure`, `error` or
`skipped` (the schema that Jenkins' xUnit plug-in publishes as junit-10.xsd). Other elements are skipped.

Expat reads the document as a stream. A document type, and with it every entity, is refused; size, depth and the number of tests are
bounded. So reading takes linear time and bounded memory, and opens no file and no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.parsers import expat

SIZE_LIMIT = 16 * 1024 * 1024
"""Bytes of a report."""
TESTS_LIMIT = 100_000
DEPTH_LIMIT = 100
NAME_LIMIT = 1000
"""Characters of a test's name, and of its class; longer names are cut."""
MESSAGE_LIMIT = 300
"""Characters of a failure's message that are kept."""

SEVERITY = ("PASSED", "SKIPPED", "FAILED", "ERROR")
"""Statuses. Of a test that is reported more than once, the last of them counts: pytest reports a failure and an error of one test apart."""
_ROOTS = ("testsuites", "testsuite")
_STATUS_OF = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}
_NOT_RUN = ("notrun", "disabled", "skipped")
"""Values of the attribute `status` by which GoogleTest, CTest and others report a test that didn't run."""


class ReportError(Exception):
    """The report can't be read; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Result:
    """A test's result."""

    name: str
    """`classname::name`, or the name alone."""
    status: str
    """One of SEVERITY."""
    message: str = ""
    """The beginning of the failure's message."""


def key(name: str) -> str:
    """The form in which names of reports and of tasks are compared.

    pytest writes the class name `tests.test_a.TestB` for its own `tests/test_a.py::TestB`, and so does this function, for both sides.
    Parameters, from the first bracket on, stay as they are.
    """
    path, bracket, parameters = name.partition("[")
    first, *others = path.split("::")
    return ".".join((first.removesuffix(".py").replace("/", "."), *others)) + bracket + parameters


def read(data: bytes) -> dict[str, Result]:
    """Results by `key` of the test's name. Raises ReportError."""
    if len(data) > SIZE_LIMIT:
        raise ReportError(f"is larger than {SIZE_LIMIT} bytes")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.on_doctype
    parser.StartElementHandler = reader.on_start
    parser.EndElementHandler = reader.on_end
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ReportError(f"isn't well-formed XML: {error}") from None
    except (LookupError, ValueError) as error:  # an encoding that Python doesn't know, or can't use here
        raise ReportError(f"has an encoding that can't be read: {error}") from None
    return reader.results


class _Reader:
    """Collects the results of one document."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self._depth = 0
        self._test: Result | None = None

    def on_doctype(self, *_: object) -> None:
        raise ReportError("has a document type, which isn't allowed")

    def on_start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._depth == 0 and tag not in _ROOTS:
            raise ReportError(f"is no JUnit XML: its root is {tag[:40]!r}, not {' or '.join(map(repr, _ROOTS))}")
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise ReportError(f"is nested deeper than {DEPTH_LIMIT} elements")
        if tag == "testcase":
            if self._test is not None:
                raise ReportError("is no JUnit XML: it has a testcase within a testcase")
            self._test = _test(attributes)
        elif self._test is not None and tag in _STATUS_OF:
            found = Result(self._test.name, _STATUS_OF[tag], attributes.get("message", "")[:MESSAGE_LIMIT])
            self._test = _worse(self._test, found)

    def on_end(self, tag: str) -> None:
        self._depth -= 1
        if tag != "testcase" or self._test is None:
            return
        test, self._test = self._test, None
        name = key(test.name)
        before = self.results.get(name)
        if before is None and len(self.results) == TESTS_LIMIT:
            raise ReportError(f"has more than {TESTS_LIMIT} tests")
        self.results[name] = test if before is None else _worse(before, test)


def _test(attributes: Mapping[str, str]) -> Result:
    parts = (attributes.get("classname", ""), attributes.get("name", ""))
    name = "::".join(part[:NAME_LIMIT] for part in parts if part)
    return Result(name, "SKIPPED" if attributes.get("status", "").lower() in _NOT_RUN else "PASSED")


def _worse(one: Result, other: Result) -> Result:
    return max(one, other, key=lambda result: SEVERITY.index(result.status))
