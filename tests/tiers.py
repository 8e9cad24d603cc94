"""The four tiers of the suite.

| tier | what its tests use |
| --- | --- |
| `pure` | this process alone: no broker and no other process |
| `contract` | the broker of its worker, or processes of its own |
| `system` | one of the two whole systems that the run starts: one for each of `SHARED_FOLDERS` |
| `hard` | minutes, kills of brokers, proxies and trainers, Apptainer, Docker, vLLM, or all pages of the docs |

A mark names the tier of a test; Apptainer, Docker, GPUs, vLLM, the large CLIs and clients are `hard`. Without a mark, the folder decides
(`FOLDERS`). Elsewhere a test that uses the broker is `contract`, and any other test is `pure`. A pure test fails if it starts a process
(`guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TIERS = ("system", "contract", "pure", "hard")
"""In the order in which a run begins them: systems wait most, so that other tests run beside them."""
MEANS_HARD = ("apptainer", "clients", "docker", "gpu", "harnesses", "soak", "vllm")
"""Marks of tests that a make target of their own runs, such as `make test-docker`."""
FOLDERS = {
    "tests/acceptance/up/": "system",
    "tests/acceptance/roles/": "system",
    "tests/acceptance/": "hard",
    "tests/security/": "hard",
}
"""The tier of a test without a mark, by the first folder that fits."""
SHARED_FOLDERS = ("tests/acceptance/up/", "tests/acceptance/roles/")
"""Each shares one whole system, so one worker runs all tests of such a folder, one after another."""
SPAWNS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork"})
"""Audit events of a process that is about to start."""

_pure_test: str | None = None


def tier_of(path: str, marks: Iterable[str], fixtures: Iterable[str]) -> str:
    """The tier of a test in the file `path`, with these marks and fixtures. Raises UsageError for more than one mark of a tier."""
    named = {"hard" if mark in MEANS_HARD else mark for mark in marks if mark in (*TIERS, *MEANS_HARD)}
    if "hard" in named:
        return "hard"
    if len(named) > 1:
        raise pytest.UsageError(f"a test has one tier, and this one has {sorted(named)}")
    if named:
        return named.pop()
    by_folder = next((tier for folder, tier in FOLDERS.items() if path.startswith(folder)), None)
    return by_folder or ("contract" if "kafka" in fixtures else "pure")


def assign(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and put the tests of the slow tiers first."""
    tiers: dict[pytest.Item, str] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        tiers[item] = tier = tier_of(item.nodeid, [mark.name for mark in item.iter_markers()], fixtures)
        item.add_marker(tier)
        item.user_properties.append(("tier", tier))
    items.sort(key=lambda item: TIERS.index(tiers[item]))


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """Gives a worker whole files, and whole folders where a folder shares a system, in the order of `assign`."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in SHARED_FOLDERS if nodeid.startswith(folder)), nodeid.partition("::")[0])


@contextmanager
def guarded(item: pytest.Item) -> Iterator[None]:
    """While the context lasts, `item` can't start a process if it is pure."""
    global _pure_test
    _pure_test = item.nodeid if ("tier", "pure") in item.user_properties else None
    try:
        yield
    finally:
        _pure_test = None


def guard(event: str, _arguments: tuple[Any, ...]) -> None:
    """An audit hook: a pure test that starts a process fails."""
    if event in SPAWNS and _pure_test is not None:
        raise AssertionError(f"{_pure_test} starts a process: mark it `contract`")
