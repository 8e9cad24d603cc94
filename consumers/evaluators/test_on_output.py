"""The evaluator `test_on_output`: runs a test command in the workspace and reads its report or its output (NVIDIA Polar's of this name).

Config:

- `test_command`: for `bash -c` with pipefail.
- `expected_output_json`: a map of test name to status, as an object or as JSON text. The reward is 1.0 if each named test has its
  status, otherwise 0.0. Other tests are allowed, unless `exact` is true. Without a map the command must end with exit code 0.
- `report`: a file name. The command writes a JUnit XML report of this name into a new folder, whose name nobody knows beforehand:
  `{report}` in `test_command`, and the variable POLAR_REPORT, are its path. Statuses then come from the report alone, and the exit code
  must be 0 as well. Without a map no test of the report may have failed, and one must have passed.
- `protected`: a list of paths in the workspace. They are put back as `prepare` left them, together with the files that steer a test runner
  (`protection.py`). `false`: nothing is put back.
- `timeout_s`: limit of the command. In any case it must end before `timeouts.evaluate`, by a tenth of that or by 10 s.

Without `report`, a test's status is a line of the output as pytest writes it (`PASSED path::name`, `FAILED path::name - why`,
`path::name PASSED [50%]`, `SKIPPED [1] path:line: why`) or as `name: PASSED`. If a name comes twice, its last status counts. The tested
code prints into the same output, so it can print such lines; it can't print into a report. Code that runs in the test runner's own
process can still write the report: only tests that call the tested code as another process are safe from it.

0.0 or no reward? The agent had the workspace before the command runs in it, so all that its files can cause is its failure, and gets
0.0 with a reason: a hang, a report that is too large, missing or broken, a folder that is gone, a command that isn't found or isn't
executable (exit codes 127 and 126). There are two failures without a reward:

- The machine's: a SandboxError, after which the evaluation is tried again.
- The task's: EvaluationError `test_command`, if the command couldn't have run in the prepared base either. That is known only if it begins
  with the bare name of a program, no folder of PATH has this program, and no folder of PATH is one that the agent could write to.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from consumers.evaluators import junit, protection
from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.junit import ReportError, Result
from consumers.runtimes.base import LOG_LIMIT, Exec, ExecResult, Runtime, SandboxError
from topics.types.errors import InputError

SETTINGS = ("test_command", "expected_output_json", "exact", "report", "protected", "timeout_s")
STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
OUTPUT = "evaluation_output"
"""The artifact with the command's output."""
REPORT = "evaluation_report"
"""The artifact of a reward of 0.0: a JSON object with the reason, the exit code, the tests by status, and those that differ."""
REPORT_VARIABLE = "POLAR_REPORT"
MARGIN_S = 10.0
"""The command ends so long before the evaluation's budget, or a tenth of it if that is longer: enough to kill it (2 s of grace) and to read
what it wrote. A command that could use up the budget would leave no reward."""
NAMES_LIMIT = 100_000
"""Names of tests kept from an output, besides the expected ones."""
NAME_LIMIT = 1000
"""Characters of a name in an output; a longer one is cut, unless it is expected."""
LISTED = 100
"""Most differing tests in the artifact."""
NAMED = 3
"""Most differing tests in the reason."""
SHOWN = 120
"""Characters of a test's name in the reason."""
CONTROL_S = 10.0
"""Limit for asking bash whether it finds a program."""

_STATUS = "|".join(STATUSES)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"[^\r\n]+")
_BEFORE = re.compile(rf"({_STATUS}) (?:\[\d+\] )?(?=\S)")
_AFTER = re.compile(rf" ({_STATUS})(?: +\([^()]*\))?(?: +\[ *\d+%\])?$")
_REASON = re.compile(r"(\S+:\d+): ")
"""The agent can shape the output, so no pattern may take more than linear time."""
_CANNOT_RUN = (126, 127)
_PROGRAM = re.compile(r"\s*([A-Za-z0-9_.+-]+)(?=\s|$)")
"""The command's first word, if it is the bare name of a program: no path, no quotes, no assignment."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{report\}")
"""Not `${report}`, a variable of the shell."""
_OF_THE_MACHINE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors of file operations that no file of the agent's causes."""
_LOOK_UP = 'type -- "$1" >/dev/null 2>&1; echo "$? $PATH"'


@dataclass(frozen=True)
class Settings:
    """The evaluator's settings; see the module."""

    command: str
    expected: dict[str, str] | None
    is_exact: bool
    report: PurePosixPath | None
    protected: tuple[str, ...] | None
    """None: no file is protected."""
    timeout_s: float | None


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


