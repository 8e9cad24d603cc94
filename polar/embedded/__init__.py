"""The embedded Kafka: Apache Kafka itself, KRaft nodes set up by pip alone and run under a data folder; one, or several for tests."""

from polar.embedded.broker import Broker
from polar.embedded.cluster import Cluster
from polar.embedded.errors import BrokerError

__all__ = ["Broker", "BrokerError", "Cluster"]
