"""FastStream's options: its clients reach Kafka as our own do."""

from __future__ import annotations

from typing import Any

import pytest
from faststream.kafka.security import parse_security

from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.faststream_options import security


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("PLAINTEXT", "PLAIN"),
        ("SSL", "PLAIN"),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
    ],
)
def test_faststream_reaches_kafka_as_our_own_clients_do(protocol: Any, mechanism: Any) -> None:
    found = Settings(
        kafka="k1:1,k2:2",
        kafka_security_protocol=protocol,
        kafka_sasl_mechanism=mechanism,
        kafka_sasl_username="user",
        kafka_sasl_password="word",
    )
    ours, theirs = kafka.connection(found), parse_security(security(found))
    ours.pop("bootstrap_servers")
    assert (ours.pop("ssl_context", None) is None) == (theirs.pop("ssl_context", None) is None)
    assert {"security_protocol": "PLAINTEXT"} | theirs == ours
