"""A whole system on a Kafka that lets nobody in unknown: each role a process and a Kafka user of its own, every secret marked.

As `tests/acceptance/fleet.py`, whose processes these are; beside them the roles that tell others. Passwords lie in files, as the
documentation asks for.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import certifi
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

from polar.embedded.properties import Security
from tests.acceptance.fleet import READY_S, ROLES, Fleet
from tests.kafka_cluster import Cluster
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.log import kafka

WORKERS = (*ROLES, "analytics", "webhooks")
USERS = (*WORKERS, "proxy", "admin", "submitter", "reader", "trainer", "rebuild", "replayer", "nobody")
"""By role; `nobody` has a password and no right at all."""
SUPER = "super"
"""Whom the authorizer doesn't judge: makes the topics, applies the rights, and reads for the tests."""
SIGNING = "marked-signing-secret-5c1f0e77a2"
CONTROL = "marked-control-token-81d2b06e3f"
WEBHOOK = "whsec_" + base64.b64encode(b"marked-webhook-secret-3f9a2b7c55").decode()
KINDS = {"--topic": 2, "--group": 3, "--transactional-id": 5}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "AlterConfigs": 11}
LITERAL, PREFIXED, ALLOW = 3, 4, 3
"""Kafka's codes."""
METRICS = re.compile(r"url=(http://\S+/metrics)")


def password(user: str) -> str:
    return f"marked-password-of-{user}-d40b"


async def allow(settings: Settings, lines: Sequence[str]) -> None:
    """What `kafka-acls.sh` would do with these command lines; the embedded Kafka comes without its tools."""
    admin = AIOKafkaAdminClient(**kafka.connection(settings))
    await admin.start()
    try:
        for line in lines:
            words = shlex.split(line)
            options = list(pairwise(words))
            (kind, name), (_, principal) = (
                next(pair for pair in options if pair[0] in names) for names in (KINDS, {"--allow-principal"})
            )
            pattern = PREFIXED if ("--resource-pattern-type", "prefixed") in options else LITERAL
            for operation in [value for option, value in options if option == "--operation"]:
                answer = await admin._send_request(
                    CreateAclsRequest(KINDS[kind], name, pattern, principal, "*", OPERATIONS[operation], ALLOW)
                )
                assert answer.creation_responses[0][0] == 0, (line, answer)
    finally:
        await admin.close()


@dataclass
class Secured(Fleet):
    """`nobody` but the role itself has its password in reach of its settings."""

    user: str = field(default="admin", init=False)
    """Whose settings the next process gets."""
    override: Mapping[str, str] = field(default_factory=dict, init=False)
    """What wins over them."""

    def _environment(self) -> dict[str, str]:
        return (
            super()._environment()
            | {
                # Beside its password: an address that polar.env alone names gets no secret of the environment.
                "POLAR_KAFKA": self.kafka.bootstrap,
                "POLAR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
                "POLAR_KAFKA_SASL_MECHANISM": "SCRAM-SHA-256",
                "POLAR_KAFKA_SASL_USERNAME": self.user,
                "POLAR_KAFKA_SASL_PASSWORD_FILE": str(self.secrets / f"{self.user}.password"),
                "POLAR_KAFKA_CA_FILE": str(self.data / "kafka" / "authority.pem"),
                "POLAR_CONTROL_TOKEN_FILE": str(self.secrets / "control.token"),
                "POLAR_WEBHOOK_SECRET_FILE": str(self.secrets / "webhook.secret"),
                "POLAR_KEYS_FILE": str(self.secrets / "keys.json"),
                "POLAR_TRUST_TASKS": "true",
            }
            | dict(self.override)
        )

    @property
    def strangers(self) -> Path:
        """An authority that has signed nothing here."""
        return Path(certifi.where())

    @property
    def secrets(self) -> Path:
        return self.data / "secrets"

    async def start(self, name: str) -> None:
        """A process of the role before the dash, as its user; a worker's figures are served."""
        self.user, self.override = name.partition("-")[0], {}
        if self.user in WORKERS:
            await self.spawn(name, "polar.cli", "worker", self.user, "--data", str(self.data), "--metrics-port", "0")
        else:
            await super().start(name)

    async def polar_as(
        self, user: str, *arguments: str, stdin: str = "", settings: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, str, str]:
        """Run a command of the CLI as this user; exit code, stdout, stderr. `settings` win over the user's."""
        # Read by `polar` before it first waits: several commands may be started side by side.
        self.user, self.override = user, settings
        return await self.polar(*arguments, stdin=stdin)

    def log(self, name: str) -> str:
        return (self.data / "logs" / f"{name}.log").read_text()

    async def metrics_url(self, name: str) -> str:
        """Where a worker serves its figures."""
        found = await eventually(lambda: METRICS.search(self.log(name)), READY_S, every_s=0.1)
        return found[1]

    @property
    def control_url(self) -> str:
        url: str = json.loads((self.data / "proxy.ready").read_text())["control_url"]
        return url

    def write_secrets(self) -> None:
        self.secrets.mkdir(mode=0o700)
        for user in USERS:
            (self.secrets / f"{user}.password").write_text(password(user) + "\n")
        (self.secrets / "keys.json").write_text(json.dumps({"k1": SIGNING}))
        (self.secrets / "control.token").write_text(CONTROL + "\n")
        (self.secrets / "webhook.secret").write_text(WEBHOOK + "\n")


@asynccontextmanager
async def secured(data: Path, names: Sequence[str], *engine_options: str) -> AsyncIterator[Secured]:
    """A system with these workers; all of it is stopped at the end."""
    for folder in (data, data / "kafka"):
        folder.mkdir(exist_ok=True)
    security = Security(
        "SASL_SSL",
        users={user: password(user) for user in (*USERS, SUPER)},
        scram=True,
        super_users=frozenset({SUPER}),
        authorizer=True,
    )
    cluster = Cluster(data / "kafka", 1, announce=print, security=security)
    await asyncio.to_thread(cluster.start)
    settings = Settings(
        kafka=cluster.bootstrap,
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_username=SUPER,
        kafka_sasl_password=password(SUPER),
        kafka_ca_file=cluster.authority,
        data=data,
        replication=1,
        min_insync=1,
    )
    made = Secured(data, cluster.broker(1), settings)
    try:
        made.write_secrets()
        made.write_env()
        code, lines, said = await made.polar("topics", "acl", "--format", "commands")
        assert code == 0, said
        await allow(settings, lines.splitlines())
        await made.boot(names, *engine_options)
        yield made
    finally:
        await made.stop()
