"""Why a session ended without completing: causes by the code of its error."""

from __future__ import annotations

from collections.abc import Callable

from polar.diagnosis.causes import Cause, Entry
from polar.diagnosis.facts import Facts
from topics.environment import registry
from topics.types.session import Phase, Status

KEY_REFUSED = "(key_refused)"
"""In the message of a `model_failed` whose key the proxy refused (consumers/stages/model_failure.py)."""
PLUG_IN_FIELDS = tuple(f"{kind.value}: " for kind in registry.Kind)
"""Beginnings of the messages of `registry.load`."""


def _has_ended(facts: Facts) -> bool:
    return facts.phase is Phase.ENDED


def _ended_with(*codes: str, stage: str | None = None) -> Callable[[Facts], bool]:
    """A condition: it ended with an error of one of these `<kind>/<code>`, in `stage` if that is set."""

    def holds(facts: Facts) -> bool:
        error = facts.error
        return _has_ended(facts) and error is not None and facts.code in codes and stage in (None, error.stage)

    return holds


def _model_failed(*, is_key: bool) -> Callable[[Facts], bool]:
    holds = _ended_with("infra/model_failed")
    return lambda facts: holds(facts) and (KEY_REFUSED in _message(facts)) is is_key


def _bad_input(*, is_plug_in: bool) -> Callable[[Facts], bool]:
    holds = _ended_with("input/bad_input")
    return lambda facts: holds(facts) and _message(facts).startswith(PLUG_IN_FIELDS) is is_plug_in


def _message(facts: Facts) -> str:
    return "" if facts.error is None else facts.error.message


def _evaluation_failed(facts: Facts) -> bool:
    return _has_ended(facts) and facts.code.startswith("evaluation/")


SHOW = "`polar show {name}` has the agent's log and patch."

