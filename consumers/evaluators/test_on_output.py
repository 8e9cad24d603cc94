"""The evaluator `test_on_output`: runs a test command in the workspace and reads its output (NVIDIA Polar's evaluator of this name).

Config: `test_command`, for `bash -c` with pipefail; `expected_output_json`, a map of test name to status, as an object or as JSON text.
With this map the reward is 1.0 if the statuses in the output equal it, otherwise 0.0. Without it the reward is 1.0 if the command ends
with exit code 0, otherwise 0.0. A command that can't be run (exit code 126 or 127, and no test's status in its output) gives no verdict.

A test's status is a line as pytest writes it (`PASSED path::name`, `FAILED path::name - why`, `path::name PASSED [50%]`,
`SKIPPED [1] path:line: why`) or as `name: PASSED`. If a name comes twice, its last status counts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.runtimes.base import Exec
from topics.types.errors import InputError

STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED")
OUTPUT = "evaluation_output"
"""The artifact with the command's output."""

_STATUS = "|".join(STATUSES)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEFORE = re.compile(rf"({_STATUS}) (?:\[\d+\] )?(?=\S)")
_AFTER = re.compile(rf" ({_STATUS})(?: +\([^()]*\))?(?: +\[ *\d+%\])?$")
_REASON = re.compile(r"(\S+:\d+): ")
"""The agent can shape the output, so no pattern may take more than linear time."""
_CANNOT_RUN = (126, 127)


class TestOnOutput:
    """See `base.Evaluator`."""

    __test__ = False
    """Keeps pytest from collecting it."""

    def __init__(self, config: Mapping[str, object]) -> None:
        unknown = config.keys() - {"test_command", "expected_output_json"}
        for name in unknown:
            raise InputError(
                f"evaluator.config.{name}",
                config[name],
                "no such setting; there are: test_command, expected_output_json",
            )
        command = config.get("test_command")
        if not isinstance(command, str) or not command.strip():
            raise InputError("evaluator.config.test_command", command, "must be a command, as text")
        self._command = command
        self._expected = _expected(config.get("expected_output_json"))

    async def evaluate(self, case: Case) -> Verdict:
        result = await case.runtime.exec(Exec(self._command, env=case.env, log="evaluation.log"))
        output = await asyncio.to_thread(result.output)
        artifacts = {OUTPUT: output}
        found = await asyncio.to_thread(statuses, output.decode(errors="replace"))
        if result.exit_code in _CANNOT_RUN and not found:
            raise EvaluationError(
                "test_command",
                f"evaluator.config.test_command {self._command!r} can't be run (exit code {result.exit_code}); {result.output_end}",
                artifacts,
            )
        is_good = result.exit_code == 0 if self._expected is None else found == self._expected
        return Verdict(1.0 if is_good else 0.0, artifacts=artifacts)


def statuses(output: str) -> dict[str, str]:
    """Test name to status, from a test run's output."""
    found: dict[str, str] = {}
    for line in _COLOUR.sub("", output).splitlines():
        text = line.strip()
        if match := _BEFORE.match(text):
            name = text[match.end() :].partition(" - ")[0]
            reason = _REASON.match(name)
            found[reason[1] if reason else name] = match[1]
        elif match := _AFTER.search(text):
            found[text[: match.start()].rstrip().removesuffix(":")] = match[1]
    return found


def _expected(config: object) -> dict[str, str] | None:
    field = "evaluator.config.expected_output_json"
    if config is None:
        return None
    value = config
    if isinstance(config, str):
        try:
            value = json.loads(config)
        except ValueError as error:
            raise InputError(field, config, f"isn't JSON: {error}") from None
    if not isinstance(value, dict) or not all(status in STATUSES for status in value.values()):
        raise InputError(field, config, f"must map test names to one of {', '.join(STATUSES)}")
    return {str(name): str(status) for name, status in value.items()}
