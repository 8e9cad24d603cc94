"""All topics, for creation, listing and docs."""

from __future__ import annotations

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

DEFAULT_POOL = "default"
FIXED: tuple[Topic, ...] = (
    tasks.TOPIC,
    events.TOPIC,
    sessions.TOPIC,
    completions.TOPIC,
    trajectories.TOPIC,
    trajectories.EVAL,
    verifications.TOPIC,
    webhooks.TOPIC,
    workers.TOPIC,
    control.TOPIC,
    fleet.TOPIC,
    dead_letters.TOPIC,
)


def of_pool(pool: str) -> tuple[Topic, ...]:
    return tuple(stages.topic(stage, pool) for stage in Stage)
