"""Which limits an engine keeps, by what it says of itself."""

from __future__ import annotations

import pytest

from consumers.runtimes.container import place

ALL = {"MemoryLimit": True, "CpuCfsQuota": True, "PidsLimit": True}


@pytest.mark.parametrize(
    ("info", "kept"),
    [
        (ALL | {"Driver": "overlay2", "CgroupVersion": "1", "SecurityOptions": []}, {"cpus", "memory_mb", "pids"}),
        (ALL | {"Driver": "zfs", "CgroupVersion": "2"}, {"cpus", "memory_mb", "pids", "storage_mb"}),
        (ALL | {"PidsLimit": False, "CgroupVersion": "2"}, {"cpus", "memory_mb"}),
        # Podman 4.3.1 on cgroup v1: it claims all limits, and keeps none.
        (ALL | {"Rootless": True, "CgroupVersion": "1", "SecurityOptions": ["name=seccomp,profile=default"]}, set()),
        (ALL | {"CgroupVersion": "1", "SecurityOptions": ["name=rootless"]}, set()),
        (ALL | {"Rootless": True, "CgroupVersion": "2"}, {"cpus", "memory_mb", "pids"}),
    ],
)
def test_an_engine_without_privileges_limits_by_cgroup_v2_alone(info: dict[str, object], kept: set[str]) -> None:
    assert place.enforced(info) == kept
