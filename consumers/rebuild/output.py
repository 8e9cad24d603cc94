"""What an output topic holds already, so that it is not written again nor mixed."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from consumers.rebuild.wanted import Wanted
from topics import trajectories
from topics.environment.settings import Settings
from topics.log.owner import read_back
from topics.types.errors import InputError, SessionError
from topics.types.trajectory import GroupFinished, Trajectory


@dataclass
class Output:
    """What an output holds."""

    built: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Sessions, by whom and with which settings they were built."""
    failed: dict[str, SessionError] = field(default_factory=dict)
    """Of these, those that came to nothing."""
    groups: set[str] = field(default_factory=set)
    """Tasks whose group has its end."""

    def take(self, trajectory: Trajectory) -> None:
        """Note a rebuilt one."""
        self.built[trajectory.session_id] = trajectory.builder, trajectory.rebuilt_with or b"{}"
        if trajectory.error is not None and trajectory.error.stage == "build":
            self.failed[trajectory.session_id] = trajectory.error

    def refuse_another(self, session_id: str, wanted: tuple[str, bytes], into: str) -> None:
        """Raise InputError where the session was built otherwise than is wanted."""
        by, config = self.built.get(session_id, wanted)
        if (by, config) != wanted:
            reason = (
                f"it holds {session_id} as built by {by} with {config.decode()}; name another, or ask for that again"
            )
            raise InputError("--into", into, reason)


async def read(settings: Settings, wanted: Wanted, partition: int) -> Output:
    """What a partition of the output holds. Raises InputError for what the builder has written, or another than the wanted one built."""
    name = trajectories.topic(wanted.into).full_name(settings.namespace)
    out = Output()
    async with aclosing(read_back(settings, name, partition)) as records:
        async for record in records:
            match trajectories.CODEC.decode(record.value or b""):
                case Trajectory(rebuilt_with=bytes()) as trajectory:
                    out.take(trajectory)
                    if wanted.builder is not None:
                        out.refuse_another(trajectory.session_id, (wanted.builder, wanted.config), wanted.into)
                case GroupFinished(rebuilt=True) as group:
                    out.groups.add(group.task_id)
                case Trajectory() | GroupFinished() as live:
                    reason = (
                        f"the builder writes {name} (task {live.task_id} names it); name another for what is rebuilt"
                    )
                    raise InputError("--into", wanted.into, reason)
    return out
