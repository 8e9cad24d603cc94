"""The table of rights, against the contracts; that it is enough is shown by a system that runs on it (`tests/security`)."""

from __future__ import annotations

import shlex
from collections import defaultdict
from itertools import pairwise

import pytest

from topics import stages, trajectories
from topics.contract import acl, catalogue
from topics.types.session import Stage

ALONE = {
    "tasks": {"submitter", "replayer"},
    "sessions": {"coordinator", "rebuild-table"},
    "fleet": {"trainer", "proxy"},
    "control": {"coordinator", "trainer"},
    "completions": {"coordinator", "rebuild-table", "builder", "proxy"},
    "webhooks": {"builder", "webhooks", "replayer"},
    "verifications": {"verifier"},
    trajectories.TOPIC.name: {"builder"},
    trajectories.EVAL.name: {
        "builder",
        "rebuild",
    },  # a prefix can't tell it from a name of one's own; the command refuses it
    **{stages.topic(stage, "default").name: {"coordinator"} for stage in Stage},
}
"""Who may write what others act on."""


def roles_that(operation: str, topic: str) -> set[str]:
    return {
        role
        for role in acl.ROLES
        for right in acl.rights(role, "ns")
        if right.kind == "topic"
        and operation in right.operations
        and (f"ns.{topic}".startswith(right.name) if right.prefixed else right.name == f"ns.{topic}")
    }


def test_every_topic_is_written_and_read_by_someone_and_decisions_by_their_owner_alone() -> None:
    for topic in (*catalogue.FIXED, *catalogue.of_pool("default")):
        assert roles_that("Write", topic.name), topic.name
        assert roles_that("Read", topic.name), topic.name
    assert {name: roles_that("Write", name) for name in ALONE} == ALONE


def test_who_drains_the_fleet_may_see_what_is_in_hand() -> None:
    assert "trainer" in roles_that("Read", "sessions")


def test_no_right_reaches_beyond_the_namespace() -> None:
    for role in acl.ROLES:
        for right in acl.rights(role, "ns"):
            assert right.name.startswith("ns."), (role, right)


@pytest.mark.parametrize("role", acl.ROLES)
def test_a_role_has_one_right_for_each_name_and_a_command_for_each(role: str) -> None:
    rights = acl.rights(role, "ns")
    assert len({(right.kind, right.name) for right in rights}) == len(rights)
    seen: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for line in acl.commands([role], "ns", {role: "User:Some One"}, "b:9092"):
        words = shlex.split(line)
        assert words[words.index("--allow-principal") + 1] == "User:Some One"
        seen[tuple(words)].update(word for before, word in pairwise(words) if before == "--operation")
    assert sorted(map(sorted, seen.values())) == sorted(sorted(right.operations) for right in rights)
