"""`TaskRequest`, the task that users write as YAML, JSON or a record on `polar.tasks`.

Accepts the bodies of NVIDIA's Polar (arXiv 2605.24220), whose `timeout_seconds` is the run's budget, and fills in our defaults. A field
whose feature isn't built is rejected by name. `check_names` checks names of harnesses, evaluators and builders against the installed
plug-ins, and `check_settings` their settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from topics.environment import registry
from topics.environment.archive import BYTES_LIMIT
from topics.environment.blobs import REF
from topics.types import building, field_errors, ids
from topics.types.allowed_hosts import AllowedHost
from topics.types.errors import InputError

INSTRUCTION_LIMIT = 1024 * 1024
"""Bytes of UTF-8."""
CARRIED = ("metadata", "builder")
"""Fields that are copied into the table, `Build` and each of up to 1024 trajectories, hence the limit on their size."""
CARRIED_LIMIT = 64 * 1024
ARGUMENT_LIMIT = 128_000
"""Bytes of one argument or variable, with room for its name: Linux allows 131,072."""
RUN_LIMIT_S = 24 * 3600
SAMPLES_LIMIT = ids.SAMPLES_LIMIT
USER_LIMIT = 128
"""Characters of `metadata.user`."""
RETENTION_BUDGET_S = 7 * 24 * 3600 / 2
"""A task's budgets sum to less than half of `polar.completions`' retention (protocol 31)."""

TaskId = Annotated[str, StringConstraints(pattern=f"^{ids.TASK_ID}$")]
RunName = Annotated[str, StringConstraints(pattern=f"^{ids.RUN}$")]
IMAGE_NAME_LIMIT = 512
"""Characters: a registry's name (255), a tag (128) and a digest (71) fit."""
POOL_NAME = f"^{ids.NAME}$"
PoolName = Annotated[str, StringConstraints(pattern=POOL_NAME)]
TopicName = Annotated[str, StringConstraints(pattern=f"^{ids.NAME}$")]


def _is_host(entry: str) -> str:
    AllowedHost.parse(entry)
    return entry


HostEntry = Annotated[str, AfterValidator(_is_host)]


def _is_program_folder(path: str) -> str:
    if not PurePosixPath(path).is_absolute() or ":" in path or "\0" in path:
        raise ValueError("must be the absolute path of one folder, without ':' and zero bytes; give several as a list")
    return path


ProgramFolder = Annotated[str, AfterValidator(_is_program_folder)]


