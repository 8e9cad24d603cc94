"""FastStream's options for brokers and subscribers that connect and read as our own clients do. Needs the extra `faststream`.

The only place where our settings become FastStream's. What to do with a record is left to the callers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from topics.environment.settings import Settings
from topics.log import kafka

MECHANISMS: dict[str, type[SASLPlaintext | SASLScram256 | SASLScram512]] = {
    "PLAIN": SASLPlaintext,
    "SCRAM-SHA-256": SASLScram256,
    "SCRAM-SHA-512": SASLScram512,
}


def broker_options(settings: Settings) -> dict[str, Any]:
    """Options of `KafkaBroker`: the connection of our own clients, no topic creation. Raises NotReadyError as `kafka.connection` does."""
    return {
        "bootstrap_servers": settings.bootstrap.split(","),
        "security": security(settings),
        "metadata_max_age_ms": kafka.METADATA_MS,
        "request_timeout_ms": kafka.REQUEST_TIMEOUT_MS,
        "allow_auto_create_topics": False,
    }


def subscriber_options(settings: Settings, group: str) -> dict[str, Any]:
    """Options of `KafkaBroker.subscriber` for a topic of Polar's: committed records only; a new group begins at the oldest.

    `group` gets the namespace as a prefix.
    """
    return {
        "group_id": f"{settings.namespace}.{group}",
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "session_timeout_ms": kafka.SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": kafka.HEARTBEAT_MS,
        "parser": _parse,
    }


def security(settings: Settings) -> BaseSecurity | None:
    """The settings of `kafka.connection` as FastStream expects them; None for PLAINTEXT."""
    options = kafka.connection(settings)
    protocol = options["security_protocol"]
    context = options.get("ssl_context")
    if not protocol.startswith("SASL"):
        return BaseSecurity(ssl_context=context) if protocol == "SSL" else None
    return MECHANISMS[options["sasl_mechanism"]](
        options["sasl_plain_username"], options["sasl_plain_password"], ssl_context=context
    )


async def _parse(record: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """FastStream's parser without the headers, which stay on the raw message.

    FastStream raises if headers aren't text, and would send a handler's result to the topic that a foreign `reply_to` names.
    """
    message = await parse(dataclasses.replace(record, headers=()))
    message.raw_message = record
    return message