class TestOnOutput:
    """See `base.Protecting`."""

    __test__ = False
    """Keeps pytest from collecting it."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._settings = settings_of(config)

    async def keep(self, runtime: Runtime) -> None:
        if self._settings.protected is not None:
            await protection.keep(runtime, self._settings.protected)

    async def restore(self, runtime: Runtime) -> str | None:
        try:
            if self._settings.protected is not None:
                await protection.restore(runtime, self._settings.protected)
        except (protection.ObstructedError, InputError, OSError) as error:
            _raise_fault(error)
            return str(error)
        return None

    async def evaluate(self, case: Case) -> Verdict:
        try:
            return await self._evaluate(case)
        except (InputError, OSError) as error:
            _raise_fault(error)
            # The settings are valid, so files of the run are in the way: a folder that is gone, or a link out of the sandbox.
            return _zero(Score(f"the test command couldn't be run on what the run left: {error}"), None, {})

    async def _evaluate(self, case: Case) -> Verdict:
        settings, runtime = self._settings, case.runtime
        report = None if settings.report is None else await _report_path(runtime, settings.report)
        command, env = settings.command, dict(case.env)
        if report is not None:
            command = _PLACEHOLDER.sub(lambda _: shlex.quote(str(report)), command)
            env[REPORT_VARIABLE] = str(report)
        timeout_s = command_limit(settings.timeout_s, case.budget_s)
        try:
            result = await runtime.exec(Exec(command, env=env, log="evaluation.log", timeout_s=timeout_s))
        except SandboxError as error:
            if error.code != "not_started" or not await _is_agents_doing(runtime, env):
                raise
            return _zero(
                Score(f"the test command couldn't be started in the workspace that the run left: {error}"), None, {}
            )
        output = await asyncio.to_thread(result.output)
        artifacts = {OUTPUT: output}
        if result.exit_code in _CANNOT_RUN and (missing := await _missing_program(runtime, settings.command, env)):
            raise EvaluationError(
                "test_command",
                f"evaluator.config.test_command {settings.command!r} can't be run: no folder of this worker's PATH has the program "
                f"{missing!r}; install it on the workers, or name it by its path ({result.output_end})",
                artifacts,
            )
        score = await self._score(runtime, result, output, report, timeout_s)
        return Verdict(1.0, artifacts=artifacts) if score.reason is None else _zero(score, result, artifacts)

    async def _score(
        self, runtime: Runtime, result: ExecResult, output: bytes, report: PurePosixPath | None, timeout_s: float | None
    ) -> Score:
        if result.exit_code is None:
            why = "" if result.exceeded else f" It didn't end within timeout_s = {timeout_s or 0:g} s."
            return Score(f"the test command was stopped.{why}{_exceeded(result)}")
        if report is None:
            return await asyncio.to_thread(self._score_output, result, output)
        try:
            data = await runtime.read_file(report, junit.SIZE_LIMIT + 1)
            results = await asyncio.to_thread(junit.read, data) if data else None
        except FileNotFoundError:
            results = None
        except ReportError as error:
            return Score(f"the report {error}")
        except (InputError, OSError) as error:
            _raise_fault(error)
            return Score(f"the report can't be read: {error}")
        if results is None:
            return Score(f"the test command wrote no report, and ended with exit code {result.exit_code}")
        return _score_report(self._settings, result, results)

    def _score_output(self, result: ExecResult, output: bytes) -> Score:
        expected = self._settings.expected
        if expected is None:
            return Score(_bad_exit(result))
        found = statuses(output.decode(errors="replace"), expected)
        differences = list(_differences(expected, found, is_exact=self._settings.is_exact))
        counts = Counter(found.values())
        reason = _reason(differences, len(expected))
        if reason and len(output) > LOG_LIMIT:
            reason += f"; the output was longer than {LOG_LIMIT} bytes, and its middle is lost"
        return Score(reason, counts, differences)


def settings_of(config: Mapping[str, object]) -> Settings:
    """The settings in a task's `evaluator.config`. Raises InputError for the first unknown or invalid one."""
    for name in config:
        if name not in SETTINGS:
            raise _refused(name, config, f"no such setting; there are: {', '.join(SETTINGS)}")
    command = config.get("test_command")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise _refused("test_command", config, "must be a command, as text")
    expected = _expected(config.get("expected_output_json"))
    exact = config.get("exact", False)
    if not isinstance(exact, bool):
        raise _refused("exact", config, "must be true or false")
    if exact and expected is None:
        raise _refused("exact", config, "needs expected_output_json, the tests that there must be")
    timeout_s = config.get("timeout_s")
    if timeout_s is not None and not _is_duration(timeout_s):
        raise _refused("timeout_s", config, "must be a number of seconds, more than 0")
    report = config.get("report")
    if report is not None and expected and len({junit.key(name) for name in expected}) < len(expected):
        raise _refused("expected_output_json", config, "names a test twice: a report has one name for both")
    if report is not None and not _is_file_name(report):
        raise _refused("report", config, "must be the plain name of a file, such as junit.xml; {report} is its path")
    if report is None and _PLACEHOLDER.search(command):
        raise _refused(
            "test_command", config, "has {report}, so the setting report must name the file, such as junit.xml"
        )
    return Settings(
        command,
        expected,
        exact,
        PurePosixPath(report) if isinstance(report, str) else None,
        _protected(config),
        float(timeout_s) if isinstance(timeout_s, int | float) else None,
    )


