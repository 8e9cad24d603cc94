"""Checks of this machine: its kernel, its room, its programs, and the downloads of a first use."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from consumers.harnesses.cli import Cli
from polar.cli.exits import EXTRA_OF
from polar.doctor.finding import Finding, State
from polar.embedded import disk, distribution, lock
from polar.embedded.errors import BrokerError
from topics.environment import cache, http_json, private_files, registry
from topics.types.errors import InputError, NotReadyError, install_command

RUN_S = 15.0
"""Deadline of a program that says its version."""
REACH_S = 5.0
"""Deadline of a server's answer."""
KERNEL = (5, 3)
"""pidfd_open, by which the harnesses' supervisors wait."""
MEMORY_MB = 1500
"""`polar up` takes some 600 MB, a harness of the size of pi 150."""


def machine(data: Path) -> Iterator[Finding]:
    yield Finding("python", State.GOOD, f"{platform.python_version()} at {sys.executable}")
    yield _kernel()
    yield _cells()
    yield _images()
    yield from _unenforced()
    yield _memory()
    yield _disk(data)
    yield _folder(data)
    if git := shutil.which("git"):
        yield Finding("git", State.GOOD, git)
    else:
        yield Finding("git", State.BAD, "not found", "install git: tasks start from repositories")


SELDOM = ("mlflow", "swebench", "tensorboard", "wandb")
"""Extras that `all` leaves out; the command that needs one says so."""


def installed() -> Iterator[Finding]:
    """Installed extras, and the downloads of a first use."""
    wanted = (package for package, extra in EXTRA_OF.items() if extra not in SELDOM)
    missing = [package for package in wanted if importlib.util.find_spec(package) is None]
    if missing:
        what = f"{install_command(*(EXTRA_OF[package] for package in missing))}, unless what needs them runs elsewhere"
        yield Finding("packages", State.BAD, "missing: " + ", ".join(missing), what)
    else:
        yield Finding("packages", State.GOOD, "all extras are installed")
    yield _java()
    yield _jars()
    yield from harnesses()


def harnesses() -> Iterator[Finding]:
    """Each harness that has a CLI to be installed, and what that runs on. Looks at all of them at once: they read, or wait for servers."""
    names = registry.names(registry.Kind.HARNESS)
    with ThreadPoolExecutor(max_workers=len(names)) as looking:
        yield from (found for found in looking.map(_harness, names) if found is not None)


def _harness(name: str) -> Finding | None:
    try:
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, name), "cli", None)
        if cli is None:
            return None
        runs_on = cli.runs_on()
    except (InputError, NotReadyError) as error:
        return Finding(name, State.BAD, str(error))
    if cli.manifest.exists() and cli.folder.exists():
        if fault := cli.fault(cli.folder):
            todo = f"find out what writes there; install it again: python -m consumers.harnesses.install {name}"
            return Finding(name, State.BAD, f"{fault}; it isn't used", todo)
        return Finding(name, State.GOOD, f"{cli.version} in {cli.folder}, all files verified, {runs_on}")
    what, registry_url = f"its first use downloads {cli.version} ({cli.megabytes} MB)", cli.registry_url()
    return _fetchable(name, what, registry_url) if "://" in registry_url else Finding(name, State.LATER, what)


def _kernel() -> Finding:
    said = f"{platform.system()} {platform.release()}"
    digits = platform.release().split("-")[0].split(".")[:2]
    if platform.system() == "Linux" and all(map(str.isdigit, digits)) and tuple(map(int, digits)) >= KERNEL:
        return Finding("kernel", State.GOOD, said)
    return Finding("kernel", State.BAD, said, f"run workers need Linux {KERNEL[0]}.{KERNEL[1]} or newer")


def _cells() -> Finding:
    try:
        # Imported only here: they need packages of an extra, whose absence another check reports.
        from consumers.runtimes import guarded
        from consumers.runtimes.cell.backend import check

        asyncio.run(check())
    except ImportError as error:
        return Finding("cells", State.BAD, f"tasks can't be confined: {error}")
    except NotReadyError as error:
        todo = (
            "run workers where they work, or trust the tasks (--trust-tasks), which then run in the runtime "
            f"{guarded.instead_of_cells()!r}; docs/security.md says what each enforces"
        )
        return Finding("cells", State.BAD, f"tasks can't be confined: {error}", todo)
    return Finding("cells", State.GOOD, "tasks run confined")