def _fits(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a zero byte, which no program argument can hold")
    size = len(value.encode(errors="replace"))
    if size > ARGUMENT_LIMIT:
        raise ValueError(f"{size} bytes; at most {ARGUMENT_LIMIT}: put what is longer into a file (runtime.prepare)")
    return value


Argument = Annotated[str, AfterValidator(_fits)]
Environment = dict[Annotated[str, StringConstraints(pattern=r"^[^=\x00]{1,255}$")], Argument]


class Part(BaseModel):
    """Base of all parts: frozen, and an unknown field is an error that names it.

    Defaults are validated, so a default that is written out and one that is omitted give equal bytes (600 and 600.0).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, ser_json_inf_nan="constants")


class ExecInput(Part):
    """A command for `bash -c` with pipefail."""

    command: Argument = Field(min_length=1)
    cwd: str | None = None
    env: Environment = {}


class Content(Part):
    """Uploaded files: an archive (`topics/environment/archive.py`) in the blob store."""

    ref: str = Field(pattern=REF.pattern)
    size: int = Field(ge=0, le=BYTES_LIMIT)
    """Bytes of the archive."""


class PrepareAction(Part):
    """One step in preparing a runtime: `upload_file` and `upload_dir` need source and target, `exec` a command."""

    type: Literal["upload_file", "upload_dir", "exec"]
    source: str | None = Field(default=None, pattern=r"^[^\x00]*$")
    """A path on the machine of whoever submits the task, relative to the task's file. Nobody else reads it."""
    content: Content | None = None
    """What `source` held when the task was submitted; `polar submit` and `polar.Client` store it and set this field."""
    target: str | None = None
    command: Argument | None = None
    cwd: str | None = None
    env: Environment = {}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = ("command",) if self.type == "exec" else ("source", "target")
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is needed where type is {self.type!r}")
        if self.type == "upload_file" and PurePosixPath(self.source or "").name in ("", ".."):
            raise ValueError(f"source {self.source!r} doesn't name a file")
        return self

    def uploaded(self, field: str) -> Content:
        """The content of an upload, which is at `field` of the task. Raises InputError if the task was submitted without it."""
        if self.content is None:
            raise InputError(
                f"{field}.source",
                self.source,
                "its content wasn't uploaded: no worker reads this path. Submit the task with `polar submit` or polar.Client, which "
                "upload it and set `content`",
            )
        return self.content


class Network(StrEnum):
    """What programs in a sandbox reach."""

    PROXY_ONLY = "proxy_only"
    """The model, through Polar's proxy, if they are the harness; otherwise nothing."""
    NONE = "none"
    ALLOWLIST = "allowlist"
    """As `proxy_only`, and by HTTP and HTTPS the hosts of `allowed_hosts`."""
    HOST = "host"
    """Whatever the worker's host reaches; only workers that trust their tasks allow it."""


class Seen(StrEnum):
    """What an evaluation sees of a run."""

    WORKSPACE = "workspace"
    """Its workspace. Everything else is as `prepare` left it."""
    EVERYTHING = "everything"
    """Also all other files of the image, with what the agent did to programs there."""


CELL_LACKS = ("allow_internet", "gpus", "kwargs")
LIMITS = ("cpus", "memory_mb", "pids", "storage_mb", "files")
"""Fields of `RuntimeSpec` that limit a session."""
LANDLOCK_LACKS = (*CELL_LACKS, "image", "verifier_sees", "allowed_hosts", *LIMITS)
UNKEPT = {
    "cell": CELL_LACKS,
    "docker": ("allow_internet", "kwargs", "verifier_sees"),
    "landlock": LANDLOCK_LACKS,
    "process": (*LANDLOCK_LACKS, "network", "setup_network", "verifier_network"),
}
"""Fields of `RuntimeSpec` that a backend doesn't keep: one that a task sets is refused, never ignored."""


class RuntimeSpec(Part):
    """The sandbox of a session."""

    backend: str | None = None
    """None: a `cell`. Where the worker's host can't run cells and the worker trusts its tasks: `landlock` if the kernel has it, otherwise
    `process`."""
    pool: PoolName = "default"
    prepare: list[PrepareAction] = []
    env: Environment = {}
    path: list[ProgramFolder] = []
    """Folders of programs that come before those of PATH, for all programs of the session."""
    workdir: str | None = None
    """Relative to the workspace. With an image it may be absolute, and then it is the workspace."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=IMAGE_NAME_LIMIT)] | None = None
    """Name of an image in a registry, or one that the workers' setting `images` maps (docs/images.md)."""
    network: Network | None = None
    """For the harness. None: `proxy_only`, but `host` in a `process`, which can't do less."""
    setup_network: Network = Network.NONE
    """For `prepare`."""
    verifier_network: Network = Network.NONE
    """For the evaluation."""
    verifier_sees: Seen = Seen.WORKSPACE
    """Of the run, in the evaluation. `everything` needs an image."""
    allowed_hosts: list[HostEntry] = []
    """For the policy `allowlist`: names like `pypi.org` or `*.pypi.org`, with `:port` unless it is 80 or 443.

    All forms: `topics/types/allowed_hosts.py`.
    """
    allow_internet: bool = True
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, ge=16)
    """Of the session's programs together; over it the kernel kills one or all of them."""
    storage_mb: int | None = Field(default=None, ge=1)
    """Of the session's files; over it the session ends."""
    pids: int | None = Field(default=None, ge=4)
    """Processes and threads."""
    files: int | None = Field(default=None, ge=16)
    """Open files of one process."""
    gpus: int = 0
    eval_prepare: list[PrepareAction] | None = None
    import_path: str | None = None
    kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _hosts_for_a_list(self) -> Self:
        has_list = Network.ALLOWLIST in (self.network, self.setup_network, self.verifier_network)
        if has_list and not self.allowed_hosts:
            raise ValueError("allowed_hosts is empty; the policy 'allowlist' needs at least one host")
        if self.allowed_hosts and not has_list:
            raise ValueError(
                "allowed_hosts goes with the policy 'allowlist' of network, setup_network or verifier_network"
            )
        return self

    @model_validator(mode="after")
    def _one_path(self) -> Self:
        if self.path and "PATH" in self.env:
            raise ValueError(
                "path and env.PATH can't both be given; use path for folders before those that are there anyway, and env.PATH alone "
                "to replace them"
            )
        return self

    @model_validator(mode="after")
    def _goes_with_an_image(self) -> Self:
        if self.image is None and self.verifier_sees is Seen.EVERYTHING:
            raise ValueError(
                "verifier_sees 'everything' needs runtime.image; without one there is only the workspace to see"
            )
        return self

    @model_validator(mode="after")
    def _is_kept(self) -> Self:
        self.check_kept(self.backend or "cell")
        return self

    def with_path(self, environment: Mapping[str, str]) -> dict[str, str]:
        """A program's variables, with `path` before its PATH."""
        return {**environment, "PATH": ":".join([*self.path, environment["PATH"]])}

    def check_kept(self, backend: str) -> None:
        """Raises ValueError for a field that `backend` doesn't keep."""
        if backend == "docker" and not self.image and self.import_path is None:
            raise ValueError("image is needed where backend is 'docker'; name one, like image: python:3.12")
        for name in UNKEPT.get(backend, ()) if self.import_path is None else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and (name, value) != ("network", Network.HOST):
                raise ValueError(
                    f"{name}={getattr(value, 'value', value)!r} can't be kept by runtime.backend {backend!r}; leave {name} out"
                )


