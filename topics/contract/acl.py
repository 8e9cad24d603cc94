"""The Kafka rights of each role: one table, from which the list for people, JSON and `kafka-acls` commands are rendered.

Invariant: these rights suffice for all of a role's work; `tests/security` runs every role with no others. Read, Write and Alter imply
Describe (Kafka's own rule), and any Write implies IdempotentWrite since Kafka 3.0, so neither is listed beside them. Groups and
transactional ids have the namespace as a prefix, so experiments on one cluster have separate rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from topics import (
    completions,
    control,
    dead_letters,
    events,
    fleet,
    sessions,
    stages,
    tasks,
    trajectories,
    verifications,
    webhooks,
    workers,
)
from topics.contract.topic import Topic
from topics.types.session import Stage

Kind = Literal["topic", "group", "transactional-id"]
Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs", "AlterConfigs"]


MAKING: tuple[Operation, ...] = ("Create", "DescribeConfigs", "AlterConfigs")
"""Operations of `topics.log.admin.apply`, beside Describe."""


@dataclass(frozen=True)
class Right:
    """A role's operations on a resource, or on all resources with the prefix `name`."""

    kind: Kind
    name: str
    """Full name, with the namespace."""
    operations: tuple[Operation, ...]
    prefixed: bool = False


@dataclass(frozen=True)
class _Role:
    """Topics by their contracts; groups and transactional ids without the namespace."""

    what: str
    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    makes: tuple[Topic, ...] = ()
    """Topics that it creates if they are missing."""
    groups: tuple[str, ...] = ()
    transactional: str | None = None
    """Prefix of its transactional ids."""
    stages: tuple[Stage, ...] = ()
    """Stages whose tickets it reads, in any pool; it creates their queues."""
    outputs: tuple[Operation, ...] = ()
    """Operations on `trajectories` and every named output."""
    named: tuple[Operation, ...] = ()
    """Operations on every named output, including `eval`, but not on `trajectories`."""
    tickets: bool = False
    """Whether it writes the tickets of every stage."""
    lags: tuple[tuple[str, Topic], ...] = ()
    """Groups, and the topics on which it may learn how far they are behind."""


_STAGE = (
    (sessions.TOPIC, control.TOPIC, fleet.TOPIC, workers.TOPIC),
    (events.TOPIC, workers.TOPIC, dead_letters.TOPIC),
)
_WATCHED = (sessions.TOPIC, workers.TOPIC, fleet.TOPIC, events.TOPIC, completions.TOPIC, dead_letters.TOPIC)

SERVICES = "services."
"""Prefix of the groups of users' own services (`polar.faststream`), after the namespace."""

_ROLES: dict[str, _Role] = {
    "fanout": _Role(
        "polar worker fanout",
        reads=(tasks.TOPIC,),
        writes=(events.TOPIC, workers.TOPIC, dead_letters.TOPIC),
        groups=("fanout",),
        outputs=("Describe", *MAKING),
    ),
    "coordinator": _Role(
        "polar worker coordinator",
        reads=(events.TOPIC, sessions.TOPIC, workers.TOPIC, fleet.TOPIC),
        writes=(sessions.TOPIC, completions.TOPIC, control.TOPIC, workers.TOPIC, dead_letters.TOPIC),
        groups=("coordinator",),
        transactional="coordinator.",
        tickets=True,
    ),
    "builder": _Role(
        "polar worker builder",
        reads=(completions.TOPIC,),
        writes=(completions.TOPIC, events.TOPIC, webhooks.TOPIC, workers.TOPIC, dead_letters.TOPIC),
        groups=("builder",),
        transactional="builder.",
        makes=(webhooks.TOPIC,),
        outputs=("Write", *MAKING),
    ),
    **{
        stage.value: _Role(
            f"polar worker {stage.value}",
            reads=_STAGE[0],
            writes=_STAGE[1],
            groups=(f"{stage.value}.",),
            stages=(stage,),
        )
        for stage in Stage
    },
    "analytics": _Role(
        "polar worker analytics",
        reads=(
            events.TOPIC,
            completions.TOPIC,
            verifications.TOPIC,
            fleet.TOPIC,
            workers.TOPIC,
            dead_letters.TOPIC,
        ),
        writes=(workers.TOPIC, dead_letters.TOPIC),
        groups=("analytics",),
        outputs=("Read",),
    ),
    "webhooks": _Role(
        "polar worker webhooks",
        reads=(webhooks.TOPIC,),
        writes=(webhooks.TOPIC, workers.TOPIC, dead_letters.TOPIC),
        groups=("webhooks",),
    ),
    "proxy": _Role(
        "polar proxy",
        reads=(completions.TOPIC, control.TOPIC, fleet.TOPIC, workers.TOPIC),
        writes=(completions.TOPIC, events.TOPIC, fleet.TOPIC, workers.TOPIC, dead_letters.TOPIC),
    ),
    "trainer": _Role(
        "polar.trainer, polar.fleet, polar fleet, polar policy",
        reads=(fleet.TOPIC, sessions.TOPIC, workers.TOPIC),
        writes=(fleet.TOPIC, control.TOPIC, workers.TOPIC),
        outputs=("Read",),
    ),
    "rebuild": _Role(
        "polar rebuild", reads=(completions.TOPIC,), transactional="rebuild.", named=("Read", "Write", *MAKING)
    ),
    "rebuild-table": _Role(
        "polar topics rebuild-table",
        reads=(events.TOPIC, completions.TOPIC, sessions.TOPIC),
        writes=(sessions.TOPIC, completions.TOPIC),
        groups=("coordinator",),
        transactional="coordinator.",
    ),
    "submitter": _Role(
        "polar submit, cancel; polar.client",
        # It finds out who refuses its tasks, and warns of pools without workers.
        reads=(sessions.TOPIC, dead_letters.TOPIC, workers.TOPIC),
        writes=(tasks.TOPIC, events.TOPIC),
    ),
    "reader": _Role(
        "polar status, watch, show, trajectories, dead-letters list and show", reads=_WATCHED, outputs=("Read",)
    ),
    "verifier": _Role(
        "polar verify",
        reads=(fleet.TOPIC,),
        writes=(verifications.TOPIC,),
        makes=(verifications.TOPIC,),
        outputs=("Read",),
    ),
    "service": _Role("polar.faststream", reads=_WATCHED, groups=(SERVICES,), outputs=("Read",)),
    "replayer": _Role(
        "polar dead-letters replay",
        reads=(dead_letters.TOPIC,),
        writes=(tasks.TOPIC, events.TOPIC, webhooks.TOPIC, dead_letters.TOPIC),
    ),
    "autoscaler": _Role(
        "KEDA's Kafka scaler",
        lags=(("fanout", tasks.TOPIC), ("builder", completions.TOPIC), ("analytics", completions.TOPIC)),
    ),
    "admin": _Role("polar topics apply, list"),
}
ROLES: Mapping[str, str] = {name: role.what for name, role in _ROLES.items()}
"""The commands of each role, by its name."""


