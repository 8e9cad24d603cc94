"""`TaskRequest`, the task that users write as YAML, JSON or a record on `polar.tasks`.

Accepts the bodies of NVIDIA's Polar (arXiv 2605.24220), whose `timeout_seconds` is the run's budget, and fills in our defaults. A field
whose feature isn't built is rejected by name. `check_names` checks names of harnesses, evaluators and builders against the installed
plug-ins, and `check_settings` their settings.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
from topics.types.mcp import McpServer, check_reachable, require_own_names
from topics.types.parts import STRICT, Argument, Environment, is_http_url

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


class Part(BaseModel):
    """Base of all parts (`parts.STRICT`)."""

    model_config = STRICT


class ExecInput(Part):
    """A command for `bash -c` with pipefail."""

    command: Argument = Field(min_length=1)
    """The command's text."""
    cwd: str | None = None
    """The folder it runs in, relative to the workspace. None: the working directory."""
    env: Environment = {}
    """Variables for this command alone."""


class Content(Part):
    """Uploaded files: an archive (`topics/environment/archive.py`) in the blob store."""

    ref: str = Field(pattern=REF.pattern)
    """The archive's reference in the blob store."""
    size: int = Field(ge=0, le=BYTES_LIMIT)
    """Bytes of the archive."""


class UploadedFiles(Part):
    """Files that travel with a task."""

    source: str | None = Field(default=None, pattern=r"^[^\x00]*$")
    """A path on the machine of whoever submits the task, relative to the task's file. Nobody else reads it."""
    content: Content | None = None
    """What `source` held when the task was submitted; `polar submit` and `polar.Client` store it and set this field."""

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


class PrepareAction(UploadedFiles):
    """One step in preparing a runtime: `upload_file` and `upload_dir` need source and target, `exec` a command."""

    type: Literal["upload_file", "upload_dir", "exec"]
    """`upload_dir` takes what is in a folder, `exec` runs a command."""
    target: str | None = None
    """Where an upload goes in the sandbox, relative to the working directory."""
    command: Argument | None = None
    """For `bash -c` with pipefail; another exit code than 0 fails the preparation."""
    cwd: str | None = None
    """The folder a command runs in. None: the working directory."""
    env: Environment = {}
    """Variables for this command alone."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = ("command",) if self.type == "exec" else ("source", "target")
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is needed where type is {self.type!r}")
        if self.type == "upload_file" and PurePosixPath(self.source or "").name in ("", ".."):
            raise ValueError(f"source {self.source!r} doesn't name a file")
        return self


class AgentFile(UploadedFiles):
    """A file, or a folder, that the agent's program reads."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name in ("", ".."):
            raise ValueError(f"source {self.source!r} doesn't name a file or folder")
        return self

    @property
    def name(self) -> str:
        return PurePosixPath(self.source or "").name


def _from_source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Skill = Annotated[AgentFile, BeforeValidator(_from_source)]
"""A folder with a SKILL.md; a text is its `source`."""


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


CELL_LACKS = ("allow_internet", "kwargs")
LIMITS = ("cpus", "memory_mb", "pids", "storage_mb", "files")
"""Fields of `RuntimeSpec` that limit a session."""
LANDLOCK_LACKS = (*CELL_LACKS, "gpus", "image", "verifier_sees", "allowed_hosts", *LIMITS)
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
    """The workers that run the sessions: those started with `--pool` and this name."""
    prepare: list[PrepareAction] = []
    """Steps before the agent starts, in order."""
    env: Environment = {}
    """Variables for all programs of the session."""
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
    """Accepted for other systems' tasks if true; `network` says what the agent reaches."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors' worth of time that the session's programs use together. None: no limit of the task's."""
    memory_mb: int | None = Field(default=None, ge=16)
    """Of the session's programs together; over it the kernel kills one or all of them."""
    storage_mb: int | None = Field(default=None, ge=1)
    """Of the session's files; over it the session ends."""
    pids: int | None = Field(default=None, ge=4)
    """Processes and threads."""
    files: int | None = Field(default=None, ge=16)
    """Open files of one process."""
    gpus: int = Field(default=0, ge=0)
    """NVIDIA GPUs for the harness, and for the evaluation's commands; `prepare` has none. In a cell they are the program's alone while it
    runs."""
    eval_prepare: list[PrepareAction] | None = None
    """Steps between the run and the evaluation, in order: what the agent mustn't see."""
    import_path: str | None = None
    """A runtime of your own, as `module:Class`; in place of `backend`."""
    kwargs: dict[str, Any] = {}
    """Settings of a runtime of your own."""

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


