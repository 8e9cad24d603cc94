"""The embedded Kafka: Apache Kafka itself, one KRaft node, set up by pip alone and run under a data folder."""

from polar.embedded.broker import Broker
from polar.embedded.errors import BrokerError

__all__ = ["Broker", "BrokerError"]
