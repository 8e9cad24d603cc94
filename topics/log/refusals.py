"""What the brokers refuse a client, in words that say which user, what and what to do; nothing is gained by asking again.

Authorization fails with a code of its own. A login or a certificate that is refused only ends the connection, and aiokafka tells no more
than that none was made: `connection_refusal` knocks once more, to hear why.
"""

from __future__ import annotations

import asyncio
import ssl

from topics.environment.settings import Settings
from topics.log import kafka
from topics.types.errors import NotReady

KNOCK_S = 5.0


class KafkaRefusedError(NotReady):
    """The brokers know this client, or don't, and won't have it."""


def refusal(settings: Settings, error: BaseException) -> KafkaRefusedError | None:
    """The refusal that an error is; None for any other."""
    for kind, what in kafka.REFUSALS.items():
        if isinstance(error, kind):
            named = " ".join(
                sorted(str(part) for arg in error.args for part in (arg if isinstance(arg, set) else (arg,)))
            )
            return denied(settings, f"{what} {named}".rstrip())
    return None


def denied(settings: Settings, what: str) -> KafkaRefusedError:
    """The user lacks an ACL for this."""
    user = settings.kafka_sasl_username or "this client's certificate, or an anonymous one"
    return KafkaRefusedError(
        f"Kafka refuses {user} {what}: an ACL is missing (`polar topics acl` lists what each role needs)"
    )


async def connection_refusal(settings: Settings) -> KafkaRefusedError | None:
    """Why no connection is made, where that is for who we are; None where nobody answers, or somebody lets us in."""
    try:
        async with asyncio.timeout(KNOCK_S):
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
            f"the certificate of Kafka at {settings.bootstrap} isn't good for {trusted}: {error.verify_message}; "
            "set POLAR_KAFKA_CA_FILE to the authority that signed it"
        )
    except ssl.SSLError as error:
        return KafkaRefusedError(
            f"Kafka at {settings.bootstrap} and we don't agree on TLS: {error.reason or error}; is "
            f"POLAR_KAFKA_SECURITY_PROTOCOL={settings.kafka_security_protocol} its listener's, and does it ask for a "
            "certificate (POLAR_KAFKA_CERT_FILE)?"
        )
    except (kafka.KafkaError, OSError, TimeoutError):
        return None
    return None
