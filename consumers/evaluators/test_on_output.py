"""The evaluator `test_on_output`: runs a test command in the workspace and reads its report or its output (NVIDIA Polar's of this name).

`TaskSettings` has the settings. With `expected_output_json` the reward is 1.0 if each named test has its status, otherwise 0.0. Without it
the command must end with exit code 0. With `report` statuses come from a JUnit XML report in a new folder, whose name nobody knows
beforehand, and the exit code must be 0 as well. Without `expected_output_json` no test of the report may have failed, and one must have
passed.

Without `report`, the statuses are read from the command's output (`parsers`). The tested code prints into the same output, so it can print
such lines; it can't print into a report. Code that runs in the test runner's own process can still write the report: only tests that call
the tested code as another process are safe from it.

A reward of 0.0 has a reason. All that files of the run can cause gives 0.0: a hang, a report that is too large, missing or broken, a folder
that is gone. `command.py` has the two failures that leave no reward.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from consumers.evaluators import junit, parsers, settings
from consumers.evaluators.base import Case, Verdict
from consumers.evaluators.command import OUTPUT, Command, Ended, ObstructedError, new_file
from consumers.evaluators.junit import ReportError, Result
from consumers.evaluators.protection import Protection
from consumers.plug_in_settings import Expected
from consumers.runtimes.base import LOG_LIMIT, Runtime, raise_fault
from topics.types.errors import InputError

Status = Literal["PASSED", "FAILED", "ERROR", "SKIPPED"]
STATUSES: tuple[Status, ...] = get_args(Status)
REPORT = "evaluation_report"
"""The artifact of a reward of 0.0: a JSON object with the reason, the exit code, the tests by status, and those that differ."""
REPORT_VARIABLE = "POLAR_REPORT"
LISTED = 100
"""Most differing tests in the artifact."""
NAMED = 3
"""Most differing tests in the reason."""
SHOWN = 120
"""Characters of a test's name in the reason."""

_EXPECTED = f"must map test names to one of {', '.join(STATUSES)}"
_PARSERS = f"must be one of {', '.join(parsers.FORMS)}"
_SUBJECT = "the test command"
_PLACEHOLDER = re.compile(r"(?<!\$)\{report\}")
"""Not `${report}`, a variable of the shell."""


@dataclass(frozen=True)
class Difference:
    """A test that isn't as expected."""

    test: str
    expected: str | None
    """None: the test wasn't expected, and the expectation is exact."""
    found: str | None
    """None: the test wasn't reported."""
    message: str = ""
    """The beginning of its failure's message, if it is known."""

    def __str__(self) -> str:
        name = self.test if len(self.test) <= SHOWN else f"{self.test[:SHOWN]}…"
        if self.expected is None:
            return f"{name} is {self.found}, and isn't expected"
        return f"{name} is {self.found or 'not reported'}, not {self.expected}"