INSTRUCTIONS_LIMIT = 64 * 1024
"""Characters of `agent.instructions`, which CLIs put into every prompt."""
NEEDED_PLACES = {
    "skills": "skills_folder",
    "skills_path": "skills_folder",
    "instructions": "instructions_file",
}
"""The attribute of a harness class that each field needs."""


class AgentSpec(Part):
    """The harness and its settings."""

    harness: str | None = None
    """Name of a harness; either this or `import_path` is given."""
    import_path: str | None = None
    """A harness of your own, as `module:Class`."""
    model_name: str = "default"
    """The model's name in the harness's calls; the proxy's settings decide which engine serves it."""
    settings: dict[str, Any] = {}
    """The harness's own settings."""
    env: Environment = {}
    """Variables for the harness. Those that the run worker sets (`POLAR_…`, the model's URLs and keys) are refused."""
    mcp_servers: list[McpServer] = []
    """Servers of tools that the CLI connects to; docs/harness.md lists the harnesses that do."""
    skills: list[Skill] = []
    """Folders with a SKILL.md each, for the place where the CLI looks for its user's skills."""
    skills_path: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]*$")] | None = None
    """A folder in the sandbox whose folders are skills; relative to the workspace, or absolute."""
    instructions: Annotated[str, StringConstraints(max_length=INSTRUCTIONS_LIMIT)] | AgentFile | None = None
    """Text, or a file, for the place where the CLI reads its user's own instructions, outside of the workspace."""
    custom_shell: ExecInput | None = None
    """The command of the harness `shell`. It gets the instruction on its standard input."""

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
        require_own_names(self.mcp_servers)
        for name, count in Counter(skill.name for skill in self.skills).items():
            if count > 1:
                raise ValueError(f"skills has {count} folders with the name {name!r}; give each its own")
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

    def check_supported(self, harness: object) -> None:
        """Raises InputError for a part of this agent that a harness class lacks (`consumers/harnesses/base.py`)."""
        transports = getattr(harness, "mcp_transports", ())
        for index, server in enumerate(self.mcp_servers):
            if server.transport not in transports:
                found = f"connects to no server by {server.transport}" if transports else "connects to no MCP servers"
                way_out = (
                    f"it can by: {', '.join(transports)}"
                    if transports
                    else "leave them out, or name a harness that does"
                )
                raise InputError(
                    f"agent.mcp_servers.{index}", server.name, f"{self.name} {found}; {way_out} (docs/harness.md)"
                )
        for field, attribute in NEEDED_PLACES.items():
            if getattr(self, field) and getattr(harness, attribute, None) is None:
                what = field.removesuffix("_path")
                raise InputError(
                    f"agent.{field}",
                    getattr(self, field),
                    f"{self.name} has no place for {what}; leave it out, or name a harness that has one (docs/harness.md)",
                )

    def files(self) -> Iterator[tuple[str, AgentFile]]:
        """Its files, each with its field."""
        yield from ((f"agent.skills.{index}", skill) for index, skill in enumerate(self.skills))
        if isinstance(self.instructions, AgentFile):
            yield "agent.instructions", self.instructions


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
    """A fresh runtime for the evaluation isn't built yet."""


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
        for name in UPLOADING:
            for index, action in enumerate(getattr(self.runtime, name) or ()):
                if action.type != "exec":
                    action.uploaded(f"runtime.{name}[{index}]")
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
            fields = body[part] if part else body
            for name, default in names.items():
                if fields[name] == default:
                    del fields[name]
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


YOUNGER: Mapping[str, Mapping[str, object]] = {
    "": {"run": None},
    "agent": {"instructions": None, "skills": []},
    "runtime": {"path": [], "verifier_sees": Seen.WORKSPACE.value},
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
