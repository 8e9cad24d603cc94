"""The embedded broker's server.properties: one KRaft node on loopback that comes back fast and stays small."""

from typing import NamedTuple

HEAP = "256m"
MAX_MESSAGE_BYTES = 33 * 1024 * 1024
"""A completion may have 32 MiB; the rest is room for its batch's header and headers."""

_TEMPLATE = """\
# Written at every start; changes made here are lost.
process.roles=broker,controller
node.id=1
listeners=BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={log_dir}

# One node holds the only copy.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1

# A topic is made by its contract; a misspelt name must not make one.
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0

# After kill -9 the controller holds the old broker's session until it expires (9 s by default).
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
# After kill -9 the active segment of every partition is read again, 1 GiB each by default.
log.segment.bytes=67108864
# Readers wait behind an abandoned transaction until this sweep (10 s by default).
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000

message.max.bytes={max_message}
replica.fetch.max.bytes={max_message}
# Requests in memory are bounded: clients wait, the heap doesn't overflow.
socket.request.max.bytes={max_request}
queued.max.request.bytes={max_request}
# 128 MiB by default, half the heap; 16 MiB hold some 600,000 keys a pass.
log.cleaner.dedupe.buffer.size=16777216
"""


class Ports(NamedTuple):
    """Where the node listens, on 127.0.0.1."""

    broker: int
    controller: int


def server_properties(ports: Ports, log_dir: str) -> str:
    """The file's text; `log_dir` is relative to the JVM's working folder, which spares escaping paths."""
    return _TEMPLATE.format(
        broker=ports.broker,
        controller=ports.controller,
        log_dir=log_dir,
        max_message=MAX_MESSAGE_BYTES,
        max_request=2 * MAX_MESSAGE_BYTES,
    )