@dataclass(frozen=True)
class Score:
    """What the command came to. `reason` is None for a reward of 1.0."""

    reason: str | None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Tests by status."""
    differences: Collection[Difference] = ()


class TaskSettings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    test_command: settings.CommandText
    """The command, for `bash -c` with pipefail, in the sandbox's working directory."""
    expected_output_json: Annotated[dict[str, Status] | str | None, Expected(_EXPECTED)] = None
    """Test names and the status that each must have; an object, or JSON text. Other tests are allowed. Without this setting no test may
    fail."""
    exact: bool = False
    """`true`: a test that isn't in `expected_output_json` makes the reward 0.0."""
    parser: Annotated[str, Expected(_PARSERS)] | None = None
    """The form of the output: `pytest`, `unittest`, `go`, `cargo`, `jest`, `vitest`, `tap` or `r2e` (docs/evaluators.md, Parsers); not with
    `report`. null: `pytest`."""
    report: (
        Annotated[
            str,
            Meta(pattern=r"^[\w+-][\w.+-]*\Z", max_length=100),
            Expected("must be the plain name of a file, such as junit.xml; {report} is its path"),
        ]
        | None
    ) = None
    """A file name. The command must write a JUnit XML report of that name to the path `{report}`, which is also in the variable
    `POLAR_REPORT`."""
    protected: settings.ProtectedPaths = []
    """Paths in the workspace that are put back as `runtime.prepare` left them, for example `["tests"]`, together with the files that steer
    a test runner; `false`: nothing is put back (docs/evaluators.md, What a run can't change)."""
    timeout_s: settings.Seconds | None = None
    """Seconds for the command. The command is stopped in any case a tenth of `timeouts.evaluate` before its end, or 10 s
    before it if that is longer."""

    def __post_init__(self) -> None:
        expected = self.expected()
        if expected == {}:
            reason = "names no test, so every run would pass; name the tests, or leave it out"
            raise settings.refused("expected_output_json", self.expected_output_json, reason)
        if self.exact and expected is None:
            raise settings.refused("exact", self.exact, "needs expected_output_json, the tests that there must be")
        if self.report is None and _PLACEHOLDER.search(self.test_command):
            reason = "has {report}, so the setting report must name the file, such as junit.xml"
            raise settings.refused("test_command", self.test_command, reason)
        if self.report is not None and expected and len({junit.key(name) for name in expected}) < len(expected):
            reason = "names a test twice: a report has one name for both"
            raise settings.refused("expected_output_json", self.expected_output_json, reason)
        if self.parser is not None:
            self._check_parser(self.parser, expected)

    def _check_parser(self, parser: str, expected: Collection[str] | None) -> None:
        if parser not in parsers.FORMS:
            raise settings.refused("parser", parser, _PARSERS)
        if self.report is not None:
            raise settings.refused("parser", parser, "has no use beside report: statuses then come from the report")
        if expected is None:
            raise settings.refused("parser", parser, "needs expected_output_json, the tests to look for in the output")
        long = next((name for name in expected if len(name) > parsers.NAME_LIMIT), None)
        if parser != parsers.PYTEST and long is not None:
            reason = f"names have at most {parsers.NAME_LIMIT} characters"
            raise settings.refused("expected_output_json", long, reason)

    def expected(self) -> dict[str, Status] | None:
        """The expected statuses by test. Raises InputError for a text that isn't their JSON."""
        if not isinstance(self.expected_output_json, str):
            return self.expected_output_json
        try:
            return msgspec.convert(json.loads(self.expected_output_json), dict[str, Status])
        except msgspec.ValidationError:
            reason = _EXPECTED
        except (ValueError, RecursionError) as error:
            reason = f"isn't JSON: {error}"
        raise settings.refused("expected_output_json", self.expected_output_json, reason)


