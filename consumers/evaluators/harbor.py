"""The evaluator `harbor`: runs a Harbor task's tests/test.sh and reads the reward that it wrote, by the rules of Harbor's own verifier.

The task uploads its tests to /tests (`runtime.eval_prepare`), which needs an image. /logs/verifier is made new, so a reward that the run
left doesn't count. `/tests/test.sh` then runs in the working directory; its exit code says nothing. The reward is in `reward.json`, or
without that file in `reward.txt` (harbor 0.26, verifier/verifier.py).

Tests that hang, leave no reward, or leave one that is no finite number give none, as in Harbor, unless the setting `without_reward` says
0.0. Tests that run the agent's work can be made to fail so by it; then a policy learns to break tests that it can't pass, unless that
counts 0.0. `TaskSettings` has the settings.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from consumers.evaluators import reward_files, settings
from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.command import OUTPUT, Command, Ended, ObstructedError
from consumers.evaluators.reward_files import JSON, REWARD, TEXT, BadRewardError, UnreadableError
from consumers.plug_in_settings import Expected
from consumers.runtimes.base import Exec, ExecResult, Runtime

TESTS = PurePosixPath("/tests")
LOGS = PurePosixPath("/logs/verifier")

_SUBJECT = "/tests/test.sh"
_NO_TESTS = 3
_MAKE_READY = f"""
rm -rf -- {LOGS} && mkdir -p -- {LOGS} /logs/agent /logs/artifacts || exit
[ -f {TESTS}/test.sh ] || exit {_NO_TESTS}
chmod +x {TESTS}/test.sh
"""
_MAKE_READY_S = 60.0


class TaskSettings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    timeout_s: settings.Seconds | None = None
    """Seconds for the tests; null: until shortly before the end of `timeouts.evaluate`, when they are stopped in any case."""
    reward: Annotated[str, Meta(min_length=1), Expected("must be the name of a number in reward.json")] = REWARD
    """The name of the reward among the numbers of `reward.json`."""
    without_reward: Literal["null", "zero"] = "null"
    """The reward of tests that leave none: `null` for no reward, as in Harbor, or `zero` for 0.0."""


class Harbor:
    """See `base.Evaluator`."""

    settings_type = TaskSettings

    def __init__(self, config: settings.Config) -> None:
        found = settings.read(config, TaskSettings)
        self._tests = Command(_SUBJECT, _SUBJECT, found.timeout_s)
        self._name = found.reward
        self._counts_zero = found.without_reward == "zero"

    async def evaluate(self, case: Case) -> Verdict:
        ready = await self._ready(case.runtime)
        if ready.exit_code == _NO_TESTS:
            raise EvaluationError(
                "no_test_script",
                "there is no /tests/test.sh; upload the task's tests to /tests with runtime.eval_prepare, as `polar tasks import` does",
            )
        if ready.exit_code != 0 and not any(LOGS.is_relative_to(top) for top in case.runtime.written):
            raise EvaluationError("no_log_folder", f"{LOGS} can't be made: {ready.output_end}")
        if ready.exit_code != 0:
            return Verdict(0.0, reason=f"{LOGS} can't be made new: {ready.output_end}")
        try:
            ended = await self._tests.run(case, {})
        except ObstructedError as error:
            return Verdict(0.0, reason=f"{_SUBJECT} {error}")
        if ended.result.exit_code is None or ended.result.exceeded:
            return self._without_reward("tests_timeout", str(ended.failure(_SUBJECT)), ended)
        try:
            reward = await reward_files.written(case.runtime, LOGS, self._name)
        except UnreadableError as error:
            return Verdict(0.0, reason=str(error), artifacts={OUTPUT: ended.output})
        except BadRewardError as error:
            return self._without_reward("bad_reward", str(error), ended)
        if reward is None:
            exit_code = ended.result.exit_code
            why = f"{_SUBJECT} ended with exit code {exit_code}, and wrote neither {JSON} nor {TEXT} into {LOGS}"
            return self._without_reward("no_reward_file", why, ended)
        return Verdict(reward.value, artifacts={OUTPUT: ended.output} | reward.artifacts, reason=reward.reason)

    async def _ready(self, runtime: Runtime) -> ExecResult:
        """Make /logs/verifier new. Raises SandboxError."""
        return await runtime.exec(
            Exec(_MAKE_READY, cwd="/", log="make-ready.log", timeout_s=_MAKE_READY_S, is_ours=True)
        )

    def _without_reward(self, code: str, why: str, ended: Ended) -> Verdict:
        """Raises EvaluationError unless the reward is 0.0."""
        if self._counts_zero or ended.result.exceeded:
            return Verdict(0.0, reason=why, artifacts={OUTPUT: ended.output})
        raise EvaluationError(code, f"{why} ({ended.result.output_end})", {OUTPUT: ended.output})
