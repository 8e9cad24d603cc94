"""The evaluator `swebench`: applies a task's test patch, runs its tests and compares them with FAIL_TO_PASS and PASS_TO_PASS.

`polar tasks import` writes its settings for rows of SWE-bench's format. The files of the test patch are first put back as `prepare` left
them, so what the run did to them is lost (`test_patch.py`), and so are the files that steer a test runner (`protection.py`).

`TaskSettings` has the settings.

The reward is 1.0 if all listed tests pass, by the rules of swebench 5.0.2 (`harness/grading.py`): a skipped test of `pass_to_pass` is no
regression; a name of a parametrised test that was cut within its brackets stands for the reported tests that begin with it, if they agree;
and a run that ended with another exit code than 0, and reports no failed test, reports another run than that which was made. Otherwise it
is 0.0 with a reason, for everything that files of the run can cause. `command.py` and `test_patch.py` have the failures that leave no
reward.

The statuses come from what the tests print, so code that the tests import can print statuses of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from consumers.evaluators import parsers, settings, test_patch
from consumers.evaluators.base import Case, Verdict
from consumers.evaluators.command import OUTPUT, Command, Ended, ObstructedError
from consumers.evaluators.protection import Protection
from consumers.evaluators.test_on_output import Difference, Score, differing, zero
from consumers.plug_in_settings import Expected
from consumers.runtimes.base import LOG_LIMIT

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""SWE-bench's markers in the output (swebench 5.0.2, harness/constants)."""

_PARSERS = f"must be one of {', '.join((*parsers.FORMS, *parsers.SWEBENCH_FORMS))}"
_SUBJECT = "the test command"


class TaskSettings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    test_command: settings.CommandText
    """The command, for `bash -c` with pipefail, in the sandbox's working directory. If it prints SWE-bench's markers of the test output
    (`>>>>> Start Test Output`), only what it prints between them is read."""
    fail_to_pass: Annotated[
        list[str],
        Meta(min_length=1),
        Expected("must be a list of names of tests, with one at least: an empty run could pass otherwise"),
    ]
    """Names of tests that must pass."""
    pass_to_pass: Annotated[list[str], Expected("must be a list of names of tests")] = []
    """Names of tests that must pass or be skipped."""
    test_patch: Annotated[str, Expected("must be a patch of git's format, as text")] | None = None
    """A patch in git's format, for the workspace. It needs git in the sandbox."""
    parser: Annotated[str, Expected(_PARSERS)] = parsers.PYTEST
    """The form of the output: one of `test_on_output`'s, or one of SWE-bench's own parsers by its name, such as `parse_log_pytest`
    (docs/evaluators.md, Parsers)."""
    protected: Annotated[list[str], Expected("must be a list of paths; the tests' files are always put back")] = []
    """Further paths that are put back as `prepare` left them."""
    timeout_s: settings.Seconds | None = None
    """Seconds for the command; as in `test_on_output`."""

    def __post_init__(self) -> None:
        for field, names in (("fail_to_pass", self.fail_to_pass), ("pass_to_pass", self.pass_to_pass)):
            if "" in names:
                raise settings.refused(field, names, "has an empty name; leave it out")
        if self.parser not in parsers.FORMS and self.parser not in parsers.SWEBENCH_FORMS:
            raise settings.refused("parser", self.parser, _PARSERS)


class SweBench(Protection):
    """See `base.Protecting`."""

    settings_type = TaskSettings

    def __init__(self, config: settings.Config) -> None:
        self._settings = found = settings.read(config, TaskSettings)
        self._command = Command("test_command", found.test_command, found.timeout_s)
        self._patched: tuple[str, ...] = ()
        """The paths of the test patch."""
        if found.test_patch is not None:
            try:
                self._patched = test_patch.paths_of(found.test_patch)
            except ValueError as error:
                raise settings.refused("test_patch", found.test_patch, str(error)) from None
        super().__init__(found.protected, self._patched)

    async def evaluate(self, case: Case) -> Verdict:
        try:
            if self._settings.test_patch is not None:
                await test_patch.apply(case.runtime, self._settings.test_patch, self._patched)
            ended = await self._command.run(case, {})
        except ObstructedError as error:
            return zero(Score(f"{_SUBJECT} {error}"), None, {})
        if ended.result.exit_code is None:
            score = Score(ended.failure(_SUBJECT))
        else:
            score = await asyncio.to_thread(_score, self._settings, ended)
        artifacts = {OUTPUT: ended.output}
        return Verdict(1.0, artifacts=artifacts) if score.reason is None else zero(score, ended, artifacts)


def _score(wanted: TaskSettings, ended: Ended) -> Score:
    expected = {*wanted.fail_to_pass, *wanted.pass_to_pass}
    found = parsers.statuses(_tests_output(ended.output.decode(errors="replace")), expected, wanted.parser)
    differences = list(_differences(wanted, found))
    reason = differing(differences, len(expected))
    if reason is None and ended.result.exit_code != 0 and not {"FAILED", "ERROR"} & set(found.values()):
        reason = f"{ended.failure(_SUBJECT)}, though it reports no failed test"
    if reason and len(ended.output) > LOG_LIMIT:
        reason += f"; the output was longer than {LOG_LIMIT} bytes, and its middle is lost"
    return Score(reason, Counter(found.values()), differences)


def _tests_output(output: str) -> str:
    """What was printed between the markers, or all of it."""
    _, start, after = output.partition(START)
    return after.partition(END)[0] if start else output


def _differences(wanted: TaskSettings, found: Mapping[str, str]) -> Iterator[Difference]:
    for names, passing in ((wanted.fail_to_pass, {"PASSED"}), (wanted.pass_to_pass, {"PASSED", "SKIPPED"})):
        for name in dict.fromkeys(names):
            status = _status(name, found)
            if status not in passing:
                yield Difference(name, "PASSED", status)


def _status(name: str, found: Mapping[str, str]) -> str | None:
    if name in found or name.count("[") <= name.count("]"):
        return found.get(name)
    return _agreed([status for test, status in found.items() if test.startswith(name)])


def _agreed(statuses: Collection[str]) -> str | None:
    """The worst of the statuses if all passed, or none did."""
    outcomes = {status == "PASSED" for status in statuses}
    return next((status for status in statuses if status != "PASSED"), "PASSED") if len(outcomes) == 1 else None
