"""Kafka's ACLs: gives principals exactly the rights of a table, in a request for all.

aiokafka's own requests carry one ACL each, which costs a write of the cluster's metadata for each. Sources: the Kafka protocol guide
(DescribeAcls, CreateAcls, DeleteAcls, version 1) and `AclOperation`, `ResourceType` of Kafka's clients for the codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from topics.contract.acl import Right
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.admin import DEADLINE_S, LOOK_S, unreachable
from topics.types.errors import NotReadyError

KINDS = {"topic": 2, "group": 3, "transactional-id": 5}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "AlterConfigs": 11}
LITERAL, PREFIXED = 3, 4
ALLOW = 3
ANY = 1
ALL = (ANY, None, ANY, None, None, ANY, ANY)
"""The filter of a DescribeAcls that every ACL passes."""
CLUSTER_AUTHORIZATION_FAILED = 31
"""Kafka's codes."""


class Acl(NamedTuple):
    """One ACL, in the order of Kafka's requests."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


async def apply(settings: Settings, wanted: Mapping[str, Iterable[Right]]) -> None:
    """Give each principal exactly these rights within the namespace, and return when every broker knows them; others keep theirs.

    The settings' user must be allowed to alter the cluster. Raises NotReadyError.
    """
    acls = {acl for principal, rights in wanted.items() for right in rights for acl in _acls(principal, right)}
    client = AIOKafkaAdminClient(**kafka.connection(settings))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await client.start()
            present = await _present(settings, client, wanted)
            if missing := acls - present:
                answer = await client._send_request(_Create(missing))
                _require_done(settings, answer.creation_responses)
            if superfluous := present - acls:
                answer = await client._send_request(_Delete(superfluous))
                _require_done(settings, answer.filter_responses)
            # The controller has them; each broker learns them a moment later.
            for broker in client._client.cluster.brokers():
                while await _present(settings, client, wanted, broker.nodeId) != acls:  # noqa: ASYNC110 - no broker announces it
                    await asyncio.sleep(LOOK_S)
    except (kafka.KafkaError, TimeoutError) as error:
        raise unreachable(settings, error) from None
    finally:
        await client.close()


def _acls(principal: str, right: Right) -> Iterable[Acl]:
    pattern = PREFIXED if right.prefixed else LITERAL
    for operation in right.operations:
        yield Acl(KINDS[right.kind], right.name, pattern, principal, "*", OPERATIONS[operation], ALLOW)


async def _present(
    settings: Settings, client: AIOKafkaAdminClient, principals: Collection[str], broker: int | None = None
) -> set[Acl]:
    """The principals' ACLs for names of the namespace, as a broker knows them, by default any. Raises NotReadyError."""
    answer = await client._send_request(DescribeAclsRequest(*ALL), broker)
    _require_done(settings, [(answer.error_code, answer.error_message)])
    found = {
        Acl(kind, name, pattern, *granted)
        for kind, name, pattern, all_granted in answer.resources
        for granted in all_granted
    }
    return {acl for acl in found if acl.principal in principals and acl.name.startswith(f"{settings.namespace}.")}


def _require_done(settings: Settings, answers: Iterable[tuple[Any, ...]]) -> None:
    for code, message, *_ in answers:
        if code == CLUSTER_AUTHORIZATION_FAILED:  # Kafka's message is an object of its own program
            user = settings.kafka_sasl_username
            client = "this client" if user is None else f"the login {user!r}"
            raise NotReadyError(
                f"Kafka at {settings.bootstrap} lets {client} see or change no ACLs: that takes the rights Describe and Alter on the "
                "cluster, which no login of a `polar up` has (its ACLs are set at each start). For a Kafka of yours, set "
                "POLAR_KAFKA_SASL_USERNAME and POLAR_KAFKA_SASL_PASSWORD_FILE to its administrator's login, or send its administrator the "
                "output of `polar topics acl --format commands`"
            )
        if code != 0:
            raise NotReadyError(f"Kafka refuses to change its ACLs: {message} (code {code})")


class _Create(CreateAclsRequest):  # type: ignore[misc] # aiokafka ships no types
    """Creates several ACLs."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._acls = sorted(acls)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._acls)


class _Delete(DeleteAclsRequest):  # type: ignore[misc] # aiokafka ships no types
    """Deletes several ACLs; each is its own filter."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._acls = sorted(acls)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._acls)
