"""Sends a partition's records that lie outside its transactions: tickets, answers to claims, ends of keys and runtimes, dead letters.

Sending a record twice does no harm. Records are sent after the commit. If one can't be sent, the partition is given up, and its next owner
repeats what its table calls for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from consumers.coordinator.commands import Command, RejectTask, ReleaseTicket
from consumers.coordinator.deadlines import budget_s
from consumers.coordinator.state import Table
from topics import control, dead_letters, events, stages
from topics.contract.codec import encode
from topics.control import CloseKey, Discard, Grant, Revoke
from topics.environment.claim_keys import ClaimKeys, ticket_id
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.owner import OwnershipLostError
from topics.log.producer import LogProducer, UnacknowledgedError, dead_letter
from topics.stages import Ticket
from topics.types.session import SessionState

log = structlog.get_logger()


class CommandSender:
    """Sends the commands of decisions, with what the table says now."""

    def __init__(self, settings: Settings, producer: LogProducer, table: Table, claim_keys: ClaimKeys) -> None:
        self._settings = settings
        self._claim_keys = claim_keys
        self._producer = producer
        self._table = table

    async def send(self, commands: Sequence[Command], position: int) -> None:
        """Return when all are acknowledged. `position`: of `polar.events`, for rejected tasks. Raises OwnershipLostError."""
        try:
            await asyncio.gather(*(self._send_one(command, position) for command in commands))
        except UnacknowledgedError as error:
            raise OwnershipLostError(f"a command could not be sent: {error}") from error

    async def dead_letter(self, record: kafka.Record, reason: str) -> None:
        """Send a record that can't be processed to the dead letters."""
        log.warning(
            "dead letter",
            action="coordinator.dead_letter",
            partition=self._table.partition,
            offset=record.offset,
            reason=reason,
        )
        await dead_letter(self._producer, self._settings, record, reason=reason, process="coordinator")

    async def _send_one(self, command: Command, position: int) -> None:
        match command:
            case ReleaseTicket():
                session = self._table.session(command.session_id)
                if session is not None:
                    await self._release(command, session)
            case Grant(log_partition=int(), log_offset=None):
                # Decided before the broker gave its Open an offset.
                session = self._table.session(command.session_id)
                if session is not None and session.claim_id == command.claim_id:
                    await self._control(replace(command, log_offset=session.log_offset))
            case RejectTask():
                await self._reject(command, position)
            case _:
                await self._control(command)

    async def _release(self, command: ReleaseTicket, session: SessionState) -> None:
        task = self._table.task_of(session)
        assert task.plan is not None, "a session's task is known"
        name = ticket_id(session.since, session.releases)
        ticket = Ticket(
            session.session_id,
            session.sample_index,
            session.attempt,
            command.stage,
            budget_s(command.stage, task),
            body=task.body,
            body_ref=task.body_ref,
            runtime=session.runtime,
            run_claim_id=session.run_claim_id,
            status=session.status,
            exit_code=session.exit_code,
            error=session.error,
            artifacts=session.artifacts,
            lost_artifacts=session.lost_artifacts,
            ticket_id=name,
            claim_key=self._claim_keys.key(session.session_id, session.attempt, command.stage, name),
        )
        topic = stages.topic(command.stage, task.plan.pool)
        await self._producer.send(topic, ticket, key=session.session_id, partition=command.queue_partition)

    async def _control(self, command: Grant | Revoke | CloseKey | Discard) -> None:
        await self._producer.send(control.TOPIC, command, key=command.session_id)

    async def _reject(self, command: RejectTask, position: int) -> None:
        log.warning("task rejected", action="coordinator.rejected", task=command.fact.task_id, reason=command.reason)
        await self._producer.send_bytes(
            dead_letters.TOPIC.full_name(self._settings.namespace),
            encode(command.fact),
            key=command.fact.task_id.encode(),
            headers=dead_letters.headers(
                reason=command.reason,
                field="task_id",
                process="coordinator",
                topic=events.TOPIC.full_name(self._settings.namespace),
                partition=self._table.partition,
                offset=position,
            ),
        )
