"""What a node's server.properties says."""

import pytest

from polar.embedded.properties import Node, Ports, Security, server_properties

THREE = (Ports(1, 2), Ports(3, 4), Ports(5, 6))


def properties(node: Node) -> dict[str, str]:
    lines = server_properties(node, "data").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_a_lone_node_holds_the_only_copy() -> None:
    alone = Node(1, THREE[:1], "id")
    found = properties(alone)
    assert (found["offsets.topic.replication.factor"], found["transaction.state.log.min.isr"]) == ("1", "1")
    assert found["controller.quorum.bootstrap.servers"] == "127.0.0.1:2"
    assert alone.format_options() == ["-t", "id", "--standalone"]


def test_three_nodes_hold_three_copies_of_which_two_must_be_in_sync() -> None:
    second = Node(2, THREE, "id")
    found = properties(second)
    assert found["node.id"] == "2"
    assert found["listeners"] == "BROKER://127.0.0.1:3,CONTROLLER://127.0.0.1:4"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:2,2@127.0.0.1:4,3@127.0.0.1:6"
    assert (found["transaction.state.log.replication.factor"], found["transaction.state.log.min.isr"]) == ("3", "2")
    assert (found["offsets.topic.replication.factor"], found["min.insync.replicas"]) == ("3", "2")
    assert found["unclean.leader.election.enable"] == "false"
    assert second.format_options() == ["-t", "id"]
    assert second.address == "127.0.0.1:3"


def test_an_authorizer_without_names_is_refused() -> None:
    with pytest.raises(AssertionError, match="ANONYMOUS"):
        Security("SSL", authorizer=True)


def test_passwords_are_not_shown() -> None:
    security = Security("SASL_PLAINTEXT", users={"alice": "a-secret"})
    assert "a-secret" not in repr(security)
    assert security.node_password not in repr(security)
