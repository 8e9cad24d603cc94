"""What decides which sessions share a preparation."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.runtimes.preparation_names import names_of
from topics.types.runtime import RuntimeSpec

PREPARE = [{"type": "exec", "command": "true"}]


def name(**changes: Any) -> str:
    return names_of(
        "sha256:1", RuntimeSpec.model_validate({"image": "river:1", "workdir": "/app", "prepare": PREPARE, **changes})
    )[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {"path": ["/opt/bin"]},
        {"env": {"A": "b"}},
        {"workdir": "/srv"},
        {"setup_network": "host"},
        {"memory_mb": 64},
        {"prepare": [{"type": "exec", "command": "false"}]},
    ],
)
def test_what_a_preparation_sees_is_part_of_its_name(changes: dict[str, Any]) -> None:
    assert name(**changes) != name()


@pytest.mark.parametrize("changes", [{"network": "none"}, {"verifier_network": "host"}])
def test_what_it_does_not_see_is_not(changes: dict[str, Any]) -> None:
    assert name(**changes) == name()
