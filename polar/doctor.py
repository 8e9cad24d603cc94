"""Checks of this machine and of a running system: each is a function with a deadline, and changes nothing.

A finding is about one thing. `later` is what the first use fetches by itself.
"""

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
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from consumers.harnesses.cli import Cli
from polar.cli.exits import EXTRA_OF
from polar.embedded import disk, distribution, lock, readiness
from polar.embedded.errors import BrokerError
from polar.fleet import Fleet
from polar.host_agreement import clock_ahead_s, facts_signed_here
from polar.task_trajectories import CLOCKS_S
from proxy.engines import capabilities, probe
from proxy.engines.api_key import ApiKey
from proxy.engines.connection import UnreachableError
from topics import completions
from topics.contract import catalogue
from topics.environment import blob_store, cache, http_json, private_files, registry
from topics.environment.keys import read_keys_file
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import InputError, NotReadyError, install_command

RUN_S = 15.0
REACH_S = 5.0
BEATS_S = 6.0
KERNEL = (5, 3)
"""pidfd_open, by which the harnesses' supervisors wait."""
MEMORY_MB = 1500
"""`polar up` takes some 600 MB, a harness of the size of pi 150."""
HOUR_MS = 3_600_000
CLOCK_S = 5.0
"""Clocks that differ by less are right. From `CLOCKS_S` on, readers that begin at a time miss records."""
PARTS = ("fanout", "coordinator", "builder", "init", "run", "evaluate", "analytics", "webhooks")


class State(StrEnum):
    """How one thing stands."""

    GOOD = "good"
    LATER = "later"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """The result of one check: its subject, its state, the observation, and the remedy if the state isn't good."""

    what: str
    state: State
    said: str
    todo: str | None = None


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


async def system(settings: Settings) -> list[Finding]:
    """The system that the settings name: Kafka, its topics, the proxy, the parts that should run."""
    if settings.kafka is None:
        return [Finding("system", State.LATER, f"nothing runs on {settings.data}", "start it: polar up")]
    found = [await _kafka(settings)]
    for look in (_topics, _clock, _fleet, _parts):
        if found[-1].state is not State.BAD:  # without the one the other would only wait
            found.append(await look(settings))
    has_topics = any(one.what == "topics" and one.state is State.GOOD for one in found)
    found.append(_keys(settings.keys_path))
    if has_topics and found[-1].state is State.GOOD:
        found[-1] = await _compared_keys(settings, found[-1])
    found.append(await asyncio.to_thread(_blobs, settings))
    if settings.control_url is not None:
        found.append(await _proxy(settings.control_url))
    return found


async def inference(url: str, model: str | None, key_file: Path | None = None) -> list[Finding]:
    """Whether an engine can serve training, and in which mode. `key_file`: see `--engine-key-file`."""
    try:
        key = None if key_file is None else ApiKey(key_file, field="--engine-key-file")
        upstream = await asyncio.to_thread(probe.find_model, url, model, api_key=key)
        await probe.try_call(upstream)
        found = await capabilities.detect(upstream.url, upstream.model, key)
    except (InputError, NotReadyError, UnreachableError) as error:
        return [Finding("engine", State.BAD, str(error), "see `--engine` and `--model`")]
    told = f"{upstream.url} serves {upstream.model} with token ids and logprobs"
    if found is None:
        return [Finding("engine", State.GOOD, f"{told}: the scripted engine")]
    missing = [
        Finding(f"engine: {missing.name}", State.LATER, missing.effect, missing.remedy)
        for missing in capabilities.missing_features(found, "tokens")
    ]
    return [Finding("engine", State.GOOD, f"{told}: {found.summary}"), *missing]


def harnesses() -> Iterator[Finding]:
    """Each harness that has a CLI to be installed, and what that runs on."""
    for name in registry.names(registry.Kind.HARNESS):
        try:
            cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, name), "cli", None)
            if cli is None:
                continue
            runs_on = cli.runs_on()
        except (InputError, NotReadyError) as error:
            yield Finding(name, State.BAD, str(error))
            continue
        if cli.manifest.exists() and cli.folder.exists():
            if fault := cli.fault(cli.folder):
                todo = f"find out what writes there; install it again: python -m consumers.harnesses.install {name}"
                yield Finding(name, State.BAD, f"{fault}; it isn't used", todo)
            else:
                yield Finding(name, State.GOOD, f"{cli.version} in {cli.folder}, all files verified, {runs_on}")
        else:
            what, registry_url = f"its first use downloads {cli.version} ({cli.megabytes} MB)", cli.registry_url()
            yield _fetchable(name, what, registry_url) if "://" in registry_url else Finding(name, State.LATER, what)


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


