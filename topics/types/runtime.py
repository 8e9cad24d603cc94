"""`RuntimeSpec`, the part of a task that describes the sandbox of its sessions, and what each backend keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from topics.types import ids
from topics.types.allowed_hosts import AllowedHost
from topics.types.parts import Argument, Environment, Part
from topics.types.uploads import PrepareAction

IMAGE_NAME_LIMIT = 512
"""Characters: a registry's name (255), a tag (128) and a digest (71) fit."""
USER_LIMIT = 64
"""Characters of a user's name."""
ARTIFACTS_LIMIT = 100
"""Files and folders that a verifier gets, and patterns that leave out a part of one."""
PATTERN_LIMIT = 200
"""Characters of such a pattern; all of a folder's are on one command line."""
HOME, TMP = "/home/agent", "/tmp"  # noqa: S108 - the sandbox's own
KERNELS = ("/proc", "/dev", "/run", "/sys")
"""Folders that are the kernel's, or new for each program."""
OWN_FOLDERS = (HOME, TMP, *KERNELS)
"""Folders that each sandbox, and each evaluation, has for itself."""
POOL_NAME = f"^{ids.NAME}$"
PoolName = Annotated[str, StringConstraints(pattern=POOL_NAME)]


def _is_host(entry: str) -> str:
    AllowedHost.parse(entry)
    return entry


HostEntry = Annotated[str, AfterValidator(_is_host)]


def _is_program_folder(path: str) -> str:
    if not PurePosixPath(path).is_absolute() or ":" in path or "\0" in path:
        raise ValueError("must be the absolute path of one folder, without ':' and zero bytes; give several as a list")
    return path


ProgramFolder = Annotated[str, AfterValidator(_is_program_folder)]


class Network(StrEnum):
    """A network policy: what programs in a sandbox can reach."""

    PROXY_ONLY = "proxy_only"
    """The model, through Polar's proxy, if they are the harness; otherwise nothing."""
    NONE = "none"
    ALLOWLIST = "allowlist"
    """As `proxy_only`, and by HTTP and HTTPS the hosts of `allowed_hosts`."""
    HOST = "host"
    """Whatever the worker's host reaches; only workers that trust their tasks allow it."""


class Seen(StrEnum):
    """How much of a run its evaluation sees."""

    WORKSPACE = "workspace"
    """Its workspace. Everything else is as `prepare` left it."""
    EVERYTHING = "everything"
    """Also all other files of the image, with what the agent did to programs there."""


CELL_LACKS = ("allow_internet", "kwargs")
LIMITS = ("cpus", "memory_mb", "pids", "storage_mb", "files")
"""Fields of `RuntimeSpec` that limit a session."""
LANDLOCK_LACKS = (*CELL_LACKS, "user", "gpus", "image", "verifier", "verifier_sees", "allowed_hosts", *LIMITS)
IMAGE_BACKENDS = ("apptainer", "docker")
"""Backends that need an image."""
UNKEPT = {
    "apptainer": (*CELL_LACKS, "user", "gpus", "verifier", "verifier_sees", "cpus", "memory_mb", "pids", "storage_mb"),
    "cell": CELL_LACKS,
    "docker": ("allow_internet", "kwargs", "user", "verifier", "verifier_sees"),
    "landlock": LANDLOCK_LACKS,
    "process": (*LANDLOCK_LACKS, "network", "setup_network", "verifier_network"),
}
"""Fields of `RuntimeSpec` that a backend doesn't keep: one that a task sets is refused, never ignored."""


class SandboxSpec(Part):
    """The content and the limits of a sandbox."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=IMAGE_NAME_LIMIT)] | None = None
    """Name of an image in a registry, or one that the workers' setting `images` maps (docs/images.md)."""
    prepare: list[PrepareAction] = []
    """Steps before the agent starts, in order; in `verifier`, before the artifacts come."""
    env: Environment = {}
    """Variables for all programs of the sandbox."""
    path: list[ProgramFolder] = []
    """Folders of programs that come before those of PATH, for all programs of the sandbox."""
    workdir: str | None = None
    """Relative to the workspace. With an image it may be absolute, and then it is the workspace."""
    user: Annotated[str, StringConstraints(min_length=1, max_length=USER_LIMIT, pattern="^[^:\\x00]*$")] | None = None
    """Name or number of the user that the sandbox's one user must be: in a cell the image's, without an image `agent`. Others are refused.
    None: any user."""
    cpus: float | None = Field(default=None, gt=0)
    """Processors' worth of time that the sandbox's programs use together. None: no limit of the task's."""
    memory_mb: int | None = Field(default=None, ge=16)
    """Megabytes of memory for all programs of the sandbox together; over it the kernel kills one or all of them."""
    storage_mb: int | None = Field(default=None, ge=1)
    """Megabytes of files in the sandbox; over it the session ends, or its evaluation with the reward 0."""
    pids: int | None = Field(default=None, ge=4)
    """Processes and threads."""
    files: int | None = Field(default=None, ge=16)
    """Open files of one process."""
    gpus: int = Field(default=0, ge=0)
    """NVIDIA GPUs for the harness, and for the evaluation's commands; `prepare` has none. In a cell they are the program's alone while it
    runs."""

    @model_validator(mode="after")
    def _one_path(self) -> Self:
        if self.path and "PATH" in self.env:
            raise ValueError(
                "path and env.PATH can't both be given; use path for folders before those that are there anyway, and env.PATH alone "
                "to replace them"
            )
        return self

    def with_path(self, environment: Mapping[str, str]) -> dict[str, str]:
        """A program's variables, with `path` before its PATH."""
        return {**environment, "PATH": ":".join([*self.path, environment["PATH"]])}