def rights(role: str, namespace: str) -> list[Right]:
    """All rights that a role needs."""
    if role == "admin":
        return [Right("topic", f"{namespace}.", ("Describe", *MAKING), prefixed=True)]
    return list(_rights(_ROLES[role], namespace))


def topics_of(roles: Iterable[str]) -> list[Topic]:
    """The fixed topics that these roles read or write."""
    named: dict[str, Topic] = {}
    for role in (_ROLES[name] for name in roles):
        outputs = (trajectories.TOPIC, trajectories.EVAL) if role.outputs else ()
        named |= {topic.name: topic for topic in (*role.reads, *role.writes, *outputs)}
    return list(named.values())


def _rights(role: _Role, namespace: str) -> Iterator[Right]:
    for _, topic in sorted({topic.name: topic for topic in (*role.reads, *role.writes)}.items()):
        both: tuple[tuple[Operation, tuple[Topic, ...]], ...] = (("Read", role.reads), ("Write", role.writes))
        operations = tuple(operation for operation, topics in both if topic in topics)
        yield Right("topic", topic.full_name(namespace), operations + MAKING * (topic in role.makes))
    for name in sorted({topic.full_name(namespace) for _, topic in role.lags}):
        yield Right("topic", name, ("Describe",))
    for group, _ in role.lags:
        yield Right("group", f"{namespace}.{group}", ("Describe",))
    if role.outputs:
        yield Right("topic", trajectories.TOPIC.full_name(namespace), role.outputs, prefixed=True)
    if role.named:
        yield Right("topic", f"{trajectories.TOPIC.full_name(namespace)}.", role.named, prefixed=True)
    for stage in role.stages:
        # The first worker of a pool makes the queues of all three stages.
        yield Right("topic", f"{namespace}.{stages.PREFIX}", ("Describe", *MAKING), prefixed=True)
        yield Right("topic", stages.topic(stage, "").full_name(namespace), ("Read",), prefixed=True)
    if role.tickets:
        for stage in Stage:
            yield Right("topic", stages.topic(stage, "").full_name(namespace), ("Write",), prefixed=True)
    for group in role.groups:
        yield Right("group", f"{namespace}.{group}", ("Read",), prefixed=group.endswith("."))
    if role.transactional is not None:
        yield Right("transactional-id", f"{namespace}.{role.transactional}", ("Write",), prefixed=True)


def command(right: Right, principal: str, bootstrap: str) -> str:
    """A shell command for Kafka's `kafka-acls.sh`; `admin.properties` has the login of a user that may alter the cluster."""
    where = f"--{right.kind} {right.name}"
    pattern = " --resource-pattern-type prefixed" if right.prefixed else ""
    what = " ".join(f"--operation {operation}" for operation in right.operations)
    login = f"kafka-acls.sh --bootstrap-server {bootstrap} --command-config admin.properties"
    return f"{login} --add --allow-principal '{principal}' {what} {where}{pattern}"


def commands(roles: Iterable[str], namespace: str, principals: Mapping[str, str], bootstrap: str) -> list[str]:
    """Commands for these roles; a role without an entry in `principals` is the user of its own name."""
    return [
        command(right, principals.get(role, f"User:{role}"), bootstrap)
        for role in roles
        for right in rights(role, namespace)
    ]
