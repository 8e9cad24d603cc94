"""Creation and settings of topics, from their contracts; the partition count of a co-partitioned topic is never changed.

Applying twice changes nothing, and settings that an operator added are kept. `topics/contract/catalogue.py` lists the topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import connection_refusal, denied, refusal
from topics.types.errors import InputError, NotReadyError

DEADLINE_S = 30.0
"""Limit for one request that a broker began to answer."""
LOOK_S = 0.05
"""Between two looks whether brokers know a change."""
REACH_S = 8.0
"""Limit for a first answer; a broker of `polar up` that died is back by then."""
FENCED_S = 20.0
"""Limit for an answer while some broker is reached: the others name a dead broker as theirs for 9 s (broker.session.timeout.ms)."""
RETRY_S = 0.3
"""Between two tries to reach a broker."""
OK = 0
UNKNOWN_TOPIC = 3
TOPIC_EXISTS = 36
NOT_AUTHORIZED = {29: "the topic", 31: "to create or alter the topic"}
TOO_FEW_BROKERS = 38
"""Kafka's error codes."""
SET_ON_TOPIC = 1
"""`config_source` of a topic's own setting (DescribeConfigs)."""
REFUSED = "the broker refused it: "

T = TypeVar("T")


class _FencedError(kafka.KafkaError):  # type: ignore[misc] # aiokafka is untyped
    """The broker that answers doesn't count as one, since its heartbeats were late; it does again after the next one."""

    retriable = True


class Applied(msgspec.Struct, frozen=True):
    """The outcome for one topic."""

    topic: str
    """Full name."""
    outcome: Literal["created", "altered", "unchanged"]


class Listed(msgspec.Struct, frozen=True):
    """A topic on the broker."""

    name: str
    partitions: int
    config: dict[str, str]
    """The topic's own settings."""
    records: int
    """Offsets from beginning to end in all partitions; compaction and transactions leave gaps."""


async def apply(
    settings: Settings, topics: Iterable[Topic], *, embedded: bool, reach_s: float = REACH_S
) -> list[Applied]:
    """Create missing topics and alter settings that differ; the topics can be written to on return.

    `embedded`: replication 1 and the smaller partition counts. Raises InputError if a co-partitioned topic has another number of
    partitions, or the broker refuses a setting; NotReadyError if no broker answers within `reach_s`.
    """
    min_insync, replication = (1, 1) if embedded else (settings.min_insync, settings.replication)
    wanted = {topic.full_name(settings.namespace): topic for topic in topics}
    configs = {name: topic.broker_config(min_insync) for name, topic in wanted.items()}
    altered: list[str] = []
    created: list[str] = []

    async def bring_in_line(admin: kafka.Admin) -> None:
        existing = await _leaders(settings, admin, list(wanted))
        for name, leaders in existing.items():
            _check_partitions(wanted[name], name, len(leaders), embedded)
        missing = {name: topic for name, topic in wanted.items() if name not in existing}
        created.extend(missing)
        parts = {name: topic.partition_count(embedded) for name, topic in missing.items()}
        await _create(settings, admin, {name: (count, replication, configs[name]) for name, count in parts.items()})
        altered.extend(await _alter(settings, admin, {name: configs[name] for name in existing}))

    await _retried(settings, bring_in_line, reach_s)
    outcomes: dict[str, Literal["created", "altered"]] = dict.fromkeys(altered, "altered")
    outcomes |= dict.fromkeys(created, "created")
    return [Applied(name, outcomes.get(name, "unchanged")) for name in wanted]


async def listing(settings: Settings) -> list[Listed]:
    """The namespace's topics, by name. Raises NotReadyError if no broker answers."""

    async def described(admin: kafka.Admin) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
        prefix = f"{settings.namespace}."
        found = [topic for topic in await admin.describe_topics() if topic["topic"].startswith(prefix)]
        counts = {topic["topic"]: len(topic["partitions"]) for topic in found}
        return counts, await _configs(admin, list(counts))

    counts, configs = await _retried(settings, described, REACH_S)
    reader = kafka.consumer(settings, committed=False)
    try:
        await reader.start()
        spans = await _spans(reader, counts)
    except kafka.KafkaError as error:
        raise unreachable(settings, error) from None
    finally:
        await kafka.stop(reader, DEADLINE_S)
    return [Listed(name, counts[name], configs[name], spans[name]) for name in sorted(counts)]


