"""`TaskRequest`, the task that users write as YAML, JSON or a record on `polar.tasks`.

Accepts the bodies of NVIDIA's Polar (arXiv 2605.24220), whose `timeout_seconds` is the run's budget, and fills in our defaults. A field
whose feature isn't built is rejected by name. `check_names` checks names of harnesses, evaluators and builders against the installed
plug-ins, and `check_settings` their settings. `check_version` asks a package index, so only those who produce tasks call it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from topics.environment import registry
from topics.types import building, field_errors, ids
from topics.types.agent import AgentSpec
from topics.types.errors import InputError
from topics.types.mcp import check_reachable
from topics.types.parts import Environment, Part, is_http_url
from topics.types.runtime import Network, RuntimeSpec, Seen

INSTRUCTION_LIMIT = 1024 * 1024
"""Bytes of UTF-8."""
CARRIED = ("metadata", "builder")
"""Fields that are copied into the table, `Build` and each of up to 1024 trajectories, hence the limit on their size."""
CARRIED_LIMIT = 64 * 1024
RUN_LIMIT_S = 24 * 3600
SAMPLES_LIMIT = ids.SAMPLES_LIMIT
USER_LIMIT = 128
"""Characters of `metadata.user`."""
RETENTION_BUDGET_S = 7 * 24 * 3600 / 2
"""A task's budgets sum to less than half of `polar.completions`' retention (protocol 31)."""

TaskId = Annotated[str, StringConstraints(pattern=f"^{ids.TASK_ID}$")]
RunName = Annotated[str, StringConstraints(pattern=f"^{ids.RUN}$")]
TopicName = Annotated[str, StringConstraints(pattern=f"^{ids.NAME}$")]


class BuilderSpec(Part):
    """The builder, which makes a session's trajectory (docs/builder.md)."""

    strategy: str = "prefix_merging"
    """A builder's name, or `module:Class`."""
    config: dict[str, Any] = {}
    """The builder's own settings."""


class EvaluatorSpec(Part):
    """The evaluator, which gives a session's reward (docs/evaluators.md)."""

    strategy: str = "session_completed"
    """An evaluator's name, or `module:Class`."""
    config: dict[str, Any] = {}
    """The evaluator's own settings."""
    env: Environment = {}
    """Variables for the programs that the evaluator starts."""
    refresh_runtime: Literal[False] = False
    """Accepted for other systems' tasks if false; `runtime.verifier` gives the evaluation a sandbox of its own."""


class Timeouts(Part):
    """Budgets in seconds; each stage has its own."""

    init: float = Field(default=600, gt=0)
    """For making and preparing the sandbox."""
    run: float = Field(default=3600, gt=0, le=RUN_LIMIT_S)
    """For the harness. After it the session is TIMED_OUT, and is evaluated and built all the same."""
    evaluate: float = Field(default=600, gt=0)
    """For `eval_prepare` and the evaluator."""


class SamplingSpec(Part):
    """Overrides the harness's settings, by vLLM's names. None: the harness's setting, or in `mode: train` the training default."""

    temperature: float | None = Field(default=None, ge=0, le=10)
    """Training default: 1. With 0 the engine takes the likeliest token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Training default: 1."""
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Training default: -1, any token."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Training default: 0."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Training default: 0."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Training default: 0."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Training default: 1."""
    max_tokens: int | None = Field(default=None, gt=0, lt=2**31)
    """Sampled tokens of one answer."""


TRAINING_DEFAULTS = SamplingSpec(
    temperature=1, top_p=1, top_k=-1, min_p=0, presence_penalty=0, frequency_penalty=0, repetition_penalty=1
)
"""The engine's unmodified distribution, so that its logprobs are the behaviour policy's (guarantee 2)."""


class LimitsSpec(Part):
    """Limits of each session's model use; the proxy rejects calls beyond them, and the harness decides how to react."""

    calls: int | None = Field(default=None, gt=0, lt=2**31)
    """Answered calls, including sub-agents' and side calls; None: any number."""
    tokens: int | None = Field(default=None, gt=0, lt=2**53)
    """Sampled tokens, counted when a call ends, so the last call may exceed the limit. None: any number."""
    concurrent_calls: int | None = Field(default=None, gt=0, le=4096)
    """Calls at a time; more are asked to retry. None: 64."""


class EarlyStop(Part):
    """Ends a group early."""

    usable: int = Field(ge=1, le=SAMPLES_LIMIT)
    """After this many trajectories with a reward and trainable tokens, the group's other sessions are cancelled."""


def _callback(value: str) -> str:
    if not is_http_url(value):
        raise ValueError("must be an http or https URL, like https://trainer.example/groups")
    parts = urlsplit(value)
    if parts.username or parts.password:
        raise ValueError("must hold no user or password, since every trajectory's group carries it; calls are signed")
    return value


CallbackUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_callback)]


class TaskRequest(Part):
    """A task: an instruction, its runtime and agent, and the number of samples."""

    task_id: TaskId
    """Submitting an equal task under a known id changes nothing; another task under that id is refused."""
    instruction: str
    """What the harness is told, at most 1 MiB of UTF-8."""
    num_samples: int = Field(default=1, ge=1, le=SAMPLES_LIMIT)
    """Sessions of this task. They are one group."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=RUN_LIMIT_S)
    """NVIDIA's name for `timeouts.run`."""
    timeouts: Timeouts = Timeouts()
    runtime: RuntimeSpec = RuntimeSpec()
    agent: AgentSpec
    builder: BuilderSpec = BuilderSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    mode: Literal["train", "eval"] = "train"
    """`train` imposes the training defaults of `sampling`. `eval` imposes nothing else than `sampling`, and its trajectories go to the
    topic `trajectories.eval`."""
    sampling: SamplingSpec = SamplingSpec()
    limits: LimitsSpec = LimitsSpec()
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Attempts of each session. Only failures of the machine, the engine or a worker use one up."""
    priority: int = Field(default=0, ge=0, le=100)
    """A free slot goes to the highest (docs/tasks.md)."""
    output_topic: TopicName | None = None
    """Trajectories go to the topic `trajectories.<output_topic>`. None: to the default one of the mode."""
    callback_url: CallbackUrl | None = None
    """URL that receives the finished group (docs/webhooks.md)."""
    early_stop: EarlyStop | None = None
    metadata: dict[str, Any] = {}
    """Values of your own, at most 64 KiB of JSON; every trajectory carries them. `user`: whose share of slots the task uses."""
    run: RunName | None = None
    """Name of the experiment that the task belongs to; its trajectories have it. None: of no run."""

    @field_validator("instruction")
    @classmethod
    def _bounded(cls, value: str) -> str:
        size = len(value.encode())
        if size > INSTRUCTION_LIMIT:
            raise ValueError(
                f"{size} bytes; at most {INSTRUCTION_LIMIT}: put long material into the workspace (runtime.prepare)"
            )
        return value

    @field_validator("evaluator", "runtime", mode="before")
    @classmethod
    def _silent(cls, value: Any) -> Any:
        """NVIDIA's bodies have `null` for an omitted part."""
        return {} if value is None else value

    @field_validator("metadata")
    @classmethod
    def _known_user(cls, value: dict[str, Any]) -> dict[str, Any]:
        user = value.get("user", "")
        if not isinstance(user, str) or len(user) > USER_LIMIT:
            raise ValueError(f"user must be text of at most {USER_LIMIT} characters")
        return value

    @field_validator("early_stop")
    @classmethod
    def _reachable(cls, value: EarlyStop | None, info: ValidationInfo) -> EarlyStop | None:
        samples = info.data.get("num_samples")
        if value is not None and samples is not None and value.usable > samples:
            raise ValueError(f"usable={value.usable} is more than num_samples={samples}, so it could never be reached")
        return value

    @model_validator(mode="after")
    def _budgets(self) -> Self:
        if self.timeout_seconds is not None and "run" in self.timeouts.model_fields_set:
            raise ValueError("timeout_seconds and timeouts.run say the same; give one")
        total = (self.timeouts.init + self.run_budget_s + self.timeouts.evaluate) * self.max_attempts
        if total >= RETENTION_BUDGET_S:
            raise ValueError(
                f"timeouts × max_attempts = {total:.0f} s; the log is kept for a week, so they must stay under {RETENTION_BUDGET_S:.0f} s"
            )
        return self

    @model_validator(mode="after")
    def _servers_are_reachable(self) -> Self:
        runtime = self.runtime
        if runtime.import_path is None and runtime.backend != "process" and runtime.network is not Network.HOST:
            policy = runtime.network or Network.PROXY_ONLY
            check_reachable(self.agent.mcp_servers, policy.value, runtime.allowed_hosts)
        return self

    def check_uploads(self) -> None:
        """Raises InputError for the first upload without content."""
        for place, action in self.runtime.actions():
            if action.type != "exec":
                action.uploaded(f"runtime.{place}")
        for field, file in self.agent.files():
            file.uploaded(field)

    @property
    def user(self) -> str:
        """The user whose fair share of slots the task uses; empty if unknown."""
        return str(self.metadata.get("user", ""))

    @property
    def run_budget_s(self) -> float:
        return self.timeouts.run if self.timeout_seconds is None else self.timeout_seconds

    @property
    def output(self) -> str | None:
        """Suffix of the trajectories topic; None: the default one."""
        return self.output_topic or ("eval" if self.mode == "eval" else None)

    def effective_sampling(self) -> SamplingSpec:
        """Sampling settings that the session's key imposes on every call."""
        if self.mode == "eval":
            return self.sampling
        return TRAINING_DEFAULTS.model_copy(update=self.sampling.model_dump(exclude_none=True))

    def canonical(self) -> bytes:
        """The canonical body: defaults and budgets written out, keys sorted, so that equal tasks have equal bytes. `parse` accepts it.

        Without a value for any of YOUNGER it has the bytes of a Polar that didn't know them: older workers refuse unknown fields, and the
        same task of before an upgrade stays the same task.
        """
        body = self.model_dump(mode="json")
        body["timeouts"]["run"], body["timeout_seconds"] = self.run_budget_s, None
        for part, names in YOUNGER.items():
            fields = body
            for name in filter(None, part.split(".")):
                fields = fields.get(name) or {}
            for name, default in names.items():
                if fields.get(name, default) == default:
                    fields.pop(name, None)
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