def _images() -> Finding:
    if shutil.which("skopeo") is None:
        return Finding(
            "images",
            State.LATER,
            "no skopeo: tasks with runtime.image fail here",
            "install skopeo, for tasks with images",
        )
    return Finding("images", State.GOOD, "skopeo is there, which fetches them")


def _unenforced() -> Iterator[Finding]:
    """The gaps of each kind of runtime on this host."""
    try:
        # As in `_cells`.
        from consumers.runtimes.cell import limits
        from consumers.runtimes.guarded import GuardedBackend
        from consumers.runtimes.process import ProcessBackend
    except ImportError:
        return
    without = {"cell": [f"{name} ({reason})" for name, reason in sorted(limits.host().reasons.items())]}
    for kind in (GuardedBackend, ProcessBackend):
        without[kind.name] = kind.gaps()
    for name, words in without.items():
        said = f"doesn't enforce: {', '.join(words)}" if words else "enforces all of its limits"
        yield Finding(f"runtime {name}", State.GOOD, said)


def _memory() -> Finding:
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        meminfo = ""
    found = re.search(r"^MemAvailable: +(\d+) kB", meminfo, re.MULTILINE)
    if found is None:
        return Finding("memory", State.LATER, "not known here")
    said = f"{int(found[1]) // 1024} MB available"
    if int(found[1]) // 1024 >= MEMORY_MB:
        return Finding("memory", State.GOOD, said)
    return Finding("memory", State.BAD, said, f"`polar up` with some harnesses wants {MEMORY_MB} MB")


def _disk(data: Path) -> Finding:
    left = disk.free(data)
    said = f"{left // disk.MIB} MB free at {data.absolute()}"
    if left < disk.NEEDED:
        return Finding("disk", State.BAD, said, "make room, or choose another data folder (--data)")
    return Finding("disk", State.GOOD, said if left >= disk.COMFORTABLE else f"{said}; enough for small runs")


def _folder(data: Path) -> Finding:
    there = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("data folder", State.BAD, f"{there} can't be written", "choose another one (--data)")
    if not data.exists():
        return Finding("data folder", State.GOOD, f"{data} will be made by `polar up`")
    running = "nothing runs on it" if lock.is_free(data) else "a `polar up` runs on it"
    if warning := private_files.open_to_others(data):
        return Finding("data folder", State.LATER, f"{data}: {running}", warning)
    return Finding("data folder", State.GOOD, f"{data}: {running}")


def _java() -> Finding:
    try:
        java = distribution.java()
    except BrokerError as error:
        return Finding("java", State.BAD, str(error))
    return _runs("java", [str(java), "-version"])


def _jars() -> Finding:
    folder = cache.root() / f"kafka-{distribution.KAFKA_VERSION}"
    if folder.is_dir():
        return Finding("Kafka", State.GOOD, f"{distribution.KAFKA_VERSION} in {folder}")
    size = sum(jar.size for jar in distribution.locked_jars()) // 1_000_000
    said = f"the first `polar up` downloads {distribution.KAFKA_VERSION} ({size} MB)"
    return _fetchable("Kafka", said, distribution.MAVEN_CENTRAL)


def _fetchable(what: str, said: str, url: str) -> Finding:
    """Whether the downloads of a first use can be reached."""
    try:
        http_json.send(url, method="HEAD", timeout_s=REACH_S, through_proxy=True)
        return Finding(what, State.LATER, said)
    except http_json.NoAnswerError as error:
        why = f"{said}, and {url} can't be reached: {error}"
        todo = f"give this machine a way there (a proxy: HTTPS_PROXY), or copy {cache.root()} from another machine"
        return Finding(what, State.BAD, why, todo)


def _runs(what: str, command: list[str]) -> Finding:
    """A program, by what it says of its version."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(what, State.BAD, f"{command[0]} can't be run: {error}", "install Polar's packages anew")
    lines = (ended.stdout or ended.stderr).strip().splitlines()
    said = lines[0] if lines else "no word"
    if ended.returncode != 0:
        return Finding(what, State.BAD, f"{command[0]} ends with {ended.returncode}: {said}", "install it anew")
    return Finding(what, State.GOOD, f"{said} at {command[0]}")
