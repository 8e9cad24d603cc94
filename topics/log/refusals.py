"""Refusals by the brokers, as errors that name the user, the resource and the remedy; a retry doesn't help.

A failed authorization has an error code of its own. A refused login or certificate only ends the connection, and aiokafka reports no
reason: `connection_refusal` connects once more to learn it.
"""

from __future__ import annotations

import asyncio
import ssl

from topics.environment.settings import Settings
from topics.log import kafka
from topics.types.errors import NotReadyError

CONNECT_S = 5.0


class KafkaRefusedError(NotReadyError):
    """The brokers refuse this client's login, certificate or request."""


def refusal(settings: Settings, error: BaseException) -> KafkaRefusedError | None:
    """The refusal behind an error; None for other errors."""
    for kind, what in kafka.REFUSALS.items():
        if isinstance(error, kind):
            named = " ".join(
                sorted(str(part) for arg in error.args for part in (arg if isinstance(arg, set) else (arg,)))
            )
            return denied(settings, f"{what} {named}".rstrip())
    return None


def denied(settings: Settings, what: str) -> KafkaRefusedError:
    """The error of a user that lacks an ACL."""
    user = settings.kafka_sasl_username or "this client's certificate, or an anonymous one"
    return KafkaRefusedError(
        f"Kafka refuses {user} {what}: an ACL is missing (`polar topics acl` lists what each role needs)"
    )


async def connection_refusal(settings: Settings) -> KafkaRefusedError | None:
    """The reason why brokers refuse our connections; None if no broker answers, or one accepts."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await kafka.try_connection(settings)
    except kafka.LOGIN_REFUSED:
        user, mechanism = settings.kafka_sasl_username, settings.kafka_sasl_mechanism
        return KafkaRefusedError(
            f"Kafka at {settings.bootstrap} refuses the login of {user} by {mechanism}: "
            "POLAR_KAFKA_SASL_USERNAME, its password and POLAR_KAFKA_SASL_MECHANISM must be the brokers'"
        )
    except ssl.SSLCertVerificationError as error:
        trusted = settings.kafka_ca_file or "the system's authorities"
        return KafkaRefusedError(
            f"the certificate of Kafka at {settings.bootstrap} isn't trusted by {trusted}: {error.verify_message}; "
            "set POLAR_KAFKA_CA_FILE to the authority that signed it"
        )
    except ssl.SSLError as error:
        return KafkaRefusedError(
            f"TLS with Kafka at {settings.bootstrap} fails: {error.reason or error}; is "
            f"POLAR_KAFKA_SECURITY_PROTOCOL={settings.kafka_security_protocol} its listener's, and does it ask for a "
            "certificate (POLAR_KAFKA_CERT_FILE)?"
        )
    except (kafka.KafkaError, OSError, TimeoutError):
        return None
    return None
