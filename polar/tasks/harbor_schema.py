"""The fields of Harbor's `task.toml` (schema 1.4 and older), `registry.json` and `dataset.toml`.

Owns which documents are valid. Older spellings become the newer fields: `version`, `memory = "2G"`, `storage`, `allow_internet` and the
transport `http`. What a field becomes is decided in `harbor_rules.py`.

Harbor ignores fields that it doesn't know. Here an unknown field is an error: it is a mistake in spelling, or part of a newer schema.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

NEWEST = (1, 4)
"""Schema version of `task.toml`."""
VERSION = re.compile(r"1\.(\d{1,3})")
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([GMK])")
MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}

PACKAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")


def _is_package(name: str) -> str:
    if PACKAGE.fullmatch(name) is None or ".." in name:
        raise ValueError("must be organisation/name, of letters, digits, '-', '_' and single dots")
    return name


PackageName = Annotated[str, AfterValidator(_is_package)]
Digest = Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")]
Seconds = Annotated[float, Field(gt=0)]
User = str | int | None
"""Name or number of a user in the image. None: the image's."""


class Part(BaseModel):
    """Base of all parts: an unknown field is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NetworkMode(StrEnum):
    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


class Networked(Part):
    """A part with a network policy."""

    network_mode: NetworkMode | None = None
    """None: the environment's, whose own default is `public`."""
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_for_a_list(self) -> Self:
        if self.allowed_hosts and self.network_mode is not NetworkMode.ALLOWLIST:
            raise ValueError("allowed_hosts goes with network_mode 'allowlist'")
        return self


class Author(Part):
    name: str
    email: str | None = None


class Package(Part):
    """The part `[task]`."""

    name: PackageName
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class Agent(Networked):
    timeout_sec: Seconds | None = None
    user: User = None


class Healthcheck(Part):
    """A command that must succeed before the agent starts, as in Docker's HEALTHCHECK."""

    command: str
    interval_sec: float = Field(default=5, ge=0)
    timeout_sec: Seconds = 30
    start_period_sec: float = Field(default=0, ge=0)
    start_interval_sec: float = Field(default=5, ge=0)
    retries: int = Field(default=3, ge=0)
    """Failures after which the check has failed; 0 is as 1."""

    @property
    def longest_sec(self) -> float:
        """The longest time until it has failed: one try may begin at the end of the start period."""
        counted = max(1, self.retries) * (self.timeout_sec + self.interval_sec)
        return self.start_period_sec + self.timeout_sec + self.start_interval_sec + counted


class Tpu(Part):
    type: str = Field(min_length=1)
    topology: str = Field(pattern=r"^\s*[1-9]\d*(x[1-9]\d*)+\s*$")


class McpServer(Part):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @field_validator("transport", mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        return "streamable-http" if value == "http" else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"{needed} is needed where transport is {self.transport!r}")
        if self.headers and self.transport == "stdio":
            raise ValueError("headers goes with the transports over HTTP")
        return self


class Environment(Networked):
    """The container in which the agent works."""

    build_timeout_sec: Seconds = 600
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    """A value that is `${VAR}` or `${VAR:-default}` as a whole stands for a variable of whoever runs the task."""
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @field_validator("os", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _older_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        found = dict(data)
        for name in ("memory", "storage"):
            if name in found:
                size, newer = _megabytes(name, found.pop(name)), f"{name}_mb"
                if found.setdefault(newer, size) != size:
                    raise ValueError(f"{name} ({size} MB) and {newer} ({found[newer]}) differ; leave {name} out")
        if "allow_internet" in found:
            allowed = found.pop("allow_internet")
            if not isinstance(allowed, bool):
                raise ValueError(f"allow_internet must be true or false, got {allowed!r}")
            found.setdefault("network_mode", NetworkMode.PUBLIC if allowed else NetworkMode.NO_NETWORK)
        return found


def _megabytes(name: str, text: object) -> int:
    """`2G`, `512M` and `65536K` in MB, rounded down. Raises ValueError."""
    found = SIZE.fullmatch(text.strip().upper()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{name} must be a size like '2G', '512M' or '65536K', got {text!r}; or set {name}_mb")
    return int(float(found[1]) * MB[found[2]])


class Collect(Part):
    """A command that runs after the agent, before artifacts are collected."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60
    user: User = None


class Verifier(Networked):
    timeout_sec: Seconds = 600
    env: dict[str, str] = {}
    """As in `Environment`."""
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    """None: `separate` if there is an `environment`, otherwise `shared`."""
    environment: Environment | None = None
    """For a separate verifier. None: as the agent's."""
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment goes with environment_mode 'separate'")
        return self

    @property
    def is_separate(self) -> bool:
        return self.environment_mode == "separate" or self.environment is not None


class Solution(Part):
    env: dict[str, str] = {}


class Artifact(Part):
    """A file or folder of a container that is collected after the run."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class Step(Part):
    """One of several instructions that an agent gets in turn, with a verifier after each."""

    name: str = Field(min_length=1)
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []


class Config(Part):
    """A `task.toml`."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    """Free form."""
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[str | Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _older_version(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "version" not in data:
            return data
        found = dict(data)
        version = found.pop("version")
        if found.setdefault("schema_version", version) != version:
            raise ValueError(f"version ({version!r}) is the older name of schema_version; leave it out")
        return found

    @field_validator("metadata")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        if (place := _not_finite(value)) is not None:
            raise ValueError(f"{place} must be a finite number, since no JSON can hold another; write it as text")
        return value

    @field_validator("schema_version")
    @classmethod
    def _known_version(cls, value: str) -> str:
        found = VERSION.fullmatch(value)
        if found is None or (1, int(found[1])) > NEWEST:
            raise ValueError("this release reads 1.0 to 1.4; a newer schema may have fields that it would misread")
        return value


def _not_finite(value: object, place: str = "metadata") -> str | None:
    """The dotted place of the first number that isn't finite; None if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_not_finite(item, f"{place}.{key}") for key, item in items)), None)


class RegistryTask(Part):
    name: str = Field(min_length=1)
    path: str = Field(min_length=1)
    """Relative to the registry's folder, or in the repository `git_url`."""
    git_url: str | None = None
    git_commit_id: str | None = None


class RegistryDataset(Part):
    """One entry of a `registry.json`, which is a list."""

    name: str
    version: str
    description: str = ""
    tasks: list[RegistryTask]
    metrics: list[dict[str, Any]] = []
    """How Harbor aggregates the rewards of a job; of no consequence for a single task."""


class DatasetTask(Part):
    name: PackageName
    digest: Digest
    """Of the task's files."""


class DatasetFile(Part):
    """A file beside the tasks, like a script for Harbor's metrics."""

    path: str
    digest: str = ""


class Dataset(Part):
    """A `dataset.toml`."""

    schema_version: str = "1.0"
    dataset: Package
    metadata: dict[str, Any] = {}
    tasks: list[DatasetTask] = []
    files: list[DatasetFile] = []
