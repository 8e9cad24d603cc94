"""The topics as values for `broker.subscriber` and `broker.publisher`: each with its record types, and how they are read and written.

Only what users may write can be written: tasks, and the cancellation of a task or session. All other topics have one writer, Polar itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from polar.task_bodies import sized_body
from polar.uploads import Uploads
from topics import completions as completions_topic
from topics import control as control_topic
from topics import dead_letters as dead_letters_topic
from topics import events as events_topic
from topics import fleet as fleet_topic
from topics import sessions as sessions_topic
from topics import stages as stages_topic
from topics import tasks as tasks_topic
from topics import trajectories as trajectories_topic
from topics import verifications as verifications_topic
from topics import webhooks as webhooks_topic
from topics import workers as workers_topic
from topics.contract.codec import Codec, DecodeError, UnknownRecord, encode
from topics.contract.topic import Topic
from topics.dead_letters import Letter, Replay
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.events import CancelRequested
from topics.log.kafka import Record
from topics.types import field_errors
from topics.types.session import Stage
from topics.types.task import TaskRequest

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True)
class ReadableTopic(Generic[T]):
    """A topic whose records are of the types `records`, and are instances of T."""

    contract: Topic
    records: tuple[type[Any], ...]
    decode: Callable[[Record], T | UnknownRecord]
    """Raises DecodeError for bytes that are no record of this topic."""


@dataclass(frozen=True)
class Encoded:
    """A record as it is written."""

    value: bytes
    key: str
    task_id: str
    """Decides the partition."""


@dataclass(frozen=True)
class WritableTopic(Generic[W]):
    """What users may write on a topic: records of type `record`, which is W."""

    contract: Topic
    record: type[W]
    encode: Callable[[W, Settings], Encoded]
    """May block. Raises InputError for a record that would be refused, and NotReadyError if its files can't be stored."""


@dataclass(frozen=True)
class TaskTopic(ReadableTopic[TaskRequest], WritableTopic[TaskRequest]):
    """`polar.tasks`, which users write and may read."""


def _coded(contract: Topic, codec: Codec[T]) -> ReadableTopic[T]:
    return ReadableTopic(contract, contract.records, lambda record: codec.decode(record.value or b""))


def _task(record: Record) -> TaskRequest:
    """The task without the checks of its plug-ins, which this process may not have. Raises DecodeError."""
    try:
        return TaskRequest.model_validate_json(record.value or b"")
    except ValidationError as error:
        first = field_errors.first_error(error)
        field = ".".join(map(str, first["loc"])) or "task"
        raise DecodeError(f"{field}: {field_errors.reason(first)}") from None


def _encoded_task(request: TaskRequest, settings: Settings) -> Encoded:
    complete = Uploads(blob_store.of(settings)).with_content(request, Path())
    return Encoded(sized_body(complete), complete.task_id, complete.task_id)


def _encoded_cancellation(fact: CancelRequested, _: Settings) -> Encoded:
    return Encoded(encode(fact), events_topic.key_of(fact), fact.task_id)


def output(name: str) -> ReadableTopic[trajectories_topic.Output]:
    """The trajectories of tasks with `output_topic: NAME`."""
    return _coded(trajectories_topic.topic(name), trajectories_topic.CODEC)


def stage(stage: Stage, pool: str = "default") -> ReadableTopic[stages_topic.Ticket]:
    """The tickets of a stage and pool. Reading them claims nothing."""
    return _coded(stages_topic.topic(stage, pool), stages_topic.CODEC)


tasks = TaskTopic(
    contract=tasks_topic.TOPIC, records=(TaskRequest,), decode=_task, record=TaskRequest, encode=_encoded_task
)
cancellations = WritableTopic(events_topic.TOPIC, CancelRequested, _encoded_cancellation)
"""Requests to cancel a task or a session, on `polar.events`."""
events = _coded(events_topic.TOPIC, events_topic.CODEC)
sessions = _coded(sessions_topic.TOPIC, sessions_topic.CODEC)
completions = _coded(completions_topic.TOPIC, completions_topic.CODEC)
trajectories = _coded(trajectories_topic.TOPIC, trajectories_topic.CODEC)
eval_trajectories = output("eval")
verifications = _coded(verifications_topic.TOPIC, verifications_topic.CODEC)
webhooks = _coded(webhooks_topic.TOPIC, webhooks_topic.CODEC)
workers = _coded(workers_topic.TOPIC, workers_topic.CODEC)
control = _coded(control_topic.TOPIC, control_topic.CODEC)
fleet = _coded(fleet_topic.TOPIC, fleet_topic.CODEC)
dead_letters: ReadableTopic[Letter | Replay] = ReadableTopic(
    dead_letters_topic.TOPIC, (Letter, Replay), dead_letters_topic.parse
)
