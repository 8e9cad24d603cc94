"""Several embedded brokers as one Kafka: every node broker and controller, so that any minority of them may die.

For tests of what a cluster does on its bad days; `polar up` has one broker. Invariant: each node is a `Broker` on a folder of its own,
with all that it promises; addresses and the cluster's id stay the data folder's. Nodes are numbered from 1. What died stays dead until
it is started.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from polar.embedded import distribution, metadata_probe
from polar.embedded.broker import Broker, new_cluster_id
from polar.embedded.errors import BrokerError
from polar.embedded.folder import Folder
from polar.embedded.properties import Node, Ports, Security

SETTLE_S = 60.0
"""For every replica to have caught up."""
LOOK_S = 0.05
QUORUM = "__cluster_metadata-0/quorum-state"
"""The file of a KRaft node with what it knows of the controllers."""
KEYTOOL_S = 30.0


class Cluster:
    """Apache Kafka on DATA/node-1, DATA/node-2, …. Its methods block: from asyncio call them in a thread."""

    def __init__(
        self, data: Path, nodes: int = 3, *, announce: Callable[[str], None], security: Security | None = None
    ) -> None:
        self._data = data.absolute()
        self._nodes = range(1, nodes + 1)
        self._announce = announce
        self._security = security
        self._brokers: dict[int, Broker] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def nodes(self) -> range:
        return self._nodes

    @property
    def bootstrap(self) -> str:
        """Every node's `host:port`; the same at every start on this data folder. Needs a start before."""
        return ",".join(self.broker(node).bootstrap for node in self._nodes)

    @property
    def authority(self) -> Path:
        """PEM of the certificate that clients of a TLS listener are to trust."""
        return self._data / "authority.pem"

    def broker(self, node: int) -> Broker:
        """One node's; for its process, or its folder."""
        if not self._brokers:
            raise BrokerError("the cluster has no brokers before its first start: call start()")
        return self._brokers[node]

    def folder(self, node: int) -> Folder:
        """Where a node keeps its data."""
        return Folder(self._data / f"node-{node}")

    def start(self) -> None:
        """Start all nodes that don't run, and return when each sees all. Raises BrokerError, cache.CacheError."""
        if not self._brokers:
            self._brokers = self._seat()
        self._each(Broker.start, (node for node in self._nodes if not self._brokers[node].alive()))
        self._await(lambda seen: len(seen.brokers) == len(self._nodes), "see each other")

    def stop(self) -> None:
        """Stop the nodes one by one, cleanly while most run: the others have nobody left to hand partitions to, and are killed."""
        alive = [node for node in self._brokers if self._brokers[node].alive()]
        while len(alive) > len(self._nodes) // 2:
            self.stop_node(alive.pop(0))
        self._each(Broker.kill, alive)

    def start_node(self, node: int) -> None:
        """Start one, and return when it serves: most of the others must run. Raises BrokerError."""
        self.broker(node).start()

    def stop_node(self, node: int) -> None:
        """Stop one cleanly: it hands its partitions over first."""
        self.broker(node).stop()

    def kill(self, *nodes: int) -> None:
        """End these, or all, at once, as kill -9 does."""
        self._each(Broker.kill, nodes or self._nodes)

    def leader_of(self, topic: str, partition: int) -> int:
        """The running node that leads a partition, by the topic's full name; waits while there is none. Raises BrokerError."""
        wanted = (topic, partition)

        def leads(seen: metadata_probe.Metadata) -> bool:
            known = seen.partitions.get(wanted)
            return known is not None and known.leader in self._nodes and self.broker(known.leader).alive()

        return self._await(leads, f"have a leader of {topic}[{partition}]").partitions[wanted].leader

    def controller(self) -> int:
        """The active controller, as the nodes wrote it down at the last election."""
        states = [json.loads(file.read_text("ascii")) for file in self._data.glob(f"node-*/**/{QUORUM}")]
        return int(max(states, key=lambda state: state["leaderEpoch"])["leaderId"])

    def settle(self) -> None:
        """Wait until every replica of every partition is in sync: only now may another node go. Raises BrokerError."""
        self._await(
            lambda seen: (
                len(seen.brokers) == len(self._nodes)
                and all(partition.in_sync == partition.replicas for partition in seen.partitions.values())
            ),
            "have all replicas in sync",
        )

    def metadata(self, node: int) -> metadata_probe.Metadata | None:
        """The cluster as one node sees it; None where it doesn't answer."""
        return metadata_probe.metadata(self.folder(node).ports().broker, self._security)

    def _await(self, condition: Callable[[metadata_probe.Metadata], bool], what: str) -> metadata_probe.Metadata:
        """Until every node that runs, and one at least, says so; what the last of them says."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            seen = [self.metadata(node) for node in self._nodes if self.broker(node).alive()]
            said = [each for each in seen if each is not None]
            if said and len(said) == len(seen) and all(condition(each) for each in said):
                return said[-1]
            if time.monotonic() > deadline:
                raise BrokerError(f"the nodes on {self._data} didn't {what} within {SETTLE_S:.0f} s: {seen}")
            time.sleep(LOOK_S)

    def _each(self, act: Callable[[Broker], None], nodes: Iterable[int]) -> None:
        """At once: a node alone doesn't serve. Raises the first that went wrong."""
        with ThreadPoolExecutor(len(self._nodes)) as threads:
            list(threads.map(act, [self._brokers[node] for node in nodes]))

    def _seat(self) -> dict[int, Broker]:
        """Give every node its place."""
        distribution.class_path(self._announce)  # once, before all look at once
        ports: list[Ports] = []
        for node in self._nodes:
            ports.append(self.folder(node).ports(but={port for others in ports for port in others}))
        security = self._security
        if security is not None and security.tls:
            security = dataclasses.replace(security, keystore=self._certificate(security.keystore_password))
        cluster_id = self._cluster_id()
        return {
            node: Broker(
                self._data / f"node-{node}",
                announce=self._announce,
                node=Node(node, tuple(ports), cluster_id, security),
            )
            for node in self._nodes
        }

    def _cluster_id(self) -> str:
        file = self._data / "cluster-id"
        if not file.exists():
            file.write_text(new_cluster_id(), encoding="ascii")
        return file.read_text(encoding="ascii")

    def _certificate(self, password: str) -> Path:
        """One key and self-signed certificate for all nodes, made at the first start; returns the keystore."""
        keystore = self._data / "nodes.p12"
        if not self.authority.exists():
            keystore.unlink(missing_ok=True)
            store = ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", password, "-alias", "node"]
            name = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost", "-ext", "bc:critical=ca:true"]
            self._keytool("-genkeypair", "-keyalg", "EC", "-validity", "3650", *name, *store)
            keystore.chmod(0o600)
            self._keytool("-exportcert", "-rfc", "-file", str(self.authority), *store)
        return keystore

    def _keytool(self, *arguments: str) -> None:
        tool = [str(distribution.java().with_name("keytool")), *arguments]
        try:
            subprocess.run(tool, check=True, capture_output=True, timeout=KEYTOOL_S, env={"LANG": "C.UTF-8"})
        except (subprocess.SubprocessError, OSError) as error:
            raise BrokerError(f"keytool could not make a certificate in {self._data}: {error}") from error