def _is_artifact(path: str) -> str:
    place = PurePosixPath(path)
    if not path or "\0" in path or ".." in place.parts or str(place) == "/":
        raise ValueError("must be the path of a file or folder, without '..' and zero bytes")
    if (own := next((own for own in OWN_FOLDERS if _overlap(place, PurePosixPath(own))), None)) is not None:
        raise ValueError(f"{path} is refused: an evaluation gets a {own} of its own; have the run write elsewhere")
    return path


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


ArtifactPath = Annotated[str, AfterValidator(_is_artifact)]


def _is_pattern(pattern: str) -> str:
    if not 0 < len(pattern) <= PATTERN_LIMIT or any(sign in pattern for sign in "[\\\0\n"):
        raise ValueError(
            f"must be a pattern of * and ?, of at most {PATTERN_LIMIT} characters and without '[' and '\\', about which programs differ"
        )
    return pattern


ExcludePattern = Annotated[str, AfterValidator(_is_pattern)]


class ArtifactSpec(Part):
    """A file or folder to copy. A plain string is its `path`."""

    path: ArtifactPath
    """Relative to the workspace, or absolute."""
    exclude: Annotated[list[ExcludePattern], Field(max_length=ARTIFACTS_LIMIT)] = []
    """Names of what is left out of a folder, at any depth, with * and ?, as in tar's `--exclude`. * also stands for slashes."""

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler) -> Any:
        """As before there was `exclude`, where there is none."""
        return whole(self) if self.exclude else self.path


