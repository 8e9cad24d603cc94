"""Commands in this process, and the records that other parts of a system would have left on Kafka."""

from __future__ import annotations

import asyncio

import msgspec
from typer.testing import CliRunner

from polar.cli.app import app
from topics import sessions
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log.producer import LogProducer

Write = tuple[Topic, str, msgspec.Struct]
"""Topic, key and record."""


def polar(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def write(settings: Settings, *records: Write) -> list[int]:
    """Writes records of task `t`; their offsets."""

    async def send() -> list[int]:
        producer = LogProducer(settings)
        await producer.start()
        acks = [await producer.send(topic, record, key=key, task_id="t") for topic, key, record in records]
        await producer.stop()
        return [ack.offset for ack in acks]

    return asyncio.run(send())


def rows(*found: sessions.Row) -> list[Write]:
    """The records of `polar.sessions` that hold these rows."""
    return [(sessions.TOPIC, sessions.key_of(row), row) for row in found]