async def partition_count(settings: Settings, name: str, *, reach_s: float = REACH_S) -> int:
    """The number of partitions of a topic, by its full name. Raises NotReadyError if no broker answers or the topic is missing."""
    return (await partition_counts(settings, [name], reach_s=reach_s))[name]


async def copartitioned_count(settings: Settings, topics: Sequence[Topic]) -> int:
    """The number of partitions that these co-partitioned topics share.

    Raises NotReadyError if one is missing, or was created with another number: a task's records would lie in different partitions.
    """
    counts = await partition_counts(settings, [topic.full_name(settings.namespace) for topic in topics])
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise NotReadyError(
            f"co-partitioned topics need one number of partitions, and {listed}: delete the one that was created otherwise, then "
            "`polar topics apply`"
        )
    return counts.popitem()[1]


async def partition_counts(settings: Settings, names: Sequence[str], *, reach_s: float = REACH_S) -> dict[str, int]:
    """The numbers of partitions of topics, by their full names. Raises NotReadyError if no broker answers or a topic is missing."""
    found = await _retried(settings, lambda admin: _leaders(settings, admin, list(names)), reach_s)
    for name in names:
        if not found.get(name):
            raise NotReadyError(f"Kafka at {settings.bootstrap} has no topic {name}; `polar topics apply` makes it")
    return {name: len(found[name]) for name in names}


async def missing(settings: Settings, names: Iterable[str]) -> set[str]:
    """Those of the topics, by their full names, that the brokers don't have. Raises NotReadyError if no broker answers."""
    return await _retried(settings, lambda admin: missing_of(settings, admin, names), REACH_S)


async def missing_of(settings: Settings, admin: kafka.Admin, names: Iterable[str]) -> set[str]:
    """As `missing`, by a client that is connected. Raises KafkaError, KafkaRefusedError."""
    wanted = list(names)
    return set(wanted) - (await _leaders(settings, admin, wanted)).keys()


async def _retried(settings: Settings, request: Callable[[kafka.Admin], Awaitable[T]], reach_s: float) -> T:
    """The result of `request`, retried while the chosen broker doesn't answer: it may just have died while others live.

    Raises NotReadyError if no broker answered within `reach_s`, or if requests to answering brokers have failed for 20 s.
    """
    now = asyncio.get_running_loop().time
    began, reached = now(), False
    while True:
        admin = kafka.admin(settings)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await admin.start()
                reached = True
                return await request(admin)
        except (kafka.KafkaError, TimeoutError) as error:
            failed = error
        finally:
            await admin.close()
        if not reached and (refused := await connection_refusal(settings)) is not None:
            raise refused from None
        is_final = isinstance(failed, kafka.KafkaError) and not kafka.is_retriable(failed)
        if (is_final and reached) or now() > began + (max(reach_s, FENCED_S) if reached else reach_s):
            raise unreachable(settings, failed) from None
        await asyncio.sleep(RETRY_S)


def unreachable(settings: Settings, error: Exception) -> NotReadyError:
    """The error for brokers that don't answer, or refuse this client."""
    if (refused := refusal(settings, error)) is not None:
        return refused
    why = "" if isinstance(error, TimeoutError | kafka.KafkaConnectionError) else f" ({error!r})"
    return NotReadyError(
        f"Kafka at {settings.bootstrap} doesn't answer{why}: is it running there, and is POLAR_KAFKA what you mean?"
    )


def _check_partitions(topic: Topic, name: str, count: int, embedded: bool) -> None:
    wanted = topic.partition_count(embedded)
    if topic.copartitioned and count != wanted:
        raise InputError(
            name,
            f"{count} partitions",
            f"{wanted} are needed, and the number can't be changed, since it decides each task's partition; use another POLAR_NAMESPACE",
        )