def _from_path(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


Artifact = Annotated[ArtifactSpec, BeforeValidator(_from_path)]


class HealthcheckSpec(Part):
    """A command that must succeed before the agent starts; it is tried again until then, as in Docker's HEALTHCHECK."""

    command: Argument
    """For `bash -c` with pipefail, in the working directory. Exit code 0 means ready."""
    timeout_s: float = Field(default=30, gt=0)
    """Seconds of one try; one that takes longer has failed."""
    retries: int = Field(default=3, ge=1)
    """The check has failed after this many failed tries."""
    interval_s: float = Field(default=5, ge=0)
    """Seconds between two tries."""
    start_period_s: float = Field(default=0, ge=0)
    """Failures of tries that begin within this many seconds don't count."""
    start_interval_s: float = Field(default=5, ge=0)
    """Seconds between two tries within the start period."""


class CollectSpec(Part):
    """A command that brings what a verifier gets into files."""

    command: Argument
    """For `bash -c` with pipefail."""
    timeout_s: float = Field(default=60, gt=0)
    """Seconds, within `timeouts.evaluate`."""


class VerifierSpec(SandboxSpec):
    """A sandbox of the evaluation's own, of the same backend.

    It takes nothing from the run's sandbox but `artifacts`: no image, no preparation, no variables, no limits. `eval_prepare` and the
    evaluator work in it.
    """

    artifacts: Annotated[list[Artifact], Field(max_length=ARTIFACTS_LIMIT)] = []
    """Files and folders that are copied from where the run left them to the same paths, before `eval_prepare`. Relative to the workspace;
    with images on both sides they may be absolute. One that the run didn't leave is left out."""

    @model_validator(mode="after")
    def _absolute_with_an_image(self) -> Self:
        if self.image is None and (outside := self.absolute_artifact):
            raise ValueError(
                f"artifacts: {outside!r} is absolute, which needs verifier.image; make it relative to the workspace"
            )
        return self

    @property
    def absolute_artifact(self) -> str | None:
        """The first absolute path of an artifact."""
        return next((one.path for one in self.artifacts if one.path.startswith("/")), None)


class RuntimeSpec(SandboxSpec):
    """The sandbox of a session."""

    backend: str | None = None
    """None: a `cell`. Where the worker's host can't run cells and the worker trusts its tasks: `landlock` if the kernel has it, otherwise
    `process`."""
    pool: PoolName = "default"
    """The workers that run the sessions: those started with `--pool` and this name."""
    network: Network | None = None
    """For the harness. None: `proxy_only`, but `host` in a `process`, which can't do less."""
    setup_network: Network = Network.NONE
    """For `prepare` and `healthcheck`."""
    verifier_network: Network = Network.NONE
    """For the evaluation."""
    verifier_sees: Seen = Seen.WORKSPACE
    """Of the run, in the evaluation. `everything` needs an image."""
    healthcheck: HealthcheckSpec | None = None
    """Carried out after `prepare`, within `timeouts.init`. No program of an image is started, so it sees files and no services."""
    verifier: VerifierSpec | None = None
    """None: the evaluation takes place in the run's sandbox, of which it sees `verifier_sees`."""
    allowed_hosts: list[HostEntry] = []
    """For the policy `allowlist`: names like `pypi.org` or `*.pypi.org`, with `:port` unless it is 80 or 443.

    All forms: `topics/types/allowed_hosts.py`.
    """
    allow_internet: bool = True
    """Accepted for other systems' tasks if true; `network` says what the agent reaches."""
    collect: Annotated[list[CollectSpec], Field(max_length=ARTIFACTS_LIMIT)] = []
    """Commands after the run and before the artifacts are copied, in order, in the sandbox as the run left it, with `network` and without
    the model. One that fails changes nothing but the reward's reason. Needs `verifier`, or `verifier_sees: everything`."""
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
    def _goes_with_an_image(self) -> Self:
        if self.image is None and self.verifier_sees is Seen.EVERYTHING:
            raise ValueError(
                "verifier_sees 'everything' needs runtime.image; without one there is only the workspace to see"
            )
        return self

    @model_validator(mode="after")
    def _goes_with_a_verifier(self) -> Self:
        if self.verifier is None:
            return self
        if self.verifier_sees is not Seen.WORKSPACE:
            raise ValueError("verifier_sees goes without verifier; name what it sees in verifier.artifacts")
        if self.image is None and (outside := self.verifier.absolute_artifact):
            raise ValueError(
                f"verifier.artifacts: {outside!r} is absolute, which needs runtime.image; make it relative to the workspace"
            )
        return self

    @field_validator("collect")
    @classmethod
    def _collects_apart(cls, value: list[CollectSpec], info: ValidationInfo) -> list[CollectSpec]:
        if value and info.data.get("verifier") is None and info.data.get("verifier_sees") is Seen.WORKSPACE:
            raise ValueError(
                "needs verifier, or verifier_sees 'everything': its commands may start programs of the run, which could replace "
                "those of an evaluation that is kept apart from them"
            )
        return value

    def actions(self) -> Iterator[tuple[str, PrepareAction]]:
        """All actions, each with its place below `runtime`."""
        lists = {name: getattr(self, name) or () for name in UPLOADING}
        if self.verifier is not None:
            lists["verifier.prepare"] = self.verifier.prepare
        for name, actions in lists.items():
            yield from ((f"{name}[{index}]", action) for index, action in enumerate(actions))

    @property
    def of_verifier(self) -> RuntimeSpec:
        """The verifier's own sandbox. All of its files may be the run's, since artifacts can lie anywhere."""
        assert self.verifier is not None, "the evaluation has a sandbox of its own"
        own = {name: getattr(self.verifier, name) for name in SandboxSpec.model_fields}
        return self.model_copy(update={**own, "verifier": None}).seen_whole

    @property
    def left_by_run(self) -> RuntimeSpec:
        """The run's sandbox for what works in it after the run: `collect`, and the copying of artifacts. Programs of the run may take part,
        so they reach no more than the run did."""
        return self.seen_whole.model_copy(update={"verifier_network": self.network or Network.PROXY_ONLY})

    @property
    def seen_whole(self) -> RuntimeSpec:
        """The same sandbox, of which an evaluation sees all that the run left."""
        return self if self.image is None else self.model_copy(update={"verifier_sees": Seen.EVERYTHING})

    @model_validator(mode="after")
    def _is_kept(self) -> Self:
        self.check_kept(self.backend or "cell")
        return self

    def check_kept(self, backend: str) -> None:
        """Raises ValueError for a field that `backend` doesn't keep."""
        if backend in IMAGE_BACKENDS and not self.image and self.import_path is None:
            raise ValueError(f"image is needed where backend is {backend!r}; name one, like image: python:3.12")
        for name in UNKEPT.get(backend, ()) if self.import_path is None else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and (name, value) != ("network", Network.HOST):
                raise ValueError(
                    f"{name}={getattr(value, 'value', value)!r} can't be kept by runtime.backend {backend!r}; leave {name} out"
                )


UPLOADING = ("prepare", "eval_prepare")
"""Fields of `RuntimeSpec` with actions; `verifier` has more of them."""