class TestOnOutput(Protection):
    """See `base.Protecting`."""

    settings_type = TaskSettings
    __test__ = False
    """Keeps pytest from collecting it."""

    def __init__(self, config: settings.Config) -> None:
        found = settings.read(config, TaskSettings)
        self._command = Command("test_command", found.test_command, found.timeout_s)
        self._expected = found.expected()
        self._is_exact = found.exact
        self._form = found.parser or parsers.PYTEST
        self._report = found.report
        super().__init__(found.protected)

    async def evaluate(self, case: Case) -> Verdict:
        try:
            return await self._evaluate(case)
        except ObstructedError as error:
            return zero(Score(f"{_SUBJECT} {error}"), None, {})

    async def _evaluate(self, case: Case) -> Verdict:
        if self._report is None:
            report = None
            ended = await self._command.run(case, {})
        else:
            report = await new_file(case.runtime, self._report)
            text = _PLACEHOLDER.sub(lambda _: shlex.quote(str(report)), self._command.text)
            ended = await self._command.run(case, {REPORT_VARIABLE: str(report)}, text)
        score = await self._score(case.runtime, ended, report)
        artifacts = {OUTPUT: ended.output}
        return Verdict(1.0, artifacts=artifacts) if score.reason is None else zero(score, ended, artifacts)

    async def _score(self, runtime: Runtime, ended: Ended, report: PurePosixPath | None) -> Score:
        failure = ended.failure(_SUBJECT)
        if ended.result.exit_code is None:
            return Score(failure)
        if report is None:
            return await asyncio.to_thread(self._score_output, ended)
        try:
            data = await runtime.read_file(report, junit.SIZE_LIMIT + 1)
            results = await asyncio.to_thread(junit.read, data) if data else None
        except FileNotFoundError:
            results = None
        except ReportError as error:
            return Score(f"the report {error}")
        except (InputError, OSError) as error:
            raise_fault(error)
            return Score(f"the report can't be read: {error}")
        if results is None:
            return Score(f"{_SUBJECT} wrote no report, and ended with exit code {ended.result.exit_code}")
        return self._score_report(failure, results)

    def _score_output(self, ended: Ended) -> Score:
        if self._expected is None:
            return Score(ended.failure(_SUBJECT))
        found = parsers.statuses(ended.output.decode(errors="replace"), self._expected, self._form)
        differences = list(_differences(self._expected, found, is_exact=self._is_exact))
        counts = Counter(found.values())
        reason = differing(differences, len(self._expected))
        if reason and len(ended.output) > LOG_LIMIT:
            reason += f"; the output was longer than {LOG_LIMIT} bytes, and its middle is lost"
        return Score(reason, counts, differences)

    def _score_report(self, failure: str | None, results: Mapping[str, Result]) -> Score:
        expected = self._expected
        found = {name: one.status for name, one in results.items()}
        counts = Counter(found.values())
        if expected is None:
            names = {name: name for name in found}
            failed = [
                Difference(one.name, "PASSED", one.status, one.message)
                for one in results.values()
                if one.status in ("FAILED", "ERROR")
            ]
            reason = differing(failed, len(found)) or (
                None if counts["PASSED"] else "the report has no test that passed"
            )
            return Score(_also(reason, failure), counts, failed)
        names = {junit.key(name): name for name in expected}
        statuses = {junit.key(name): status for name, status in expected.items()}
        differences = [
            Difference(
                names.get(one.test) or results[one.test].name,
                one.expected,
                one.found,
                results[one.test].message if one.test in results else "",
            )
            for one in _differences(statuses, found, is_exact=self._is_exact)
        ]
        return Score(_also(differing(differences, len(statuses)), failure), counts, differences)


def _differences(expected: Mapping[str, str], found: Mapping[str, str], *, is_exact: bool) -> Iterator[Difference]:
    for name, status in expected.items():
        if found.get(name) != status:
            yield Difference(name, status, found.get(name))
    if is_exact:
        for name in found.keys() - expected.keys():
            yield Difference(name, None, found[name])


def differing(differences: Collection[Difference], tests: int) -> str | None:
    """The first differing tests, in words."""
    if not differences:
        return None
    named = "; ".join(str(one) for one, _ in zip(differences, range(NAMED), strict=False))
    more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
    return f"{len(differences)} of {tests} tests differ: {named}{more}"


def _also(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None


def zero(score: Score, ended: Ended | None, artifacts: Mapping[str, bytes]) -> Verdict:
    """The verdict 0.0 with the artifact REPORT."""
    listed = [one for one, _ in zip(score.differences, range(LISTED), strict=False)]
    report: dict[str, Any] = {
        "reason": score.reason,
        "exit_code": ended.result.exit_code if ended else None,
        "duration_s": round(ended.result.duration_s, 3) if ended else None,
        "tests": dict(score.counts),
        "differing": len(score.differences),
        "first": [vars(one) for one in listed],
    }
    return Verdict(0.0, reason=score.reason, artifacts={**artifacts, REPORT: json.dumps(report, indent=1).encode()})
