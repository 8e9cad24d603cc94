"""The server.properties of an embedded broker: a KRaft node on loopback, single or one of three, that restarts fast and stays small."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

HEAP = "256m"
"""Of the JVM: enough for the largest messages of several clients at once, since requests in memory are bounded below."""
MAX_MESSAGE_BYTES = 33 * 1024 * 1024
"""A completion has at most 32 MiB; 1 MiB is room for the batch's header and the record's headers."""
NODE_USER = "kafka"
"""The user name with which nodes of a secured cluster log in to each other; the authorizer's super user."""

_TEMPLATE = """\
# Written at every start; changes made here are lost.
process.roles=broker,controller
node.id={node.id}
listeners=BROKER://127.0.0.1:{node.ports.broker},CONTROLLER://127.0.0.1:{node.ports.controller}
advertised.listeners=BROKER://127.0.0.1:{node.ports.broker},CONTROLLER://127.0.0.1:{node.ports.controller}
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
{quorum}
log.dirs={log_dir}

offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
min.insync.replicas={in_sync}
unclean.leader.election.enable=false
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1

# A topic is made by its contract; a misspelt name must not make one.
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0

# After kill -9 the controller holds the old broker's session until it expires (9 s by default).
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=1000
# A leader that asks a hung controller for a change of its followers would wait for 30 s, and with it who writes to it.
controller.socket.timeout.ms=5000
# An idle controller would write an empty record every 0.5 s, a third of what an idle broker computes.
metadata.max.idle.interval.ms=0
# After kill -9 the active segment of every partition is read again, 1 GiB each by default.
log.segment.bytes=67108864
# Readers wait behind an abandoned transaction until this sweep (10 s by default).
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000

# Idle threads wake up several times a second each; eight for requests and three for each listener by default.
num.io.threads=4
num.network.threads=2
background.threads=2

message.max.bytes={max_message}
replica.fetch.max.bytes={max_message}
# Requests in memory are bounded: clients wait, the heap doesn't overflow.
socket.request.max.bytes={max_request}
queued.max.request.bytes={max_request}
# 128 MiB by default, half the heap; 4 MiB hold some 150,000 keys a pass.
log.cleaner.dedupe.buffer.size=4194304
"""

_OPEN = "listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT\n"

_TLS = """\
ssl.keystore.type=PKCS12
ssl.keystore.location={keystore}
ssl.keystore.password={password}
ssl.truststore.type=PKCS12
ssl.truststore.location={keystore}
ssl.truststore.password={password}
"""

_SASL = """\
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.broker.plain.sasl.jaas.config={users}
listener.name.controller.plain.sasl.jaas.config={nodes}
"""

_SCRAM = """\
listener.name.broker.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.broker.scram-sha-256.sasl.jaas.config={scram}
listener.name.broker.scram-sha-512.sasl.jaas.config={scram}
"""

_AUTHORIZER = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users={super_users}
"""


class Ports(NamedTuple):
    """Where a node listens, on 127.0.0.1."""

    broker: int
    controller: int


@dataclass(frozen=True)
class Security:
    """Authentication and authorization of a cluster. The passwords are in server.properties, which only its owner may read."""

    protocol: Literal["SASL_PLAINTEXT", "SSL", "SASL_SSL"]
    """Of the brokers' listener. With SSL, clients must trust the certificate of `Cluster.authority`."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by user name, for PLAIN. On the controllers' listener only the nodes themselves can log in."""
    scram: bool = False
    """Whether the users may also log in by SCRAM-SHA-256 and -512, in tests: the formatting tool's command line has the passwords."""
    super_users: frozenset[str] = frozenset()
    """Users whom the authorizer allows everything."""
    authorizer: bool = False
    """Whether users other than super users need ACLs. Requires SASL, which gives the user names."""
    node_password: str = field(default_factory=secrets.token_urlsafe, repr=False)
    keystore: Path | None = None
    """PKCS12 file with the nodes' key and certificate, created by the cluster."""
    keystore_password: str = field(default="changeit", repr=False)

    def __post_init__(self) -> None:
        assert self.sasl or not self.authorizer, "without SASL everybody is ANONYMOUS, the nodes too"

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def properties(self) -> str:
        """Lines of server.properties. Nodes log in to each other by PLAIN, which, unlike SCRAM, needs no metadata."""
        controller = "SASL_PLAINTEXT" if self.sasl else "PLAINTEXT"
        text = f"listener.security.protocol.map=BROKER:{self.protocol},CONTROLLER:{controller}\n"
        if self.tls:
            assert self.keystore is not None, "the cluster makes it before its nodes start"
            text += _TLS.format(keystore=self.keystore, password=self.keystore_password)
        if self.sasl:
            text += _SASL.format(users=self._plain(self.users), nodes=self._plain({}))
            if self.scram:
                text += _SCRAM.format(scram=_jaas("scram.ScramLoginModule", {}))
        if self.authorizer:
            names = sorted(self.super_users | {NODE_USER})
            text += _AUTHORIZER.format(super_users=";".join(f"User:{name}" for name in names))
        return text

    def _plain(self, users: Mapping[str, str]) -> str:
        known = {**users, NODE_USER: self.node_password}
        accepted = {f"user_{name}": password for name, password in known.items()}
        return _jaas("plain.PlainLoginModule", {"username": NODE_USER, "password": self.node_password} | accepted)


@dataclass(frozen=True)
class Node:
    """One node and its cluster, which is the same for all nodes."""

    id: int
    """From 1."""
    cluster: tuple[Ports, ...]
    """The ports of every node, node 1 first."""
    cluster_id: str
    security: Security | None = None
    """None: every client is admitted."""

    @property
    def ports(self) -> Ports:
        return self.cluster[self.id - 1]

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.ports.broker}"

    def format_options(self) -> list[str]:
        """Options of the formatting tool, besides the properties file."""
        # A single voter is found by its address; the properties list three voters.
        options = ["-t", self.cluster_id] + (["--standalone"] if len(self.cluster) == 1 else [])
        if self.security is not None and self.security.scram:
            for name, password in self.security.users.items():
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                    options += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        return options


def server_properties(node: Node, log_dir: str) -> str:
    """The text of server.properties. `log_dir` is relative to the JVM's working folder, so no path needs escaping."""
    copies = min(3, len(node.cluster))
    controllers = [f"127.0.0.1:{ports.controller}" for ports in node.cluster]
    voters = ",".join(f"{id_}@{address}" for id_, address in enumerate(controllers, 1))
    text = _TEMPLATE.format(
        node=node,
        quorum=f"controller.quorum.voters={voters}"
        if copies > 1
        else f"controller.quorum.bootstrap.servers={controllers[0]}",
        copies=copies,
        in_sync=max(1, copies - 1),
        log_dir=log_dir,
        max_message=MAX_MESSAGE_BYTES,
        max_request=2 * MAX_MESSAGE_BYTES,
    )
    return text + (_OPEN if node.security is None else node.security.properties())


def _jaas(module: str, options: Mapping[str, str]) -> str:
    words = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required{words};"