async def _kafka(settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(RUN_S):
            topics = await admin.listing(settings)
    except (NotReadyError, TimeoutError) as error:
        todo = "is it up? POLAR_KAFKA names it; `polar up` starts one"
        return Finding("broker", State.BAD, str(error) or "no answer", todo)
    return Finding("broker", State.GOOD, f"{settings.bootstrap} answers; {len(topics)} topics of {settings.namespace}")


def _keys(path: Path) -> Finding:
    """The fleet's keys file, which some roles can't start without. Other hosts need none."""
    try:
        count = len(read_keys_file(path))
    except FileNotFoundError:
        said = f"no {path}: coordinators, run workers and proxies don't start on this host"
        return Finding(
            "keys", State.LATER, said, "if they should run here, copy the fleet's keys file, or set POLAR_KEYS_FILE"
        )
    except (OSError, ValueError) as error:
        return Finding("keys", State.BAD, str(error), "copy the fleet's keys file again")
    return Finding(
        "keys", State.GOOD, f"{count} signing secrets in {path}" if count > 1 else f"a signing secret in {path}"
    )


async def _compared_keys(settings: Settings, found: Finding) -> Finding:
    """The keys file, compared with the one that signed the newest facts of workers. `found`: the finding about the file alone."""
    counts = await facts_signed_here(settings, settings.keys_path)
    if counts is None:
        return replace(found, said=f"{found.said}; no session ran lately, so it can't be compared with the workers'")
    verified, signed = counts
    if verified:
        return replace(found, said=f"{found.said}, which workers use as well")
    said = f"{settings.keys_path} isn't the file that workers use: none of the {signed} signed facts of the last 10 min is of its secrets"
    todo = "copy the fleet's keys file there, or set POLAR_KEYS_FILE; with different files sessions end FAILED (infra/model_failed)"
    return Finding("keys", State.BAD, said, todo)


def _blobs(settings: Settings) -> Finding:
    """The blob store, by a look for a blob that isn't there. A folder that doesn't exist yet is made by the first writer."""
    try:
        store = blob_store.of(settings)
        store.check()
    except (OSError, NotReadyError) as error:
        todo = "correct POLAR_BLOBS and the AWS_* variables, or start the server; until then tasks and artifacts wait"
        return Finding("blobs", State.BAD, str(error), todo)
    return Finding("blobs", State.GOOD, f"{store.place} answers")


async def _topics(settings: Settings) -> Finding:
    there = {topic.name: topic for topic in await admin.listing(settings)}
    missing = [topic.name for topic in catalogue.FIXED if topic.full_name(settings.namespace) not in there]
    if missing:
        return Finding("topics", State.BAD, "missing: " + ", ".join(missing), "make them: polar topics apply")
    calls = there[completions.TOPIC.full_name(settings.namespace)]
    kept_ms, needed_ms = int(calls.config.get("retention.ms", -1)), completions.TOPIC.retention_ms
    assert needed_ms is not None, "calls are deleted after a time"
    if 0 <= kept_ms < needed_ms:
        said = (
            f"{calls.name} keeps calls for {kept_ms / HOUR_MS:.1f} h instead of {needed_ms / HOUR_MS:.0f} h; "
            "a session that lasts longer ends FAILED (infra/log_gap)"
        )
        return Finding("topics", State.BAD, said, "set it back: polar topics apply")
    return Finding("topics", State.GOOD, "all of the contract are there")


async def _clock(settings: Settings) -> Finding:
    """This host's clock, compared with that of the broker, which stamps heartbeats."""
    try:
        ahead_s = await clock_ahead_s(settings)
    except NotReadyError as error:
        return Finding("clock", State.LATER, f"can't be compared with Kafka's: {error}")
    if ahead_s is None:
        return Finding("clock", State.LATER, "no process sends heartbeats, so it can't be compared with Kafka's")
    if abs(ahead_s) < CLOCK_S:
        return Finding("clock", State.GOOD, f"agrees with Kafka's to within {CLOCK_S:.0f} s")
    said = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} Kafka's"
    todo = "set the clock of this host or of the broker's, and keep both right with NTP (chrony, systemd-timesyncd)"
    return Finding("clock", State.BAD if abs(ahead_s) > CLOCKS_S else State.LATER, said, todo)


async def _fleet(settings: Settings) -> Finding:
    """Whether it runs: a trainer that was killed in mid-pause leaves it paused."""
    async with Fleet(settings) as fleet:
        status = await fleet.status()
    if status.state.paused:
        return Finding("fleet", State.LATER, str(status), "does its trainer live? If not: polar fleet resume")
    if status.state.draining:
        return Finding("fleet", State.LATER, "draining: no session begins", "let it work again: polar fleet resume")
    return Finding("fleet", State.GOOD, "runs")


async def _parts(settings: Settings) -> Finding:
    """Every consumer that a whole system has, by its heartbeat."""
    try:
        await readiness.heartbeats(settings, PARTS, deadline_s=BEATS_S)
    except NotReadyError as error:
        return Finding("consumers", State.BAD, str(error), "start what is missing: polar worker STAGE…, or polar up")
    return Finding("consumers", State.GOOD, ", ".join(PARTS) + " are at work")


async def _proxy(control_url: str) -> Finding:
    url = f"{control_url.rstrip('/')}/readyz"
    try:
        await readiness.http(url, "the proxy", deadline_s=REACH_S)
    except NotReadyError as error:
        return Finding("proxy", State.BAD, str(error), "see its log; `polar proxy` starts one")
    return Finding("proxy", State.GOOD, f"{url} says that calls are served")