ENTRIES = (
    Entry(
        Cause.CANCELLED,
        lambda facts: (
            _has_ended(facts)
            and facts.session is not None
            and facts.session.status is Status.CANCELLED
            and not facts.code
        ),
        "Somebody cancelled it.",
        "Submit the task again under another id if it should run.",
    ),
    Entry(
        Cause.EARLY_STOP,
        _ended_with("budget/early_stop"),
        "It was cancelled because its group had enough: {error}.",
        "Nothing to do. Raise or remove `early_stop.usable` if every sample should run.",
    ),
    Entry(
        Cause.NEVER_OPENED,
        _ended_with("input/unopened"),
        "It ended because {error}.",
        "Open a new task with as many `--samples` as you need.",
    ),
    Entry(
        Cause.NO_WORKER_IN_TIME,
        _ended_with("infra/no_worker"),
        "It waited 6 days in vain: {error}.",
        "Start workers (`polar worker init run evaluate --pool {pool}`), and submit the task again under another id.",
    ),
    Entry(
        Cause.OUT_OF_TIME,
        _ended_with("budget/timeout"),
        "Its time was over: {error}.",
        "Its calls are kept, and may be trained. Raise `timeouts.run` in the task, or --ttl of `polar session open`, if that is too short.",
    ),
    Entry(
        Cause.WORKER_LOST,
        _ended_with("infra/lost"),
        "Its worker died or lost its connection, and no attempt is left (`max_attempts` is {attempts}): {error}.",
        "Look why workers die: their logs, the host's memory (`dmesg`), the network to Kafka. Then submit the task again under another "
        "id; `max_attempts` allows more losses.",
    ),
    Entry(
        Cause.WORKER_HUNG,
        _ended_with("infra/deadline"),
        "Its worker didn't end stage {at} in time: {error}.",
        "Read the worker's log; `kill -USR1 PID` makes it write where it hangs. Restart it.",
    ),
    Entry(
        Cause.KEY_REFUSED,
        _model_failed(is_key=True),
        "The proxy refused the session's key: the run worker and the proxy have different keys files.",
        "Give all hosts one keys file (POLAR_KEYS_FILE); `polar doctor` compares it with the one that workers use.",
    ),
    Entry(
        Cause.MODEL_FAILED,
        _model_failed(is_key=False),
        "The model failed, not the agent: {error}.",
        "Check the inference server: `polar doctor --engine URL`. Then submit the task again under another id.",
    ),
    Entry(
        Cause.HARNESS_FAILED,
        _ended_with("agent/exit_code"),
        "The harness failed: {error}.",
        SHOW,
    ),
    Entry(
        Cause.LIMIT_EXCEEDED,
        _ended_with("agent/limit_exceeded"),
        "The agent exceeded a limit of its sandbox: {error}.",
        "Raise that limit in the task's `runtime`, such as `memory_mb`, if the task needs more.",
    ),
    Entry(
        Cause.PLUG_IN_MISSING,
        _bad_input(is_plug_in=True),
        "The worker of stage {at} lacks a plug-in: {error}.",
        "Install the plug-in's package on every host with such workers, and restart them. Then submit the task again under another id.",
    ),
    Entry(
        Cause.BAD_INPUT,
        _bad_input(is_plug_in=False),
        "The task asks for something impossible: {error}.",
        "Correct that field, and submit the task under another id.",
    ),
    Entry(
        Cause.NOT_READY,
        _ended_with("infra/not_ready"),
        "The worker of stage {at} lacked something: {error}.",
        "Provide it on the worker's host; `polar doctor` there checks harnesses, packages and the blob store. Then submit the task again "
        "under another id.",
    ),
    Entry(
        Cause.WORKER_ERROR,
        _ended_with("infra/worker_error"),
        "A plug-in or the worker itself raised an exception in stage {at}: {error}.",
        "The worker's log has the traceback.",
    ),
    Entry(
        Cause.INIT_OUT_OF_TIME,
        _ended_with("infra/timeout"),
        "Its sandbox was not made in time: {error}.",
        "Raise `timeouts.init` (`timeouts.evaluate` for the verifier's sandbox), or make preparation shorter: an image with all packages.",
    ),
    Entry(
        Cause.SANDBOX_NOT_STARTED,
        _ended_with(
            "infra/not_made", "infra/not_started", "infra/engine_failed", "infra/runtime_exists", "infra/gpus_busy"
        ),
        "Its sandbox could not be started: {error}.",
        "`polar doctor` on the worker's host says which runtimes work there.",
    ),
    Entry(
        Cause.IMAGE_UNAVAILABLE,
        _ended_with("infra/image_unavailable"),
        "Its image is not available: {error}.",
        "Check the image's name, the registry's login, and that skopeo is installed on the worker's host (`polar doctor`).",
    ),
    Entry(
        Cause.HOST_DISK_FULL,
        _ended_with("infra/host_disk_full"),
        "The disk of the worker's host is full: {error}.",
        "Make room on that disk. Sessions begin there again by themselves.",
    ),
    Entry(
        Cause.HOST_OUT_OF_MEMORY,
        _ended_with("infra/host_out_of_memory"),
        "The worker's host had no memory left: {error}.",
        "Lower the worker's `--concurrency`, or `runtime.memory_mb` of the tasks.",
    ),
    Entry(
        Cause.SANDBOX_FULL,
        _ended_with("infra/storage_exceeded"),
        "Preparing its sandbox needs more storage than the sandbox may use: {error}.",
        "Raise `runtime.storage_mb` in the task.",
    ),
    Entry(
        Cause.PREPARE_FAILED,
        _ended_with("infra/prepare_failed"),
        "An action of `runtime.prepare` failed: {error}.",
        "Correct that command: the error has the end of its output. Then submit the task under another id.",
    ),
    Entry(
        Cause.UNHEALTHY,
        _ended_with("infra/unhealthy"),
        "Its sandbox was never healthy: {error}.",
        "Correct `runtime.healthcheck` or what it waits for.",
    ),
    Entry(
        Cause.SANDBOX_LOST,
        _ended_with(
            "infra/runtime_gone",
            "infra/supervisor_lost",
            "infra/unkillable",
            "infra/files_failed",
            "infra/not_removed",
            "infra/worker_fault",
        ),
        "Its sandbox was lost: {error}.",
        "Look for what removes files below the worker's data folder, or kills its processes; the worker's log has more.",
    ),
    Entry(
        Cause.EVALUATOR_RAISED,
        _ended_with("evaluation/evaluator_raised"),
        "Its evaluator raised an exception: {error}.",
        "`polar show {name} --artifact evaluator_traceback` prints the traceback.",
    ),
    Entry(
        Cause.NO_REWARD_FOUND,
        _ended_with("evaluation/bad_reward", "evaluation/no_reward_file"),
        "Its evaluator gave no usable reward: {error}.",
        "Make the evaluator write one finite number; `polar show {name}` lists its output.",
    ),
    Entry(
        Cause.JUDGE_FAILED,
        _ended_with(
            "evaluation/judge_refused",
            "evaluation/judge_spent",
            "evaluation/judge_unreadable",
            "infra/judge_unreachable",
        ),
        "Its judge gave no verdict: {error}.",
        "Check the judge's model and rubric; `polar show {name}` lists its answers.",
    ),
    Entry(
        Cause.EVALUATION_OUT_OF_TIME,
        _ended_with("evaluation/timeout"),
        "Its evaluation took too long: {error}.",
        "Raise `timeouts.evaluate` in the task.",
    ),
    Entry(
        Cause.EVALUATION_FAILED,
        _evaluation_failed,
        "Its evaluation failed ({code}): {error}.",
        "`polar show {name}` lists the evaluation's output.",
        is_general=True,
    ),
    Entry(
        Cause.CALLS_LOST,
        _ended_with("infra/log_gap"),
        "Its calls have left Kafka: {error}.",
        "Set the retention of polar.completions back: `polar topics apply`; `polar doctor` compares it.",
    ),
    Entry(
        Cause.TABLE_LOST,
        _ended_with("infra/table_lost"),
        "The coordinator's table was lost while it ran: {error}.",
        "Open a new session. docs/operations.md says how a lost topic is made again.",
    ),
    Entry(
        Cause.TOO_LARGE,
        _ended_with("agent/too_large"),
        "Its trajectory is too large for a record: {error}.",
        "Let the agent send less, or build fewer traces: the builder `prefix_merging` stores each token once.",
    ),
    Entry(
        Cause.BUILDER_FAILED,
        _ended_with("infra/builder_timeout", "input/builder_input", "infra/builder", stage="build"),
        "The builder could not build its trajectory ({code}): {error}.",
        "Correct the task's `builder`, then build again from the recorded calls: `polar rebuild`.",
    ),
    Entry(
        Cause.FAILED,
        lambda facts: _has_ended(facts) and facts.session is not None and facts.session.status is not Status.COMPLETED,
        "It ended in stage {at} with {code}: {error}.",
        SHOW,
        is_general=True,
    ),
)
