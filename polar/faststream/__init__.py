"""Typed subscribers and publishers for a team's own FastStream service: `from polar import faststream as polar`.

`broker()` is FastStream's `KafkaBroker` with Polar's connection, namespace and committed reading. Each topic has a name here, which
`broker.subscriber` takes; users may write `tasks` and `cancellations`. All record types are here too. Needs the extra `faststream`.
"""

from __future__ import annotations

from topics.types.errors import install_command

try:
    import faststream.kafka  # noqa: F401 - the sentence below is for those who lack it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"polar.faststream needs FastStream: {install_command('faststream')}", name=error.name
    ) from None

from polar.faststream.broker import Broker, Publisher, Subscriber, broker
from polar.faststream.named_topics import (
    ReadableTopic,
    WritableTopic,
    cancellations,
    completions,
    control,
    dead_letters,
    eval_trajectories,
    events,
    fleet,
    output,
    sessions,
    stage,
    tasks,
    trajectories,
    verifications,
    webhooks,
    workers,
)
from topics.completions import Build, CloseGroup, Disowned, Emitted, Open, RefusedRequest
from topics.contract.codec import UnknownRecord
from topics.control import CloseKey, Discard, Drain, Grant, Revoke
from topics.dead_letters import Letter, Replay
from topics.events import (
    CancelRequested,
    Claimed,
    Evaluated,
    GroupEmitted,
    HandedBack,
    InitFinished,
    RunFinished,
    SessionCloseRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    Stopped,
    TaskSubmitted,
    TrajectoryEmitted,
)
from topics.fleet import EngineProcess, FleetState, PolicyVersion
from topics.sessions import Position
from topics.stages import Ticket
from topics.types.completion import Completion
from topics.types.session import SessionState, Stage, TaskState
from topics.types.task import TaskRequest
from topics.types.trajectory import GroupFinished, Trajectory
from topics.verifications import Verification
from topics.webhooks import Owed, Settled
from topics.workers import Heartbeat, Probe

__all__ = [
    "Broker", "Build", "CancelRequested", "Claimed", "CloseGroup", "CloseKey", "Completion", "Discard", "Disowned",
    "Drain", "Emitted", "EngineProcess", "Evaluated", "FleetState", "Grant", "GroupEmitted", "GroupFinished",
    "HandedBack", "Heartbeat", "InitFinished", "Letter", "Open", "Owed", "PolicyVersion", "Position", "Probe",
    "Publisher", "ReadableTopic", "RefusedRequest", "Replay", "Revoke", "RunFinished", "SessionCloseRequested",
    "SessionOpenRequested", "SessionOpenWithdrawn", "SessionState", "Settled", "Stage", "Stopped", "Subscriber",
    "TaskRequest", "TaskState", "TaskSubmitted", "Ticket", "Trajectory", "TrajectoryEmitted", "UnknownRecord",
    "Verification", "WritableTopic", "broker", "cancellations", "completions", "control", "dead_letters",
    "eval_trajectories", "events", "fleet", "output", "sessions", "stage", "tasks", "trajectories", "verifications",
    "webhooks", "workers",
]  # fmt: skip
