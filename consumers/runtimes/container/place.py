"""One container with its folder on this host, from its creation to the first answer of its keeper (`greeting.py`)."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from consumers.runtimes.base import Labels
from consumers.runtimes.cell.bubblewrap import SHARED_MEMORY
from consumers.runtimes.cell.limits import FILES, MEMORY_SHARE, PIDS
from consumers.runtimes.container.engine import Engine, folders_of
from consumers.runtimes.container.greeting import greeting
from consumers.runtimes.container.keeper import PLACE
from consumers.runtimes.container.toolbox import Toolbox
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

ROOT_LABEL = "polar.root"
RUNTIME_LABEL = "polar.runtime"
"""The claim that made the runtime: several containers and images may belong to it."""
LABELS = (ROOT_LABEL, RUNTIME_LABEL, "polar.namespace", "polar.session", "polar.attempt", "polar.claim")
"""The labels of all containers and images of a session."""

KEEPER_MB = 32
"""Memory of the keeper and the supervisors, on top of `memory_mb`."""
KEEPER_FILES = 1024
"""Open files that a process of theirs may have; a program's own limit may be lower."""
KEEPER_PIDS = 4
"""Processes of theirs, on top of `pids`."""
_OOM_SCORE = 500
"""When the host's memory ends, containers go before their worker, and programs before their keeper (1000)."""
_MB = 1024 * 1024
_LOG_BYTES = "256k"
_NO_PRELOAD = dict.fromkeys(("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"), "")
"""For the keeper: what an image sets for its own programs. Programs get the image's values."""


@dataclass(frozen=True)
class Plan:
    """A container to make. `runtime`: the claim that made the runtime."""

    name: str
    image: str
    root: Path
    runtime: str
    labels: Labels
    spec: RuntimeSpec
    has_host_network: bool
    folders: list[str]
    """Those that are made if the image lacks them."""
    tools: list[str]
    """Folders of this host, mounted read-only at the same paths."""


def labels_of(plan: Plan) -> dict[str, str]:
    labels = plan.labels
    own = (labels.namespace, labels.session_id, str(labels.attempt), labels.claim_id)
    return dict(zip(LABELS, (str(plan.root), plan.runtime, *own), strict=True))


def read_labels(found: Mapping[str, str]) -> Labels:
    """The labels of the runtime that a container or an image belongs to."""
    attempt = found.get("polar.attempt", "")
    return Labels(
        found.get("polar.namespace", ""),
        found.get("polar.session", ""),
        int(attempt) if attempt.isdecimal() else 0,
        found[RUNTIME_LABEL],
    )


async def make(engine: Engine, toolbox: Toolbox, folder: Path, plan: Plan) -> dict[str, Any]:
    """Make and start a container, with its keeper at work; the keeper's first answer. `folder`: new, for this container.

    Raises SandboxError `not_made`, and as `Engine.call`.
    """
    tools = await asyncio.to_thread(toolbox.folder)
    with greeting(folder) as waiting:
        container = await engine.call(
            lambda client: _start(client, plan, tools, toolbox.command(), waiting.line, engine.info)
        )
        answer = await waiting.answer(
            plan.name,
            plan.folders,
            [f"{PLACE}/tools", *plan.tools],
            is_over=lambda: engine.call(lambda _: _is_over(container)),
            output=lambda: engine.call(lambda _: container.logs(tail=20).decode(errors="replace")),
        )
    if missing := answer["missing"]:
        # As the engine, because the image's user may not make them.
        data = folders_of(answer["uid"], answer["gid"], missing)
        await engine.call(lambda _: container.put_archive("/", data))
    return answer


def _start(
    client: docker.DockerClient, plan: Plan, tools: Path, command: list[str], line: Path, info: Mapping[str, Any]
) -> Container:
    spec = plan.spec
    memory = spec.memory_mb * _MB if spec.memory_mb else int(info["MemTotal"] * MEMORY_SHARE)
    memory += KEEPER_MB * _MB
    # An engine's own default may be more than the kernel allows; one without privileges gives no more than its user, who is ours, has.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = max(spec.files or FILES, KEEPER_FILES)
    files = files if hard == resource.RLIM_INFINITY else min(files, hard)
    options: dict[str, Any] = {
        "name": plan.name,
        "image": plan.image,
        "entrypoint": command[:1],
        "command": command[1:],
        "environment": _NO_PRELOAD,
        "labels": labels_of(plan),
        "working_dir": "/",
        "network_mode": "host" if plan.has_host_network else "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": (spec.pids or PIDS) + KEEPER_PIDS,
        "ulimits": [Ulimit(name="nofile", soft=files, hard=files)],
        "shm_size": SHARED_MEMORY,
        "oom_score_adj": _OOM_SCORE,
        # Podman asks a container to end before it removes it, and waits 10 s: the keeper hears no other signal.
        "stop_signal": "SIGKILL",
        # An image's own check would be a program that nobody supervises.
        "healthcheck": {"test": ["NONE"]},
        "log_config": LogConfig(type="json-file", config={"max-size": _LOG_BYTES}),
        "mounts": [
            _mounted(str(tools), f"{PLACE}/tools"),
            _mounted(str(line), f"{PLACE}/line"),
            *(_mounted(tool, tool) for tool in plan.tools),
        ],
    }
    if not plan.has_host_network:
        options["hostname"] = "sandbox"
    if spec.cpus is not None:
        options["nano_cpus"] = int(min(spec.cpus, info["NCPU"]) * 1e9)
    if spec.gpus:
        options["device_requests"] = [DeviceRequest(count=spec.gpus, capabilities=[["gpu"]])]
    if spec.storage_mb is not None and "storage_mb" in enforced(info):
        options["storage_opt"] = {"size": f"{spec.storage_mb}M"}
    container = client.containers.create(**options)
    try:
        container.start()
    except APIError as error:
        if spec.gpus and "device driver" in str(error):
            raise InputError("runtime.gpus", spec.gpus, "the worker's container engine has no GPUs") from error
        raise
    return container


def enforced(info: Mapping[str, Any]) -> set[str]:
    """The limits of a task that the engine enforces, by its description of itself.

    Rootless Podman limits by cgroup v2 alone: on v1 it takes a limit, warns in its own log, and says here that it has them. Before
    version 5 it says that it is rootless in the field `Rootless`, and not in `SecurityOptions` (seen in 4.3.1).
    """
    is_rootless = bool(info.get("Rootless")) or "rootless" in str(info.get("SecurityOptions"))
    holds = {
        "cpus": bool(info.get("CpuCfsQuota", True)),
        "memory_mb": bool(info.get("MemoryLimit", True)),
        "pids": bool(info.get("PidsLimit", True)),
    }
    if is_rootless and str(info.get("CgroupVersion")) != "2":
        holds = {}
    holds["storage_mb"] = info.get("Driver") in ("btrfs", "zfs")
    return {name for name, is_kept in holds.items() if is_kept}


def _mounted(source: str, target: str) -> Mount:
    mount = Mount(target, source, type="bind", read_only=True)
    # What is mounted below, another container's root say, isn't shown.
    mount["BindOptions"] = {"NonRecursive": True}
    return mount


def _is_over(container: Container) -> bool:
    container.reload()
    return bool(container.status not in ("created", "running", "restarting"))