YOUNGER: Mapping[str, Mapping[str, object]] = {
    "": {"run": None},
    "agent": {"instructions": None, "skills": [], "version": None},
    "runtime": {
        "collect": [],
        "healthcheck": None,
        "path": [],
        "user": None,
        "verifier": None,
        "verifier_sees": Seen.WORKSPACE.value,
    },
    "runtime.verifier": {"user": None},
}
"""Fields that came after the first tasks, by the part that has them, with their defaults as JSON. A new field is added here."""


def body_hash(canonical: bytes) -> str:
    """Hash that distinguishes a repeated task from another task with the same id."""
    return hashlib.sha256(canonical).hexdigest()


def parse(body: object) -> TaskRequest:
    """A TaskRequest from decoded JSON or YAML, with its names and the settings of its plug-ins checked.

    Raises InputError for the first error.
    """
    try:
        task = TaskRequest.model_validate(body)
    except ValidationError as error:
        first = field_errors.first_error(error)
        field = ".".join(map(str, first["loc"])) or "task"
        reason = field_errors.reason(first)
        if first["type"] == "extra_forbidden":
            reason += (
                f"; {field_errors.meant(str(first['loc'][-1]), field_errors.fields_at(TaskRequest, first['loc']))}"
            )
        raise InputError(field, first["input"], reason) from None
    _check_json(task)
    check_names(task)
    check_settings(task)
    return task


def _check_json(task: TaskRequest) -> None:
    """Reject values of free-form fields that JSON can't hold: half a surrogate pair, objects, infinity, endless nesting."""
    for field in TaskRequest.model_fields:
        try:
            value = task.model_dump(mode="json", include={field})
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except ValueError as error:
            raise InputError(field, getattr(task, field), f"can't be kept as JSON: {error}") from None
        if field in CARRIED and size > CARRIED_LIMIT:
            reason = (
                f"at most {CARRIED_LIMIT} bytes of JSON, since every trajectory carries it; refer to what is larger"
            )
            raise InputError(field, f"{size} bytes", reason)


def check_names(task: TaskRequest) -> None:
    """Reject names of plug-ins that aren't installed. `module:Class` is left to the workers, which fail with `input` if it is missing."""
    for kind, field, name in (
        (registry.Kind.RUNTIME, "runtime.backend", task.runtime.import_path or task.runtime.backend),
        (registry.Kind.HARNESS, "agent.harness", task.agent.name),
        (registry.Kind.EVALUATOR, "evaluator.strategy", task.evaluator.strategy),
        (registry.Kind.BUILDER, "builder.strategy", task.builder.strategy),
    ):
        if name is not None:
            registry.check_name(kind, field, name)


def check_settings(task: TaskRequest) -> None:
    """Reject settings that a harness, an evaluator or a builder refuses: its own constructor raises InputError.

    Settings of Polar's own builders are checked without importing a builder.
    """
    registry.try_out(registry.Kind.HARNESS, task.agent.name, task.agent.check_supported)
    registry.try_out(registry.Kind.HARNESS, task.agent.name, lambda plug_in: plug_in(task.agent))
    registry.try_out(registry.Kind.EVALUATOR, task.evaluator.strategy, lambda plug_in: plug_in(task.evaluator.config))
    if task.builder.strategy in building.OPTIONS:
        building.options(task.builder.strategy, task.builder.config)
    else:
        registry.try_out(registry.Kind.BUILDER, task.builder.strategy, lambda plug_in: plug_in(**task.builder.config))


def check_version(task: TaskRequest) -> None:
    """Reject an `agent.version` that the package index of the harness's CLI lacks.

    Asks the index, which may take seconds. If it doesn't answer, the version is left to the workers, which fail with `input` if it is
    missing.
    """
    if task.agent.version is not None:
        registry.try_out(registry.Kind.HARNESS, task.agent.name, lambda plug_in: plug_in(task.agent).check_version())