async def _leaders(settings: Settings, admin: kafka.Admin, names: list[str]) -> dict[str, list[int]]:
    """Each existing topic's leaders by partition, negative for a partition without one. Raises KafkaRefusedError."""
    described = await admin.describe_topics(names)
    for topic in described:
        _require_authorized(settings, topic["topic"], topic["error_code"])
    return {
        topic["topic"]: [partition["leader"] for partition in topic["partitions"]]
        for topic in described
        if topic["error_code"] != UNKNOWN_TOPIC
    }


def _require_authorized(settings: Settings, name: str, code: int) -> None:
    if code in NOT_AUTHORIZED:
        raise denied(settings, f"{NOT_AUTHORIZED[code]} {name}")


async def _create(
    settings: Settings, admin: kafka.Admin, missing: Mapping[str, tuple[int, int, dict[str, str]]]
) -> None:
    """Create topics (partitions, replication, settings by name) and wait until all have leaders."""
    if not missing:
        return
    answer = await admin.create_topics([kafka.new_topic(name, *how) for name, how in missing.items()])
    for error in answer.to_object()["topic_errors"]:
        name, code = error["topic"], error["error_code"]
        if code == TOO_FEW_BROKERS and missing[name][1] == 1:
            raise _FencedError(error["error_message"])
        if code == TOO_FEW_BROKERS:
            reason = f"more copies than this Kafka has brokers for {name}; set POLAR_REPLICATION, and POLAR_MIN_INSYNC"
            raise InputError("POLAR_REPLICATION", missing[name][1], reason)
        _require_authorized(settings, name, code)
        # Another process may have been first.
        if code not in (OK, TOPIC_EXISTS):
            raise InputError(name, code, f"{REFUSED}{error['error_message']}")
    while True:
        leaders = await _leaders(settings, admin, list(missing))
        if leaders.keys() == missing.keys() and all(found and min(found) >= 0 for found in leaders.values()):
            return
        await asyncio.sleep(LOOK_S)


async def _alter(settings: Settings, admin: kafka.Admin, wanted: Mapping[str, dict[str, str]]) -> list[str]:
    """Alter settings that differ; return the names of those topics."""
    carried = await _configs(admin, list(wanted))
    differing = _differing(wanted, carried)
    if not differing:
        return []
    # The request replaces all settings of a topic, so it repeats the operator's.
    answers = await admin.alter_configs([kafka.topic_config(name, carried[name] | wanted[name]) for name in differing])
    for resource in (resource for answer in answers for resource in answer.to_object()["resources"]):
        _require_authorized(settings, resource["resource_name"], resource["error_code"])
        if resource["error_code"] != OK:
            raise InputError(resource["resource_name"], resource["error_code"], f"{REFUSED}{resource['error_message']}")
    # The controller has the settings; the brokers learn them a moment later.
    while True:
        if not _differing({name: wanted[name] for name in differing}, await _configs(admin, differing)):
            return differing
        await asyncio.sleep(LOOK_S)


def _differing(wanted: Mapping[str, dict[str, str]], carried: Mapping[str, dict[str, str]]) -> list[str]:
    return [name for name, config in wanted.items() if config.items() - carried[name].items()]


async def _configs(admin: kafka.Admin, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The topics' own settings."""
    if not names:
        return {}
    answers = await admin.describe_configs([kafka.topic_config(name) for name in names])
    return {
        resource["resource_name"]: {
            entry["config_names"]: entry["config_value"]
            for entry in resource["config_entries"]
            if entry["config_source"] == SET_ON_TOPIC
        }
        for answer in answers
        for resource in answer.to_object()["resources"]
    }


async def _spans(reader: kafka.Consumer, counts: Mapping[str, int]) -> dict[str, int]:
    """Number of offsets between beginning and end, by topic."""
    partitions = [kafka.TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
    first = await reader.beginning_offsets(partitions)
    end = await reader.end_offsets(partitions)
    spans = dict.fromkeys(counts, 0)
    for partition in partitions:
        spans[partition.topic] += end[partition] - first[partition]
    return spans
