"""Checks of a running system: Kafka and its topics, the processes on them, and what this host must have to take part."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from polar.doctor.finding import Finding, State
from polar.embedded import readiness
from polar.fleet import Fleet
from polar.host_agreement import clock_ahead_s, facts_signed_here
from polar.task_trajectories import CLOCKS_S
from topics import completions
from topics.contract import catalogue
from topics.environment import blob_store
from topics.environment.keys import read_keys_file
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import InputError, NotReadyError, install_command

KAFKA_S = 15.0
REACH_S = 5.0
BEATS_S = 6.0
HOUR_MS = 3_600_000
CLOCK_S = 5.0
"""Clocks that differ by less are right. From `CLOCKS_S` on, readers that begin at a time miss records."""
PARTS = ("fanout", "coordinator", "builder", "init", "run", "evaluate", "analytics", "webhooks")


async def system(settings: Settings) -> list[Finding]:
    """The system that the settings name: Kafka, its topics, the proxy, the parts that should run, and the stores beside Kafka."""
    if settings.kafka is None:
        return [Finding("system", State.LATER, f"nothing runs on {settings.data}", "start it: polar up")]
    found = [await _kafka(settings)]
    if found[0].state is State.GOOD:
        found.append(await _topics(settings))
    has_topics = found[-1].what == "topics" and found[-1].state is State.GOOD
    # Without topics these would only wait.
    looks = [_clock(settings), _fleet(settings), _parts(settings)] if has_topics else []
    looks += [_keys(settings, compare=has_topics)]
    looks += [asyncio.to_thread(_blobs, settings), asyncio.to_thread(_lake, settings)]
    if settings.control_url is not None:
        looks.append(_proxy(settings.control_url))
    return [*found, *await asyncio.gather(*looks)]


async def _kafka(settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(KAFKA_S):
            topics = await admin.listing(settings)
    except (NotReadyError, TimeoutError) as error:
        todo = "is it up? POLAR_KAFKA names it; `polar up` starts one"
        return Finding("broker", State.BAD, str(error) or "no answer", todo)
    return Finding("broker", State.GOOD, f"{settings.bootstrap} answers; {len(topics)} topics of {settings.namespace}")


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


async def _keys(settings: Settings, *, compare: bool) -> Finding:
    """`compare`: with the file that workers use."""
    found = _keys_file(settings.keys_path)
    return await _compared_keys(settings, found) if compare and found.state is State.GOOD else found


def _keys_file(path: Path) -> Finding:
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


def _lake(settings: Settings) -> Finding:
    """The lake, by a look for its newest manifest."""
    try:
        # Imported only here: it needs packages of an extra, whose absence another check reports.
        from analytics.lake import places

        lake = places.lake(settings)
        is_there = lake.store.exists()
    except (OSError, InputError, NotReadyError) as error:
        todo = "correct POLAR_LAKE and the AWS_* variables, or start the server; until then SQL fails, and new records wait on Kafka"
        return Finding("lake", State.BAD, str(error), todo)
    except ImportError as error:
        said, todo = f"can't be read on this host: {error}", f"to query it here: {install_command('analytics')}"
        return Finding("lake", State.LATER, said, todo)
    if is_there:
        return Finding("lake", State.GOOD, f"{lake.store.place} can be read")
    said = f"no lake in {lake.store.place} yet, or it is on another host"
    return Finding("lake", State.LATER, said, "`polar worker analytics` makes one, where POLAR_LAKE or POLAR_DATA says")


async def _proxy(control_url: str) -> Finding:
    url = f"{control_url.rstrip('/')}/readyz"
    try:
        await readiness.http(url, "the proxy", deadline_s=REACH_S)
    except NotReadyError as error:
        return Finding("proxy", State.BAD, str(error), "see its log; `polar proxy` starts one")
    return Finding("proxy", State.GOOD, f"{url} says that calls are served")
