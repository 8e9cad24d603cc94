"""The evaluator `script`: runs a command in the workspace and reads the reward that it wrote.

The variable POLAR_REWARD_DIR names an empty folder, which is new and whose name nobody knew beforehand. The command writes its reward
there and ends with exit code 0. `TaskSettings` has the settings.

The reward is in `reward.json`, or without that file in `reward.txt`; an empty file counts as none. `reward.json` is a number, or an object
with the number `reward` and with scores, which are numbers by name. `reward.txt` is a number as text. Every finite number is a reward:
trainers see it as it is.

0.0 or no reward? A command can hang, fail, write nothing, or write something that is no reward (NaN, infinity, a boolean, text). If it
reads or runs what the agent wrote, the agent can cause all four: with a named pipe in a file's place, bytes that are no text, a number that
is NaN, code that exits before the reward is written. The reward is 0.0 then, or an agent would learn to do so whenever its work is bad.
With `reads_files_of_the_run: false` only the command itself can be the cause, and there is no reward: `command_timeout`, `command_failed`,
`no_reward_file`, `bad_reward`. What exceeds the session's memory or storage is 0.0 also then.

What a command wrote before it failed doesn't count: it may be half of the work.
"""

from __future__ import annotations

import msgspec

from consumers.evaluators import reward_files, settings
from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.command import OUTPUT, Command, Ended, ObstructedError, new_file
from consumers.evaluators.protection import Protection
from consumers.evaluators.reward_files import JSON, TEXT, BadRewardError

FOLDER_VARIABLE = "POLAR_REWARD_DIR"

_SUBJECT = "the command"


class TaskSettings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    command: settings.CommandText
    """The command that writes the reward, for `bash -c` with pipefail, in the sandbox's working directory."""
    reads_files_of_the_run: bool = True
    """`false`: the command reads and runs nothing that the agent could have written, so a failure is the command's own, and null."""
    protected: settings.ProtectedPaths = []
    """As in `test_on_output`."""
    timeout_s: settings.Seconds | None = None
    """As in `test_on_output`."""


class Script(Protection):
    """See `base.Protecting`."""

    settings_type = TaskSettings

    def __init__(self, config: settings.Config) -> None:
        found = settings.read(config, TaskSettings)
        self._command = Command("command", found.command, found.timeout_s)
        self._reads_files = found.reads_files_of_the_run
        super().__init__(found.protected)

    async def evaluate(self, case: Case) -> Verdict:
        try:
            # The file makes the folder. Empty, it is no reward.
            folder = (await new_file(case.runtime, TEXT)).parent
            ended = await self._command.run(case, {FOLDER_VARIABLE: str(folder)})
        except ObstructedError as error:
            return Verdict(0.0, reason=f"{_SUBJECT} {error}")
        if (failure := ended.failure(_SUBJECT)) is not None:
            code = "command_timeout" if ended.result.exit_code is None else "command_failed"
            return self._failed(code, failure, ended)
        try:
            reward = await reward_files.written(case.runtime, folder)
        except BadRewardError as error:
            return self._failed("bad_reward", str(error), ended)
        if reward is None:
            why = f"{_SUBJECT} ended with exit code 0, and wrote neither {JSON} nor {TEXT} into ${FOLDER_VARIABLE}"
            return self._failed("no_reward_file", why, ended)
        return Verdict(reward.value, artifacts={OUTPUT: ended.output} | reward.artifacts, reason=reward.reason)

    def _failed(self, code: str, why: str, ended: Ended) -> Verdict:
        """0.0 for what files of the run can cause. Raises EvaluationError for the command's own failures."""
        if self._reads_files or ended.result.exceeded:
            return Verdict(0.0, reason=why, artifacts={OUTPUT: ended.output})
        raise EvaluationError(code, f"{why} ({ended.result.output_end})", {OUTPUT: ended.output})