UPLOADING = ("prepare", "eval_prepare")
"""Fields of `RuntimeSpec` with actions."""
MODEL_VARIABLES = frozenset(
    f"{provider}_{what}" for provider in ("OPENAI", "ANTHROPIC") for what in ("BASE_URL", "API_KEY")
) | {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"}
"""Variables that tell a harness the proxy's URL and its session's key."""


class AgentSpec(Part):
    """The harness and its settings."""

    harness: str | None = None
    import_path: str | None = None
    model_name: str = "default"
    settings: dict[str, Any] = {}
    env: Environment = {}
    mcp_servers: list[dict[str, Any]] = []
    skills_path: str | None = None
    custom_shell: ExecInput | None = None

    @model_validator(mode="after")
    def _one_harness(self) -> Self:
        if (self.harness is None) == (self.import_path is None):
            raise ValueError("give exactly one of harness and import_path")
        if self.harness == "shell" and self.custom_shell is None:
            raise ValueError("harness 'shell' needs custom_shell: {command: …}")
        # A name that nobody knows is reported as such by `check_names`.
        is_known = self.harness is None or registry.is_known(registry.Kind.HARNESS, self.harness)
        if self.harness != "shell" and self.custom_shell is not None and is_known:
            raise ValueError(f"custom_shell goes with harness 'shell' alone, and harness is {self.name!r}")
        for name in ("mcp_servers", "skills_path"):
            if getattr(self, name):
                raise ValueError(f"{name} isn't built yet; leave it out")
        for name in (*self.env, *(self.custom_shell.env if self.custom_shell else ())):
            if name in MODEL_VARIABLES or name.startswith("POLAR_"):
                raise ValueError(
                    f"env.{name} is set for the harness by the run worker; with another the calls would be lost"
                )
        return self

    @property
    def name(self) -> str:
        """The harness by registry name or `module:Class`."""
        return self.harness or self.import_path or ""


class BuilderSpec(Part):
    strategy: str = "prefix_merging"
    config: dict[str, Any] = {}


class EvaluatorSpec(Part):
    strategy: str = "session_completed"
    config: dict[str, Any] = {}
    env: Environment = {}
    refresh_runtime: Literal[False] = False
    """A fresh runtime for the evaluation isn't built yet."""


class Timeouts(Part):
    """Budgets in seconds; each stage has its own."""

    init: float = Field(default=600, gt=0)
    run: float = Field(default=3600, gt=0, le=RUN_LIMIT_S)
    evaluate: float = Field(default=600, gt=0)


class SamplingSpec(Part):
    """Overrides the harness's settings. None leaves a setting to the harness, or in `mode: train` to the training defaults."""

    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0, lt=2**31)


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
    try:
        parts = urlsplit(value)
        is_base = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_base = False
    if not is_base or not value.isascii() or any(c.isspace() for c in value):
        raise ValueError("must be an http or https URL, like https://trainer.example/groups")
    if parts.username or parts.password:
        raise ValueError("must hold no user or password, since every trajectory's group carries it; calls are signed")
    return value


CallbackUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_callback)]


class TaskRequest(Part):
    """A task: an instruction, its runtime and agent, and the number of samples."""

    task_id: TaskId
    instruction: str
    num_samples: int = Field(default=1, ge=1, le=SAMPLES_LIMIT)
    timeout_seconds: float | None = Field(default=None, gt=0, le=RUN_LIMIT_S)
    """NVIDIA's name for `timeouts.run`."""
    timeouts: Timeouts = Timeouts()
    runtime: RuntimeSpec = RuntimeSpec()
    agent: AgentSpec
    builder: BuilderSpec = BuilderSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    mode: Literal["train", "eval"] = "train"
    sampling: SamplingSpec = SamplingSpec()
    limits: LimitsSpec = LimitsSpec()
    max_attempts: int = Field(default=3, ge=1, le=100)
    priority: int = Field(default=0, ge=0, le=100)
    output_topic: TopicName | None = None
    callback_url: CallbackUrl | None = None
    """URL that receives the finished group (docs/webhooks.md)."""
    early_stop: EarlyStop | None = None
    metadata: dict[str, Any] = {}
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

    def check_uploads(self) -> None:
        """Raises InputError for the first upload without content."""
        for name in UPLOADING:
            for index, action in enumerate(getattr(self.runtime, name) or ()):
                if action.type != "exec":
                    action.uploaded(f"runtime.{name}[{index}]")

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

        Without a run it has the bytes of a Polar that knew no runs: older workers refuse unknown fields, and the same task of before an
        upgrade stays the same task.
        """
        body = self.model_dump(mode="json")
        body["timeouts"]["run"], body["timeout_seconds"] = self.run_budget_s, None
        if self.run is None:
            del body["run"]
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


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
    registry.try_out(registry.Kind.HARNESS, task.agent.name, lambda plug_in: plug_in(task.agent))
    registry.try_out(registry.Kind.EVALUATOR, task.evaluator.strategy, lambda plug_in: plug_in(task.evaluator.config))
    if task.builder.strategy in building.OPTIONS:
        building.options(task.builder.strategy, task.builder.config)
    else:
        registry.try_out(registry.Kind.BUILDER, task.builder.strategy, lambda plug_in: plug_in(**task.builder.config))