def statuses(output: str, expected: Collection[str] = ()) -> dict[str, str]:
    """Test name to status, from a test run's output: the last status of every expected name, and of NAMES_LIMIT others."""
    found: dict[str, str] = {}
    room = NAMES_LIMIT
    for line in _LINE.finditer(_COLOUR.sub("", output)):
        text = line[0].strip()
        if match := _BEFORE.match(text):
            name = text[match.end() :].partition(" - ")[0]
            reason = _REASON.match(name)
            name = reason[1] if reason else name
        elif match := _AFTER.search(text):
            name = text[: match.start()].rstrip().removesuffix(":")
        else:
            continue
        if name not in expected:
            name = name[:NAME_LIMIT]
            if name not in found and not room:
                continue
            room -= name not in found
        found[name] = match[1]
    return found


async def _report_path(runtime: Runtime, name: PurePosixPath) -> PurePosixPath:
    """The path for the report, in a new folder; the folder exists, and an empty file. Raises InputError, OSError."""
    path = runtime.home / f"polar-report-{secrets.token_hex(16)}" / name
    await runtime.write_file(path, b"")
    return path


async def _is_agents_doing(runtime: Runtime, env: Mapping[str, str]) -> bool:
    """Whether files of the run can be why no program starts in the workspace: its folder, or a bash of the agent's own."""
    with suppress(SandboxError):
        await runtime.exec(_control(runtime, env, "bash", "-p", "-c", ":"))
        return True
    _, folders = await _looked_up(runtime, "bash", env)
    return any(_is_inside(runtime, folder) for folder in folders)


async def _missing_program(runtime: Runtime, command: str, env: Mapping[str, str]) -> str | None:
    """The program that the command begins with, if the prepared base lacked it as well.

    None: it is there, or the agent could have removed it, or nobody can know.
    """
    first = _PROGRAM.match(command)
    if first is None:
        return None
    is_missing, folders = await _looked_up(runtime, first[1], env)
    return first[1] if is_missing and not any(_is_inside(runtime, folder) for folder in folders) else None


async def _looked_up(runtime: Runtime, program: str, env: Mapping[str, str]) -> tuple[bool, list[str]]:
    """Whether bash finds no such program, and the folders of PATH. False and no folders if bash doesn't start."""
    # By its path: a bash of the agent's own, in a folder of PATH, must not answer. -p: it runs no script that BASH_ENV names.
    try:
        ended = await runtime.exec(_control(runtime, env, "/bin/bash", "-p", "-c", _LOOK_UP, "bash", program))
    except SandboxError as error:
        if error.code != "not_started":
            raise
        return False, []
    code, _, path = ended.tail.removesuffix("\n").partition(" ")
    return ended.exit_code == 0 and code == "1", path.split(":")


def _control(runtime: Runtime, env: Mapping[str, str], *argv: str) -> Exec:
    """A program outside of the workspace, with a log that nothing of the agent's can stand in the way of."""
    log = f"control-{secrets.token_hex(8)}.log"
    return Exec(argv, cwd=str(runtime.home), env=env, log=log, timeout_s=CONTROL_S)


def _is_inside(runtime: Runtime, folder: str) -> bool:
    """Whether an agent can write to a folder of PATH: it is in the sandbox, or relative to a folder there."""
    path = PurePosixPath(folder)
    mine = (runtime.workspace, runtime.home, runtime.workspace.parent, PurePosixPath("/tmp"))  # noqa: S108
    return (
        not path.is_absolute()
        or ".." in path.parts
        or any(path.is_relative_to(one) for one in mine if one != one.parent)
    )


