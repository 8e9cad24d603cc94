"""`RuntimeSpec`, the part of a task that describes the sandbox of its sessions, and what each backend keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from topics.types import ids
from topics.types.allowed_hosts import AllowedHost
from topics.types.parts import Environment, Part
from topics.types.uploads import PrepareAction

IMAGE_NAME_LIMIT = 512
"""Characters: a registry's name (255), a tag (128) and a digest (71) fit."""
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
IMAGE_BACKENDS = ("apptainer", "docker")
"""Backends that need an image."""
UNKEPT = {
    "apptainer": (*CELL_LACKS, "gpus", "verifier_sees", "cpus", "memory_mb", "pids", "storage_mb"),
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
        if backend in IMAGE_BACKENDS and not self.image and self.import_path is None:
            raise ValueError(f"image is needed where backend is {backend!r}; name one, like image: python:3.12")
        for name in UNKEPT.get(backend, ()) if self.import_path is None else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and (name, value) != ("network", Network.HOST):
                raise ValueError(
                    f"{name}={getattr(value, 'value', value)!r} can't be kept by runtime.backend {backend!r}; leave {name} out"
                )


UPLOADING = ("prepare", "eval_prepare")
"""Fields of `RuntimeSpec` with actions."""