def _score_report(settings: Settings, result: ExecResult, results: Mapping[str, Result]) -> Score:
    expected = settings.expected
    found = {name: one.status for name, one in results.items()}
    counts = Counter(found.values())
    if expected is None:
        names = {name: name for name in found}
        failed = [
            Difference(one.name, "PASSED", one.status, one.message)
            for one in results.values()
            if one.status in ("FAILED", "ERROR")
        ]
        reason = _reason(failed, len(found)) or (None if counts["PASSED"] else "the report has no test that passed")
        return Score(_also(reason, _bad_exit(result)), counts, failed)
    names = {junit.key(name): name for name in expected}
    wanted = {junit.key(name): status for name, status in expected.items()}
    differences = [
        Difference(
            names.get(one.test) or results[one.test].name,
            one.expected,
            one.found,
            results[one.test].message if one.test in results else "",
        )
        for one in _differences(wanted, found, is_exact=settings.is_exact)
    ]
    return Score(_also(_reason(differences, len(wanted)), _bad_exit(result)), counts, differences)


def _differences(expected: Mapping[str, str], found: Mapping[str, str], *, is_exact: bool) -> Iterator[Difference]:
    for name, status in expected.items():
        if found.get(name) != status:
            yield Difference(name, status, found.get(name))
    if is_exact:
        for name in found.keys() - expected.keys():
            yield Difference(name, None, found[name])


def _reason(differences: Collection[Difference], tests: int) -> str | None:
    """The first differing tests, in words."""
    if not differences:
        return None
    named = "; ".join(str(one) for one, _ in zip(differences, range(NAMED), strict=False))
    more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
    return f"{len(differences)} of {tests} tests differ: {named}{more}"


def _bad_exit(result: ExecResult) -> str | None:
    if result.exit_code == 0:
        return None
    return (
        f"the test command ended with exit code {result.exit_code}{'.' if result.exceeded else ''}{_exceeded(result)}"
    )


def _exceeded(result: ExecResult) -> str:
    """The limit of the session's that its programs exceeded, as a further sentence."""
    return f" {result.exceeded}" if result.exceeded else ""


def _also(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None


def _zero(score: Score, result: ExecResult | None, artifacts: Mapping[str, bytes]) -> Verdict:
    listed = [one for one, _ in zip(score.differences, range(LISTED), strict=False)]
    report: dict[str, Any] = {
        "reason": score.reason,
        "exit_code": result.exit_code if result else None,
        "duration_s": round(result.duration_s, 3) if result else None,
        "tests": dict(score.counts),
        "differing": len(score.differences),
        "first": [vars(one) for one in listed],
    }
    return Verdict(0.0, reason=score.reason, artifacts={**artifacts, REPORT: json.dumps(report, indent=1).encode()})


def _refused(name: str, config: Mapping[str, object], reason: str) -> InputError:
    return InputError(f"evaluator.config.{name}", config.get(name), reason)


def _raise_fault(error: Exception) -> None:
    """Raise SandboxError if the machine caused the error, and no file could."""
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        raise SandboxError("worker_fault", f"a file of the evaluation can't be used: {error}") from error


def command_limit(timeout_s: float | None, budget_s: float | None) -> float | None:
    """How long the command may take; None: without limit."""
    if budget_s is None:
        return timeout_s
    longest = max(budget_s - max(budget_s / 10, MARGIN_S), budget_s / 2)
    return longest if timeout_s is None else min(timeout_s, longest)


def _protected(config: Mapping[str, object]) -> tuple[str, ...] | None:
    value = config.get("protected", [])
    if value is False:
        return None
    if isinstance(value, list) and all(_is_path(path) for path in value):
        return tuple(value)
    raise _refused("protected", config, "must be false, or a list of paths relative to the workspace, without ..")


def _is_path(value: object) -> bool:
    return (
        isinstance(value, str)
        and "\0" not in value
        and value.strip("./") != ""
        and not value.startswith("/")
        and ".." not in PurePosixPath(value).parts
    )


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w+-][\w.+-]{0,99}", value) is not None


def _expected(config: object) -> dict[str, str] | None:
    name = "evaluator.config.expected_output_json"
    if config is None:
        return None
    value = config
    if isinstance(config, str):
        try:
            value = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise InputError(name, config, f"isn't JSON: {error}") from None
    if not isinstance(value, dict) or not all(status in STATUSES for status in value.values()):
        raise InputError(name, config, f"must map test names to one of {', '.join(STATUSES)}")
    if not value:
        raise InputError(name, config, "names no test, so every run would pass; name the tests, or leave it out")
    return {str(name): str(status) for name, status in value.items()}
